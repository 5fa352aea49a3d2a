"""Masks, bans, biases, stops and penalties on the rows of DSparkAccept, at every position of a block."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from tests.plugins.sampling import CLOSE, arrays, rule_arrays
from tests.reference.accept import accept
from tests.reference.filters import Sampling
from tests.reference.rules import Rules

VOCAB = 40
ENDS = names.ROUND_END_REASONS


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Step:
    """Rows of requests with rules; proposals are what greedy decoding under the rules would say, then a wrong one."""

    def __init__(self, rules: list[Rules], lengths: list[int], *, seed: int = 0, vocab: int = VOCAB) -> None:
        rng = np.random.default_rng([seed, vocab])
        self.rules, self.block, self.vocab = rules, max(lengths), vocab
        self.row_offsets = np.concatenate([[0], np.cumsum(np.array(lengths) + 1)]).astype(np.int32)
        self.logits = (rng.normal(size=(self.row_offsets[-1], vocab)) * 2).astype(np.float32)
        self.draft_logits = (rng.normal(size=(len(rules), self.block, vocab)) * 2).astype(np.float32)
        self.draft_tokens = rng.integers(0, vocab, (len(rules), self.block)).astype(np.int32)
        for r, length in enumerate(lengths):
            for k in range(length - 1):
                rows = self.rows(r)[: k + 1]
                greedy = accept(rows, self.draft_tokens[r], None, Sampling(temperature=0.0), rules=rules[r])
                if greedy.accepted == k and greedy.tokens[k] >= 0:
                    self.draft_tokens[r, k] = greedy.tokens[k]
                self.draft_logits[r, k] = rows[k]

    def rows(self, request: int) -> np.ndarray:
        return self.logits[self.row_offsets[request] : self.row_offsets[request + 1]]

    def sampling(self, modes: list[int], **options: float) -> list[Sampling]:
        return [
            Sampling(
                accept_mode=mode, seed=31 + r, anchor_position=len(rules.prompt) + len(rules.output) - 1, **options
            )  # type: ignore[arg-type]
            for r, (mode, rules) in enumerate(zip(modes, self.rules, strict=True))
        ]

    def run(self, requests: list[Sampling], **change: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        arguments = {
            "logits": self.logits,
            "row_offsets": self.row_offsets,
            "draft_tokens": self.draft_tokens,
            "draft_logits": self.draft_logits,
            **arrays(requests),
            **rule_arrays(self.rules, self.row_offsets, self.vocab),
        }
        return dspark_ops.accept(**{**arguments, **change})[:3]

    def check(self, requests: list[Sampling]) -> None:
        accepted, tokens, ends = self.run(requests)
        for r, sampling in enumerate(requests):
            want = accept(self.rows(r), self.draft_tokens[r], self.draft_logits[r], sampling, rules=self.rules[r])
            padded = want.tokens + [-1] * (self.block + 1 - len(want.tokens))
            found = (int(accepted[r]), tokens[r].tolist(), int(ends[r]))
            assert found == (want.accepted, padded, want.end) or want.margin < CLOSE


def greedy(rules: Rules, logits: list[list[float]], proposals: list[int] = []) -> list[int]:  # noqa: B006
    """Tokens of one greedy request with these rows, the -1 behind them left out."""
    offsets, anchor = ints(0, len(logits)), len(rules.prompt) + len(rules.output) - 1
    _, tokens, *_ = dspark_ops.accept(
        logits=np.array(logits, np.float32),
        row_offsets=offsets,
        draft_tokens=np.array([proposals], np.int32) if proposals else None,
        **arrays([Sampling(accept_mode=0, anchor_position=anchor)]),
        **rule_arrays([rules], offsets, len(logits[0])),
    )
    return [token for token in tokens[0].tolist() if token >= 0]


tokens = st.integers(0, VOCAB - 1)
some_rules = st.builds(
    Rules,
    repetition=st.sampled_from([1.0, 1.0, 1.3, 0.7, 4.0]),
    presence=st.sampled_from([0.0, 0.0, 0.8, -1.5, 2.0]),
    frequency=st.sampled_from([0.0, 0.0, 0.3, -0.4, 2.0]),
    prompt=st.lists(tokens, min_size=1, max_size=9).map(tuple),
    output=st.lists(tokens, max_size=12).map(tuple),
    biases=st.lists(st.tuples(tokens, st.sampled_from([-np.inf, -3.0, 1.25, 5.0])), max_size=6).map(tuple),
    stops=st.lists(st.tuples(tokens, st.integers(0, 26)), max_size=3).map(tuple),
    words=st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=4).map(tuple),
    allowed=st.lists(st.none() | st.frozensets(tokens, min_size=0), max_size=4).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(
    rules=st.lists(some_rules, min_size=1, max_size=4),
    modes=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    length=st.integers(0, 4),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 4]),
    seed=st.integers(0, 2**31),
)
def test_rules_of_a_mixed_batch_equal_reference(rules, modes, length, temperature, top_k, seed):
    step = Step(rules, [length, *(max(0, length - i) for i in range(1, len(rules)))], seed=seed)
    step.check(step.sampling(modes[: len(rules)], temperature=temperature, top_k=top_k))


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(tokens, min_size=1, max_size=8).map(tuple),
    proposals=st.lists(tokens, min_size=5, max_size=5),
    length=st.integers(2, 4),
    start=st.integers(0, 2),
    seed=st.integers(0, 2**31),
)
def test_word_that_the_block_writes_is_banned_at_its_last_token(prompt, proposals, length, start, seed):
    """Proposals spell a word inside the block, which the target would say too."""
    word = tuple(proposals[start : start + length])
    step = Step([Rules(prompt=prompt, words=(word,))], [5], seed=seed)
    step.draft_tokens[0] = proposals
    step.logits[np.arange(5), proposals] = 50.0
    step.check(step.sampling([0]))
    accepted, kept, _ = step.run(step.sampling([0]))
    assert accepted[0] < start + length and tuple(kept[0, start : start + length].tolist()) != word


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 4099, 151936])
def test_rules_on_every_vocabulary_equal_reference(vocab):
    rng = np.random.default_rng(vocab)
    prompt, output = (tuple(rng.integers(0, vocab, n).tolist()) for n in (30, 20))
    allowed = frozenset(rng.choice(vocab, (vocab + 1) // 2, replace=False).tolist())
    rules = Rules(
        repetition=1.2,
        presence=0.5,
        frequency=0.1,
        prompt=prompt,
        output=output,
        biases=((0, 0.5), (vocab - 1, 2.0)),
        allowed=(None, allowed, None),
    )
    for mode in range(3):
        step = Step([rules, Rules(prompt=(0,))], [2, 1], vocab=vocab)
        step.check(step.sampling([mode, mode]))
        step.check(step.sampling([mode, mode], top_k=5, top_p=0.9))


# --- what each rule means ------------------------------------------------------------------


def test_bias_is_added_and_a_ban_is_final():
    row = [0.0, 1.0, 2.0, 0.0]
    assert greedy(Rules(prompt=(0,), biases=((1, 1.5),)), [row]) == [1]
    assert greedy(Rules(prompt=(0,), biases=((2, -np.inf), (2, 100.0))), [row]) == [1]
    assert greedy(Rules(prompt=(0,), biases=((3, 1.0), (3, 1.5))), [row]) == [3]


def test_stop_is_impossible_below_its_bound_and_possible_from_there_on():
    """min_tokens deep inside a block: the prompt has 2 tokens, three outputs are wanted first."""
    rules = Rules(prompt=(1, 1), output=(1,), stops=((3, 5),))
    rows = [[0.0, 1.0, 2.0, 9.0]] * 3
    # Positions 3, 4 and 5: only the last may be the stop.
    assert greedy(rules, rows, [2, 2]) == [2, 2, 3]
    assert greedy(rules, rows, [2, 3]) == [2, 2]


def test_word_of_one_token_is_banned_everywhere():
    assert greedy(Rules(prompt=(0,), words=((2,),)), [[0.0, 1.0, 2.0]]) == [1]


def test_word_counts_output_only():
    """As in vLLM: a word that begins in the prompt may end."""
    row = [[0.0, 1.0, 5.0]]
    word = ((1, 2),)
    assert greedy(Rules(prompt=(0, 1), words=word), row) == [2]
    assert greedy(Rules(prompt=(0,), output=(1,), words=word), row) == [1]
    assert greedy(Rules(prompt=(0, 1), output=(1,), words=word), row) == [1]


def test_mask_belongs_to_its_row():
    rules = Rules(prompt=(0,), allowed=(None, frozenset({0})))
    assert greedy(rules, [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [1, 0]) == [1, 0, 1]


def test_repetition_divides_what_is_positive_and_multiplies_the_rest():
    assert greedy(Rules(prompt=(1,), repetition=2.0), [[1.1, 2.0]]) == [0]
    assert greedy(Rules(prompt=(1,), repetition=2.0), [[-1.5, -1.0]]) == [0]
    assert greedy(Rules(prompt=(1,), repetition=0.5), [[-0.9, -1.0]]) == [1]


def test_presence_and_frequency_count_the_output_alone():
    row = [1.0, 2.0, 1.5]
    assert greedy(Rules(prompt=(1, 1, 1), presence=1.0, frequency=1.0), [row]) == [1]
    assert greedy(Rules(prompt=(0,), output=(1, 1), presence=1.0), [row]) == [2]
    assert greedy(Rules(prompt=(0,), output=(1, 1), frequency=0.2), [row]) == [1]
    assert greedy(Rules(prompt=(0,), output=(1, 1), frequency=0.3), [row]) == [2]


def test_penalties_count_the_proposals_before_a_row():
    """The target repeats itself until the frequency penalty of its own block stops it."""
    rules = Rules(prompt=(0,), frequency=0.4)
    assert greedy(rules, [[0.0, 1.0]] * 4, [1, 1, 1]) == [1, 1, 1, 0]


def test_prompt_length_decides_even_inside_a_prompt_of_one_token():
    assert greedy(Rules(prompt=(1,), presence=9.0), [[0.0, 1.0]] * 2, [1]) == [1, 0]


def test_request_without_anything_possible_ends_as_impossible_and_the_others_go_on():
    everything = tuple((i, -np.inf) for i in range(VOCAB))
    for mode in range(3):
        rules = [Rules(prompt=(3,)), Rules(prompt=(3,), biases=everything), Rules(prompt=(3,), allowed=(frozenset(),))]
        step = Step(rules, [2, 2, 2])
        step.check(step.sampling([mode] * 3))
        accepted, kept, ends = step.run(step.sampling([mode] * 3))
        assert accepted[1:].tolist() == [0, 0] and (kept[1:] == -1).all()
        assert ends.tolist()[1:] == [ENDS["impossible"]] * 2 and kept[0, 0] >= 0


@pytest.mark.parametrize("mode", names.ACCEPT_MODES.values(), ids=names.ACCEPT_MODES)
def test_everything_banned_but_one_token_gives_that_token(mode):
    bans = tuple((i, -np.inf) for i in range(VOCAB) if i != 17)
    step = Step([Rules(prompt=(3,), biases=bans)], [3])
    step.draft_tokens[:] = 17
    step.draft_logits[:, :, 17] = 30.0
    relaxed = {"relaxation": np.full((1, 2), 0.5, np.float32), "confidences": np.ones((1, 3), np.float32)}
    accepted, kept, ends = step.run(step.sampling([mode]), **relaxed)
    assert (accepted[0], kept[0].tolist(), ends[0]) == (3, [17] * 4, ENDS["bonus"])


def test_fault_that_the_rules_would_hide_is_still_a_fault():
    step = Step([Rules(prompt=(3,), biases=((5, -np.inf),))], [0])
    step.logits[0, 5] = np.nan
    assert step.run(step.sampling([0]))[2][0] == ENDS["nan"]


def test_penalty_that_overflows_ends_the_round_as_infinite():
    step = Step([Rules(prompt=(3,), repetition=1e-38)], [0])
    step.logits[0, 3] = 1e30
    assert step.run(step.sampling([0]))[2][0] == ENDS["infinite"]


def test_rules_do_not_change_what_the_caller_gave():
    step = Step([Rules(prompt=(3,), repetition=2.0, biases=((5, -np.inf),), allowed=(frozenset({1, 2}),) * 3)], [2])
    before = step.logits.copy()
    step.run(step.sampling([1]))
    np.testing.assert_array_equal(step.logits, before)


def test_counts_of_one_request_never_reach_the_next():
    """One thread, one scratch: the same request gives the same after any other, and after one that was refused."""
    own = Step([Rules(prompt=(1, 2), output=(3, 3), repetition=1.7, frequency=0.5)], [3], seed=4)
    requests = own.sampling([0])
    wanted = own.run(requests, parallel=False)
    other = Step([Rules(prompt=tuple(range(VOCAB)), output=(7,) * 9, repetition=5.0, presence=3.0)], [3], seed=5)
    other.run(other.sampling([0]), parallel=False)
    history = rule_arrays(other.rules, other.row_offsets, VOCAB)["token_history"]
    history[1, 4] = VOCAB
    with pytest.raises(ValueError, match="token_history holds 40 at position 4"):
        other.run(other.sampling([0]), token_history=history, parallel=False)
    for got, want in zip(own.run(requests, parallel=False), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_neutral_rules_read_no_history():
    step = Step([Rules(prompt=(1, 2))], [2])
    plain = step.run(step.sampling([1]))
    absent = dict.fromkeys(("token_history", "slots", "prompt_lengths", "token_masks", "rules"))
    for got, want in zip(step.run(step.sampling([1]), **absent), plain, strict=True):
        np.testing.assert_array_equal(got, want)


# --- complaints ----------------------------------------------------------------------------


def bits(value: float) -> int:
    return struct.unpack("<i", struct.pack("<f", value))[0]


def bad_cases() -> dict[str, tuple[dict[str, object], str]]:
    def records(*rows: tuple[int, int, int]) -> dict[str, object]:
        return {"rules": np.array(rows, np.int32), "rule_offsets": ints(0, len(rows))}

    def penalties(*values: float) -> dict[str, object]:
        return {"penalties": np.array([values], np.float32)}

    return {
        "repetition": (penalties(0, 0, 0), r"penalties\[0, 0\] \(repetition\) is 0, wanted a finite number > 0"),
        "presence": (penalties(1, np.nan, 0), r"penalties\[0, 1\] \(presence\) is nan, wanted a finite number"),
        "frequency": (penalties(1, 0, np.inf), r"penalties\[0, 2\] \(frequency\) is inf"),
        "kind": (records((3, 0, 0)), r"rules\[0, 0\] is 3, wanted 0 \(bias\), 1 \(stop\) or 2 \(word\)"),
        "id": (records((1, VOCAB, 0)), r"rules\[0, 1\] is 40, wanted an id in \[0, vocab = 40\)"),
        "bias_nan": (records((0, 1, bits(np.nan))), r"rules\[0, 2\] holds the bits of -?nan, wanted a finite bias"),
        "bias_inf": (records((0, 1, bits(np.inf))), r"rules\[0, 2\] holds the bits of inf"),
        "word_short": (records((2, 1, 1)), r"rules\[0\] does not continue a word"),
        "word_broken": (records((2, 1, 1), (0, 1, 0)), r"rules\[1\] does not continue a word"),
        "word_skips": (records((2, 1, 2), (2, 1, 0), (2, 1, 0)), r"rules\[1\] does not continue a word"),
        "word_negative": (records((2, 1, -1)), r"rules\[0\] does not continue a word"),
        "offsets_past": ({"rule_offsets": ints(0, 1)}, r"rule_offsets\[1\] is 1, wanted 0 .* to num_rules = 0"),
        "offsets_down": ({"rule_offsets": ints(1, 0)}, r"rule_offsets\[1\] is 0, wanted 1"),
        "offsets_negative": ({"rule_offsets": ints(-1, 0)}, r"rule_offsets\[0\] is -1, wanted >= 0"),
        "slot": (penalties(2, 0, 0) | {"slots": ints(3)}, r"slots\[0\] is 3, wanted a row of token_history in \[0, 3"),
        "anchor": (
            penalties(2, 0, 0) | {"anchor_position": ints(9)},
            r"anchor_position\[0\] is 9, wanted a position of token_history in \[0, 4\)",
        ),
        "history": (penalties(2, 0, 0) | {"token_history": None}, "token_history is null, wanted an array"),
        "history_of_word": (records((2, 1, 1), (2, 2, 0)) | {"slots": None}, "slots is null, wanted an array"),
        "mask_row": ({"mask_rows": ints(1, 0, 0)}, r"mask_rows\[0\] is 1, wanted -1 or a row of token_masks in \[0, 1"),
        "masks": ({"mask_rows": ints(-1, 0, -1), "token_masks": None}, r"mask_rows\[1\] is 0, wanted -1"),
        "mask_width": (
            {"token_masks": np.zeros((1, 1), np.int32)},
            r"token_masks is int32 \[1, 1\], wanted int32 \[M, ceil\(V / 32\)\] = \[\?, 2\]",
        ),
    }


@pytest.mark.parametrize(("change", "message"), bad_cases().values(), ids=bad_cases())
def test_rules_bad_argument_is_named_with_found_and_wanted(change, message):
    step = Step([Rules(prompt=(1, 2))], [2])
    with pytest.raises(ValueError, match=message):
        step.run(step.sampling([1]), **change)
