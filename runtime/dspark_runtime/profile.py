"""Where the time of rounds goes: engines, operators, and everything else (host).

Sessions are timed from outside with a clock, operators inside by the operator library's own counters; where the
operators are graph nodes their time is taken out of the session's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

OPERATORS = ("draft", "cutoff", "accept")
"""DSparkDraft (the head), DSparkCutoff, DSparkAccept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Seconds by part. The parts of a round are disjoint and add up to round_s; prefill steps are apart."""

    rounds: int
    round_s: float
    draft_session_s: float
    """Draft engine without the operators below."""
    head_s: float
    cutoff_s: float
    target_session_s: float
    """Target engine without the acceptance."""
    accept_s: float
    prefill_steps: int
    prefill_s: float

    @property
    def host_s(self) -> float:
        """Scheduling, packing, committing, text: what is neither engine nor operator."""
        return self.round_s - sum(
            (self.draft_session_s, self.head_s, self.cutoff_s, self.target_session_s, self.accept_s)
        )

    @property
    def host_share(self) -> float:
        """Share of host_s in round_s; 0 before the first round."""
        return self.host_s / self.round_s if self.round_s > 0 else 0.0

    def parts(self) -> dict[str, float]:
        """Seconds of the parts of the rounds, in the order of a round."""
        return {
            "draft session": self.draft_session_s,
            "head": self.head_s,
            "cutoff": self.cutoff_s,
            "target session": self.target_session_s,
            "accept": self.accept_s,
            "host": self.host_s,
        }


class Profiler:
    """Collects times; one per engine."""

    def __init__(
        self,
        operator_seconds: Callable[[], tuple[float, float, float]] = lambda: (0.0, 0.0, 0.0),
        operators_in_graph: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """operator_seconds: time spent so far in each of OPERATORS."""
        self._operator_seconds = operator_seconds
        self._in_graph = operators_in_graph
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._rounds = self._prefill_steps = 0
        self._round = self._prefill = self._draft = self._target = 0.0
        self._operators = [0.0, 0.0, 0.0]

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around everything that a round costs."""
        before, start = self._operator_seconds(), self._clock()
        try:
            yield
        finally:
            self._round += self._clock() - start
            self._rounds += 1
            for i, (old, new) in enumerate(zip(before, self._operator_seconds(), strict=True)):
                self._operators[i] += new - old

    @contextmanager
    def prefill(self) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self._prefill += self._clock() - start
            self._prefill_steps += 1

    @contextmanager
    def draft_session(self) -> Iterator[None]:
        """Around a run of the draft engine, in a round."""
        start = self._clock()
        try:
            yield
        finally:
            self._draft += self._clock() - start

    @contextmanager
    def target_session(self) -> Iterator[None]:
        """Around a run of the target engine, in a round."""
        start = self._clock()
        try:
            yield
        finally:
            self._target += self._clock() - start

    def snapshot(self) -> Profile:
        head, cutoff, accept = self._operators
        inside = 1.0 if self._in_graph else 0.0
        return Profile(
            rounds=self._rounds,
            round_s=self._round,
            draft_session_s=self._draft - inside * (head + cutoff),
            head_s=head,
            cutoff_s=cutoff,
            target_session_s=self._target - inside * accept,
            accept_s=accept,
            prefill_steps=self._prefill_steps,
            prefill_s=self._prefill,
        )
