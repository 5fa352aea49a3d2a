"""Part `sweep`: speculative over plain decoding at batch 1, by cutoff and domain, beside what the parts predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding import prompts, runs
from decoding.table import Cell, Result
from dspark_runtime import LLM, SpeculativeParams

CUTOFFS = ("all", *(f"threshold:{tenths / 10:g}" for tenths in range(10)))
MIXED = "mixed"
DRAFT, VERIFY = ("draft session", "head", "cutoff"), ("target session", "accept")
"""Parts of a round that make t_draft and t_verify; what is left is the host's."""


@dataclass(slots=True)
class _Turns:
    """Runs of one setting on one domain: a list per repetition, over the same prompts."""

    turns: list[list[runs.Run]] = field(default_factory=list)

    def all(self) -> list[runs.Run]:
        return [run for turn in self.turns for run in turn]


def measure_sweep(
    llm: LLM, without_draft: LLM | None, *, num_tokens: int, per_domain: int, repetitions: int, cutoffs: Sequence[str]
) -> list[Result]:
    """Every repetition runs every prompt with every setting, one after the other; a ratio compares one repetition
    with itself, and the table shows the median over repetitions. Output is lossless, so plain and speculative runs of
    a prompt have the same tokens; runs where they have not are counted.

    without_draft: the same target built without a draft, the other meaning of "plain"; None leaves it out.
    """
    plain = ("plain", llm, runs.PLAIN)
    settings = [plain, *((cutoff, llm, SpeculativeParams(cutoff=cutoff)) for cutoff in cutoffs)]
    if without_draft is not None:
        settings.append(("no draft", without_draft, runs.PLAIN))
    chosen = [(domain, prompts.as_chat(llm, prompt)) for domain, prompt in prompts.mixed(per_domain)]
    found = {(name, domain): _Turns() for name, _, _ in settings for domain in (MIXED, *prompts.DOMAINS)}
    for _, engine, speculative in settings:
        runs.measure(engine, [chosen[0][1]], runs.greedy(min(num_tokens, 16), speculative))  # warms up
    different = 0
    for turn in range(repetitions):
        for turns in found.values():
            turns.turns.append([])
        for index, (domain, ids) in enumerate(chosen):
            shift = (turn + index) % len(settings)
            tokens = set()
            for name, engine, speculative in settings[shift:] + settings[:shift]:
                run = runs.measure(engine, [ids], runs.greedy(num_tokens, speculative))
                tokens.add(run.token_ids)
                for group in (MIXED, domain):
                    found[name, group].turns[-1].append(run)
            different += len(tokens) != 1
    title = (
        f"greedy, batch 1, {num_tokens} tokens, {per_domain} prompts a domain, "
        f"median of {repetitions} alternating repetitions"
    )
    names = [name for name, _, _ in settings]
    results = [
        _domain(found, names, domain, f"speculative over plain, {domain}: {title}")
        for domain in (MIXED, *prompts.DOMAINS)
    ]
    count = repetitions * len(chosen)
    results[0] = Result(
        part="sweep", title=results[0].title, columns=results[0].columns, rows=results[0].rows,
        verdicts=[*results[0].verdicts, f"outputs differed in {different} of {count} comparisons over all settings"],
    )  # fmt: skip
    return results


def _domain(found: dict[tuple[str, str], _Turns], names: Sequence[str], domain: str, title: str) -> Result:
    plain = found["plain", domain]
    # Seconds of a plain step, by part; what the model below takes for t1.
    t1 = _part_seconds(plain.all(), VERIFY) / sum(run.rounds for run in plain.all())
    rows: list[list[Cell]] = []
    best: tuple[float, str] = (0.0, "plain")
    for name in names:
        here = found[name, domain]
        everything = here.all()
        rounds, verified = sum(r.rounds for r in everything), sum(r.verified for r in everything)
        accepted = sum(r.accepted for r in everything)
        ratio = runs.median(
            runs.tokens_per_s(a) / runs.tokens_per_s(b) for a, b in zip(here.turns, plain.turns, strict=True)
        )
        length = (accepted + rounds) / rounds
        t_draft = _part_seconds(everything, DRAFT) / rounds
        t_verify = _part_seconds(everything, VERIFY) / rounds
        model = length * t1 / (t_draft + t_verify)
        if name.startswith(("all", "threshold")) and ratio > best[0]:
            best = (ratio, name)
        rows.append([
            name, length, verified / rounds, accepted / verified if verified else None,
            runs.median(runs.tokens_per_s(turn) for turn in here.turns), ratio, t_draft * 1e3, t_verify * 1e3,
            model, ratio / model,
        ])  # fmt: skip
    return Result(
        part="sweep",
        title=title,
        columns=(
            "cutoff", "accepted length", "verify length", "acceptance rate", "tokens/s", "ratio", "t_draft ms",
            "t_verify ms", "model", "ratio/model",
        ),
        rows=rows,
        verdicts=(
            f"best ratio {best[0]:.2f} at {best[1]} ({domain}); model = accepted length * t1 / (t_draft + t_verify)",
        ),
    )  # fmt: skip


def _part_seconds(everything: Sequence[runs.Run], parts: Sequence[str]) -> float:
    return sum(run.seconds[part] for run in everything for part in parts)
