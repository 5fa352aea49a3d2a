"""DSparkDraft, DSparkCutoff and DSparkAccept together: what rounds emit has the target's law, at every setting."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dspark_runtime.contract import names
from tests.plugins.rounds import BLOCK, Setting, World
from tests.proof.chi_square import SMALLEST, p_value
from tests.reference import cutoff as policies
from tests.reference.cutoff import Cutoff
from tests.reference.rules import Rules

DRAWS, TOKENS = 200_000, 3
POLICIES = {
    "all": Cutoff(),
    "threshold": Cutoff(policy=policies.THRESHOLD, params=(0.4,)),
    "survival": Cutoff(policy=policies.SURVIVAL, params=(0.2,)),
    "utility": Cutoff(policy=policies.UTILITY, params=(0.3, 1.0, 0.2, 1, 3)),
    "two_strikes": Cutoff(policy=policies.TWO_STRIKES, params=(0.7, 0)),
    "dual": Cutoff(policy=policies.DUAL, params=(0.25, 0.6, 0.8)),
    "ramp": Cutoff(policy=policies.RAMP, params=(0.2, 0.6, BLOCK)),
}
SIGNALS = {name: value | (2 << 8 if name == "topk_mass" else 0) for name, value in names.CONFIDENCE_SIGNALS.items()}
FILTERS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.08, "temperature": 1.3},
}
RULES = {
    "none": Rules(),
    "penalties": Rules(repetition=1.4, presence=0.3, frequency=0.5),
    # A bias and a ban; token 0 not among the first two outputs; no 3 after 2.
    "rules": Rules(biases=((3, 0.8), (4, -np.inf)), stops=((0, 5),), words=((2, 3),)),
    "mask": Rules(allowed=(frozenset({0, 2, 3, 4}),), repetition=0.8),
}


def pairs() -> list[tuple[str, str, str, str]]:
    """Every pair of policy and signal, with filters and rules dealt out so that they meet all of both."""
    found = []
    for i, policy in enumerate(POLICIES):
        for j, signal in enumerate(SIGNALS):
            found.append((policy, signal, list(FILTERS)[(i + 2 * j) % 5], list(RULES)[(i + j) % 4]))
    return found


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def setting_of(policy: str, signal: str, filters: str, rules: str, mode: str = "rejection") -> Setting:
    return Setting(
        mode=names.ACCEPT_MODES[mode],
        # The one stop that is legal with `token`; the others take turns.
        cutoff=replace(POLICIES[policy], inclusive=signal == "token" or len(policy + signal) % 2 == 0),
        signal=SIGNALS[signal],
        filters=FILTERS[filters],
        rules=RULES[rules],
    )


def test_pairs_meet_every_two_values() -> None:
    for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        values = [sorted({row[i] for row in pairs()}) for i in (a, b)]
        assert {(row[a], row[b]) for row in pairs()} == set(product(*values))


@pytest.mark.parametrize(("policy", "signal", "filters", "rules"), pairs())
def test_rejection_rounds_emit_the_targets_law(world, policy, signal, filters, rules) -> None:
    setting = setting_of(policy, signal, filters, rules)
    assert p_value(world.counts(setting, DRAWS, TOKENS), world.law(setting, TOKENS)) > SMALLEST


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_the_target_alone_emits_its_law(world, mode, filters, rules) -> None:
    setting = setting_of("all", "top1", filters, rules, mode)
    counts = world.counts(setting, DRAWS, TOKENS, speculate=False)
    assert p_value(counts, world.law(setting, TOKENS)) > SMALLEST


@pytest.mark.parametrize(("policy", "signal", "filters", "rules"), pairs())
def test_coupled_rounds_emit_what_the_target_alone_says_with_every_seed(world, policy, signal, filters, rules) -> None:
    seeds = np.arange(20_000, dtype=np.int64) * 977 - 5
    for inclusive in (False, True):
        setting = setting_of(policy, signal, filters, rules, "coupled")
        setting = replace(setting, cutoff=replace(setting.cutoff, inclusive=inclusive))
        said = world.decode(setting, seeds, TOKENS)
        np.testing.assert_array_equal(said, world.decode(setting, seeds, TOKENS, speculate=False))
        assert len(np.unique(said, axis=0)) > 5


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_rounds_emit_what_the_target_alone_says(policy, rules) -> None:
    settings = [setting_of(policy, signal, "plain", rules, "greedy") for signal in SIGNALS]
    # At temperature 0 every sampling mode is greedy.
    settings += [replace(s, mode=names.ACCEPT_MODES["rejection"], filters={"temperature": 0.0}) for s in settings]
    said = set()
    for seed in range(20):
        small = World(seed)
        seeds = np.zeros(1, np.int64)
        plain = small.decode(settings[0], seeds, 8, speculate=False).tolist()
        assert all(small.decode(setting, seeds, 8).tolist() == plain for setting in settings)
        said.add(tuple(plain[0]))
    assert len(said) > 10


@pytest.mark.parametrize("policy", ["threshold", "survival", "utility", "two_strikes", "dual", "ramp"])
def test_control_token_signal_with_an_exclusive_stop_is_reported(world, policy) -> None:
    setting = setting_of(policy, "token", "plain", "none")
    assert p_value(world.counts(setting, DRAWS, TOKENS), world.law(setting, TOKENS)) > SMALLEST
    skewed = replace(setting, cutoff=replace(setting.cutoff, inclusive=False))
    assert p_value(world.counts(skewed, DRAWS, TOKENS), world.law(setting, TOKENS)) < 1e-12


def test_control_a_temperature_five_percent_off_is_reported(world) -> None:
    setting = setting_of("threshold", "head", "plain", "none")
    warmer = replace(setting, filters={"temperature": 1.05})
    assert p_value(world.counts(setting, DRAWS, TOKENS), world.law(warmer, TOKENS)) < 1e-12


def test_control_penalties_that_miss_the_block_are_reported(world) -> None:
    """The law of a target that penalises what was said before the block, and not what is proposed in it."""
    setting = setting_of("all", "top1", "plain", "penalties")
    unaware = replace(setting, rules=RULES["none"])
    assert p_value(world.counts(setting, DRAWS, TOKENS), world.law(unaware, TOKENS)) < 1e-12
