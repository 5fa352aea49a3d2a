"""Two thousand requests by 64 clients who cancel, hang up and read slowly: none lost, none wrong, no memory kept."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dspark_runtime import LLM, AsyncLLM, QueueFullError, SamplingParams, SpeculativeParams
from tests.runtime.conftest import THREADS

NUM_CLIENTS = 64
REQUESTS_EACH = 32
SYSTEM = [(11 * i) % 290 + 5 for i in range(30)]
BASE = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
KINDS = [
    BASE,
    replace(BASE, temperature=0.9, seed=11, max_tokens=16),
    replace(BASE, speculative=SpeculativeParams(enabled=False), max_tokens=4),
    replace(BASE, speculative=SpeculativeParams(cutoff="all"), stop=["k"], max_tokens=30),
    replace(BASE, temperature=0.7, seed=2**50, logprobs=1, max_tokens=1),
]
LOST_FRACTION = 0.2
"""Of the requests, those whose client goes away before the end."""


def prompts() -> list[list[int]]:
    chosen = random.Random(7)
    found = []
    for _ in range(40):
        own = [chosen.randrange(4, 300) for _ in range(chosen.choice((1, 3, 10, 40)))]
        found.append([*SYSTEM[: chosen.choice((0, 0, 8, 30))], *own])
    return found


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """The clients of one service, and what became of their requests."""

    def __init__(self, llm: AsyncLLM, expected: dict[tuple[int, int], tuple[int, ...]]) -> None:
        self.llm = llm
        self.expected = expected
        self.prompts = prompts()
        self.whole = self.lost = self.refused = 0

    async def client(self, number: int, requests: int) -> None:
        chosen = random.Random(number)
        for _ in range(requests):
            prompt, kind = chosen.randrange(len(self.prompts)), chosen.randrange(len(KINDS))
            await self.request(prompt, kind, chosen)

    async def request(self, prompt: int, kind: int, chosen: random.Random) -> None:
        while True:
            try:
                stream = await self.llm.add_request(
                    self.prompts[prompt],
                    KINDS[kind],
                    priority=chosen.randrange(3),
                    cache_salt=chosen.choice((None, "a")),
                )
                break
            except QueueFullError:
                self.refused += 1
                await asyncio.sleep(0.002)
        leaves = chosen.random() < LOST_FRACTION
        pause = chosen.choice((0, 0, 0, 0.005))
        wanted = self.expected[prompt, kind]
        read: list[int] = []
        async for delta in stream:
            read.extend(delta.token_ids)
            if leaves and len(read) >= len(wanted) // 2:
                # Three ways to go: say so, or let go of the stream, or be cancelled while waiting.
                way = chosen.randrange(3)
                if way == 0:
                    stream.abort()
                elif way == 2:
                    waiting = asyncio.ensure_future(stream.__anext__())
                    await asyncio.sleep(0)
                    waiting.cancel()
                    await asyncio.wait([waiting])
                self.lost += 1
                assert tuple(read) == wanted[: len(read)]
                return
            await asyncio.sleep(pause)
        assert tuple(read) == wanted == stream.output.token_ids
        self.whole += 1


def test_soak_of_many_clients_loses_nothing_and_keeps_nothing(
    bundle: Callable[[str], Path], shared_llm: Callable[[str], LLM]
) -> None:
    alone = shared_llm("good")
    expected = {
        (i, k): alone.generate([prompt], params)[0].token_ids
        for i, prompt in enumerate(prompts())
        for k, params in enumerate(KINDS)
    }

    async def main() -> None:
        async with AsyncLLM(bundle("good"), num_threads=THREADS, prefill_chunk=32, max_waiting=48) as llm:
            soak = Soak(llm, expected)
            warm = REQUESTS_EACH // 3
            await asyncio.gather(*(soak.client(i, warm) for i in range(NUM_CLIENTS)))
            before = resident_bytes()
            await asyncio.gather(*(soak.client(1000 + i, REQUESTS_EACH - warm) for i in range(NUM_CLIENTS)))
            while llm.stats().running + llm.stats().waiting:
                await asyncio.sleep(0.01)
            after = resident_bytes()
            stats = llm.stats()
            assert soak.whole + soak.lost == stats.requests == REQUESTS_EACH * NUM_CLIENTS
            assert soak.lost > 200 and soak.refused == stats.refused > 0
            assert stats.finished["error"] == 0
            assert stats.finished["stop"] + stats.finished["length"] >= soak.whole
            assert stats.prefix_hit_tokens > 0 and stats.preemptions > 0
            assert list(llm._core.engine.metrics.broken_identities(0)) == []
            assert len(llm._core.loop._tickets) == len(llm._streams) == 0
            assert after < 1.02 * before, (before, after)

    asyncio.run(main())
