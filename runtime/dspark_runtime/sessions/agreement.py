"""Does a loaded graph have the inputs and outputs that the manifest promises? Asked once, when a bundle is opened.

A manifest that says something else about the graph (an edit, files of two builds in one folder) would otherwise show
as wrong shapes in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from dspark_runtime.contract.compiled import TensorInfo
from dspark_runtime.contract.errors import BundleError, label

MAX_FAULTS = 3
"""Named in a message; the others are counted."""

Shape = tuple[int | None, ...]


class Typed(Protocol):
    """What a session knows of its graph."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> Mapping[str, Shape]: ...
    @property
    def outputs(self) -> Mapping[str, Shape]: ...
    @property
    def dtypes(self) -> Mapping[str, str]: ...


def check_agreement(folder: str, graph: Typed, expected: Sequence[TensorInfo]) -> None:
    """BundleError in one sentence unless the graph has exactly the tensors of `expected` (contract/graph_io.py)."""
    faults = list(_faults(graph, expected))
    if faults:
        more = f" and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        raise BundleError(
            f"{folder}: {graph.name} is not what manifest.json says: {'; '.join(faults[:MAX_FAULTS])}{more}; "
            "build the bundle again"
        )


def _faults(graph: Typed, expected: Sequence[TensorInfo]) -> Iterator[str]:
    for direction, found in (("input", graph.inputs), ("output", graph.outputs)):
        wanted = {tensor.name: tensor for tensor in expected if tensor.direction == direction}
        for name in sorted(wanted.keys() - found.keys()):
            yield f"{direction} {name} is missing"
        for name in sorted(found.keys() - wanted.keys()):
            yield f"{direction} {label(name)} is not expected"
        for name in sorted(wanted.keys() & found.keys()):
            sizes = tuple(None if size == -1 else size for size in wanted[name].shape)
            if graph.dtypes[name] != wanted[name].dtype:
                yield f"{direction} {name} is {graph.dtypes[name]}, wanted {wanted[name].dtype}"
            if found[name] != sizes:
                yield f"{direction} {name} has shape {_text(found[name])}, wanted {_text(sizes)}"


def _text(shape: Shape) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
