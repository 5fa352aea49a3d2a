"""Philox4x32-10: the reference against published answers; the operators' numbers are judged through their draws."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_runtime import dspark_ops
from tests.plugins.sampling import same
from tests.reference import philox

KNOWN = [
    # Random123's known-answer file: counter, key, words.
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_published_counters_give_published_words(counter, key, words):
    assert philox.philox4x32_10(counter, key).tolist() == list(words)


def test_gumbel_extreme_words_stay_finite_and_below_the_documented_bound():
    words = np.array([0.0, 2.0**32 - 1])
    noise = -np.log(-np.log1p(-(words + 0.5) * 2.0**-32))
    assert np.isfinite(noise).all()
    assert noise.max() < 22.88
    assert noise.min() > -3.14


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
@pytest.mark.parametrize("vocab", [1, 3, 64, 67, 500])
def test_operator_draw_from_a_flat_row_takes_the_largest_reference_noise(seed, vocab):
    """On a flat row argmax(log p + g) = argmax g: every bit of key, counter, group and lane has to be right."""
    for position in (0, 7, 2**20, 2**31 - 2):
        logits = np.zeros((1, vocab), np.float32)
        sampling = same(accept_mode=2, seed=seed, sample_index=position % 5, anchor_position=position)
        _, tokens, *_ = dspark_ops.accept(logits=logits, row_offsets=np.array([0, 1], np.int32), **sampling)
        noise = philox.gumbel(seed, position + 1, philox.COUPLED, 0, position % 5, np.arange(vocab))
        assert tokens[0, 0] == int(np.argmax(noise))
