"""Part `overhead`: what planning, committing, text and streams cost, without a model.

The engine runs on an executor that answers at once with tokens of a real text, so that what remains is ours.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import weakref
from collections.abc import Sequence
from statistics import median

from decoding.runs import PLAIN, greedy
from decoding.table import Cell, Result

from dspark_runtime import AsyncLLM, AsyncStream
from dspark_runtime.async_llm import AsyncWaker
from dspark_runtime.engine import Engine
from dspark_runtime.engine_loop import EngineLoop
from dspark_runtime.jobs import job_output, make_job
from dspark_runtime.plan import PrefillPlan, StepPlan, StepResult
from dspark_runtime.scheduler import Scheduler
from dspark_runtime.tickets import Ticket

PLAN_GOAL_US = 10.0
STREAM_GOAL_US = 25.0


class Scripted:
    """An executor without a model: every step gives the next tokens of a text, and counts what it took itself."""

    block_size = 0

    def __init__(self, text: Sequence[int]) -> None:
        self._next = itertools.cycle(text)
        self.seconds = 0.0
        self.steps = 0
        """Requests times rounds."""

    def run(self, plan: StepPlan) -> StepResult:
        start = time.perf_counter()
        count = 1 if isinstance(plan, PrefillPlan) else len(plan.slots)
        nothing = (0,) * count
        result = StepResult(
            proposed=nothing, verified=nothing, accepted=nothing,
            tokens=tuple((next(self._next),) for _ in range(count)), ends=("bonus",) * count, draft_lengths=nothing,
        )  # fmt: skip
        self.steps += count
        self.seconds += time.perf_counter() - start
        return result


def plan_seconds(llm: AsyncLLM, prompts: Sequence[Sequence[int]], batch: int, num_tokens: int) -> float:
    """Of one request and step: schedule, commit, count; no text."""
    executor = Scripted(prompts[0])
    engine = Engine(executor, Scheduler(batch))
    for number in range(batch):
        job = make_job(
            number, None, prompts[number], greedy(num_tokens, PLAIN), llm.manifest, llm.tokenizer, engine.clock()
        )
        engine.add(job.requests[0])
    start = time.perf_counter()
    while engine.num_unfinished:
        engine.step()
    return (time.perf_counter() - start - executor.seconds) / executor.steps


async def stream_seconds(llm: AsyncLLM, prompts: Sequence[Sequence[int]], batch: int, num_tokens: int) -> float:
    """Of one token from the engine's thread to its reader's coroutine, the engine's own part included."""
    executor = Scripted([token for prompt in prompts for token in prompt])
    loop = EngineLoop(Engine(executor, Scheduler(batch)))
    waker = AsyncWaker(asyncio.get_running_loop())
    streams, tickets = [], []
    for number in range(batch):
        job = make_job(
            number, None, prompts[number], greedy(num_tokens, PLAIN), llm.manifest, llm.tokenizer, 0.0, streams=True
        )
        ticket = Ticket(job, waker, streams=True)
        streams.append(AsyncStream(loop, ticket, str(number), lambda ended: job_output(ended.job, llm.tokenizer)))
        ticket.reader = weakref.ref(streams[-1])
        tickets.append(ticket)

    async def drain(stream: AsyncStream) -> None:
        async for _ in stream:
            pass

    start = time.perf_counter()
    loop.submit(tickets)
    await asyncio.gather(*map(drain, streams))
    seconds = time.perf_counter() - start - executor.seconds
    await asyncio.to_thread(loop.close)
    return seconds / executor.steps


async def measure_overhead(
    llm: AsyncLLM, prompts: Sequence[Sequence[int]], *, num_tokens: int, repetitions: int
) -> Result:
    rows: list[list[Cell]] = []
    verdicts = []
    for batch in (1, 8):
        plans = [plan_seconds(llm, prompts, batch, num_tokens) for _ in range(repetitions)]
        streams = [await stream_seconds(llm, prompts, batch, num_tokens) for _ in range(repetitions)]
        plan, stream = 1e6 * median(plans), 1e6 * median(streams)
        rows.append([batch, plan, stream, stream - plan])
        if batch == 8:
            verdicts = [
                f"plan and commit: {plan:.1f} us per request and step, {_verdict(plan, PLAN_GOAL_US)}",
                f"text and stream: {stream - plan:.1f} us per token, {_verdict(stream - plan, STREAM_GOAL_US)}",
            ]
    return Result(
        part="overhead",
        title=f"microseconds of the host per request and step, {num_tokens} tokens, median of {repetitions} runs",
        columns=("batch", "plan and commit", "with text and stream", "text and stream alone"),
        rows=rows,
        verdicts=verdicts,
    )


def _verdict(found: float, goal: float) -> str:
    return f"{'within' if found <= goal else 'ABOVE'} the goal of {goal:.0f}"
