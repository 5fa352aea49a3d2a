"""Clients of a service, and what they saw: the clock is theirs, not the engine's."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dspark_runtime import AsyncLLM, SamplingParams

_salts = itertools.count()


@dataclass
class Seen:
    """Times of one or many requests, in seconds."""

    ttft: list[float] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """(wait, tokens that came after it)."""
    tokens: int = 0
    start: float = 0.0
    end: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / (self.end - self.start)

    def first(self, percentile: float) -> float:
        return float(np.percentile(self.ttft, percentile))

    def inter_token(self, percentile: float) -> float:
        """Of the time between two tokens; tokens that came together share the wait."""
        waits = np.array([wait / count for wait, count in self.gaps])
        return float(np.percentile(np.repeat(waits, [count for _, count in self.gaps]), percentile))

    def pause(self, percentile: float) -> float:
        """Of the time between two pieces of a stream, as a reader waits for them."""
        return float(np.percentile([wait for wait, _ in self.gaps], percentile))


def nobody() -> str:
    """A salt that no request had: nothing is taken from the caches for it."""
    return f"bench {next(_salts)}"


async def read(llm: AsyncLLM, prompt: Sequence[int], params: SamplingParams, seen: Seen, salt: str) -> None:
    """One request, read as fast as it comes."""
    begun = last = time.perf_counter()
    first = True
    async for delta in await llm.add_request(list(prompt), params, cache_salt=salt):
        now = time.perf_counter()
        if first:
            seen.ttft.append(now - begun)
            first = False
        elif delta.token_ids:
            seen.gaps.append((now - last, len(delta.token_ids)))
        seen.tokens += len(delta.token_ids)
        last = now


async def closed_loop(
    llm: AsyncLLM, prompts: Sequence[Sequence[int]], params: SamplingParams, clients: int, requests: int
) -> Seen:
    """`requests` requests by `clients` clients, each of whom asks again when it was answered."""
    seen, numbers = Seen(), iter(range(requests))

    async def client() -> None:
        for number in numbers:
            await read(llm, prompts[number % len(prompts)], params, seen, nobody())

    seen.start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seen.end = time.perf_counter()
    return seen


async def poisson(
    llm: AsyncLLM, prompts: Sequence[Sequence[int]], params: SamplingParams, rate: float, requests: int, seed: int
) -> Seen:
    """`requests` requests that arrive independently, `rate` a second; the same arrivals for the same seed."""
    seen, chosen = Seen(), random.Random(seed)

    async def later(number: int, delay: float) -> None:
        await asyncio.sleep(delay)
        await read(llm, prompts[number % len(prompts)], params, seen, nobody())

    delays = itertools.accumulate(chosen.expovariate(rate) for _ in range(requests))
    seen.start = time.perf_counter()
    await asyncio.gather(*(later(number, delay) for number, delay in enumerate(delays)))
    seen.end = time.perf_counter()
    return seen
