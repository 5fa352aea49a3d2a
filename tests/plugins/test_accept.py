"""DSparkAccept: every mode against the float64 reference, and the distributions that the lossless ones emit."""

from __future__ import annotations

from itertools import product
from math import gamma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from tests.plugins.sampling import CLOSE, FILTERS, arrays
from tests.reference.accept import Outcome, accept
from tests.reference.filters import Sampling, filtered

MODES = {"greedy": 0, "rejection": 1, "coupled": 2}
ALL_MODES = names.ACCEPT_MODES


class Step:
    """Random rows of R requests with given verify lengths; proposals are likely ones, so that many are kept."""

    def __init__(
        self,
        lengths: list[int],
        block: int,
        vocab: int,
        *,
        draft_vocab: int | None = None,
        seed: int = 0,
        near: float = 0.5,
    ) -> None:
        rng = np.random.default_rng([seed, vocab, block])
        self.lengths, self.block, self.vocab = lengths, block, vocab
        self.row_offsets = np.concatenate([[0], np.cumsum(np.array(lengths) + 1)]).astype(np.int32)
        self.logits = (rng.normal(size=(self.row_offsets[-1], vocab)) * 2).astype(np.float32)
        width = vocab if draft_vocab is None else draft_vocab
        self.d2t = None
        columns = np.arange(vocab)
        if width < vocab:
            columns = np.sort(rng.choice(vocab, width, replace=False))
            self.d2t = columns.astype(np.int32)
        self.draft_logits = (rng.normal(size=(len(lengths), block, width)) * 2).astype(np.float32)
        self.draft_tokens = rng.integers(0, vocab, (len(lengths), block)).astype(np.int32)
        for r, length in enumerate(lengths):
            for k in range(length):
                row = self.logits[self.row_offsets[r] + k]
                # The draft resembles the target, as drafts do, and proposes one of its own likely tokens.
                self.draft_logits[r, k] = row[columns] + near * self.draft_logits[r, k]
                self.draft_tokens[r, k] = columns[int(np.argmax(self.draft_logits[r, k]))]
        # Bars that proposals meet from both sides.
        self.relaxation = rng.uniform(0.02, 0.6, (len(lengths), 2)).astype(np.float32)
        self.confidences = rng.uniform(0, 1, (len(lengths), block)).astype(np.float32)

    def run(self, requests: list[Sampling], **change: object) -> tuple[np.ndarray, ...]:
        """accepted [R], tokens [R, K + 1] and round_ends [R]."""
        arguments = {
            "logits": self.logits,
            "row_offsets": self.row_offsets,
            "draft_tokens": self.draft_tokens,
            "draft_logits": self.draft_logits,
            "d2t": self.d2t,
            "relaxation": self.relaxation,
            "confidences": self.confidences,
            **arrays(requests),
        }
        return dspark_ops.accept(**{**arguments, **change})[:3]

    def wanted(self, request: int, sampling: Sampling) -> Outcome:
        return accept(
            self.logits[self.row_offsets[request] : self.row_offsets[request + 1]],
            self.draft_tokens[request],
            self.draft_logits[request],
            sampling,
            self.d2t,
            relaxation=tuple(self.relaxation[request].tolist()),
            confidences=self.confidences[request],
        )

    def differences(self, requests: list[Sampling]) -> tuple[list[int], list[int]]:
        """Requests that came out otherwise than in the reference though it decided clearly, and all those in which a
        decision was so near that rounding may make it."""
        accepted, tokens, ends = self.run(requests)
        wrong: list[int] = []
        near: list[int] = []
        for r, sampling in enumerate(requests):
            want = self.wanted(r, sampling)
            padded = want.tokens + [-1] * (self.block + 1 - len(want.tokens))
            if want.margin < CLOSE:
                near.append(r)
            elif (int(accepted[r]), tokens[r].tolist(), int(ends[r])) != (want.accepted, padded, want.end):
                wrong.append(r)
        return wrong, near

    def check(self, requests: list[Sampling]) -> None:
        assert self.differences(requests)[0] == []


