"""Rotary frequencies of every type against transformers, and tables far out."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from dspark_trt.config import RopeConfig
from dspark_trt.graph.rope import inverse_frequencies, rope_tables

LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize("kind, values", [("default", {}), ("linear", {"factor": 4.0}), ("llama3", LLAMA3)])
def test_rope_frequencies_equal_transformers(kind: str, values: dict[str, float]) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": kind, "rope_theta": 500_000.0, **values},
    )
    wanted = LlamaRotaryEmbedding(config).inv_freq.numpy()
    got = inverse_frequencies(RopeConfig(type=kind, theta=500_000.0, **values), 64)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_rope_tables_are_exact_at_far_positions() -> None:
    cos, sin = rope_tables(RopeConfig(theta=10_000.0), 8, 5000)
    assert cos.shape == sin.shape == (5000, 4) and cos.dtype == sin.dtype == np.float32
    frequency = 10_000.0 ** (-2 / 8)
    assert cos[4999, 1] == np.float32(np.cos(4999 * frequency))
    assert sin[4999, 0] == np.float32(np.sin(4999.0))
