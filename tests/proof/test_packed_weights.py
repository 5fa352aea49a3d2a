"""On the real model, weights kept as the checkpoint has them say token for token what float32 weights say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.proof.prompts import ARITHMETIC, CHAT, CODE

pytestmark = pytest.mark.slow


def test_smollm2_greedy_output_equals_that_of_float32_weights(
    smollm2_gguf: Path, smollm2_dspark: Path, tmp_path: Path
) -> None:
    prompts = [*CHAT[:2], *ARITHMETIC[:2], *CODE[:2]]
    outputs, sizes = [], []
    for storage in ("float32", "checkpoint"):
        config = BuildConfig(
            target=smollm2_gguf, draft=smollm2_dspark, output=tmp_path / storage, max_seq_len=512, storage=storage
        )
        with LLM(build(config)) as llm:
            assert llm.manifest.target.storage == ("float32" if storage == "float32" else "bf16+q4_1+q8_0")
            for speculative in (SpeculativeParams(enabled=False), SpeculativeParams(cutoff="all")):
                params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, speculative=speculative)
                outputs.append([output.token_ids for output in llm.generate(prompts, params)])
        sizes.append((tmp_path / storage / "target.weights").stat().st_size)
    assert outputs == [outputs[0]] * 4
    assert sizes[1] < sizes[0] / 2
