"""Part `host`: where the time of a round goes, and how much of it is neither engine nor operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decoding import prompts, runs
from decoding.table import Cell, Result
from dspark_runtime import LLM, SpeculativeParams

LIMITS = {1: 0.05, 8: 0.08}
"""Largest host share of a round that we accept, by batch size."""


def measure_host(llm: LLM, *, num_tokens: int, repetitions: int, batches: Sequence[int]) -> Result:
    chosen = [prompts.as_chat(llm, prompt) for _, prompt in prompts.mixed(-(-max(batches) // len(prompts.DOMAINS)))]
    modes: Mapping[str, SpeculativeParams] = {"plain": runs.PLAIN, "speculative": SpeculativeParams()}
    contenders = {
        f"{batch} {mode}": lambda batch=batch, speculative=speculative: runs.measure(
            llm, chosen[:batch], runs.greedy(num_tokens, speculative)
        )
        for batch in batches
        for mode, speculative in modes.items()
    }
    found = runs.alternate(contenders, repetitions)
    parts = list(next(iter(found.values()))[0].seconds)
    rows: list[list[Cell]] = []
    verdicts = []
    for name, measured in found.items():
        batch, mode = name.split()
        share = {part: runs.median(run.seconds[part] / sum(run.seconds.values()) for run in measured) for part in parts}
        rows.append([int(batch), mode, *(100 * share[part] for part in parts)])
        limit = LIMITS.get(int(batch))
        if limit is not None:
            verdict = "within" if share["host"] <= limit else "ABOVE"
            verdicts.append(
                f"batch {batch} {mode}: host {share['host']:.1%} of a round, {verdict} the limit of {limit:.0%}"
            )
    return Result(
        part="host",
        title=f"per cent of a round, greedy, {num_tokens} tokens, median of {repetitions} alternating runs",
        columns=("batch", "mode", *parts),
        rows=rows,
        verdicts=verdicts,
    )
