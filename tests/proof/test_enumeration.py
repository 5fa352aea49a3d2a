"""What speculative decoding emits has the target's law to 1e-12, over every outcome of every random number.

And the proof can fail: each mistake that the specification warns of is made once, on purpose, and is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.proof.batchwide import Current, Stale, argmax_over_current
from tests.proof.worlds import (
    A,
    B,
    appendix_a,
    appendix_a_confidence,
    random_confidence,
    random_speaker,
    steps_per_second,
)
from tests.reference import philox
from tests.reference.accept import to_target
from tests.reference.chances import outcomes
from tests.reference.draws import Counter, Numbers
from tests.reference.enumeration import Batch, Block, Rule, Speaker, Tokens, bias, solo
from tests.reference.filters import filtered

EXACT = 1e-12
REJECTION, COUPLED = 1, 2
FILTERS = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "all": {"temperature": 1.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1},
}


@dataclass(frozen=True)
class Length:
    """As many of the proposals as a function of the block says."""

    of: Callable[[Block], int]
    start: Hashable = ()

    def lengths(self, memory: object, blocks: Sequence[Block]) -> list[int]:
        return [min(block.limit, self.of(block)) for block in blocks]

    def after(self, memory: object, blocks: object, lengths: object, accepted: object) -> Hashable:
        return ()


ALL = Length(lambda block: block.limit)


def random_stop(block: Block) -> int:
    """Goes on by the toss of a coin that is a function of what precedes each proposal."""
    length = 0
    while length < len(block.tokens):
        if np.random.default_rng([11, *block.history, *block.tokens[:length]]).random() < 0.4:
            break
        length += 1
    return length


def proven(batch: Batch) -> float:
    """How far the batch is from what each of its requests says alone; the law must be complete."""
    law = batch.law()
    assert abs(sum(law.values()) - 1.0) < EXACT
    return bias(law, solo(batch.speakers, batch.num_tokens))


def marginal(law: dict[tuple[Tokens, ...], float], request: int, position: int, token: int) -> float:
    return sum(weight for said, weight in law.items() if said[request][position] == token)


def test_outcomes_a_counter_asked_twice_answers_twice_the_same() -> None:
    counter, ids, p = Counter(1, 2, philox.DRAFT, 0, 0), np.arange(3), np.array([0.5, 0.2, 0.3])

    def twice(numbers: Numbers) -> tuple[int, int, bool]:
        return numbers.pick(counter, ids, p)[0], numbers.pick(counter, ids, p)[0], numbers.keeps(counter, 1.0, 0.6)[0]

    found = {outcome.value: outcome.weight for outcome in outcomes(twice, {})}
    # The uniform lies below 0.5, in [0.5, 0.6), [0.6, 0.7) or above.
    assert found == pytest.approx({(0, 0, True): 0.5, (1, 1, True): 0.1, (1, 1, False): 0.1, (2, 2, False): 0.3})


def test_outcomes_what_is_known_stays_known() -> None:
    counter, ids = Counter(1, 2, philox.COUPLED, 0, 0), np.arange(2)
    first, second = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    known = next(outcomes(lambda numbers: numbers.pick(counter, ids, first)[0], {})).known
    again = {o.value: o.weight for o in outcomes(lambda numbers: numbers.pick(counter, ids, second)[0], known)}
    assert again == pytest.approx({0: 0.5, 1: 0.5})


@pytest.mark.parametrize("mode", [REJECTION, COUPLED], ids=["rejection", "coupled"])
@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize(("vocab", "block_size", "num_tokens"), [(2, 2, 5), (3, 3, 4), (4, 2, 3)])
def test_law_every_length_filter_and_vocabulary_is_the_targets(vocab, block_size, num_tokens, options, mode) -> None:
    speaker = random_speaker(3, vocab, block_size, accept_mode=mode, **options)
    for rule in (ALL, Length(lambda block: min(1, block.limit)), Length(random_stop)):
        assert proven(Batch([speaker], rule, num_tokens, pathwise=mode == COUPLED)) < EXACT


@pytest.mark.parametrize("schedule", ["early_stop", "stale_budget"])
@pytest.mark.parametrize("seed", range(3))
def test_law_of_a_batch_under_a_legal_scheduler_is_the_targets(schedule, seed) -> None:
    speakers = [random_speaker(10 + seed, 2, 2), random_speaker(20 + seed, 2, 2, temperature=0.7)]
    table = steps_per_second(1.0, 0.8, 0.7, 0.62, 0.6, 0.3)
    rule: Rule = Current(random_confidence, table)
    if schedule == "stale_budget":
        rule = Stale(random_confidence, table, (0.9, 0.8))
    assert proven(Batch(speakers, rule, 3)) < EXACT


def test_law_of_three_requests_and_four_rounds_under_a_stale_budget_is_the_targets() -> None:
    speakers = [random_speaker(30, 2, 1), random_speaker(31, 3, 1), random_speaker(32, 2, 1, top_p=0.8)]
    rule = Stale(random_confidence, steps_per_second(1.0, 0.9, 0.8, 0.7, 0.6, 0.3), (0.5,))
    assert proven(Batch(speakers, rule, 2)) < EXACT
    assert proven(Batch(speakers[:1], rule, 5)) < EXACT


def test_coupled_paths_are_the_targets_under_any_rule_even_an_anticipating_one() -> None:
    speakers = [
        random_speaker(40, 3, 2, accept_mode=COUPLED),
        random_speaker(40, 2, 2, accept_mode=COUPLED, temperature=0.8),
    ]
    table = steps_per_second(1.0, 0.8, 0.7, 0.62, 0.6, 0.3)
    for rule in (argmax_over_current(random_confidence, table), Stale(random_confidence, table, (0.9, 0.8))):
        # Equal seeds: the two are one random process, and each of them still is the target's.
        batch = Batch(speakers, rule, 2, pathwise=True)
        law = batch.law()
        for request, speaker in enumerate(speakers):
            own: dict[tuple[Tokens, ...], float] = defaultdict(float)
            for said, weight in law.items():
                own[said[request],] += weight
            assert bias(own, solo([speaker], 2)) < EXACT
    drops_what_it_dislikes = Length(lambda block: next((k for k, x in enumerate(block.tokens) if x == 0), 9))
    assert proven(Batch(speakers[:1], drops_what_it_dislikes, 4, pathwise=True)) < EXACT


def test_appendix_a_the_retrospective_argmax_skews_and_legal_schedulers_do_not() -> None:
    speaker, table = appendix_a(), steps_per_second(1.0, 0.5, 0.45)
    skewed = Batch([speaker], argmax_over_current(appendix_a_confidence, table), 3)
    law = skewed.law()
    assert (marginal(law, 0, 0, A), marginal(law, 0, 0, B)) == pytest.approx((0.85, 0.15), abs=EXACT)
    assert proven(skewed) > 0.05
    for legal in (Current(appendix_a_confidence, table), Stale(appendix_a_confidence, table, (0.9, 0.8))):
        law = Batch([speaker], legal, 3).law()
        assert (marginal(law, 0, 0, A), marginal(law, 0, 0, B)) == pytest.approx((0.7, 0.3), abs=EXACT)
        assert proven(Batch([speaker], legal, 3)) < EXACT


@dataclass(frozen=True)
class ByPosition:
    """Mistake: every number is keyed by the position of the token it decides about, not by the round's anchor."""

    numbers: Numbers

    @staticmethod
    def _moved(counter: Counter) -> Counter:
        return counter._replace(position=counter.position + 1 + counter.k, k=0)

    def keeps(self, counter: Counter, p_draft: float, p_target: float) -> tuple[bool, float]:
        return self.numbers.keeps(self._moved(counter), p_draft, p_target)

    def pick(self, counter: Counter, ids: NDArray[np.int64], probabilities: NDArray[np.float64]) -> tuple[int, float]:
        return self.numbers.pick(self._moved(counter), ids, probabilities)


