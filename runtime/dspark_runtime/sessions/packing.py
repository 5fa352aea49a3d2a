"""The tokens of a step as the arrays that a graph reads, in every dialect (docs/architecture.md).

Packed: the tokens of all slots lie one after the other, slots ascending. The padded forms add where each token
sits in [B, Q]: LEFT-padded for TensorRT's attention, RIGHT-padded for the standard dialect, whose TensorScatter
writes the padding rows too, behind the valid ones.
"""

from __future__ import annotations

import numpy as np

from dspark_runtime.contract import names
from dspark_runtime.sessions.base import Array, IntArray, Session, Tensor
from dspark_runtime.sessions.buffers import Buffer


class Packer:
    """Makes the shared inputs of one graph for steps over `num_slots` bound slots."""

    def __init__(
        self, session: Session, dialect: str, num_slots: int, capacity: int, causal: bool, min_rows: int = 1
    ) -> None:
        """min_rows: fewest tokens of a step; missing ones become rows that belong to no slot."""
        self._num_slots = num_slots
        self._capacity = capacity
        self._causal = causal
        self._min_rows = min_rows
        self._standard = dialect == "standard"
        self._padded = names.QUERY_ROWS in session.inputs
        make = session.tensor
        self._token_ids = Buffer(np.int32, make)
        self._positions = Buffer(np.int64, make)
        self._update_lengths = Buffer(np.int32, make).view(num_slots + 1)
        self._write_indices = Buffer(np.int32, make).view(num_slots)
        self._kv_lengths = Buffer(np.int32, make).view(num_slots)
        self._query_rows = Buffer(np.int32, make)
        self._output_rows = Buffer(np.int32, make)
        self._mask = Buffer(np.bool_, make)
        self._counts = np.zeros(num_slots, np.int32)
        self._idle = np.zeros(num_slots, np.int32)

    def protect(self, slot: int | IntArray, rows: int | IntArray) -> None:
        """Rows of a slot (or several) that steps without it must leave alone: the standard dialect writes padding."""
        self._idle[slot] = rows

    def pack(self, slots: IntArray, starts: IntArray, counts: IntArray, token_ids: IntArray) -> dict[str, Tensor]:
        """Inputs of a step. slots [R] ascending; starts [R]: cache row of a slot's first token; counts [R] >= 1;
        token_ids [T], T = sum of counts, R <= T."""
        total = len(token_ids)
        rows = max(total, self._min_rows)
        ends = np.cumsum(counts, dtype=np.int32)
        # Position of token t: where its slot starts, plus its place among the slot's tokens.
        places = np.arange(total, dtype=np.int64)
        positions = places + np.repeat(starts - ends + counts, counts)
        tensors = {
            names.TOKEN_IDS: self._token_ids.view(rows),
            names.POSITIONS: self._positions.view(rows),
            names.WRITE_INDICES: self._write_indices,
            names.UPDATE_LENGTHS: self._update_lengths,
            names.KV_LENGTHS: self._kv_lengths,
        }
        _fill(tensors[names.TOKEN_IDS].array, token_ids)
        _fill(tensors[names.POSITIONS].array, positions)
        self._counts[:] = 0
        self._counts[slots] = counts
        np.cumsum(self._counts, out=self._update_lengths.array[1:])
        self._write_indices.array[:] = self._idle
        self._write_indices.array[slots] = starts
        self._kv_lengths.array[:] = 0
        self._kv_lengths.array[slots] = starts + counts
        if self._padded:
            self._pad(tensors, slots, starts, counts, ends, rows)
        return tensors

    def _pad(
        self, tensors: dict[str, Tensor], slots: IntArray, starts: IntArray, counts: IntArray, ends: IntArray, rows: int
    ) -> None:
        longest = int(counts.max())
        columns = np.arange(longest, dtype=np.int32)
        shift = np.zeros_like(counts) if self._standard else longest - counts
        place = columns[None, :] - shift[:, None]
        valid = (place >= 0) & (place < counts[:, None])
        query_rows = tensors[names.QUERY_ROWS] = self._query_rows.view(self._num_slots, longest)
        query_rows.array[:] = 0
        query_rows.array[slots] = np.where(valid, (ends - counts)[:, None] + place, 0)
        output_rows = tensors[names.OUTPUT_ROWS] = self._output_rows.view(rows)
        total = int(ends[-1])
        first = slots * longest + shift - (ends - counts)
        _fill(output_rows.array, np.arange(total, dtype=np.int32) + np.repeat(first, counts))
        if self._standard:
            last_key = np.zeros((self._num_slots, longest), np.int32)
            # Queries that mean nothing see key 0: a row without any key would be 0/0.
            last_key[slots] = np.where(valid, starts[:, None] + (place if self._causal else counts[:, None] - 1), 0)
            mask = tensors[names.ATTENTION_MASK] = self._mask.view(self._num_slots, 1, longest, self._capacity)
            keys = np.arange(self._capacity, dtype=np.int32)
            np.less_equal(keys, last_key[:, None, :, None], out=mask.array)


def _fill(array: Array, values: Array) -> None:
    """`values` in front, zeros (a token and a position that exist) behind."""
    array[: len(values)] = values
    array[len(values) :] = 0
