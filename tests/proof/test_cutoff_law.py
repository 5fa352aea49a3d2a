"""Under every policy, signal, stop and controller that rejection allows, the law is the target's to 1e-12."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.proof.cutoffs import Fixed, PerRequest, Wandering, WarmingUp
from tests.proof.worlds import random_speaker
from tests.reference import cutoff as policies
from tests.reference.cutoff import Cutoff
from tests.reference.draft import ENTROPY, GINI, HEAD, MARGIN, TOKEN, TOP1, TOPK_MASS
from tests.reference.enumeration import Batch, Block, Rule, Speaker, Tokens, bias, solo

EXACT = 1e-12
COUPLED = 2
POLICIES = {
    "all": Cutoff(),
    "threshold": Cutoff(policy=policies.THRESHOLD, params=(0.5,)),
    "survival": Cutoff(policy=policies.SURVIVAL, params=(0.3,)),
    "utility": Cutoff(policy=policies.UTILITY, params=(0.4, 1.0, 0.2, 1, 3)),
    "two_strikes": Cutoff(policy=policies.TWO_STRIKES, params=(0.8, 0)),
    "dual": Cutoff(policy=policies.DUAL, params=(0.3, 0.7, 0.7)),
    "ramp": Cutoff(policy=policies.RAMP, params=(0.3, 0.8, 3)),
}
SIGNALS = {
    "head": HEAD, "top1": TOP1, "margin": MARGIN, "topk_mass": TOPK_MASS, "entropy": ENTROPY, "gini": GINI,
    "token": TOKEN,
}  # fmt: skip
CONTROLLERS = {"fixed": Fixed(), "wandering": Wandering(), "warming_up": WarmingUp()}


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    """One for all combinations: what its rounds may draw is worked out once."""
    return random_speaker(60, 3, 3, temperature=0.9)


@pytest.fixture(scope="module")
def short_speaker() -> Speaker:
    """For controllers, whose memory makes many states."""
    return random_speaker(60, 3, 2, temperature=0.9)


def bias_of(speaker: Speaker, rule: Rule, num_tokens: int = 4) -> float:
    law = Batch([speaker], rule, num_tokens).law()
    assert abs(sum(law.values()) - 1.0) < EXACT
    return bias(law, solo([speaker], num_tokens))


@pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)
@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_law_of_every_allowed_combination_is_the_targets(speaker, short_speaker, policy, signal, controller) -> None:
    chosen = speaker if type(controller) is Fixed else short_speaker
    for inclusive in (False, True):
        if signal == TOKEN and not inclusive and policy.policy != policies.ALL:
            continue
        rule = PerRequest(replace(policy, inclusive=inclusive), signal, k=2, controller=controller)
        assert bias_of(chosen, rule) < EXACT
        assert len(rule.used) > 1


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "all"])
def test_token_signal_with_an_exclusive_stop_skews_under_rejection(speaker, policy) -> None:
    assert bias_of(speaker, PerRequest(POLICIES[policy], TOKEN)) > 1e-3


@pytest.mark.parametrize("policy", POLICIES)
def test_token_signal_with_an_exclusive_stop_is_harmless_in_coupled_mode(policy) -> None:
    speaker = random_speaker(61, 3, 2, accept_mode=COUPLED)
    batch = Batch([speaker], PerRequest(POLICIES[policy], TOKEN, controller=Wandering()), 3, pathwise=True)
    assert bias(batch.law(), solo([speaker], 3)) < EXACT


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.8, "temperature": 1.4}, {"min_p": 0.4}], ids=str)
def test_law_with_filters_is_the_targets_although_signals_read_unfiltered_rows(options) -> None:
    speaker = random_speaker(62, 4, 2, **options)
    for signal in (MARGIN, ENTROPY, TOKEN):
        rule = PerRequest(replace(POLICIES["survival"], inclusive=True), signal, controller=Wandering())
        assert bias_of(speaker, rule, 3) < EXACT


def test_equal_seeds_under_a_cutoff_of_their_own_are_each_exact_and_not_independent() -> None:
    speakers = [random_speaker(63, 2, 2), random_speaker(63, 2, 2)]
    law = Batch(speakers, PerRequest(POLICIES["threshold"], TOP1, controller=Wandering()), 3).law()
    for request, speaker in enumerate(speakers):
        own: dict[tuple[Tokens, ...], float] = defaultdict(float)
        for said, weight in law.items():
            own[said[request],] += weight
        assert bias(own, solo([speaker], 3)) < EXACT
    assert bias(law, solo(speakers, 3)) > 0.01


class TakesBack(PerRequest):
    """The published two_strikes: the second strike drops the first weak proposal, too, which was before it."""

    def lengths(self, memory: Any, blocks: Sequence[Block]) -> list[int]:
        lengths = []
        for block, length in zip(blocks, super().lengths(memory, blocks), strict=True):
            c = self.confidences(block)
            weak = [i for i, value in enumerate(c[: length + 1]) if value < 0.7 * self.cutoff.params[0]]
            lengths.append(min(length, weak[0]) if len(weak) > 1 else length)
        return lengths


def test_two_strikes_that_take_back_an_earlier_proposal_skew(speaker) -> None:
    assert bias_of(speaker, TakesBack(POLICIES["two_strikes"], ENTROPY)) > 1e-3


def test_a_controller_that_peeks_at_the_current_round_skews(speaker) -> None:
    class Peeks(PerRequest):
        """Its controller counts the round that is being decided as completed."""

        def lengths(self, memory: Any, blocks: Sequence[Block]) -> list[int]:
            return super().lengths(self.after(memory, blocks, [0] * len(blocks), [0] * len(blocks)), blocks)  # type: ignore[arg-type]

    assert bias_of(speaker, Peeks(POLICIES["threshold"], TOP1, controller=Wandering())) > 1e-3
