"""Parts `closed` and `poisson`: tokens a second and latencies, by load."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from decoding.runs import PLAIN, greedy
from decoding.table import Cell, Result

from dspark_runtime import AsyncLLM, SamplingParams, SpeculativeParams
from service.load import Seen, closed_loop, poisson

BATCH_GOAL = 3.5
LATENCIES = ("TTFT p50 ms", "TTFT p90 ms", "TTFT p99 ms", "inter-token p50 ms", "p90 ms", "p99 ms")
MODES = {"plain": PLAIN, "speculative": SpeculativeParams()}


async def measure_closed(
    llm: AsyncLLM, prompts: Sequence[Sequence[int]], *, num_tokens: int, rounds: int, repetitions: int
) -> Result:
    """Closed loop by 1 and by 8 clients, plain and speculative, in turn. rounds: requests of each client."""
    contenders = [(clients, mode) for clients in (1, 8) for mode in MODES]
    found: dict[tuple[int, str], list[Seen]] = {contender: [] for contender in contenders}
    for turn in range(-1, repetitions):  # the first one warms up
        for clients, mode in contenders[turn % 4 :] + contenders[: turn % 4]:
            seen = await closed_loop(llm, prompts, greedy(num_tokens, MODES[mode]), clients, clients * rounds)
            if turn >= 0:
                found[clients, mode].append(seen)
    base = [seen.tokens_per_s for seen in found[1, "plain"]]
    rows: list[list[Cell]] = []
    ratios = {}
    for (clients, mode), runs in found.items():
        ratio = ratios[clients, mode] = median(
            seen.tokens_per_s / plain for seen, plain in zip(runs, base, strict=True)
        )
        rows.append([clients, mode, median(seen.tokens_per_s for seen in runs), ratio, *latencies(runs)])
    reached = ratios[8, "plain"]
    return Result(
        part="closed",
        title=f"closed loop, greedy, {num_tokens} tokens, median of {repetitions} alternating runs",
        columns=("clients", "mode", "tokens/s", "ratio", *LATENCIES),
        rows=rows,
        verdicts=[
            f"batch 8 over batch 1, plain: {reached:.2f}x, "
            f"{'within' if reached >= BATCH_GOAL else 'BELOW'} the goal of {BATCH_GOAL}x"
        ],
    )


async def measure_poisson(
    llm: AsyncLLM, prompts: Sequence[Sequence[int]], *, num_tokens: int, requests: int, shares: Sequence[float]
) -> Result:
    """Open loop: requests come whether or not the last ones are answered. shares: of what the closed loop by 8 clients
    reaches plain, measured first."""
    params: dict[str, SamplingParams] = {mode: greedy(num_tokens, MODES[mode]) for mode in MODES}
    most = await closed_loop(llm, prompts, params["plain"], 8, 16)
    capacity = most.tokens_per_s / num_tokens
    rows: list[list[Cell]] = []
    for share in shares:
        plain = 0.0
        for mode, chosen in params.items():
            seen = await poisson(llm, prompts, chosen, share * capacity, requests, seed=1)
            plain = plain or seen.inter_token(50)
            rows.append([share, mode, seen.tokens_per_s, plain / seen.inter_token(50), *latencies([seen])])
    return Result(
        part="poisson",
        title=f"Poisson arrivals, greedy, {num_tokens} tokens, {requests} requests, load 1: {capacity:.2f} a second",
        columns=("load", "mode", "tokens/s", "ratio of p50", *LATENCIES),
        rows=rows,
    )


def latencies(runs: Sequence[Seen]) -> list[float]:
    """LATENCIES, medians over the runs, in ms."""
    shares = (50, 90, 99)
    return [
        *(1000 * median(seen.first(share) for seen in runs) for share in shares),
        *(1000 * median(seen.inter_token(share) for seen in runs) for share in shares),
    ]
