"""A weight in the form a checkpoint stores it, and the words that DSparkLinear reads.

Every form stands for float32 values exactly: a bfloat16 is the upper half of a float32; d * q has at most 11 + 8
significant bits, and d * q + m rounds once, as dequantising to float32 does. Knows no file, no graph and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("bf16", "q8_0", "q4_1")
"""Stored forms that DSparkLinear reads, as its attribute `storage` names them."""
BLOCK_SIZE = 32
"""Columns that share a scale (q8_0, q4_1)."""
SLAB = 64
"""Rows of a weight whose words DSparkLinear wants side by side."""
ROWS_AT_ONCE = 64 * SLAB
"""Rows packed together: bounds the scratch memory for a large lm_head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A weight [out, in]. bf16: w = values; q8_0: w = d * values; q4_1: w = d * values + m, by block of 32 columns."""

    kind: str
    """One of KINDS."""
    values: Array
    """[out, in]: the bits as uint16 (bf16), int8 (q8_0), or 0..15 as uint8 (q4_1)."""
    d: Array | None = None
    """[out, in / 32] float16; None for bf16."""
    m: Array | None = None
    """[out, in / 32] float16, of q4_1 alone."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def fits(self) -> bool:
        """Whether DSparkLinear takes this number of columns."""
        return self.shape[1] % (2 if self.kind == "bf16" else BLOCK_SIZE) == 0

    def rows(self, wanted: Array | slice) -> Stored:
        """Those rows, in the order of `wanted`."""
        return self.map(lambda array: array[wanted])

    def map(self, change: Callable[[Array], Array]) -> Stored:
        """`change` applied to every array, whose first axis is the rows."""
        values, d, m = (None if a is None else change(a) for a in (self.values, self.d, self.m))
        assert values is not None
        return Stored(kind=self.kind, values=values, d=d, m=m)

    def unpack(self) -> Array:
        """The float32 values, [out, in]."""
        if self.kind == "bf16":
            return (self.values.astype(np.uint32) << 16).view(np.float32)
        assert self.d is not None
        blocks = self.values.reshape(self.shape[0], -1, BLOCK_SIZE).astype(np.float32)
        blocks *= self.d.astype(np.float32)[:, :, None]
        if self.m is not None:
            blocks += self.m.astype(np.float32)[:, :, None]
        return blocks.reshape(self.shape)


def concatenate(parts: Sequence[Stored]) -> Stored:
    """The rows of all parts, which are of one kind, one after another."""

    def joined(arrays: Sequence[Array | None]) -> Array | None:
        present = [array for array in arrays if array is not None]
        return np.concatenate(present) if present else None

    values = joined([part.values for part in parts])
    assert values is not None and len({part.kind for part in parts}) == 1
    d, m = joined([part.d for part in parts]), joined([part.m for part in parts])
    return Stored(kind=parts[0].kind, values=values, d=d, m=m)


def pack(stored: Stored) -> Array:
    """The words of DSparkLinear (layout: plugins/include/dspark/dspark_ops.h), int32 [ceil(out / 64), words, 64]."""
    num_rows = stored.shape[0]
    parts = [_pack(stored.rows(slice(i, i + ROWS_AT_ONCE))) for i in range(0, num_rows, ROWS_AT_ONCE)]
    return np.concatenate(parts)


def _pack(stored: Stored) -> Array:
    missing = -stored.shape[0] % SLAB
    if missing:
        stored = stored.map(lambda array: np.pad(array, ((0, missing), (0, 0))))
    rows = stored.shape[0]
    if stored.kind == "bf16":
        words = _words(stored.values)
    elif stored.kind == "q8_0":
        assert stored.d is not None
        head = stored.d.astype("<f4").view("<u4")
        words = _with_heads(head, _words(stored.values.view(np.uint8)))
    else:
        assert stored.d is not None and stored.m is not None
        head = _words(np.stack([stored.d, stored.m], axis=-1).astype("<f2").view("<u2")).reshape(rows, -1)
        words = _with_heads(head, _words(stored.values[:, ::2] | stored.values[:, 1::2] << 4))
    lanes = words.reshape(rows // SLAB, SLAB, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(lanes).view(np.int32)


def _words(values: Array) -> Array:
    """Unsigned integers as 32-bit words, the first in the lowest bits. [..., n] -> [..., n * itemsize / 4] uint32."""
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).view("<u4")


def _with_heads(head: Array, words: Array) -> Array:
    """head [out, blocks] before the words of its block. words: [out, blocks * n] -> [out, blocks * (1 + n)]."""
    rows, blocks = head.shape
    return np.concatenate([head[:, :, None], words.reshape(rows, blocks, -1)], axis=2).reshape(rows, -1)