def by_position(numbers: Numbers, speaker: Speaker, block: Block | None) -> Numbers:
    return ByPosition(numbers)


def test_numbers_keyed_by_position_skew_under_a_stale_budget() -> None:
    """x_2, discarded, is proposed again as x_1 of the next round, whose budget c_3 has set: c_3 knows x_2."""

    def confidence(block: Block) -> tuple[float, ...]:
        return 0.8, 0.9, 0.9 if block.tokens[1] == A else 0.0

    # Budget 3 after c_3 = 0.9, else 0: as in Appendix A, one round late.
    rule = Stale(confidence, steps_per_second(1.0, 0.5, 0.39, 0.35), (0.1, 0.1, 0.1))
    speaker = appendix_a(block_size=3)
    right, wrong = Batch([speaker], rule, 5), Batch([speaker], rule, 5, wrong=by_position)
    assert proven(right) < EXACT
    assert proven(wrong) > 0.03
    law = wrong.law()
    assert (marginal(law, 0, 1, A), marginal(law, 0, 1, B)) == pytest.approx((0.85, 0.15), abs=EXACT)
    # What remembers nothing is not harmed by it.
    assert proven(Batch([speaker], ALL, 5, wrong=by_position)) < EXACT


def test_one_seed_for_two_requests_skews_under_a_batch_wide_policy() -> None:
    """The second request's x_1 is the first one's: where it is A, its own next proposal takes the first one's place."""

    def confidence(block: Block) -> tuple[float, float]:
        return (0.5, 0.1) if block.request == 0 else appendix_a_confidence(block)

    rule = Stale(confidence, steps_per_second(1.2, 1.0, 0.9, 0.85, 0.1, 0.1), (0.9, 0.8))
    same, apart = [appendix_a(seed=1), appendix_a(seed=1)], [appendix_a(seed=1), appendix_a(seed=2)]
    law = Batch(same, rule, 3).law()
    assert marginal(law, 0, 0, A) == pytest.approx(0.55, abs=EXACT)
    assert proven(Batch(same, rule, 3)) > 0.05
    assert marginal(Batch(apart, rule, 3).law(), 0, 0, A) == pytest.approx(0.7, abs=EXACT)
    assert proven(Batch(apart, rule, 3)) < EXACT


