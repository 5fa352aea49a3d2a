"""TRT_Attention in float64 NumPy, written from the contract in dspark_ops.h: one softmax per row, no blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NONE, UPPER_LEFT, LOWER_RIGHT = 0, 1, 2


def visible_keys(causal: int, keys: int, queries: int, i: int) -> int:
    """Keys that query i of `queries` sees: the first n of `keys` valid ones."""
    limit = {NONE: keys, UPPER_LEFT: i + 1, LOWER_RIGHT: keys - queries + i + 1}[causal]
    return max(0, min(keys, limit))


def attend(
    query: NDArray[np.float32], key: NDArray[np.float32], value: NDArray[np.float32], causal: int
) -> NDArray[np.float64]:
    """o = softmax(q k^T) v for one slot, no scaling; a query that sees no key gives zeros.

    query [Q, H, D]; key and value [Hkv, n, D], the valid rows only. Head h reads key/value head h // (H / Hkv).
    """
    queries, heads, _ = query.shape
    group = heads // key.shape[0]
    output = np.zeros(query.shape, np.float64)
    for i in range(queries):
        n = visible_keys(causal, key.shape[1], queries, i)
        for h in range(heads if n else 0):
            scores = key[h // group, :n].astype(np.float64) @ query[i, h].astype(np.float64)
            weights = np.exp(scores - scores.max())
            output[i, h] = weights @ value[h // group, :n].astype(np.float64) / weights.sum()
    return output


def attention_packed(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    query_lengths: NDArray[np.int32],
    kv_lengths: NDArray[np.int32],
    causal: int,
) -> NDArray[np.float64]:
    """query [T, H, D], query_lengths [B+1] cumulative (rows past the last give zeros); caches [B, Hkv, S, D]."""
    output = np.zeros(query.shape, np.float64)
    for b, n in enumerate(kv_lengths):
        rows = slice(query_lengths[b], query_lengths[b + 1])
        output[rows] = attend(query[rows], key[b, :, :n], value[b, :, :n], causal)
    return output


def attention_padded(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    kv_lengths: NDArray[np.int32],
    causal: int,
) -> NDArray[np.float64]:
    """query [B, H, Q, D]; every slot has all Q queries."""
    output = np.zeros(query.shape, np.float64)
    for b, n in enumerate(kv_lengths):
        rows = attend(query[b].transpose(1, 0, 2), key[b, :, :n], value[b, :, :n], causal)
        output[b] = rows.transpose(1, 0, 2)
    return output
