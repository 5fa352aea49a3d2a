"""What the build asks of a backend: can it take this dialect, and make of graph files what runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Dialect:
    """The dialect a build uses, and a sentence about it where the user should know."""

    name: str
    note: str = ""


class Backend(Protocol):
    """One way to run graphs."""

    def choose_dialect(self, wanted: str) -> Dialect:
        """`wanted` is one of DIALECTS. Raises BuildError when this machine cannot take it."""

    def compile(self, graph: Path, dialect: str, report: Callable[[str], None]) -> None:
        """Compile or check the graph file in its folder, in place. Raises BuildError."""

    def versions(self) -> dict[str, str]:
        """Packages whose version decides whether a bundle runs."""
