"""What the executor asks of an engine: named tensors in, named tensors out, caches bound once.

Narrow on purpose: a test can stand in for an engine with a dictionary of functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """An array of ours and the engine's handle on the same memory. Compared by identity."""

    array: Array
    handle: object


class Binding(Protocol):
    """One engine with a set of caches bound to it; they are updated in place."""

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Run a step. Inputs that the graph does not have are left out; outputs are filled, and every one must be a
        tensor of the right shape. Raises DsparkError when the engine refuses the step."""
        ...


class Session(Protocol):
    """One loaded engine."""

    @property
    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Shape of every input; None where it varies."""
        ...

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...]]: ...

    def tensor(self, array: Array) -> Tensor:
        """The handle for a contiguous array; nothing is copied, and both may be kept."""
        ...

    def bind(self, caches: Mapping[str, Array]) -> Binding:
        """A binding over `caches` (by input name; those that the graph lacks are left out)."""
        ...
