"""Write and read safetensors files byte by byte: a second opinion on the format, bfloat16 included."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NUMPY = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "float32") -> Path:
    """Write `tensors` in the order given, each cast to `dtype` (a key of DTYPES)."""
    code = DTYPES[dtype]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs = []
    end = 0
    for name, tensor in tensors.items():
        blob = np.ascontiguousarray(tensor).astype(_NUMPY[code]).tobytes()
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [end, end + len(blob)]}
        end += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return path


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of one file as float32; trusts the file, which a test wrote."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            array = np.frombuffer(data[start:end], _NUMPY[entry["dtype"]])
            tensors[name] = array.astype(np.float32).reshape(entry["shape"])
    return tensors