def draft(**arguments: object) -> tuple[np.ndarray, ...]:
    """DSparkDraft with the top1 signal: draft_tokens, confidence_logits, draft_logits, entropies."""
    signals = np.full(len(arguments["anchor_tokens"]), names.CONFIDENCE_SIGNALS["top1"], np.int32)  # type: ignore[arg-type]
    return dspark_ops.draft(confidence_signal=signals, **arguments)


def requests_of(mode: int, count: int, **options: object) -> list[Sampling]:
    return [
        Sampling(accept_mode=mode, seed=77 + i, sample_index=i % 3, anchor_position=5 * i, **options)
        for i in range(count)
    ]  # type: ignore[arg-type]


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
@pytest.mark.parametrize(("vocab", "draft_vocab"), [(3, 3), (67, 67), (331, 200)])
def test_accept_every_mode_filter_and_vocabulary_equals_reference(vocab, draft_vocab, mode, options):
    for seed in range(6):
        step = Step([0, 1, 4, 2, 4], 4, vocab, draft_vocab=draft_vocab, seed=seed)
        step.check(requests_of(mode, 5, **options))


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
def test_accept_on_a_real_vocabulary_equals_reference(mode):
    step = Step([2, 0], 2, 49152, draft_vocab=8192, near=0.1)
    step.check(requests_of(mode, 2))
    step.check(requests_of(mode, 2, temperature=0.8, top_k=50, top_p=0.9))
    step.check(requests_of(mode, 2, top_p=0.95))


@settings(max_examples=120, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    modes=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    temperatures=st.lists(st.sampled_from([0.0, 0.4, 1.0, 3.0]), min_size=4, max_size=4),
    vocab=st.integers(2, 40),
    seed=st.integers(0, 2**31),
    near=st.sampled_from([0.0, 0.2, 2.0]),
)
def test_accept_mixed_batches_equal_reference(lengths, modes, temperatures, vocab, seed, near):
    step = Step(lengths, 3, vocab, draft_vocab=max(1, vocab - 3), seed=seed, near=near)
    step.check(
        [
            Sampling(accept_mode=modes[i], temperature=temperatures[i], top_k=i * 2, seed=seed + i, anchor_position=i)
            for i in range(len(lengths))
        ]
    )


def test_accept_greedy_keeps_the_matching_prefix_then_the_targets_token():
    logits = np.zeros((4, 10), np.float32)
    logits[np.arange(4), [3, 5, 7, 9]] = 1.0
    for proposals, kept, tokens in (
        ([3, 5, 7], 3, [3, 5, 7, 9]),
        ([3, 5, 8], 2, [3, 5, 7, -1]),
        ([4, 5, 7], 0, [3, -1, -1, -1]),
    ):
        accepted, got, *_ = dspark_ops.accept(
            logits=logits,
            row_offsets=np.array([0, 4], np.int32),
            draft_tokens=np.array([proposals], np.int32),
            **arrays([Sampling(accept_mode=0)]),
        )
        assert accepted.tolist() == [kept] and got.tolist() == [tokens]


def test_accept_greedy_tie_takes_the_lowest_id():
    logits = np.zeros((1, 5000), np.float32)
    logits[0, [1023, 1024, 4999]] = 2.0
    _, tokens, *_ = dspark_ops.accept(
        logits=logits, row_offsets=np.array([0, 1], np.int32), **arrays([Sampling(accept_mode=0)])
    )
    assert tokens.tolist() == [[1023]]


