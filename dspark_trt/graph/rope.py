"""Rotary position tables: cosines and sines per position, for every rope type that we support."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dspark_trt.config import RopeConfig

Array = np.ndarray[Any, np.dtype[Any]]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Array:
    """`theta^(-2i/D)` for i in [0, D/2), stretched by the rope type. [D/2] float64, radians per token.

    linear: divided by `factor`. llama3: wavelengths longer than `original / low_freq_factor` are
    divided by `factor`, those shorter than `original / high_freq_factor` kept, between them
    interpolated in `original / wavelength` (as transformers' `ROPE_INIT_FUNCTIONS`).
    """
    frequencies: Array = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.type == "linear":
        return frequencies / rope.factor
    if rope.type == "llama3":
        turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
        share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        share = np.clip(share, 0.0, 1.0)
        return (1 - share) * frequencies / rope.factor + share * frequencies
    return frequencies


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Array, Array]:
    """Cosines and sines of `position * frequency`, each [num_positions, D/2] float32."""
    angles = np.outer(np.arange(num_positions, dtype=np.float64), inverse_frequencies(rope, head_dim))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
