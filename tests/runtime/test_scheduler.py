from __future__ import annotations

import pytest

from dspark_runtime.params import SpeculativeParams
from dspark_runtime.plan import PrefillPlan, RoundPlan
from dspark_runtime.request import Phase, Request
from dspark_runtime.scheduler import Scheduler
from tests.runtime.fakes import make, make_manifest

MANIFEST = make_manifest(block_size=4, max_batch_size=4, max_seq_len=64)


def prompts(*lengths: int) -> list[Request]:
    return [make(MANIFEST, range(10, 10 + n), i, max_tokens=20) for i, n in enumerate(lengths)]


def carry_out(scheduler: Scheduler, plan: PrefillPlan | RoundPlan | None) -> None:
    """What the engine would do with a plan: one token per finished prompt, one per request of a round."""
    assert plan is not None
    if isinstance(plan, PrefillPlan):
        request = scheduler.in_slot(plan.slot)
        request.computed = plan.start + len(plan.tokens)
        if plan.is_last:
            scheduler.prefilled(request)
            request.tokens.append(5)
        return
    for slot in plan.slots:
        request = scheduler.in_slot(slot)
        request.tokens.append(5)
        request.computed += 1


def kinds(scheduler: Scheduler, steps: int) -> list[str]:
    """`p0:3` is a chunk of 3 tokens for slot 0; `r01` a round of slots 0 and 1."""
    seen = []
    for _ in range(steps):
        plan = scheduler.next_step()
        if isinstance(plan, PrefillPlan):
            seen.append(f"p{plan.slot}:{len(plan.tokens)}")
        else:
            assert plan is not None
            seen.append("r" + "".join(map(str, plan.slots)))
        carry_out(scheduler, plan)
    return seen


def test_scheduler_short_prompts_start_together_within_the_budget() -> None:
    scheduler = Scheduler(4, chunk_tokens=8)
    for request in prompts(3, 3, 3, 3):
        scheduler.add(request)
    assert kinds(scheduler, 6) == ["p0:3", "p1:3", "p2:3", "r012", "p3:3", "r0123"]


def test_scheduler_long_prompt_lets_rounds_in_between() -> None:
    scheduler = Scheduler(4, chunk_tokens=8)
    short, long = prompts(3, 30)
    scheduler.add(short)
    assert kinds(scheduler, 2) == ["p0:3", "r0"]
    scheduler.add(long)
    assert kinds(scheduler, 8) == ["p1:8", "r0", "p1:8", "r0", "p1:8", "r0", "p1:6", "r01"]


def test_scheduler_long_prompt_alone_runs_chunk_after_chunk() -> None:
    scheduler = Scheduler(2, chunk_tokens=8)
    scheduler.add(prompts(20)[0])
    assert kinds(scheduler, 4) == ["p0:8", "p0:8", "p0:4", "r0"]


def test_scheduler_waiting_request_takes_a_freed_slot_at_the_next_step() -> None:
    scheduler = Scheduler(2, chunk_tokens=8)
    first, second, third = prompts(2, 2, 2)
    for request in (first, second, third):
        scheduler.add(request)
    assert kinds(scheduler, 3) == ["p0:2", "p1:2", "r01"]
    assert scheduler.num_waiting == 1
    scheduler.finish(first)
    assert kinds(scheduler, 2) == ["p0:2", "r01"]
    assert third.slot == 0
    assert scheduler.num_waiting == 0


def test_scheduler_requests_are_admitted_in_order_of_arrival() -> None:
    scheduler = Scheduler(1, chunk_tokens=8)
    requests = prompts(2, 2, 2)
    for request in requests:
        scheduler.add(request)
    order = []
    while len(scheduler):
        plan = scheduler.next_step()
        carry_out(scheduler, plan)
        if isinstance(plan, RoundPlan):
            request = scheduler.in_slot(0)
            order.append(request.request_id)
            scheduler.finish(request)
    assert order == [0, 1, 2]


def test_scheduler_nothing_to_do_gives_no_step() -> None:
    assert Scheduler(1).next_step() is None


@pytest.mark.parametrize("when", ["waiting", "prefill", "decode"])
def test_scheduler_request_ended_early_leaves_no_trace(when: str) -> None:
    scheduler = Scheduler(1, chunk_tokens=2)
    blocker, request, last = prompts(4, 4, 4)
    if when == "waiting":
        scheduler.add(blocker)
    scheduler.add(request)
    steps = {"waiting": 1, "prefill": 1, "decode": 3}[when]
    kinds(scheduler, steps)
    assert request.phase is {"waiting": Phase.WAITING, "prefill": Phase.PREFILL, "decode": Phase.DECODE}[when]
    scheduler.finish(request)
    assert request.phase is Phase.FINISHED
    if when == "waiting":
        scheduler.finish(blocker)
    assert scheduler.next_step() is None
    scheduler.add(last)
    assert kinds(scheduler, 3) == ["p0:2", "p0:2", "r0"]


def round_of(request: Request, output_tokens: int) -> RoundPlan:
    """The round of a request that has emitted `output_tokens`."""
    scheduler = Scheduler(1, chunk_tokens=64)
    scheduler.add(request)
    kinds(scheduler, output_tokens)
    plan = scheduler.next_step()
    assert isinstance(plan, RoundPlan)
    return plan


@pytest.mark.parametrize(("emitted", "expected"), [(1, 4), (2, 4), (5, 4), (6, 3), (7, 2), (8, 1), (9, 0)])
def test_round_near_max_tokens_proposes_only_what_can_be_emitted(emitted: int, expected: int) -> None:
    plan = round_of(make(MANIFEST, [1, 2, 3], max_tokens=10), emitted)
    assert plan.max_verify == (expected,)
    assert plan.lengths == (3 + emitted - 1,)


def test_round_near_max_seq_len_never_writes_past_it() -> None:
    request = make(MANIFEST, range(58), max_tokens=None)
    plan = round_of(request, 2)
    # 60 tokens are known, 64 fit: rows 59 .. 59 + l end before row 63, the last token's.
    assert request.max_length == 64
    assert plan.max_verify == (3,)


def test_round_with_speculation_off_has_no_proposals() -> None:
    plan = round_of(make(MANIFEST, [1, 2], max_tokens=9, speculative=SpeculativeParams(enabled=False)), 1)
    assert plan.max_verify == (0,)
    assert plan.unseen == ((),)


def test_round_with_max_len_proposes_no_more() -> None:
    plan = round_of(make(MANIFEST, [1, 2], max_tokens=9, speculative=SpeculativeParams(max_len=2)), 1)
    assert plan.max_verify == (2,)