def test_accept_without_a_draft_gives_one_token_per_request():
    step = Step([0, 0, 0], 0, 50)
    accepted, tokens, *_ = dspark_ops.accept(
        logits=step.logits, row_offsets=step.row_offsets, **arrays(requests_of(1, 3))
    )
    assert accepted.tolist() == [0, 0, 0] and tokens.shape == (3, 1)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_accept_draft_logits_without_rows_count_as_absent(mode):
    step = Step([0, 0], 3, 50)
    empty = np.zeros((0, 3, 50), np.float32)
    got = step.run(requests_of(mode, 2), draft_logits=empty)
    for one, other in zip(got, step.run(requests_of(mode, 2)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
def test_accept_columns_past_the_verify_length_are_not_read(mode):
    step = Step([1, 2], 4, 50)
    before = step.run(requests_of(mode, 2))
    step.draft_tokens[0, 1:] = -5
    step.draft_logits[0, 1:] = np.nan
    step.draft_tokens[1, 2:] = 10**6
    step.confidences[0, 1:] = np.nan
    for one, other in zip(step.run(requests_of(mode, 2)), before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
def test_accept_results_do_not_depend_on_threads_or_neighbours(mode):
    lengths = [3, 0, 2, 1, 3, 3]
    step = Step(lengths, 3, 700, draft_vocab=400)
    requests = requests_of(mode, len(lengths))
    accepted, tokens, _ = step.run(requests)
    serial_accepted, serial_tokens, _ = step.run(requests, parallel=False)
    np.testing.assert_array_equal(accepted, serial_accepted)
    np.testing.assert_array_equal(tokens, serial_tokens)
    for r in range(len(lengths)):
        rows = np.ascontiguousarray(step.logits[step.row_offsets[r] : step.row_offsets[r + 1]])
        one_accepted, one_tokens, *_ = dspark_ops.accept(
            logits=rows,
            row_offsets=np.array([0, len(rows)], np.int32),
            draft_tokens=step.draft_tokens[r : r + 1],
            draft_logits=step.draft_logits[r : r + 1],
            d2t=step.d2t,
            relaxation=step.relaxation[r : r + 1],
            confidences=step.confidences[r : r + 1],
            **arrays(requests[r : r + 1]),
        )
        assert one_accepted[0] == accepted[r]
        assert one_tokens[0].tolist() == tokens[r].tolist()


# --- coupled: the draft does not matter ---------------------------------------------------


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
def test_accept_coupled_emits_what_the_target_alone_would_have_sampled(options):
    """Every emitted token equals the l = 0 pick at its own position, with good, bad and no proposals alike."""
    for seed, near in product(range(5), (0.0, 0.3, 5.0)):
        step = Step([4], 4, 60, seed=seed, near=near)
        sampling = Sampling(accept_mode=2, seed=seed * 11, anchor_position=40, **options)
        accepted, tokens, _ = step.run([sampling])
        for k in range(int(accepted[0]) + 1):
            alone = Sampling(accept_mode=2, seed=seed * 11, anchor_position=40 + k, **options)
            _, pick, *_ = dspark_ops.accept(
                logits=step.logits[k : k + 1], row_offsets=np.array([0, 1], np.int32), **arrays([alone])
            )
            assert pick[0, 0] == tokens[0, k]


def test_accept_coupled_draft_equal_to_the_target_is_kept_whole():
    """Draft operator and accept operator meet the same noise: equal rows give equal picks at every position."""
    rng = np.random.default_rng(5)
    for options in FILTERS.values():
        for seed in range(10):
            rows = (rng.normal(size=(1, 4, 90)) * 2).astype(np.float32)
            sampling = arrays([Sampling(accept_mode=2, seed=seed, anchor_position=seed * 7, **options)])
            proposals, _, _, _ = draft(base_logits=rows, anchor_tokens=np.zeros(1, np.int32), **sampling)
            logits = np.concatenate([rows[0], rows[0, :1]])
            accepted, _, *_ = dspark_ops.accept(
                logits=logits, row_offsets=np.array([0, 5], np.int32), draft_tokens=proposals, **sampling
            )
            assert accepted.tolist() == [4]


# --- rejection ----------------------------------------------------------------------------


def test_accept_rejection_draft_equal_to_the_target_is_kept_whole():
    rng = np.random.default_rng(6)
    for options in FILTERS.values():
        rows = (rng.normal(size=(20, 4, 90)) * 2).astype(np.float32)
        sampling = arrays([Sampling(accept_mode=1, seed=seed, anchor_position=seed, **options) for seed in range(20)])
        proposals, _, kept, _ = draft(
            base_logits=rows, anchor_tokens=np.zeros(20, np.int32), want_draft_logits=True, **sampling
        )
        logits = np.concatenate([rows, rows[:, :1]], axis=1).reshape(-1, 90)
        accepted, _, *_ = dspark_ops.accept(
            logits=logits,
            row_offsets=np.arange(0, 101, 5, dtype=np.int32),
            draft_tokens=proposals,
            draft_logits=kept,
            **sampling,
        )
        assert accepted.tolist() == [4] * 20


def test_accept_rejection_proposal_that_the_target_filters_out_is_always_rejected():
    logits = np.zeros((2, 4), np.float32)
    logits[0] = [3.0, 2.0, -5.0, -np.inf]
    draft = np.zeros((1, 1, 4), np.float32)
    for seed, proposal in product(range(50), (2, 3)):
        accepted, tokens, *_ = dspark_ops.accept(
            logits=logits,
            row_offsets=np.array([0, 2], np.int32),
            draft_tokens=np.array([[proposal]], np.int32),
            draft_logits=draft,
            **arrays([Sampling(accept_mode=1, seed=seed, top_k=2)]),
        )
        assert accepted[0] == 0 and tokens[0, 0] in (0, 1)


def test_accept_rejection_without_residual_mass_draws_from_the_target():
    """p_t = p_d on the target's tokens and the proposal is none of them: nothing is left of p_t - p_d."""
    logits = np.array([[0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]], np.float32)
    draft = np.array([[[0.0, 0.0, -np.inf]]], np.float32)
    seen = set()
    for seed in range(60):
        accepted, tokens, *_ = dspark_ops.accept(
            logits=logits,
            row_offsets=np.array([0, 2], np.int32),
            draft_tokens=np.array([[2]], np.int32),
            draft_logits=draft,
            **arrays([Sampling(accept_mode=1, seed=seed)]),
        )
        assert accepted[0] == 0
        seen.add(int(tokens[0, 0]))
    assert seen == {0, 1}


def chi_square_p(observed: np.ndarray, expected: np.ndarray) -> float:
    """P(chi^2 >= statistic): upper tail by the series of the lower incomplete gamma function."""
    used = expected > 0
    assert observed[~used].sum() == 0
    x = float(((observed[used] - expected[used]) ** 2 / expected[used]).sum()) / 2
    half = (int(used.sum()) - 1) / 2
    term = total = 1.0 / half
    n = half
    while term > total * 1e-16:
        n += 1
        term *= x / n
        total += term
    return max(0.0, 1.0 - total * np.exp(half * np.log(x) - x) / gamma(half)) if x < 300 else 0.0


class Chain:
    """Target and draft as Markov chains over 5 tokens: next-token logits given the last token."""

    VOCAB, BLOCK, ROUNDS = 5, 3, 60_000

    def __init__(self) -> None:
        rng = np.random.default_rng(8)
        self.target = (rng.normal(size=(self.VOCAB, self.VOCAB)) * 1.2).astype(np.float32)
        self.draft = (self.target + rng.normal(size=self.target.shape) * 0.9).astype(np.float32)

    def rounds(self, sampling: dict[str, np.ndarray], shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """One round from anchor 0 for each of ROUNDS requests; `shift` misplaces the draft's logits by rows."""
        count = self.ROUNDS
        # The vanilla head with W1 = identity makes the draft operator walk this very chain.
        proposals, _, kept, _ = draft(
            base_logits=np.zeros((count, self.BLOCK, self.VOCAB), np.float32),
            anchor_tokens=np.zeros(count, np.int32),
            markov_w1=np.eye(self.VOCAB, dtype=np.float32),
            markov_w2=np.ascontiguousarray(self.draft.T),
            head_type=1,
            want_draft_logits=True,
            **sampling,
        )
        states = np.concatenate([np.zeros((count, 1), np.int32), proposals], axis=1)
        return dspark_ops.accept(
            logits=self.target[states.reshape(-1)],
            row_offsets=np.arange(0, 4 * count + 1, 4, dtype=np.int32),
            draft_tokens=proposals,
            draft_logits=np.ascontiguousarray(np.roll(kept, shift, axis=1)),
            **sampling,
        )[:2]

    def sampling(self, mode: int, **options: float) -> tuple[Sampling, dict[str, np.ndarray]]:
        one = Sampling(accept_mode=mode, **options)  # type: ignore[arg-type]
        many = {name: np.repeat(array, self.ROUNDS) for name, array in arrays([one]).items()}
        many["seed"] = np.arange(self.ROUNDS, dtype=np.int64)
        return one, many

    def p(self, one: Sampling, state: int) -> np.ndarray:
        return filtered(self.target[state], one).probabilities

    def first_p(self, one: Sampling, tokens: np.ndarray) -> float:
        counts = np.bincount(tokens[:, 0], minlength=self.VOCAB)
        return chi_square_p(counts, self.p(one, 0) * len(tokens))

    def pair_p(self, one: Sampling, tokens: np.ndarray) -> float:
        """Of rounds that emitted two tokens or more: the second given the first, each first weighed as it came."""
        worst = 1.0
        for first in range(self.VOCAB):
            seconds = tokens[(tokens[:, 0] == first) & (tokens[:, 1] >= 0), 1]
            if len(seconds) >= 200:
                counts = np.bincount(seconds, minlength=self.VOCAB)
                worst = min(worst, chi_square_p(counts, self.p(one, first) * len(seconds)))
        return worst


CHAINS = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 3},
    "top_p": {"temperature": 0.8, "top_p": 0.85},
}


@pytest.mark.parametrize("options", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("mode", [1, 2], ids=["rejection", "coupled"])
def test_accept_emits_the_exact_target_distribution(mode, options):
    """First tokens, and second tokens given the first, of 60,000 rounds with fixed seeds."""
    chain = Chain()
    one, many = chain.sampling(mode, **options)
    accepted, tokens = chain.rounds(many)
    assert 0.2 < accepted.mean() < 2.8  # the draft is neither useless nor perfect: all branches are taken
    assert chain.first_p(one, tokens) > 1e-4
    assert chain.pair_p(one, tokens) > 1e-4


def test_accept_rejection_with_draft_rows_shifted_by_one_fails_the_same_check():
    """Negative control: the residual and the test of row k read row k - 1 of the draft."""
    chain = Chain()
    one, many = chain.sampling(1)
    _, tokens = chain.rounds(many, shift=1)
    assert min(chain.first_p(one, tokens), chain.pair_p(one, tokens)) < 1e-8


# --- relaxed and typical: not lossless, and named so -----------------------------------------


def two_tokens(p: float) -> np.ndarray:
    """Logits of (p, 1 - p)."""
    return np.log(np.array([p, 1 - p])).astype(np.float32)


@pytest.mark.parametrize(
    ("p", "confidence", "kept"),
    [(0.31, 1.0, 1), (0.29, 1.0, 0), (0.56, 0.5, 1), (0.54, 0.5, 0), (0.81, 0.0, 1), (0.79, 0.0, 0), (0.79, np.nan, 0)],
)
def test_relaxed_bar_falls_from_max_at_no_confidence_to_min_at_full_confidence(p, confidence, kept):
    accepted, tokens, ends, *_ = dspark_ops.accept(
        logits=np.stack([two_tokens(p)] * 2),
        row_offsets=np.array([0, 2], np.int32),
        draft_tokens=np.zeros((1, 1), np.int32),
        relaxation=np.array([[0.3, 0.8]], np.float32),
        confidences=np.array([[confidence]], np.float32),
        **arrays([Sampling(accept_mode=ALL_MODES["relaxed"])]),
    )
    assert accepted[0] == kept and ends[0] == names.ROUND_END_REASONS["bonus" if kept else "rejected"]
    assert tokens[0, kept] in (0, 1)


@pytest.mark.parametrize(("vocab", "kept"), [(2, 1), (3, 1), (4, 0)])
def test_typical_bar_follows_the_entropy_of_the_target(vocab, kept):
    """A uniform row of n tokens has exp(-H) = 1/n: with delta 1.01 x_k stays just below the bar that 0.3 caps."""
    accepted, *_ = dspark_ops.accept(
        logits=np.zeros((2, vocab), np.float32),
        row_offsets=np.array([0, 2], np.int32),
        draft_tokens=np.zeros((1, 1), np.int32),
        relaxation=np.array([[0.3, 1.01]], np.float32),
        **arrays([Sampling(accept_mode=ALL_MODES["typical"])]),
    )
    assert accepted[0] == kept


@pytest.mark.parametrize("mode", ["relaxed", "typical"])
def test_lossy_mode_at_temperature_zero_keeps_likely_proposals_and_emits_the_most_probable_token(mode):
    """Greedy would refuse token 1: it is the second."""
    row = np.log(np.array([0.5, 0.4, 0.1])).astype(np.float32)
    for proposals, tokens in (([1, 1], [1, 1, 0]), ([1, 2], [1, 0, -1])):
        _, got, *_ = dspark_ops.accept(
            logits=np.stack([row] * 3),
            row_offsets=np.array([0, 3], np.int32),
            draft_tokens=np.array([proposals], np.int32),
            relaxation=np.array([[0.3, 0.7]], np.float32),
            confidences=np.ones((1, 2), np.float32),
            **arrays([Sampling(accept_mode=ALL_MODES[mode], temperature=0.0)]),
        )
        assert got.tolist() == [tokens]


def test_relaxed_draws_what_it_does_not_keep_from_the_target():
    """After a refusal the token comes from p_t itself, the refused proposal included."""
    row = np.log(np.array([0.6, 0.3, 0.1])).astype(np.float32)
    count = 20_000
    one = Sampling(accept_mode=ALL_MODES["relaxed"])
    many = {name: np.repeat(array, count) for name, array in arrays([one]).items()}
    many["seed"] = np.arange(count, dtype=np.int64)
    accepted, tokens, *_ = dspark_ops.accept(
        logits=np.repeat(row[None], 2 * count, axis=0),
        row_offsets=np.arange(0, 2 * count + 1, 2, dtype=np.int32),
        draft_tokens=np.full((count, 1), 1, np.int32),
        relaxation=np.full((count, 2), 0.5, np.float32),
        confidences=np.zeros((count, 1), np.float32),
        **many,
    )
    assert not accepted.any()
    assert chi_square_p(np.bincount(tokens[:, 0], minlength=3), np.array([0.6, 0.3, 0.1]) * count) > 1e-4


# --- extreme values ------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    mode=st.integers(0, 4),
    temperature=st.sampled_from([1e-8, 9.9e-6, 1.1e-5, 1e-3, 0.1, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 30, 31, 32, 10**9]),
    top_p=st.sampled_from([1e-30, 1e-6, 0.5, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-30, 0.5, 1.0]),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e3, 1e37]),
    length=st.integers(0, 4),
    broken=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 30), st.sampled_from([-np.inf, np.nan, np.inf, 3e38, -3e38])),
        max_size=12,
    ),
    impossible=st.none() | st.integers(0, 4),
    seed=st.integers(0, 2**31),
)
def test_accept_extreme_values_equal_reference(
    mode, temperature, top_k, top_p, min_p, scale, length, broken, impossible, seed
):
    step = Step([length], 4, 31, draft_vocab=31, seed=seed)
    step.logits *= np.float32(scale)
    for row, token, value in broken:
        if row <= length:
            step.logits[row, token] = value
    if impossible is not None and impossible <= length:
        step.logits[impossible] = -np.inf
    step.check([Sampling(accept_mode=mode, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)])


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
@pytest.mark.parametrize("block", [1, 16])
def test_accept_on_the_largest_vocabulary_equals_reference_for_every_block_size(block, mode):
    step = Step([block], block, 151936, near=0.02)
    for options in ({"top_k": 50, "top_p": 0.9}, {"top_p": 1e-6}, {"temperature": 5.0}):
        step.check(requests_of(mode, 1, **options))


