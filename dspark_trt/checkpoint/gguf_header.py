"""The header of a GGUF file: metadata and where each tensor lies. Strict, because the file may be anything.

Format (versions 2 and 3): magic, version, counts, key/value pairs, tensor infos, padding, data. Every length is
compared with what is left of the file before it is believed.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark_runtime.contract.errors import CheckpointError, label, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_TENSORS, MAX_VALUES = 1 << 20, 1 << 16
MAX_LENGTH = 1 << 24
"""Of an array or a string: vocabularies have less than a million tokens, chat templates thousands of characters.
Without a limit the weights themselves could be read as metadata, which takes many times their size."""
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor; `shape` in row-major order (reversed from the file), `offset` within the data part."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_start: int
    """Byte where the data part begins."""


class _Cursor:
    """Reads little-endian values in order and never past the end."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data.data
        self.at = 0

    def need(self, count: int, size: int = 1) -> None:
        if count * size > len(self.data) - self.at:
            raise CheckpointError(
                f"{self.path}: is truncated or damaged, found {len(self.data)} bytes, "
                f"its header wants {count * size} more at byte {self.at}"
            )

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def length(self, size: int) -> int:
        """Of a string or an array whose elements take `size` bytes or more."""
        count = int(self.scalar("Q"))
        self.need(count, size)
        if count > MAX_LENGTH:
            raise CheckpointError(
                f"{self.path}: holds a value of {count} parts at byte {self.at}, wanted at most {MAX_LENGTH}"
            )
        return count

    def string(self) -> str:
        length = self.length(1)
        raw = bytes(self.data[self.at : self.at + length])
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.path}: holds a string that is not UTF-8, before byte {self.at}") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise CheckpointError(f"{self.path}: holds a value of unknown type {kind} at byte {self.at}")
        element = self.scalar("I")
        if element == _STRING:
            return [self.string() for _ in range(self.length(8))]  # each has at least its length
        if element not in _SCALARS:
            raise CheckpointError(
                f"{self.path}: holds an array of type {element} at byte {self.at}, wanted plain values"
            )
        code = f"<{self.length(struct.calcsize('<' + _SCALARS[element]))}{_SCALARS[element]}"
        values = list(struct.unpack_from(code, self.data, self.at))
        self.at += struct.calcsize(code)
        return values


def _tensor_info(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    num_dims = cursor.scalar("I")
    if not 1 <= num_dims <= MAX_DIMS:
        raise CheckpointError(f"{cursor.path}: {label(name)} has {num_dims} dimensions, wanted 1 to {MAX_DIMS}")
    shape = tuple(cursor.scalar("Q") for _ in range(num_dims))[::-1]
    if math.prod(shape) == 0:
        raise CheckpointError(f"{cursor.path}: {label(name)} is empty, its shape is {list(shape)}")
    return TensorInfo(name, shape, cursor.scalar("I"), cursor.scalar("Q"))


def read_header(path: Path, data: npt.NDArray[np.uint8]) -> GgufHeader:
    """Parse the header of a mapped file. Raises CheckpointError."""
    cursor = _Cursor(path, data)
    if data[:4].tobytes() != MAGIC:
        raise CheckpointError(f"{path}: is not a GGUF file, it begins with {data[:4].tobytes()!r}")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise CheckpointError(f"{path}: has GGUF version {version}, supported are 2 and 3 (little-endian)")
    num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")
    cursor.need(num_tensors, 24)
    cursor.need(num_values, 12)
    if num_tensors > MAX_TENSORS or num_values > MAX_VALUES:
        raise CheckpointError(
            f"{path}: claims {num_tensors} tensors and {num_values} values, "
            f"wanted at most {MAX_TENSORS} and {MAX_VALUES}"
        )
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string()
        if key in metadata:
            raise CheckpointError(f"{path}: holds the key {shown(key)} twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    tensors = tuple(_tensor_info(cursor) for _ in range(num_tensors))
    if len({info.name for info in tensors}) != len(tensors):
        raise CheckpointError(f"{path}: holds two tensors of the same name")
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"{path}: general.alignment is {shown(alignment)}, wanted a power of two")
    return GgufHeader(metadata, tensors, -(-cursor.at // alignment) * alignment)
