"""Sampling parameters of tests, as the arrays that operators take and as the records that references take."""

from __future__ import annotations

import numpy as np

from tests.reference.filters import Sampling

CLOSE = 1e-6
"""Relative lead of a decision below which rounding may decide otherwise."""

FIELDS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "accept_mode": np.int32,
    "seed": np.int64,
    "sample_index": np.int32,
    "anchor_position": np.int32,
}


def arrays(requests: list[Sampling]) -> dict[str, np.ndarray]:
    return {name: np.array([getattr(r, name) for r in requests], dtype=dtype) for name, dtype in FIELDS.items()}


def same(**options: object) -> dict[str, np.ndarray]:
    """Arrays for one request."""
    return arrays([Sampling(**options)])  # type: ignore[arg-type]


FILTERS = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5},
    "top_k_1": {"top_k": 1},
    "top_k_beyond_vocabulary": {"top_k": 10**6},
    "top_p": {"top_p": 0.8},
    "tiny_top_p": {"top_p": 1e-6},
    "min_p": {"min_p": 0.1},
    "min_p_1": {"min_p": 1.0},
    "all": {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "top_p_min_p": {"temperature": 0.8, "top_p": 0.95, "min_p": 0.01},
}
"""Filter settings by name; every sampling test runs through all."""
