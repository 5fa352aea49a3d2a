"""Part `demo`: a few prompts, plain against speculative, and whether the texts are the same."""

from __future__ import annotations

from decoding import prompts, runs
from decoding.table import Result
from dspark_runtime import LLM, SpeculativeParams


def measure_demo(llm: LLM, *, num_tokens: int, per_domain: int, repetitions: int) -> Result:
    rows: list[tuple[str, float, float, float, float, float, bool]] = []
    params = {"plain": runs.greedy(num_tokens, runs.PLAIN), "speculative": runs.greedy(num_tokens, SpeculativeParams())}
    for _, prompt in prompts.mixed(per_domain):
        ids = prompts.as_chat(llm, prompt)
        found = runs.alternate(
            {name: lambda p=p, ids=ids: runs.measure(llm, [ids], p) for name, p in params.items()}, repetitions
        )
        plain = runs.median(runs.tokens_per_s([run]) for run in found["plain"])
        fast = runs.median(runs.tokens_per_s([run]) for run in found["speculative"])
        last = found["speculative"][-1]
        same = len({run.token_ids for name in found for run in found[name]}) == 1
        length = (last.accepted + last.rounds) / last.rounds
        rate = last.accepted / last.verified if last.verified else 0.0
        rows.append((_short(prompt), plain, fast, fast / plain, length, rate, same))
    ratios = [row[3] for row in rows]
    return Result(
        part="demo",
        title=f"greedy, batch 1, {num_tokens} tokens a prompt, median of {repetitions} alternating runs",
        columns=(
            "prompt", "plain tokens/s", "speculative tokens/s", "ratio", "accepted length", "acceptance rate",
            "outputs identical",
        ),
        rows=rows,
        verdicts=(
            f"ratio: median {runs.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}",
        ),
    )  # fmt: skip


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= 40 else prompt[:37] + "..."
