"""Log-probabilities: dspark_ops.logprobs and those of DSparkAccept against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from tests.plugins.sampling import arrays, rule_arrays
from tests.reference.filters import Sampling
from tests.reference.logprobs import logprobs
from tests.reference.rules import Rules

COLUMNS = names.MAX_LOGPROBS + 1
CLOSE = {"rtol": 2e-7, "atol": 1e-6}


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def check(row: np.ndarray, token: int, num: int, got: tuple[np.ndarray, np.ndarray, int]) -> None:
    values, ids, rank = got
    want = logprobs(row, token, num)
    assert (ids[0], rank) == (token, want.rank)
    np.testing.assert_allclose(values[0], want.token, **CLOSE)
    found = len(want.best)
    assert ids[1 : 1 + found].tolist() == [token for token, _ in want.best]
    np.testing.assert_allclose(values[1 : 1 + found], [value for _, value in want.best], **CLOSE)
    assert (ids[1 + found :] == -1).all() and not values[1 + found :].any()


@pytest.mark.parametrize("vocab", [1, 3, 20, 333, 4099, 151936])
def test_logprobs_of_every_count_equal_reference(vocab):
    rng = np.random.default_rng(vocab)
    counts = ints(0, 1, 2, 7, 19, 20)
    rows = (rng.normal(size=(len(counts), vocab)) * 4).astype(np.float32)
    tokens = rng.integers(0, vocab, len(counts)).astype(np.int32)
    values, ids, ranks = dspark_ops.logprobs(logits=rows, tokens=tokens, num_logprobs=counts)
    assert values.shape == ids.shape == (len(counts), COLUMNS)
    for i, count in enumerate(counts.tolist()):
        check(rows[i], int(tokens[i]), count, (values[i], ids[i], int(ranks[i])))


@settings(max_examples=150, deadline=None)
@given(
    row=st.lists(st.one_of(st.integers(-6, 6), st.just(-np.inf)), min_size=1, max_size=90),
    scale=st.sampled_from([1.0, 1e-3, 40.0, 1e30]),
    num=st.integers(0, 20),
    chosen=st.integers(0, 89),
)
def test_logprobs_with_ties_and_impossible_tokens_equal_reference(row, scale, num, chosen):
    logits = (np.array(row) * scale).astype(np.float32)
    if not np.isfinite(logits).any():
        logits[0] = 0.0
    token = chosen % len(row)
    values, ids, ranks = dspark_ops.logprobs(logits=logits[None], tokens=ints(token), num_logprobs=ints(num))
    check(logits, token, num, (values[0], ids[0], int(ranks[0])))


def test_logprobs_row_that_asks_for_none_holds_nothing():
    rows = np.zeros((3, 9), np.float32)
    values, ids, ranks = dspark_ops.logprobs(logits=rows, tokens=ints(-1, 4, 4), num_logprobs=ints(3, -1, 0))
    assert not values[:2].any() and (ids[:2] == -1).all() and ranks[:2].tolist() == [0, 0]
    np.testing.assert_allclose(values[2, 0], -np.log(9), rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logprobs_row_without_a_distribution_shows_as_nan(value):
    rows = np.zeros((2, 9), np.float32)
    rows[0, slice(None) if value == -np.inf else 5] = value
    values, ids, ranks = dspark_ops.logprobs(logits=rows, tokens=ints(4, 4), num_logprobs=ints(3, 3))
    assert np.isnan(values[0, 0]) and ids[0].tolist() == [4] + [-1] * 20 and ranks.tolist() == [0, 1]
    assert np.isfinite(values[1]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_logprobs": ints(0, 21)}, r"num_logprobs\[1\] is 21, wanted -1 \(none\) to 20"),
        ({"num_logprobs": ints(-2, 0)}, r"num_logprobs\[0\] is -2, wanted -1"),
        ({"tokens": ints(0, 9)}, r"tokens\[1\] is 9, wanted -1 \(none\) or an id in \[0, vocab = 9\)"),
        ({"tokens": ints(0)}, r"tokens is int32 \[1\], wanted int32 \[N\] = \[2\]"),
        ({"logprobs": np.zeros((2, 20), np.float32)}, r"logprobs is float32 \[2, 20\], wanted float32 \[N, 21\]"),
    ],
)
def test_logprobs_bad_argument_is_named_with_found_and_wanted(change, message):
    arguments = {"logits": np.zeros((2, 9), np.float32), "tokens": ints(0, 1), "num_logprobs": ints(0, 1)}
    with pytest.raises(ValueError, match=message):
        dspark_ops.logprobs(**{**arguments, **change})


@pytest.mark.parametrize("mode", names.ACCEPT_MODES.values(), ids=names.ACCEPT_MODES)
def test_accept_reports_every_emitted_token_from_the_row_that_decided_it(mode):
    """Of the logits as the model gave them, whatever rules, temperature and filters did to them."""
    rng = np.random.default_rng(mode)
    rows = (rng.normal(size=(8, 60)) * 2).astype(np.float32)
    offsets = ints(0, 4, 8)
    proposals = rows.reshape(2, 4, 60)[:, :3].argmax(2).astype(np.int32)
    rules = [Rules(prompt=(1, 2)), Rules(prompt=(1, 2), repetition=1.5, biases=((5, 1.0),))]
    requests = [Sampling(accept_mode=mode, temperature=0.7, top_k=9, seed=i, anchor_position=1) for i in range(2)]
    accepted, tokens, _, values, ids, ranks = dspark_ops.accept(
        logits=rows,
        row_offsets=offsets,
        draft_tokens=proposals,
        draft_logits=np.ascontiguousarray(rows.reshape(2, 4, 60)[:, :3]),
        relaxation=np.full((2, 2), 0.1, np.float32),
        confidences=np.ones((2, 3), np.float32),
        num_logprobs=ints(4, 0),
        **arrays(requests),
        **rule_arrays(rules, offsets, 60),
    )
    for r, num in enumerate((4, 0)):
        for k in range(4):
            if k <= accepted[r]:
                check(rows[offsets[r] + k], int(tokens[r, k]), num, (values[r, k], ids[r, k], int(ranks[r, k])))
            else:
                assert not values[r, k].any() and (ids[r, k] == -1).all() and ranks[r, k] == 0


def test_accept_faulty_row_has_no_logprobs():
    rows = np.zeros((2, 9), np.float32)
    rows[1, 3] = np.nan
    _, tokens, _, values, ids, ranks = dspark_ops.accept(
        logits=rows,
        row_offsets=ints(0, 2),
        draft_tokens=ints(0)[None],
        num_logprobs=ints(2),
        **arrays([Sampling(accept_mode=0)]),
    )
    assert tokens.tolist() == [[0, -1]] and ranks.tolist() == [[1, 0]]
    assert ids[0, 0, :3].tolist() == [0, 0, 1] and (ids[0, 1] == -1).all() and not values[0, 1].any()


def test_accept_without_num_logprobs_gives_none():
    got = dspark_ops.accept(
        logits=np.zeros((1, 9), np.float32), row_offsets=ints(0, 1), **arrays([Sampling(accept_mode=0)])
    )
    assert got[3:] == (None, None, None)
