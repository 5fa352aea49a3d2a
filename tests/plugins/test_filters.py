"""Temperature, top-k, top-p, min-p as the operators apply them, seen through what can be drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from tests.plugins.sampling import CLOSE, FILTERS, arrays
from tests.reference import philox
from tests.reference.filters import Sampling, draw, filtered

OFFSETS = np.array([0, 1], np.int32)


def drawn(logits: np.ndarray, sampling: Sampling) -> int:
    _, tokens, *_ = dspark_ops.accept(logits=logits[None], row_offsets=OFFSETS, **arrays([sampling]))
    return int(tokens[0, 0])


def expected(logits: np.ndarray, sampling: Sampling) -> tuple[int, float]:
    row = filtered(logits, sampling)
    noise = philox.gumbel(
        sampling.seed, sampling.anchor_position + 1, philox.COUPLED, 0, sampling.sample_index, np.arange(len(logits))
    )
    token, lead = draw(row.probabilities, noise)
    return token, min(lead, row.margin)


def support(logits: np.ndarray, **options: float) -> set[int]:
    """Every token that 400 draws produced."""
    requests = [Sampling(accept_mode=2, seed=seed, **options) for seed in range(400)]  # type: ignore[arg-type]
    rows = np.repeat(logits[None].astype(np.float32), len(requests), axis=0)
    _, tokens, *_ = dspark_ops.accept(
        logits=rows, row_offsets=np.arange(len(requests) + 1, dtype=np.int32), **arrays(requests)
    )
    return set(tokens[:, 0].tolist())


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("vocab", [1, 5, 64, 333, 4099])
def test_draw_through_every_filter_equals_reference(vocab, options):
    rng = np.random.default_rng(vocab)
    close = 0
    for seed in range(40):
        logits = (rng.normal(size=vocab) * 3).astype(np.float32)
        sampling = Sampling(accept_mode=2, seed=seed, anchor_position=seed * 3, **options)
        token, margin = expected(logits, sampling)
        close += margin < CLOSE
        assert drawn(logits, sampling) == token or margin < CLOSE
    assert close <= 1


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
def test_draw_from_a_real_vocabulary_equals_reference(options):
    rng = np.random.default_rng(0)
    for seed in range(3):
        logits = (rng.normal(size=49152) * 2.5).astype(np.float32)
        sampling = Sampling(accept_mode=2, seed=seed, **options)
        token, margin = expected(logits, sampling)
        assert drawn(logits, sampling) == token or margin < CLOSE


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.integers(-12, 12), min_size=1, max_size=150),
    impossible=st.sets(st.integers(0, 149), max_size=60),
    temperature=st.sampled_from([0.05, 0.5, 1.0, 2.0, 30.0]),
    top_k=st.integers(0, 160),
    top_p=st.sampled_from([1.0, 0.97, 0.613, 0.2, 0.001]),
    min_p=st.sampled_from([0.0, 0.013, 0.3]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_draw_with_ties_and_impossible_tokens_equals_reference(
    values, impossible, temperature, top_k, top_p, min_p, seed
):
    """Integer logits tie all the time: then the lowest ids stay and the others go."""
    logits = np.array(values, np.float32)
    gone = [i for i in impossible if i < len(values)]
    logits[gone] = -np.inf
    if not np.isfinite(logits).any():
        return
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, accept_mode=2, seed=seed)
    token, margin = expected(logits, sampling)
    got = drawn(logits, sampling)
    assert np.isfinite(logits[got])
    assert got == token or margin < CLOSE


def test_top_k_with_ties_keeps_exactly_k_tokens_of_the_lowest_ids():
    assert support(np.array([1, 3, 2, 2, 2, 2]), top_k=3, temperature=2.0) == {1, 2, 3}


def test_top_p_keeps_the_token_that_crosses_p():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert support(logits, top_p=0.65) == {0, 1}
    assert support(logits, top_p=0.75) == {0, 1, 2}


def test_top_p_counts_mass_after_top_k():
    """0.4 and 0.3 of the two kept are 0.57 and 0.43: p = 0.5 is then crossed by the first token alone."""
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert support(logits, top_p=0.5) == {0, 1}
    assert support(logits, top_p=0.5, top_k=2) == {0}


def test_min_p_is_relative_to_the_largest_probability():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert support(logits, min_p=0.25) == {0, 1, 2}
    assert support(logits, min_p=0.7) == {0}


def test_temperature_is_applied_before_top_p():
    logits = np.log([0.6, 0.3, 0.1])
    assert support(logits, top_p=0.55) == {0}
    assert support(logits, top_p=0.55, temperature=5.0) == {0, 1}


def test_impossible_tokens_are_never_drawn_even_where_top_k_asks_for_more():
    logits = np.array([-np.inf, 0.0, -np.inf, 0.5, -np.inf])
    assert support(logits, top_k=4) == {1, 3}
    assert support(logits) == {1, 3}


def test_top_k_larger_than_the_vocabulary_is_off():
    assert support(np.zeros(4), top_k=10**6) == {0, 1, 2, 3}


def test_temperature_below_the_greedy_bar_takes_the_argmax_in_every_mode():
    logits = np.array([0.1, 0.3, 0.3, 0.2], np.float32)
    for mode in (0, 1, 2):
        assert drawn(logits, Sampling(temperature=9.9e-6, accept_mode=mode)) == 1
    assert drawn(logits, Sampling(temperature=0.0, accept_mode=2)) == 1


def test_draw_from_a_tiny_temperature_stays_finite():
    logits = np.array([1.0, 2.0, 1e4, -1e30], np.float32)
    assert drawn(logits, Sampling(temperature=2e-5, accept_mode=2)) == 2
