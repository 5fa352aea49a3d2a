"""Part `cache`: a step's time against the tokens in the cache, and against the capacity of the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decoding import runs
from decoding.table import Result
from dspark_runtime import LLM

FIRST_TOKEN_ID = 20
"""Behind the special tokens of any vocabulary; which tokens does not matter for the time."""


def measure_cache(engines: Mapping[int, LLM], *, lengths: Sequence[int], num_tokens: int, repetitions: int) -> Result:
    """engines: by max_seq_len. Lengths are of the prompt; a step's cache holds up to num_tokens more."""
    points = [(limit, n) for n in lengths for limit in engines if n + num_tokens <= limit]
    contenders = {
        f"{limit}/{n}": lambda limit=limit, n=n: runs.measure(
            engines[limit], [[FIRST_TOKEN_ID + i % 199 for i in range(n)]], runs.greedy(num_tokens, runs.PLAIN)
        )
        for limit, n in points
    }
    found = runs.alternate(contenders, repetitions)
    step = {
        (limit, n): 1e3 * runs.median(run.decode_s / run.decoded for run in found[f"{limit}/{n}"])
        for limit, n in points
    }
    limits = sorted(engines)
    rows = [(n, *(step.get((limit, n)) for limit in limits)) for n in lengths]
    verdicts = []
    small, large = limits[0], limits[-1]
    both = [n for n in lengths if (small, n) in step]
    if small != large and both:
        ratio = runs.median(step[large, n] / step[small, n] for n in both)
        verdicts.append(f"same tokens, capacity {large} over {small}: a step takes {ratio:.2f} times as long")
    first, last = lengths[0], max(n for limit, n in points if limit == large)
    growth = step[large, last] / step[large, first]
    verdicts.append(f"capacity {large}, {last} tokens in the cache over {first}: {growth:.2f} times as long")
    return Result(
        part="cache",
        title=f"milliseconds per plain step, batch 1, median of {repetitions} alternating runs of {num_tokens} tokens",
        columns=("tokens in the cache", *(f"ms at max_seq_len {limit}" for limit in limits)),
        rows=rows,
        verdicts=verdicts,
    )
