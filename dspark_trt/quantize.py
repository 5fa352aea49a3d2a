"""Weights in eight bits, as ONNX Runtime's MatMulNBits reads them.

A row of a weight [out, in] is cut into blocks of BLOCK_SIZE columns; each block has one float32
scale and unsigned bytes around 128: `w = scale * (byte - 128)`. Knows no graph and no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_SIZE = 32
"""Columns that share a scale."""
ZERO_POINT = 128
ROWS_AT_ONCE = 4096
"""Rows quantised together: bounds the scratch memory for a large lm_head."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """packed: [out, ceil(in / BLOCK_SIZE), BLOCK_SIZE] uint8; scales: [out, blocks] float32."""

    packed: Array
    scales: Array


def quantize_int8(weight: Array) -> Int8Weight:
    """Round each block to 255 levels between minus and plus its largest magnitude.

    weight: [out, in] float32. The error of an element is at most half a step, `max|block| / 254`.
    """
    num_rows, num_columns = weight.shape
    num_blocks = -(-num_columns // BLOCK_SIZE)
    packed = np.full((num_rows, num_blocks, BLOCK_SIZE), ZERO_POINT, np.uint8)
    scales = np.zeros((num_rows, num_blocks), np.float32)
    for start in range(0, num_rows, ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, num_rows))
        blocks = np.zeros((rows.stop - start, num_blocks * BLOCK_SIZE), np.float32)
        blocks[:, :num_columns] = weight[rows]
        blocks = blocks.reshape(-1, num_blocks, BLOCK_SIZE)
        step = np.abs(blocks).max(axis=2) / np.float32(127)
        # A block of zeros keeps scale 0; dividing by 1 instead leaves its bytes at the zero point.
        levels = np.rint(blocks / np.where(step > 0, step, 1)[:, :, None])
        packed[rows] = (levels + ZERO_POINT).astype(np.uint8)
        scales[rows] = step
    return Int8Weight(packed, scales)


def dequantize_int8(weight: Int8Weight, num_columns: int) -> Array:
    """The float32 weight [out, num_columns] that the bytes stand for."""
    levels = weight.packed.astype(np.float32) - ZERO_POINT
    values = (levels * weight.scales[:, :, None]).reshape(len(weight.packed), -1)
    return np.ascontiguousarray(values[:, :num_columns])
