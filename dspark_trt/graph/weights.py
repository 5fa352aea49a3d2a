"""One file of raw tensor data per graph, written front to back while the graph is described.

A tensor is loaded, written and dropped before the next one is loaded, so a build holds one
weight at a time. Knows ONNX's external data fields, no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from onnx import StringStringEntryProto, TensorProto, helper

ALIGNMENT = 4096
"""Bytes; a page, so that a reader can map every tensor on its own."""


@dataclass(frozen=True, slots=True)
class WeightRef:
    """Where a tensor lies: a file beside the graph and a byte range in it."""

    location: str
    offset: int
    length: int
    dtype: int
    """onnx.TensorProto data type."""
    shape: tuple[int, ...]

    def initializer(self, name: str) -> TensorProto:
        tensor = TensorProto(name=name, data_type=self.dtype, dims=self.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.location), ("offset", self.offset), ("length", self.length)):
            tensor.external_data.append(StringStringEntryProto(key=key, value=str(value)))
        return tensor


class WeightFile:
    """Appends arrays to `folder / name`; a context manager. Errors of the disk are OSError."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._file = self.path.open("wb")
        self._end = 0

    def append(self, array: np.ndarray[Any, Any]) -> WeightRef:
        """Write one array, row-major, at the next multiple of ALIGNMENT."""
        offset = -(-self._end // ALIGNMENT) * ALIGNMENT
        self._file.write(b"\0" * (offset - self._end))
        # A view of the bytes, not tobytes(): the largest weight must not exist twice.
        # As uint8, since bfloat16 has no buffer format.
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._end = offset + array.nbytes
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        return WeightRef(self.path.name, offset, array.nbytes, dtype, array.shape)

    @property
    def num_bytes(self) -> int:
        return self._end

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
