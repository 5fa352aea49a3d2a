"""Every outcome of a function of random numbers, with its probability, in float64.

Each counter is one uniform variable, independent of all others. What is known about it is the interval that the answers
so far leave open; a question splits the interval, an answer is a piece of it, weighted by its share. So a counter that
is asked twice answers consistently, and reuse shows in whatever is computed. A categorical draw is the cell of the
cumulative distribution in which the uniform lies: where each counter is asked once, its probabilities are all there is
to say; where one is asked about two rows, the rows are coupled as by a shared number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.reference.draws import Counter, Numbers

T = TypeVar("T")
Known = Mapping[Counter, tuple[float, float]]
"""Interval [low, high) in which the uniform of a counter is known to lie; [0, 1) for a counter that is absent."""


class _Replay:
    """Numbers that answer by a script of pieces, then with the first piece each; records how many there were."""

    def __init__(self, script: list[int], known: Known) -> None:
        self._script = script
        self.choices: list[int] = []
        self.weight = 1.0
        self.known = dict(known)
        self.asked: set[Counter] = set()

    def keeps(self, counter: Counter, p_draft: float, p_target: float) -> tuple[bool, float]:
        bar = min(1.0, p_target / p_draft) if p_draft > 0.0 else float(p_target > 0.0)
        return self._cell(counter, np.array([bar, 1.0])) == 0, np.inf

    def pick(self, counter: Counter, ids: NDArray[np.int64], probabilities: NDArray[np.float64]) -> tuple[int, float]:
        ends = np.cumsum(probabilities)
        ends[np.flatnonzero(probabilities)[-1] :] = 1.0
        return self._cell(counter, ends), np.inf

    def _cell(self, counter: Counter, ends: NDArray[np.float64]) -> int:
        """Which cell [ends[i - 1], ends[i]) holds the uniform; ends ascend to 1."""
        low, high = self.known.get(counter, (0.0, 1.0))
        self.asked.add(counter)
        starts = np.concatenate([[0.0], ends[:-1]])
        lows, highs = np.maximum(starts, low), np.minimum(ends, high)
        pieces = np.flatnonzero(lows < highs)
        step = len(self.choices)
        self.choices.append(len(pieces))
        cell = int(pieces[self._script[step] if step < len(self._script) else 0])
        self.weight *= float(highs[cell] - lows[cell]) / (high - low)
        self.known[counter] = (float(lows[cell]), float(highs[cell]))
        return cell


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    weight: float
    known: Known
    """What was known before, and what this outcome says."""
    value: T
    asked: frozenset[Counter]


def outcomes(decide: Callable[[Numbers], T], known: Known) -> Iterator[Outcome[T]]:
    """Every outcome of `decide`; weights sum to 1. The function is called anew for each, always in the same state."""
    script: list[int] | None = []
    while script is not None:
        replay = _Replay(script, known)
        value = decide(replay)
        yield Outcome(replay.weight, replay.known, value, frozenset(replay.asked))
        taken = script + [0] * (len(replay.choices) - len(script))
        while taken and taken[-1] + 1 == replay.choices[len(taken) - 1]:
            taken.pop()
        script = [*taken[:-1], taken[-1] + 1] if taken else None


class Enumerator:
    """`outcomes`, remembered by a key that names the decision: what is known of counters it does not ask is idle."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, frozenset[Counter]] = {}
        self._found: dict[Hashable, list[Outcome[Any]]] = {}

    def __call__(self, key: Hashable, decide: Callable[[Numbers], T], known: Known) -> list[Outcome[T]]:
        if key not in self._asked:
            fresh = self._found[key, ()] = list(outcomes(decide, {}))
            self._asked[key] = frozenset().union(*(outcome.asked for outcome in fresh))
        relevant = tuple(sorted((c, known[c]) for c in self._asked[key] if c in known))
        if (key, relevant) not in self._found:
            self._found[key, relevant] = list(outcomes(decide, dict(relevant)))
        found = self._found[key, relevant]
        return [Outcome(o.weight, {**known, **o.known}, o.value, o.asked) for o in found]
