"""GGML's quantised types: sizes, and back to float32 with NumPy. The one file that needs the `gguf` package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint.types import Array
from dspark_trt.stored import BLOCK_SIZE, Stored

try:
    import gguf
except ImportError:  # an extra: require_gguf says so when a GGUF file is opened
    gguf = None

_CHUNK_BYTES = 8 << 20
"""Float32 bytes dequantised at once: the package holds every group's result twice until it is done."""


def require_gguf(path: Path) -> None:
    """Raises CheckpointError with the command that installs what is missing."""
    if gguf is None:
        raise CheckpointError(f'{path}: reading GGUF needs the gguf package; pip install "dspark-trt[gguf]"')


def type_name(ggml_type: int) -> str | None:
    """Name of a type number; None when it is unknown."""
    try:
        return str(gguf.GGMLQuantizationType(ggml_type).name)
    except ValueError:
        return None


def row_bytes(ggml_type: int, cols: int) -> int | None:
    """Bytes of a row of `cols` values; None when the type's blocks do not divide it."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(ggml_type)]
    return None if cols % block else cols // block * int(size)


def dequantize(raw: npt.NDArray[np.uint8], ggml_type: int, cols: int) -> Array:
    """raw: [rows, row_bytes] uint8 -> [rows, cols] float32. Raises NotImplementedError for types gguf cannot read."""
    kind = gguf.GGMLQuantizationType(ggml_type)
    out = np.empty((raw.shape[0], cols), np.float32)
    step = max(1, _CHUNK_BYTES // (4 * cols))
    for start in range(0, raw.shape[0], step):
        out[start : start + step] = gguf.quants.dequantize(raw[start : start + step], kind)
    return out


def stored_form(raw: npt.NDArray[np.uint8], ggml_type: int) -> Stored | None:
    """The parts of Q8_0 and Q4_1 blocks, and BF16 as it is; None for other types. raw: [rows, row_bytes] uint8."""
    kind = gguf.GGMLQuantizationType(ggml_type)
    types = gguf.GGMLQuantizationType
    if kind == types.BF16:
        return Stored(kind="bf16", values=raw.view("<u2"))
    if kind not in (types.Q8_0, types.Q4_1):
        return None
    rows = raw.shape[0]
    blocks = raw.reshape(rows, -1, gguf.GGML_QUANT_SIZES[kind][1])
    d = np.ascontiguousarray(blocks[:, :, :2]).view("<f2")[:, :, 0]
    if kind == types.Q8_0:
        return Stored(kind="q8_0", values=blocks[:, :, 2:].reshape(rows, -1).view(np.int8), d=d)
    m = np.ascontiguousarray(blocks[:, :, 2:4]).view("<f2")[:, :, 0]
    # The first half of a block's 32 values is in the low nibbles, the second half in the high ones.
    nibbles = blocks[:, :, 4:]
    values = np.empty((*nibbles.shape[:2], BLOCK_SIZE), np.uint8)
    values[:, :, : BLOCK_SIZE // 2], values[:, :, BLOCK_SIZE // 2 :] = nibbles & 0xF, nibbles >> 4
    return Stored(kind="q4_1", values=values.reshape(rows, -1), d=d, m=m)
