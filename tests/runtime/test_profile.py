from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from dspark_runtime.profile import Profiler
from tests.runtime.conftest import THREADS


def operators(*values: tuple[float, float, float]) -> Callable[[], tuple[float, float, float]]:
    steps: Iterator[tuple[float, float, float]] = iter(values)
    return lambda: next(steps)


@pytest.mark.parametrize("in_graph", [True, False])
def test_profile_takes_operators_out_of_the_engine_that_they_run_in(in_graph: bool) -> None:
    ticks = count()
    profiler = Profiler(operators((5.0, 5.0, 5.0), (5.25, 5.125, 5.5)), in_graph, clock=lambda: float(next(ticks)))
    # The clock ticks once per look: round 0..5, draft 1..2, target 3..4.
    with profiler.round():
        with profiler.draft_session():
            pass
        with profiler.target_session():
            pass
    profile = profiler.snapshot()
    assert profile.round_s == 5.0
    assert (profile.head_s, profile.cutoff_s, profile.accept_s) == (0.25, 0.125, 0.5)
    assert profile.draft_session_s == (0.625 if in_graph else 1.0)
    assert profile.target_session_s == (0.5 if in_graph else 1.0)
    assert sum(profile.parts().values()) == profile.round_s
    assert profile.host_share == profile.host_s / 5.0


def test_profile_counts_prefills_apart_and_forgets_on_reset() -> None:
    ticks = count()
    profiler = Profiler(clock=lambda: float(next(ticks)))
    with profiler.prefill():
        pass
    assert (profiler.snapshot().prefill_steps, profiler.snapshot().prefill_s) == (1, 1.0)
    assert profiler.snapshot().host_share == 0.0
    profiler.reset()
    assert profiler.snapshot().prefill_steps == 0


@pytest.mark.parametrize("name", ["good", "itself", "good-standard", "itself-standard"])
def test_profile_parts_of_a_real_run_are_all_positive_and_add_up(bundle: Callable[[str], Path], name: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(bundle(name), num_threads=THREADS) as llm:
        llm.generate([[5] * 60, [6, 7]], replace(params, speculative=SpeculativeParams(cutoff="all")))
        profile = llm.profile
        assert profile.prefill_steps == 2
        assert all(seconds > 0 for seconds in profile.parts().values())
        assert sum(profile.parts().values()) == pytest.approx(profile.round_s)
        llm.reset_profile()
        assert llm.profile.rounds == 0
