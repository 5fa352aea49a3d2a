"""Nested phases of a build as one share between 0 and 1. Knows no library.

The library announces phases with a number of steps; a step may hold phases of its own, and it never says
how long any of them takes. The share counts steps, a running sub-phase as a part of its parent's step.
"""

from __future__ import annotations

from dataclasses import dataclass

GRAIN = 0.01
"""Smaller advances are not reported: the library makes thousands of steps."""


@dataclass(slots=True)
class _Phase:
    name: str
    num_steps: int
    done: int = 0


class PhaseTree:
    """The stack of phases that are running. `share` never falls."""

    def __init__(self) -> None:
        self._stack: list[_Phase] = []
        self.share = 0.0
        self._reported = 0.0

    @property
    def current(self) -> str:
        """Name of the phase below the outermost one, which says most to a reader."""
        return self._stack[min(1, len(self._stack) - 1)].name if self._stack else ""

    def start(self, name: str, parent: str | None, num_steps: int) -> None:
        while self._stack and parent is not None and self._stack[-1].name != parent:
            self._stack.pop()
        self._stack.append(_Phase(name, max(num_steps, 1)))

    def step(self, name: str, index: int) -> bool:
        """Step `index` of phase `name` is done; true when the share moved enough to be shown."""
        for phase in reversed(self._stack):
            if phase.name == name:
                phase.done = max(phase.done, index + 1)
                break
        self.share = max(self.share, self._position())
        if self.share - self._reported < GRAIN:
            return False
        self._reported = self.share
        return True

    def finish(self, name: str) -> None:
        if any(phase.name == name for phase in self._stack):
            while self._stack.pop().name != name:
                pass

    def _position(self) -> float:
        start, size = 0.0, 1.0
        for phase in self._stack:
            start += size * min(phase.done, phase.num_steps) / phase.num_steps
            size /= phase.num_steps
        return min(start, 1.0)
