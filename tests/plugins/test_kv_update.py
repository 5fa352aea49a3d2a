"""TRT_KVCacheUpdate through the Python binding, against the NumPy reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_runtime import dspark_ops
from tests.reference.kv_update import kv_update


def floats(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("width", [1, 8, 63, 64, 128])
@pytest.mark.parametrize("heads", [1, 3])
def test_kv_update_packed_writes_each_slot_at_its_index(width: int, heads: int) -> None:
    cache = floats((4, heads, 20, width), 1)
    lengths = np.array([0, 3, 3, 4, 11], np.int32)
    update = floats((11, heads, width), 2)
    starts = np.array([17, 99, 0, 5], np.int32)  # slot 1 is idle: its index is never looked at
    wanted = kv_update(cache, update, starts, lengths)
    dspark_ops.kv_update(cache=cache, update=update, write_indices=starts, update_lengths=lengths)
    np.testing.assert_array_equal(cache, wanted)


def test_kv_update_packed_rows_past_the_last_length_are_ignored() -> None:
    cache = floats((2, 2, 8, 4), 1)
    update = floats((5, 2, 4), 2)
    update[3:] = np.nan
    lengths = np.array([0, 1, 3], np.int32)
    starts = np.array([2, 6], np.int32)
    dspark_ops.kv_update(cache=cache, update=update, write_indices=starts, update_lengths=lengths)
    assert np.isfinite(cache).all()


@pytest.mark.parametrize("queries", [1, 5])
def test_kv_update_padded_writes_all_rows(queries: int) -> None:
    cache = floats((3, 2, 9, 6), 1)
    update = floats((3, 2, queries, 6), 2)
    starts = np.array([0, 4, 9 - queries], np.int32)
    wanted = kv_update(cache, update, starts)
    dspark_ops.kv_update(cache=cache, update=update, write_indices=starts)
    np.testing.assert_array_equal(cache, wanted)


def test_kv_update_large_update_is_the_same_on_one_thread_and_many() -> None:
    lengths = np.array([0, 300, 600], np.int32)
    update = floats((600, 4, 64), 2)
    starts = np.array([10, 0], np.int32)
    caches = [floats((2, 4, 320, 64), 1) for _ in range(2)]
    for cache, parallel in zip(caches, (False, True), strict=True):
        dspark_ops.kv_update(
            cache=cache, update=update, write_indices=starts, update_lengths=lengths, parallel=parallel
        )
    np.testing.assert_array_equal(caches[0], caches[1])
    np.testing.assert_array_equal(caches[0], kv_update(floats((2, 4, 320, 64), 1), update, starts, lengths))


@pytest.mark.parametrize(
    ("starts", "lengths", "message"),
    [
        ([0, 7], [0, 1, 3], r"slot 1 writes 2 rows at 7, needs to stay in \[0, 8\)"),
        ([-1, 0], [0, 1, 3], "slot 0 writes 1 rows at -1"),
        ([0, 0], [1, 1, 3], r"update_lengths\[0\] is 1, needs 0"),
        ([0, 0], [0, 2, 1], r"update_lengths\[2\] is 1, needs at least the entry before it, 2"),
        ([0, 0], [0, 2, 4], r"update_lengths\[2\] is 4, needs at most the 3 packed rows"),
    ],
)
def test_kv_update_bad_lengths_are_refused_and_nothing_is_written(
    starts: list[int], lengths: list[int], message: str
) -> None:
    cache = floats((2, 2, 8, 4), 1)
    before = cache.copy()
    with pytest.raises(ValueError, match=message):
        dspark_ops.kv_update(
            cache=cache,
            update=floats((3, 2, 4), 2),
            write_indices=np.array(starts, np.int32),
            update_lengths=np.array(lengths, np.int32),
        )
    np.testing.assert_array_equal(cache, before)
