"""What the build asks of a backend: can it take this dialect, and make of graph files what runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from dspark_runtime.contract import names
from dspark_runtime.contract.compiled import CompiledInfo
from dspark_runtime.contract.manifest import Manifest
from dspark_trt.config import BuildConfig

ENGINES = {"target": names.TARGET_ENGINE, "draft": names.DRAFT_ENGINE}
"""File of each engine, for backends that do not keep graphs."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of the graphs that a build uses, and a sentence about it where the user should know."""

    name: str
    note: str = ""
    query_form: str = "packed"
    """Where the options leave it open; the standard dialect pads in any case."""
    operators: str = "graph"
    """`graph`: DSpark operators are nodes; `host`: the runtime calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """One graph to compile."""

    graph: Path
    """In the folder of the bundle; what is made of it goes there too."""
    role: str
    """`target` or `draft`."""
    manifest: Manifest
    """Of the bundle in the making, files and compiled engines aside."""


class Report(Protocol):
    """Progress of a build in parts."""

    def __call__(self, part: str, *, weight: int = 1, inside: float | None = None) -> None:
        """Begin `part`, as long as `weight` parts of a graph; with `inside` in [0, 1], say how much of it is done."""


class Backend(Protocol):
    """One way to run graphs."""

    keeps_graphs: ClassVar[bool]
    """Whether bundles hold the graphs and weights; engines have their own."""
    graph_weight: ClassVar[int]
    """How long one `compile` takes, in parts of writing a graph."""

    def __init__(self, config: BuildConfig) -> None: ...

    def choose_dialect(self, wanted: str) -> Dialect:
        """`wanted` is one of DIALECTS. Raises BuildError when this machine cannot take it."""

    def compile(self, job: CompileJob, report: Report) -> CompiledInfo | None:
        """Compile or check the graph file in its folder; None where it runs as it is. Raises BuildError."""

    def versions(self) -> dict[str, str]:
        """Packages whose version decides whether a bundle runs."""
