"""Persistent arrays behind the inputs and outputs of steps, and the caches.

A step must do no avoidable work: every buffer is allocated once at its largest size, and the view of a shape,
with the engine's handle on it, is made once per shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from dspark_runtime.contract.errors import BundleError, CapacityError
from dspark_runtime.contract.names import PRESENT
from dspark_runtime.sessions.base import Array, Session, Tensor


class Buffer:
    """A flat array whose leading part is viewed in varying shapes. It grows when a shape needs more."""

    def __init__(self, dtype: npt.DTypeLike, make_tensor: Callable[[Array], Tensor], fill: int = 0) -> None:
        """fill: what elements hold that nobody has written."""
        self._flat: Array = np.full(0, fill, dtype)
        self._fill = fill
        self._make_tensor = make_tensor
        self._views: dict[tuple[int, ...], Tensor] = {}

    def view(self, *shape: int) -> Tensor:
        """A tensor of `shape` over the leading elements; what it held before may be in it."""
        tensor = self._views.get(shape)
        if tensor is None:
            size = math.prod(shape)
            if size > self._flat.size:
                # Views of the smaller array stay valid for whoever still holds one, but are made no more.
                self._flat = np.full(size, self._fill, self._flat.dtype)
                self._views.clear()
            tensor = self._make_tensor(self._flat[:size].reshape(shape))
            self._views[shape] = tensor
        return tensor


def allocate_caches(sessions: Iterable[Session], num_slots: int, capacity: int, where: str) -> dict[str, Array]:
    """Zeroed caches [B, Hkv, S, D] for every cache input of the sessions; equal names share one array.

    Zeroed, because 0 * NaN of stale memory would show in a masked attention. Raises BundleError where a graph
    wants another capacity, CapacityError where this machine has no room for them.
    """
    shapes: dict[str, tuple[int, int, int, int]] = {}
    for session in sessions:
        for name, shape in session.inputs.items():
            if name + PRESENT not in session.outputs or name in shapes:
                continue
            _, heads, rows, width = shape
            if heads is None or width is None or rows not in (None, capacity):
                raise BundleError(f"{where}: input {name} has shape {shape}, wanted [B, heads, {capacity}, width]")
            shapes[name] = (num_slots, heads, capacity, width)
    try:
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    except (MemoryError, ValueError):  # ValueError: more than an address can count
        size = sum(4 * math.prod(shape) for shape in shapes.values())
        raise CapacityError(
            f"{where}: the caches of {num_slots} requests of {capacity} tokens take {size} bytes, which this machine "
            "does not give; build with a smaller --max-batch-size or --max-seq-len"
        ) from None
