"""DSparkLinear in float64 NumPy, read out of the words as dspark_ops.h lays them out: no tiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def _half(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    return bits.astype(np.uint16).view(np.float16).astype(np.float64)


def unpack(words: NDArray[np.int32], storage: str, out_features: int) -> NDArray[np.float64]:
    """The weight [N, K] that words [ceil(N / 64), words of a column, 64] stand for."""
    slabs, count, lanes = words.shape
    columns = words.transpose(0, 2, 1).reshape(slabs * lanes, count).view(np.uint32)[:out_features]
    if storage == "bf16":
        halves = np.stack([columns << 16, columns & 0xFFFF0000], axis=-1)
        return halves.reshape(out_features, -1).view(np.float32).astype(np.float64)
    per_block = {"q8_0": 9, "q4_1": 5}[storage]
    blocks = columns.reshape(out_features, -1, per_block)
    head, body = blocks[:, :, 0], blocks[:, :, 1:]
    if storage == "q8_0":
        shifts = np.arange(0, 32, 8, dtype=np.uint32)
        q = ((body[..., None] >> shifts) & 0xFF).astype(np.uint8).view(np.int8).astype(np.float64)
        values = head.copy().view(np.float32).astype(np.float64)[:, :, None, None] * q
    else:
        shifts = np.arange(0, 32, 4, dtype=np.uint32)
        q = ((body[..., None] >> shifts) & 0xF).astype(np.float64)
        values = _half(head & 0xFFFF)[:, :, None, None] * q + _half(head >> 16)[:, :, None, None]
    return values.reshape(out_features, -1)


def linear(
    x: NDArray[np.float32],
    words: NDArray[np.int32],
    storage: str,
    out_features: int,
    bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float64]:
    """y[m, n] = sum_k x[m, k] w[n, k] + bias[n]. x: [M, K] -> [M, N]."""
    y = x.astype(np.float64) @ unpack(words, storage, out_features).T
    return y if bias is None else y + bias.astype(np.float64)
