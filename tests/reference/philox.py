"""Philox4x32-10 (Salmon et al. 2011) and the noise that the operators draw from it (docs/architecture.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

COUPLED, DRAFT, ACCEPT, RESIDUAL, BONUS = range(5)
"""Purposes: low byte of counter word 1."""

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32_10(counter: ArrayLike, key: tuple[int, int]) -> NDArray[np.uint64]:
    """Ten rounds over counters [..., 4] with one key; returns words [..., 4] below 2^32.

    One round: (c0, c1, c2, c3) -> (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)); keys grow by Weyl.
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint64) & _LOW, -1, 0)
    k0, k1 = key
    for _ in range(10):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (second >> _SHIFT) ^ c1 ^ np.uint64(k0),
            second & _LOW,
            (first >> _SHIFT) ^ c3 ^ np.uint64(k1),
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def _words(
    seed: int, position: int, purpose: int, k: int, sample_index: int, groups: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Words [G, 4] of the token groups (id >> 2), counter (position, purpose | k << 8, group, sample index)."""
    bits = int(seed) & 0xFFFFFFFFFFFFFFFF
    counter = np.zeros((len(groups), 4), dtype=np.uint64)
    counter[:, 0] = position & 0xFFFFFFFF
    counter[:, 1] = purpose | k << 8
    counter[:, 2] = groups.astype(np.uint64)
    counter[:, 3] = sample_index & 0xFFFFFFFF
    return philox4x32_10(counter, (bits & 0xFFFFFFFF, bits >> 32))


def uniform(seed: int, position: int, purpose: int, k: int, sample_index: int = 0) -> float:
    """w = (i + 0.5) * 2^-32 of word 0 of token group 0, in (0, 1)."""
    word = _words(seed, position, purpose, k, sample_index, np.zeros(1, dtype=np.int64))[0, 0]
    return (float(word) + 0.5) * 2.0**-32


def gumbel(seed: int, position: int, purpose: int, k: int, sample_index: int, ids: ArrayLike) -> NDArray[np.float64]:
    """g = -log(-log1p(-w)) for every target id: word id & 3 of group id >> 2."""
    ids = np.asarray(ids, dtype=np.int64)
    words = _words(seed, position, purpose, k, sample_index, ids >> 2)[np.arange(len(ids)), ids & 3]
    noise: NDArray[np.float64] = -np.log(-np.log1p(-(words.astype(np.float64) + 0.5) * 2.0**-32))
    return noise
