from __future__ import annotations

import pytest

from dspark_runtime.plan import PrefillPlan, RoundPlan
from dspark_runtime.request import Phase, Request
from dspark_runtime.scheduler import Scheduler
from dspark_runtime.speculative import SpeculativeParams
from tests.runtime.fakes import make, make_manifest

MANIFEST = make_manifest(block_size=4, max_batch_size=4, max_seq_len=64)


def prompts(*lengths: int) -> list[Request]:
    """Requests whose prompts have nothing in common."""
    return [make(MANIFEST, range(10 + 20 * i, 10 + 20 * i + n), i, max_tokens=20) for i, n in enumerate(lengths)]


def carry_out(scheduler: Scheduler, plan: PrefillPlan | RoundPlan | None) -> None:
    """What the engine would do with a plan: one token per finished prompt, one per request of a round."""
    assert plan is not None
    if isinstance(plan, PrefillPlan):
        request = scheduler.in_slot(plan.slot)
        request.computed = plan.start + len(plan.tokens)
        if request.computed == request.prefill_end:
            scheduler.prefilled(request)
        if plan.draws:
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
    assert kinds(scheduler, 6) == ["p0:3", "p1:3", "p2:2", "r01", "p2:1", "p3:3"]


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


def test_scheduler_prompt_tokens_between_two_rounds_never_exceed_the_budget() -> None:
    scheduler = Scheduler(4, chunk_tokens=8)
    for request in prompts(7, 7, 30, 5):
        scheduler.add(request)
    read, since = [], 0
    for step in kinds(scheduler, 18):
        if step.startswith("p"):
            since += int(step.split(":")[1])
        else:
            read.append(since)
            since = 0
    assert max(read) == 8 and sum(read) == 49


def test_scheduler_step_of_few_tokens_counts_as_what_it_costs() -> None:
    scheduler = Scheduler(4, chunk_tokens=32)
    for request in prompts(1, 1, 1, 1):
        scheduler.add(request)
    # 2 of 32 each: all four fit, though they are charged 8.
    assert kinds(scheduler, 5) == ["p0:1", "p1:1", "p2:1", "p3:1", "r0123"]
    scheduler = Scheduler(40, chunk_tokens=32)
    for request in prompts(*[1] * 40):
        scheduler.add(request)
    steps = kinds(scheduler, 20)
    assert next(i for i, step in enumerate(steps) if step.startswith("r")) == 16


def test_scheduler_request_goes_on_in_the_free_slot_that_it_continues() -> None:
    scheduler = Scheduler(3, chunk_tokens=16)
    first, second = prompts(6, 5)
    for request in (first, second):
        scheduler.add(request)
    kinds(scheduler, 3)
    scheduler.finish(first)
    scheduler.finish(second)
    again = make(MANIFEST, [*second.tokens, 7, 8], 9, max_tokens=4)
    scheduler.add(again)
    plan = scheduler.next_step()
    assert isinstance(plan, PrefillPlan)
    # Of 7 tokens the first round left 6 rows; the last prompt token is always read.
    assert (plan.slot, plan.start, plan.tokens, plan.copy_from) == (1, 6, (*second.tokens[6:], 7, 8), None)
    assert again.cached_tokens == 6


def test_scheduler_short_match_is_copied_to_the_slot_that_is_due() -> None:
    scheduler = Scheduler(2, chunk_tokens=64)
    scheduler.add(make(MANIFEST, range(40), 0, max_tokens=4))
    kinds(scheduler, 2)
    scheduler.finish(scheduler.in_slot(0))
    scheduler.add(make(MANIFEST, [*range(10), 500, 501], 1, max_tokens=4))
    plan = scheduler.next_step()
    assert isinstance(plan, PrefillPlan)
    assert (plan.slot, plan.start, plan.copy_from, plan.tokens) == (1, 10, 0, (500, 501))


def test_scheduler_equal_prompts_at_once_are_read_once() -> None:
    scheduler = Scheduler(3, chunk_tokens=64)
    for i in range(3):
        scheduler.add(make(MANIFEST, range(30), i, max_tokens=4))
    assert kinds(scheduler, 4) == ["p0:30", "p1:1", "p2:1", "r012"]


def test_scheduler_without_reuse_reads_every_prompt_whole() -> None:
    scheduler = Scheduler(3, chunk_tokens=64, reuse=False)
    for i in range(2):
        scheduler.add(make(MANIFEST, range(30), i, max_tokens=4))
    assert kinds(scheduler, 3) == ["p0:30", "p1:30", "r01"]
    scheduler.finish(scheduler.in_slot(0))
    scheduler.add(make(MANIFEST, range(30), 5, max_tokens=4))
    assert kinds(scheduler, 1) == ["p0:30"]


def test_scheduler_request_that_reuses_nothing_reads_its_prompt_whole() -> None:
    scheduler = Scheduler(2, chunk_tokens=64)
    scheduler.add(make(MANIFEST, range(30), 0, max_tokens=4))
    request = make(MANIFEST, range(30), 1, max_tokens=4)
    request.reuses_prefix = False
    scheduler.add(request)
    assert kinds(scheduler, 2) == ["p0:30", "p1:30"]


def test_scheduler_salts_keep_prefixes_apart() -> None:
    scheduler = Scheduler(4, chunk_tokens=256)
    for i, salt in enumerate(("a", "b", None, "a")):
        request = make(MANIFEST, range(30), i, max_tokens=4)
        request.cache_salt = salt
        scheduler.add(request)
    assert kinds(scheduler, 4) == ["p0:30", "p1:30", "p2:30", "p3:1"]


