"""Anything may happen in any order: requests come, steps run or fail, requests are aborted, preempted, finish.

After every step no slot has two owners, lengths and counters fit together, and what a slot holds is what a fresh
prefill of its tokens would be; every request says what it says alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dspark_runtime import SamplingParams, SpeculativeParams
from dspark_runtime.executor import BundleExecutor
from dspark_runtime.request import Phase, Request
from dspark_runtime.slots import Kept
from tests.runtime.bench import Bench

SYSTEM = [(11 * i) % 290 + 5 for i in range(20)]
PROMPTS = [
    SYSTEM, [*SYSTEM, 7], [*SYSTEM, 8, 9, 10], [*SYSTEM[:9], 100, 101], [5], [6, 7], SYSTEM[::-1],
    [*SYSTEM, *SYSTEM, 3], [(7 * i) % 280 + 9 for i in range(70)],
]  # fmt: skip
ALL = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, speculative=SpeculativeParams(cutoff="all"))
KINDS = [
    ALL,
    replace(ALL, temperature=0.9, seed=4, top_k=20),
    replace(ALL, speculative=SpeculativeParams(enabled=False), max_tokens=5),
    replace(ALL, temperature=0.7, seed=2**40, speculative=SpeculativeParams(cutoff="threshold:0.5"), max_tokens=25),
    replace(ALL, max_tokens=1),
]


class Service(RuleBasedStateMachine):
    """One engine with three slots. `folder`, `executor` and `oracle` are set by the test."""

    folder: Path
    executor: BundleExecutor
    oracle: Bench
    said: ClassVar[dict[tuple[int, int], list[int]]]

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(self.folder, chunk=8, max_overtakes=3, executor=self.executor)
        self.asked: dict[int, tuple[int, int]] = {}
        self.requests: list[Request] = []
        self.failed: set[int] = set()
        self.checked = 0

    @rule(
        prompt=st.integers(0, len(PROMPTS) - 1),
        kind=st.integers(0, len(KINDS) - 1),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, "a"]),
    )
    def add(self, prompt: int, kind: int, priority: int, salt: str | None) -> None:
        request = self.bench.add(PROMPTS[prompt], KINDS[kind], priority, salt)
        self.asked[request.request_id] = (prompt, kind)
        self.requests.append(request)

    @precondition(lambda self: self.bench.engine.num_unfinished)
    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.engine.step()

    @precondition(lambda self: self.bench.engine.num_unfinished)
    @rule()
    def fail_a_step(self) -> None:
        """What it planned fails, and nothing else."""
        self.bench.executor.fails = True
        before = {id(request) for request in self.requests if request.is_finished}
        ended = self.bench.engine.step()
        found = {id(request) for request in self.requests if request.is_finished}
        assert found - before == {id(request) for request in ended} and ended
        assert all(request.finish_reason == "error" for request in ended)
        self.bench.executor.fails = False

    @precondition(lambda self: self.bench.engine.num_unfinished)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([request for request in self.requests if not request.is_finished]))
        self.bench.engine.abort(request)
        assert request.is_finished

    @rule()
    def finish_all(self) -> None:
        self.bench.run()
        assert all(request.is_finished for request in self.requests)
        assert self.bench.scheduler.slots.num_free == 3

    @invariant()
    def no_slot_has_two_owners(self) -> None:
        scheduler = self.bench.scheduler
        holders = [request for request in self.requests if request.slot is not None]
        assert sorted(request.slot for request in holders) == sorted({request.slot for request in holders})
        for slot in range(3):
            owner = scheduler.slots.owner(slot)
            assert [request.request_id for request in holders if request.slot == slot] == (
                [] if owner is None else [owner]
            )
        phases = [request.phase for request in self.requests]
        assert scheduler.num_waiting == phases.count(Phase.WAITING)
        assert scheduler.num_running == phases.count(Phase.PREFILL) + phases.count(Phase.DECODE) == len(holders)

    @invariant()
    def lengths_fit_together(self) -> None:
        for request in self.requests:
            assert len(request.tokens) <= request.max_length
            if request.phase is Phase.DECODE:
                assert request.computed == len(request.tokens) - 1
            if not request.is_finished:
                assert request.computed <= request.prefill_end or request.phase is Phase.DECODE
                assert request.draft_computed <= request.computed
        for slot in range(3):
            held = self.bench.scheduler.slots.contents(slot)
            if isinstance(held, Kept):
                assert len(held.tokens) == held.computed > 0 and held.draft_computed <= held.computed

    @invariant()
    def counters_add_up(self) -> None:
        assert list(self.bench.engine.metrics.broken_identities(self.bench.engine.num_unfinished)) == []

    @invariant()
    def requests_say_what_they_say_alone(self) -> None:
        for request in self.requests:
            expected = self.alone(*self.asked[request.request_id])
            assert request.output_token_ids == expected[: len(request.output_token_ids)]
            if request.finish_reason == "length":
                assert request.output_token_ids == expected
        self.requests = [request for request in self.requests if not request.is_finished]

    @invariant()
    def a_slot_holds_what_a_fresh_prefill_would(self) -> None:
        """One slot after every rule, in turn."""
        slot = self.checked % 3
        self.checked += 1
        held = self.bench.scheduler.slots.contents(slot)
        if held is None or not held.computed:
            return
        tokens = list(held.tokens[: held.computed])
        self.oracle.add(tokens, replace(ALL, max_tokens=1))
        self.oracle.run()
        for name, rows in self.bench.rows(slot).items():
            fresh = self.oracle.executor.inner.caches[name][0, :, : rows.shape[1]]
            np.testing.assert_allclose(rows, fresh, atol=3e-5, err_msg=f"{name}, slot {slot}")

    def alone(self, prompt: int, kind: int) -> list[int]:
        if (prompt, kind) not in self.said:
            request = self.oracle.add(PROMPTS[prompt], KINDS[kind])
            self.oracle.run()
            self.said[prompt, kind] = request.output_token_ids
        return self.said[prompt, kind]


@pytest.mark.parametrize("name", ["good", "itself"])
def test_service_in_any_order_of_events_is_sound(bundle: Callable[[str], Path], name: str) -> None:
    class OfBundle(Service):
        folder = bundle(name)
        executor = Bench(bundle(name)).executor.inner
        oracle = Bench(bundle(name), num_slots=1, reuse=False, chunk=200)
        said: ClassVar[dict[tuple[int, int], list[int]]] = {}

    run_state_machine_as_test(
        OfBundle,
        settings=settings(
            max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