DECISIONS = {name: FILTERS[name] for name in ("none", "temperature", "top_k", "top_p", "min_p", "all")}


def test_accept_takes_the_decisions_of_the_reference_on_the_same_numbers():
    """Of 60,000 rounds none differs where the reference decided by more than 1e-6 relative; it decided fewer than
    0.01 % by less."""
    size = 60_000 // (2 * len(DECISIONS))
    count = num_near = 0
    for seed, (mode, options) in enumerate(product((1, 2), DECISIONS.values())):
        step = Step([2] * size, 2, 12, seed=seed)
        wrong, near = step.differences(
            [Sampling(accept_mode=mode, seed=i, anchor_position=i % 7, **options) for i in range(size)]
        )
        assert wrong == []
        count, num_near = count + size, num_near + len(near)
    assert count == 60_000 and num_near < count * 1e-4


# --- complaints ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
@pytest.mark.parametrize(("value", "end"), [(np.nan, "nan"), (np.inf, "infinite"), (-np.inf, "impossible")])
def test_accept_faulty_row_ends_the_round_of_its_request_alone(mode, value, end):
    step = Step([2, 1, 2], 2, 300, near=0.0)
    before = step.run(requests_of(mode, 3))
    step.logits[step.row_offsets[1], slice(None) if value == -np.inf else 77] = value
    accepted, tokens, ends = step.run(requests_of(mode, 3))
    assert (accepted[1], ends[1]) == (0, names.ROUND_END_REASONS[end])
    assert tokens[1].tolist() == [-1, -1, -1]
    for got, wanted in zip((accepted, tokens, ends), before, strict=True):
        np.testing.assert_array_equal(got[[0, 2]], wanted[[0, 2]])


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
def test_accept_proposals_kept_before_a_faulty_row_stay_kept(mode):
    step = Step([2], 2, 300)
    step.logits[:] = -50.0
    step.logits[[0, 1], [8, 9]] = 50.0
    step.draft_logits[0] = step.logits[:2]
    step.draft_tokens[0] = [8, 9]
    step.logits[2, 5] = np.nan
    accepted, tokens, ends = step.run(requests_of(mode, 1))
    assert (accepted[0], tokens[0].tolist(), ends[0]) == (2, [8, 9, -1], names.ROUND_END_REASONS["nan"])


