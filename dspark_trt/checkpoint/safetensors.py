"""safetensors files, mapped into memory: one file, or the shards of a folder. Knows no model.

Format: 8 bytes little-endian header size, a JSON header `name -> {dtype, shape, data_offsets}`, then the
data without gaps. The header is checked completely against the size of the file before anything is read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from dspark_runtime.contract.errors import CheckpointError, label, shown
from dspark_trt.checkpoint.fields import is_integer, parse_object, read_object
from dspark_trt.checkpoint.types import Array
from dspark_trt.stored import Stored

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_DIMS = 32
"""NumPy's limit; weights have at most 4."""

_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_FLOATS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_PICKLES = re.compile(r".*\.(bin|pt|pth|ckpt|pkl)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file; `start` and `end` in bytes from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def _is_count(value: object) -> bool:
    return isinstance(value, int) and is_integer(value) and value >= 0


def _entry(where: str, name: str, value: object, base: int) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: header entry {shown(name)} wants dtype, shape and data_offsets")
    name = label(name)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise CheckpointError(f"{where}: {name} has dtype {shown(dtype)}, which is not one of safetensors'")
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
        raise CheckpointError(f"{where}: {name} has shape {shown(shape)}, wanted a list of sizes")
    if len(shape) > MAX_DIMS:
        raise CheckpointError(f"{where}: {name} has {len(shape)} dimensions, wanted at most {MAX_DIMS}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(offset) for offset in offsets):
        raise CheckpointError(f"{where}: {name} has data_offsets {shown(offsets)}, wanted [begin, end]")
    wanted = math.prod(shape) * _SIZES[dtype]
    if offsets[1] - offsets[0] != wanted:
        raise CheckpointError(
            f"{where}: {name} spans {offsets[1] - offsets[0]} bytes, wanted {shown(wanted)} for {dtype} {shown(shape)}"
        )
    return Entry(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _check_layout(where: str, entries: dict[str, Entry], begin: int, file_size: int) -> None:
    """Tensors must fill the data part exactly: no gap, no overlap, nothing behind."""
    at = begin
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != at:
            what = "overlaps the tensor before it" if entry.start < at else "leaves a gap before it"
            raise CheckpointError(f"{where}: {label(name)} begins at byte {entry.start} and {what}, wanted byte {at}")
        at = entry.end
    if at > file_size:
        raise CheckpointError(f"{where}: is truncated, found {file_size} bytes, its header wants {at}")
    if at < file_size:
        raise CheckpointError(f"{where}: has {file_size - at} bytes that belong to no tensor")


class SafetensorsFile:
    """One file, mapped; `entries` holds every tensor under the name the file gives it."""

    def __init__(self, path: Path) -> None:
        try:
            size = path.stat().st_size
            if size < 8:
                raise CheckpointError(f"{path}: is truncated, found {size} bytes, wanted a safetensors header")
            # As a plain array: what is made of a memmap would be one too.
            self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
        header_size = int.from_bytes(self._bytes[:8].tobytes(), "little")
        if header_size > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: claims a header of {header_size} bytes; it is not a safetensors file")
        if 8 + header_size > size:
            raise CheckpointError(f"{path}: is truncated, found {size} bytes, its header alone wants {8 + header_size}")
        begin = 8 + header_size
        header = parse_object(self._bytes[8:begin].tobytes(), f"{path} header", unique=True)
        header.pop("__metadata__", None)
        self.path = path
        self.entries = {name: _entry(str(path), name, value, begin) for name, value in header.items()}
        _check_layout(str(path), self.entries, begin, size)

    def load(self, name: str) -> Array:
        entry = self.entries[name]
        raw = self._bytes[entry.start : entry.end].view(_FLOATS[entry.dtype])
        return raw.astype(np.float32).reshape(entry.shape)

    def stored(self, name: str) -> Stored | None:
        """A bfloat16 matrix as it is, without a copy; None for anything else."""
        entry = self.entries[name]
        if entry.dtype != "BF16" or len(entry.shape) != 2:
            return None
        bits = self._bytes[entry.start : entry.end].view(np.dtype("<u2")).reshape(entry.shape)
        return Stored(kind="bf16", values=bits)

    def same_bytes(self, name: str, other: SafetensorsFile, other_name: str) -> bool:
        """Whether two tensors have the same dtype, shape and content."""
        a, b = self.entries[name], other.entries[other_name]
        return (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(
            self._bytes[a.start : a.end], other._bytes[b.start : b.end]
        )


class SafetensorsSource:
    """The tensors of a folder under canonical names (see TensorSource)."""

    def __init__(self, where: str, places: dict[str, tuple[SafetensorsFile, str]]) -> None:
        self._where = where
        self._places = places

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._places))

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._places[name]
        return file.entries[stored].shape

    def load(self, name: str) -> Array:
        file, stored = self._places[name]
        return file.load(stored)

    def stored(self, name: str) -> Stored | None:
        file, stored = self._places[name]
        return file.stored(stored)

    def equal(self, name: str, other: str) -> bool:
        """Whether two tensors hold the same bytes."""
        (file, stored), (other_file, other_stored) = self._places[name], self._places[other]
        return file.same_bytes(stored, other_file, other_stored)

    def without(self, name: str) -> SafetensorsSource:
        """The same tensors but for one."""
        return SafetensorsSource(self._where, {k: v for k, v in self._places.items() if k != name})

    def renamed(self, old: str, new: str) -> SafetensorsSource:
        return SafetensorsSource(self._where, {new if k == old else k: v for k, v in self._places.items()})


def _canonical(stored: str) -> str:
    return stored.removeprefix("model.")


def _is_ignored(name: str) -> bool:
    """Buffers that old checkpoints carry and that follow from the configuration."""
    return name.endswith("rotary_emb.inv_freq")


def _files(folder: Path) -> list[tuple[SafetensorsFile, set[str] | None]]:
    """Each weight file of the folder and the names that the index wants in it (None: there is no index)."""
    if (folder / WEIGHTS).is_file():
        return [(SafetensorsFile(folder / WEIGHTS), None)]
    if not (folder / INDEX).is_file():
        pickles = sorted(p.name for p in folder.iterdir() if _PICKLES.fullmatch(p.name))
        if pickles:
            raise CheckpointError(
                f"{folder}: holds weights as pickle files ({', '.join(pickles[:3])}), which can run code when read; "
                f"convert to safetensors"
            )
        raise CheckpointError(f"{folder}: has a config.json but no weights, wanted {WEIGHTS} or {INDEX}")
    weight_map = read_object(folder / INDEX, unique=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX}: wants a weight_map from tensor names to files")
    by_file: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        # A plain name: the index must not lead out of the folder.
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise CheckpointError(
                f"{folder / INDEX}: {label(name)} is in {shown(file)}, wanted a .safetensors file of this folder"
            )
        by_file.setdefault(file, set()).add(name)
    missing = sorted(file for file in by_file if not (folder / file).is_file())
    if missing:
        raise CheckpointError(
            f"{folder}: misses {len(missing)} of {len(by_file)} shards: {', '.join(map(label, missing[:4]))}"
        )
    return [(SafetensorsFile(folder / file), names) for file, names in sorted(by_file.items())]


def open_folder(folder: Path) -> SafetensorsSource:
    """The tensors of model.safetensors, or of all shards of its index. Raises CheckpointError.

    Only float tensors (F32, F16, BF16) are taken; rotary buffers are left out.
    """
    places: dict[str, tuple[SafetensorsFile, str]] = {}
    for file, wanted in _files(folder):
        if wanted is not None and wanted != set(file.entries):
            odd = sorted(wanted ^ set(file.entries))
            raise CheckpointError(
                f"{file.path}: holds {len(file.entries)} tensors, {INDEX} lists {len(wanted)}; "
                f"they differ in {', '.join(map(label, odd[:4]))}"
            )
        for stored, entry in file.entries.items():
            name = _canonical(stored)
            if _is_ignored(name):
                continue
            if name in places:
                raise CheckpointError(
                    f"{file.path}: {label(stored)} is there twice, found in {places[name][0].path.name} too"
                )
            if entry.dtype not in _FLOATS:
                raise CheckpointError(
                    f"{file.path}: {label(stored)} has dtype {entry.dtype}, supported are {', '.join(_FLOATS)}; "
                    f"quantised checkpoints must be converted to one of them"
                )
            places[name] = (file, stored)
    return SafetensorsSource(str(folder), places)
