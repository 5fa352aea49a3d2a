"""One measured call of the runtime, and how calls that are compared alternate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dspark_runtime import LLM, SamplingParams, SpeculativeParams

SETTLE_S = 0.3
"""Pause before a contender of another library: idle threads of the last one stop spinning meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One batch, all of whose requests ran to the same number of tokens."""

    token_ids: tuple[tuple[int, ...], ...]
    rounds: int
    proposed: int
    verified: int
    accepted: int
    decoded: int
    """Tokens after the first one of each request."""
    decode_s: float
    """Seconds from the first tokens to the end of the batch; prompts excluded at batch 1."""
    total_s: float
    seconds: Mapping[str, float]
    """Of the decoding rounds, by part (`Profile.parts`); prompts are not in it."""


def measure(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Run:
    before = llm.profile.parts()
    start = time.perf_counter()
    outputs = llm.generate([list(prompt) for prompt in prompts], params)
    total_s = time.perf_counter() - start
    after = llm.profile.parts()
    stats = [output.stats for output in outputs]
    return Run(
        token_ids=tuple(tuple(output.token_ids) for output in outputs),
        rounds=sum(s.rounds for s in stats),
        proposed=sum(s.proposed for s in stats),
        verified=sum(s.verified for s in stats),
        accepted=sum(s.accepted for s in stats),
        decoded=sum(s.output_tokens - 1 for s in stats),
        decode_s=max(s.decode_s for s in stats),
        total_s=total_s,
        seconds={part: after[part] - before[part] for part in after},
    )


def greedy(num_tokens: int, speculative: SpeculativeParams) -> SamplingParams:
    """Exactly num_tokens greedy tokens, whatever the model thinks of ending."""
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, speculative=speculative)


PLAIN = SpeculativeParams(enabled=False)


def alternate(contenders: Mapping[str, Callable[[], Run]], repetitions: int) -> dict[str, list[Run]]:
    """A B C, B C A, ...: every contender once per repetition, none always first, after one run to warm up."""
    names = list(contenders)
    for name in names:
        contenders[name]()
    found: dict[str, list[Run]] = {name: [] for name in names}
    for turn in range(repetitions):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(contenders[name]())
    return found


def tokens_per_s(runs: Iterable[Run]) -> float:
    """Decoding speed of several runs taken together."""
    runs = list(runs)
    return sum(run.decoded for run in runs) / sum(run.decode_s for run in runs)


def median(values: Iterable[float]) -> float:
    return float(statistics.median(values))