@pytest.mark.parametrize("mode", ALL_MODES.values(), ids=ALL_MODES)
def test_accept_faulty_row_after_the_first_refusal_is_no_fault(mode):
    step = Step([2], 2, 300)
    step.logits[0] = -50.0
    step.logits[0, 8] = 50.0
    step.draft_tokens[0, 0] = 9
    step.logits[1:] = np.nan
    accepted, tokens, ends = step.run(requests_of(mode, 1))
    assert (accepted[0], tokens[0].tolist()) == (0, [8, -1, -1])
    assert ends[0] == names.ROUND_END_REASONS["rejected"]


def test_accept_faulty_draft_row_ends_the_round_of_its_request_alone():
    step = Step([2, 0], 2, 300, near=0.0)
    step.draft_logits[0, 0, 5] = np.nan
    accepted, tokens, ends = step.run(requests_of(1, 2))
    assert accepted[0] == 0 and (tokens[0] == -1).all() and ends[0] == names.ROUND_END_REASONS["nan"]
    assert tokens[1, 0] >= 0 and ends[1] == names.ROUND_END_REASONS["bonus"]


def bad_cases():
    def i(*values):
        return np.array(values, np.int32)

    step = Step([1, 2], 2, 30, draft_vocab=20)
    twisted = step.d2t.copy()
    twisted[3] = twisted[2]
    bars = np.array([[0, 0], [np.nan, 0]], np.float32)
    return {
        "offset_first": ({"row_offsets": i(-1, 2, 5)}, r"row_offsets\[0\] is -1, wanted >= 0"),
        "offset_empty": ({"row_offsets": i(0, 0, 3)}, "row_offsets gives request 0 0 rows, wanted 1 to block_size"),
        "offset_down": ({"row_offsets": i(2, 1, 3)}, "row_offsets gives request 0 -1 rows"),
        "offset_long": ({"row_offsets": i(0, 1, 5)}, r"gives request 1 4 rows, wanted 1 to block_size \+ 1 = 3"),
        "offset_last": ({"row_offsets": i(0, 3, 6)}, r"row_offsets\[2\] is 6, wanted at most num_rows 5"),
        "offset_shape": ({"row_offsets": i()}, "row_offsets is empty"),
        "token": ({"draft_tokens": i(1, 2, 3, 30).reshape(2, 2)}, r"draft_tokens\[1, 1\] is 30, wanted an id in"),
        "token_negative": ({"draft_tokens": i(-1, 2, 3, 3).reshape(2, 2)}, r"draft_tokens\[0, 0\] is -1"),
        "no_draft_logits": ({"draft_logits": None}, "draft_logits is null, wanted an array"),
        "draft_rows": ({"draft_logits": step.draft_logits[:1]}, "draft_logits is 1 rows, wanted 0 or R = 2"),
        "draft_block": (
            {"draft_logits": np.zeros((2, 3, 20), np.float32)},
            r"draft_logits is float32 \[2, 3, 20\], wanted float32 \[R or 0, K, Vd\] = \[\?, 2, \?\]",
        ),
        "d2t_order": ({"d2t": twisted}, r"d2t\[3\] is .*, wanted strictly ascending target ids in \[0, 30\)"),
        "d2t_range": ({"d2t": step.d2t + 100}, r"d2t\[0\] is 1.., wanted"),
        "top_p": ({"top_p": np.array([1, -1], np.float32)}, r"top_p\[1\] is -1, wanted \(0, 1\]"),
        "logits": ({"logits": step.logits[0]}, r"logits is float32 \[30\], wanted float32 \[N, V\]"),
        "tokens": ({"tokens": np.zeros((2, 2), np.int32)}, r"tokens is int32 \[2, 2\], wanted int32 \[R, K \+ 1\]"),
        "mode": ({"accept_mode": i(0, 5)}, r"accept_mode\[1\] is 5, wanted 0 \(greedy\)"),
        "relaxation": ({"accept_mode": i(1, 3), "relaxation": None}, "relaxation is null, wanted an array"),
        "bar": ({"accept_mode": i(4, 4), "relaxation": bars}, r"relaxation\[1, 0\] is nan, wanted a finite number"),
        "confidences": ({"accept_mode": i(1, 3), "confidences": None}, "confidences is null, wanted an array"),
        "confidence_rows": (
            {"confidences": np.zeros((1, 2), np.float32)}, "confidences is 1 rows, wanted 0 or R = 2"
        ),
        "num_logprobs": ({"num_logprobs": i(0, 21)}, r"num_logprobs\[1\] is 21, wanted -1 \(none\) to 20"),
    }  # fmt: skip


@pytest.mark.parametrize(("change", "message"), bad_cases().values(), ids=bad_cases())
def test_accept_bad_argument_is_named_with_found_and_wanted(change, message):
    step = Step([1, 2], 2, 30, draft_vocab=20)
    with pytest.raises(ValueError, match=message):
        step.run(requests_of(1, 2), **change)


def test_accept_outputs_passed_in_are_written_in_place():
    step = Step([1, 2], 2, 30)
    accepted, tokens = np.full(2, -7, np.int32), np.full((2, 3), -7, np.int32)
    got = step.run(requests_of(0, 2), accepted=accepted, tokens=tokens)
    assert got[0] is accepted and got[1] is tokens
    assert (accepted >= 0).all() and (tokens != -7).all()


def test_accept_without_requests_returns_empty_arrays():
    accepted, tokens, *_ = dspark_ops.accept(
        logits=np.zeros((0, 9), np.float32),
        row_offsets=np.zeros(1, np.int32),
        draft_tokens=np.zeros((0, 4), np.int32),
        **arrays([]),
    )
    assert accepted.shape == (0,) and tokens.shape == (0, 5)
