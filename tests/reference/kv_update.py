"""TRT_KVCacheUpdate in NumPy, written from the contract in dspark_ops.h."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def kv_update(
    cache: NDArray[np.float32],
    update: NDArray[np.float32],
    write_indices: NDArray[np.int32],
    update_lengths: NDArray[np.int32] | None = None,
) -> NDArray[np.float32]:
    """A new cache with cache[b, :, write_indices[b] + s, :] = row of token s of slot b; nothing else changes.

    cache [B, Hkv, S, D]; update [T, Hkv, D] with update_lengths [B+1] cumulative, or [B, Hkv, Q, D] without.
    """
    present = cache.copy()
    for b, start in enumerate(write_indices):
        if update_lengths is None:
            rows = update[b]
        else:
            rows = update[update_lengths[b] : update_lengths[b + 1]].transpose(1, 0, 2)
        if rows.shape[1]:
            present[b, :, start : start + rows.shape[1]] = rows
    return present