@dataclass(frozen=True)
class ShiftedResidual:
    """Mistake: the residual at block position k is made of the target's row k + 1."""

    numbers: Numbers
    speaker: Speaker
    block: Block

    def keeps(self, counter: Counter, p_draft: float, p_target: float) -> tuple[bool, float]:
        return self.numbers.keeps(counter, p_draft, p_target)

    def pick(self, counter: Counter, ids: NDArray[np.int64], probabilities: NDArray[np.float64]) -> tuple[int, float]:
        if counter.purpose == philox.RESIDUAL:
            k, sampling = counter.k, self.speaker.at(self.block.history)
            row = self.speaker.target(self.block.history + self.block.tokens[: k + 1])
            p_draft = to_target(filtered(self.block.logits[k], sampling).probabilities, None, len(row))
            residual = np.maximum(filtered(row, sampling).probabilities - p_draft, 0.0)
            probabilities = residual / residual.sum()
        return self.numbers.pick(counter, ids, probabilities)


def shifted_residual(numbers: Numbers, speaker: Speaker, block: Block | None) -> Numbers:
    return numbers if block is None else ShiftedResidual(numbers, speaker, block)


def test_a_residual_one_row_off_is_reported() -> None:
    speaker = random_speaker(50, 3, 2)
    assert proven(Batch([speaker], ALL, 3)) < EXACT
    assert proven(Batch([speaker], ALL, 3, wrong=shifted_residual)) > 0.01


def test_dropping_a_proposal_for_what_it_is_skews_under_rejection() -> None:
    speaker = random_speaker(51, 3, 2)
    drops_zeros = Length(lambda block: next((k for k, x in enumerate(block.tokens) if x == 0), len(block.tokens)))
    assert proven(Batch([speaker], drops_zeros, 3)) > 0.01
    keeps_the_first_zero = Length(
        lambda block: next((k + 1 for k, x in enumerate(block.tokens) if x == 0), len(block.tokens))
    )
    assert proven(Batch([speaker], keeps_the_first_zero, 3)) < EXACT
