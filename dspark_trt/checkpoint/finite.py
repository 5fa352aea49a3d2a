"""Weights that are numbers: what a source gives out is looked through once, as it is read anyway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint.types import Array, TensorSource
from dspark_trt.stored import Stored

_CHUNK = 1 << 20
"""Elements looked at together: bounds the scratch memory beside a large table."""
_BF16_EXPONENT = 0x7F80
"""All ones in the exponent is what makes a bfloat16 infinite or no number."""


class FiniteSource:
    """A TensorSource whose weights are finite; `load` and `stored` raise CheckpointError for one that is not."""

    def __init__(self, where: str, source: TensorSource) -> None:
        self._where = where
        self._source = source

    def names(self) -> tuple[str, ...]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def load(self, name: str) -> Array:
        array = self._source.load(name)
        if (index := _first_odd(array)) is not None:
            raise self._refusal(name, array.shape, index, float(array.reshape(-1)[index]))
        return array

    def stored(self, name: str) -> Stored | None:
        found = self._source.stored(name)
        if found is not None and _is_odd(found):
            self.load(name)  # which says where
        return found

    def _refusal(self, name: str, shape: tuple[int, ...], index: int, value: float) -> CheckpointError:
        place = [int(i) for i in np.unravel_index(index, shape)]
        return CheckpointError(
            f"{self._where}: {name} holds {value} at {place}, wanted finite weights; the file is damaged, or training "
            "failed: take another copy or checkpoint"
        )


def _first_odd(array: Array) -> int | None:
    """Flat index of the first value that is not finite."""
    for start, part in _chunks(array):
        odd = ~np.isfinite(part)
        if odd.any():
            return start + int(odd.argmax())
    return None


def _is_odd(stored: Stored) -> bool:
    """Whether a value of the weight is not finite: one of its bfloat16s, or a scale or offset of a block."""
    if stored.kind == "bf16":
        return any(((part & _BF16_EXPONENT) == _BF16_EXPONENT).any() for _, part in _chunks(stored.values))
    return any(not np.isfinite(array).all() for array in (stored.d, stored.m) if array is not None)


def _chunks(array: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield start, flat[start : start + _CHUNK]
