"""markov_w2, the one large matrix of the sequential head, in fewer bytes than float32. Knows no graph and no model.

Proposals change a little with it, the output does not: the target decides, against the distribution that the draft
really drew from.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ROWS_AT_ONCE = 8192
"""Rows converted together: bounds the scratch memory for a large vocabulary."""


def store_markov_w2(weight: Array, storage: str) -> dict[str, Array]:
    """`markov_w2` as DSparkDraft reads it, and `markov_w2_scales` where the storage has any.

    weight: [Vd, r] float32. bfloat16: rounded to the nearest, ties to even. int8: w = scale * q with one float32 scale
    per row, max|row| / 127, and q in [-127, 127]: an element is off by at most half a scale.
    """
    if storage == "float32":
        return {"markov_w2": weight}
    if storage == "bfloat16":
        return {"markov_w2": weight.astype(ml_dtypes.bfloat16)}
    assert storage == "int8"
    levels = np.empty(weight.shape, np.int8)
    scales = np.empty(len(weight), np.float32)
    for start in range(0, len(weight), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        scales[rows] = np.abs(weight[rows]).max(axis=1) / np.float32(127)
        # A row of zeros keeps scale 0; dividing by 1 instead leaves its bytes at 0.
        step = np.where(scales[rows] > 0, scales[rows], 1)[:, None]
        levels[rows] = np.rint(weight[rows] / step).clip(-127, 127).astype(np.int8)
    return {"markov_w2": levels, "markov_w2_scales": scales}


def load_markov_w2(arrays: dict[str, Array]) -> Array:
    """The float32 weight [Vd, r] that stored arrays stand for."""
    weight = arrays["markov_w2"].astype(np.float32)
    scales = arrays.get("markov_w2_scales")
    return weight if scales is None else weight * scales[:, None]
