"""Parts `stall` and `prefix`: what a long prompt costs those who are reading, and what it costs the second time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median

from decoding.runs import PLAIN, greedy
from decoding.table import Cell, Result

from dspark_runtime import AsyncLLM
from dspark_runtime.scheduler import CHUNK_TOKENS
from service.load import Seen, nobody, read

STREAMS = 4
LONG = 1500
"""Tokens of the prompt that arrives among the streams."""
PREFIX = 1000
PREFIX_GOAL = 0.15


def text_of(prompts: Sequence[Sequence[int]], length: int, shift: int) -> list[int]:
    """`length` tokens of the prompts one after the other, as often as it takes, from another place for each `shift`."""
    whole = [token for prompt in prompts for token in prompt]
    start = 131 * shift % len(whole)
    return [whole[(start + i) % len(whole)] for i in range(length)]


async def chunk_seconds(llm: AsyncLLM, prompts: Sequence[Sequence[int]]) -> float:
    """What the last chunk of a long prompt takes alone, the longest of them: the difference that it makes."""
    times = []
    for chunks in (LONG // CHUNK_TOKENS, LONG // CHUNK_TOKENS + 1):
        seen = Seen()
        for turn in range(3):
            prompt = text_of(prompts, chunks * CHUNK_TOKENS, 99 + turn)
            await read(llm, prompt, greedy(1, PLAIN), seen, nobody())
        times.append(median(seen.ttft))
    return times[1] - times[0]


async def measure_stall(
    llm: AsyncLLM, prompts: Sequence[Sequence[int]], *, num_tokens: int, repetitions: int
) -> Result:
    """p99 of the pauses of four streams, with and without a long prompt that arrives among them."""
    rows: list[list[Cell]] = []
    raised = []
    for turn in range(repetitions):
        alone, disturbed = Seen(), Seen()
        for seen in (alone, disturbed) if turn % 2 == 0 else (disturbed, alone):
            streams = [
                asyncio.create_task(read(llm, prompts[i], greedy(num_tokens, PLAIN), seen, nobody()))
                for i in range(STREAMS)
            ]
            if seen is disturbed:
                while len(seen.gaps) < STREAMS * num_tokens // 4:
                    await asyncio.sleep(0.001)
                await read(llm, text_of(prompts, LONG, turn), greedy(1, PLAIN), Seen(), nobody())
            await asyncio.gather(*streams)
        chunk = await chunk_seconds(llm, prompts)
        raised.append((disturbed.pause(99) - alone.pause(99)) / chunk)
        times = (alone.pause(50), alone.pause(99), disturbed.pause(50), disturbed.pause(99), chunk)
        rows.append([turn, *(1000 * seconds for seconds in times), raised[-1]])
    found = median(raised)
    return Result(
        part="stall",
        title=f"{STREAMS} streams, and a prompt of {LONG} tokens that arrives among them, plain",
        columns=("run", "alone p50 ms", "alone p99 ms", "disturbed p50 ms", "disturbed p99 ms", "chunk ms", "chunks"),
        rows=rows,
        verdicts=[
            f"p99 is raised by {found:.2f} of a chunk's time, {'within' if found <= 1 else 'ABOVE'} the goal of 1"
        ],
    )


async def measure_prefix(llm: AsyncLLM, prompts: Sequence[Sequence[int]], *, repetitions: int) -> Result:
    """Time to the first token of two requests that share their first 1,000 tokens."""
    rows: list[list[Cell]] = []
    ratios = []
    for turn in range(repetitions):
        salt, shared = nobody(), text_of(prompts, PREFIX, turn)
        times, cached = [], 0
        for ending in (prompts[0][:8], prompts[1][-8:]):
            begun = time.perf_counter()
            stream = await llm.add_request([*shared, *ending], greedy(4, PLAIN), cache_salt=salt)
            await anext(stream)
            times.append(time.perf_counter() - begun)
            async for _ in stream:
                pass
            cached = stream.output.stats.cached_tokens
        ratios.append(times[1] / times[0])
        rows.append([turn, 1000 * times[0], 1000 * times[1], cached, ratios[-1]])
    found = median(ratios)
    return Result(
        part="prefix",
        title=f"time to first token of two requests that share {PREFIX} tokens",
        columns=("run", "first ms", "second ms", "tokens found", "ratio"),
        rows=rows,
        verdicts=[
            f"the second takes {found:.1%} of the first, {'within' if found <= PREFIX_GOAL else 'ABOVE'} the goal of "
            f"{PREFIX_GOAL:.0%}"
        ],
    )