def test_scheduler_failed_request_leaves_nothing_and_its_slot_is_cleared() -> None:
    scheduler = Scheduler(1, chunk_tokens=64)
    scheduler.add(make(MANIFEST, range(30), 0, max_tokens=4))
    kinds(scheduler, 2)
    scheduler.finish(scheduler.in_slot(0), spoilt=True)
    plans = []
    for i in (1, 2):
        scheduler.add(make(MANIFEST, range(30), i, max_tokens=4))
        plan = scheduler.next_step()
        assert isinstance(plan, PrefillPlan)
        plans.append((plan.start, plan.clears))
        carry_out(scheduler, plan)
        scheduler.finish(scheduler.in_slot(0))
    assert plans == [(0, True), (29, False)]


def test_scheduler_draft_with_caches_of_its_own_limits_what_is_taken_over() -> None:
    scheduler = Scheduler(1, chunk_tokens=64, draft_has_caches=True)
    scheduler.add(make(MANIFEST, range(30), 0, max_tokens=4))
    kinds(scheduler, 1)
    request = scheduler.in_slot(0)
    request.draft_computed = 12
    scheduler.finish(request)
    scheduler.add(make(MANIFEST, range(30), 1, max_tokens=4))
    plan = scheduler.next_step()
    assert isinstance(plan, PrefillPlan)
    assert (plan.start, scheduler.in_slot(0).draft_computed) == (12, 12)
    carry_out(scheduler, plan)
    scheduler.finish(scheduler.in_slot(0))
    scheduler.add(make(MANIFEST, range(30), 2, max_tokens=4, speculative=SpeculativeParams(enabled=False)))
    plan = scheduler.next_step()
    assert isinstance(plan, PrefillPlan)
    assert (plan.start, scheduler.in_slot(0).draft_computed) == (29, 12)


def with_priority(request: Request, priority: int) -> Request:
    request.priority = priority
    return request


def test_scheduler_higher_priority_is_served_first_and_equals_in_order() -> None:
    scheduler = Scheduler(1, chunk_tokens=64)
    requests = [with_priority(r, p) for r, p in zip(prompts(4, 4, 4, 4, 4), (0, 5, -1, 5, -1), strict=True)]
    for request in requests:
        scheduler.add(request)
    order = []
    while len(scheduler):
        kinds(scheduler, 2)
        request = scheduler.in_slot(0)
        order.append(request.request_id)
        scheduler.finish(request)
    assert order == [2, 4, 0, 1, 3]


def test_scheduler_arrival_of_higher_priority_takes_the_slot_of_the_lowest_and_latest() -> None:
    scheduler = Scheduler(3, chunk_tokens=64)
    requests = [with_priority(r, p) for r, p in zip(prompts(4, 5, 6), (0, 1, 1), strict=True)]
    for request in requests:
        scheduler.add(request)
    kinds(scheduler, 5)
    urgent = make(MANIFEST, range(900, 903), 7, max_tokens=4)
    scheduler.add(with_priority(urgent, 0))
    assert kinds(scheduler, 2) == ["p2:3", "r012"]
    assert (requests[2].phase, requests[2].preemptions, scheduler.num_preemptions) == (Phase.WAITING, 1, 1)
    scheduler.finish(requests[0])
    # All but its anchor is read again; nothing is drawn from that. Its slot has been given away.
    plan = scheduler.next_step()
    assert isinstance(plan, PrefillPlan)
    assert (plan.slot, plan.start, plan.tokens, plan.draws) == (0, 0, tuple(requests[2].tokens[:-1]), False)
    carry_out(scheduler, plan)
    plan = scheduler.next_step()
    assert isinstance(plan, RoundPlan)
    assert plan.anchors[0] == requests[2].tokens[-1]


def test_scheduler_equal_priority_never_preempts() -> None:
    scheduler = Scheduler(1, chunk_tokens=64)
    first, second = prompts(4, 4)
    scheduler.add(first)
    kinds(scheduler, 2)
    scheduler.add(second)
    assert kinds(scheduler, 3) == ["r0"] * 3


def test_scheduler_low_priority_is_overtaken_only_so_often() -> None:
    scheduler = Scheduler(1, chunk_tokens=64, max_overtakes=3)
    low = with_priority(make(MANIFEST, [5, 6], 100, max_tokens=20), 9)
    scheduler.add(low)
    served = []
    for i in range(6):
        scheduler.add(make(MANIFEST, [10 + i, 3], i, max_tokens=20))
        kinds(scheduler, 2)
        request = scheduler.in_slot(0)
        served.append(request.request_id)
        if request is not low:
            scheduler.finish(request)
    # Three went past it; then it holds its slot against all that follow.
    assert served == [0, 1, 2, 100, 100, 100]
    assert low.protected


def test_scheduler_preemption_counts_as_being_overtaken() -> None:
    scheduler = Scheduler(1, chunk_tokens=64, max_overtakes=2)
    low = with_priority(make(MANIFEST, [5, 6], 100, max_tokens=20), 9)
    scheduler.add(low)
    kinds(scheduler, 2)
    for i in range(6):
        scheduler.add(make(MANIFEST, [10 + i, 3], i, max_tokens=20))
        kinds(scheduler, 2)
        if scheduler.in_slot(0) is not low:
            scheduler.finish(scheduler.in_slot(0))
            kinds(scheduler, 2)
    assert low.preemptions == 2
    assert scheduler.in_slot(0) is low
