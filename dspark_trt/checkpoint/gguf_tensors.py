"""The tensors of a GGUF file under Hugging Face's names, dequantised one at a time."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark_runtime.contract.errors import CheckpointError, label
from dspark_trt.checkpoint.gguf_header import GgufHeader, TensorInfo
from dspark_trt.checkpoint.gguf_quants import dequantize, row_bytes, stored_form, type_name
from dspark_trt.checkpoint.types import Array
from dspark_trt.stored import Stored

AnyArray = npt.NDArray[Any]

ROPE_FACTORS = "rope_freqs.weight"
_MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}


def canonical(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; an unknown name stays as it is."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, module, kind = match.groups()
        if module in _MODULES:
            return f"layers.{layer}.{_MODULES[module]}.{kind}"
    return _TOP.get(name, name)


def _undo_interleave(rows: AnyArray, num_heads: int) -> AnyArray:
    """Hugging Face's order of q/k rows: llama.cpp interleaves the two halves of a head (rotary pairs adjacent)."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _extent(path: Path, info: TensorInfo) -> int:
    """Bytes that a tensor takes in the file. Raises CheckpointError for types and row lengths that cannot be."""
    name = type_name(info.ggml_type)
    if name is None:
        raise CheckpointError(f"{path}: {label(info.name)} has the unknown ggml type {info.ggml_type}")
    size = row_bytes(info.ggml_type, info.shape[-1])
    if size is None:
        raise CheckpointError(
            f"{path}: {label(info.name)} has rows of {info.shape[-1]} values, which {name} cannot hold"
        )
    return math.prod(info.shape[:-1]) * size


def _check_layout(path: Path, header: GgufHeader, sizes: dict[str, int], file_size: int) -> None:
    at, before = 0, ""
    for info in sorted(header.tensors, key=lambda info: info.offset):
        if info.offset < at:
            raise CheckpointError(
                f"{path}: {label(info.name)} begins at data byte {info.offset} and overlaps {label(before)}"
            )
        at, before = info.offset + sizes[info.name], info.name
    if header.data_start + at > file_size:
        raise CheckpointError(
            f"{path}: is truncated, found {file_size} bytes, its header wants {header.data_start + at}"
        )


class GgufSource:
    """TensorSource of a mapped GGUF file; `rope_freqs` is read by `rope_factors` and not listed."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8], header: GgufHeader) -> None:
        """Checks types and places of all tensors. Raises CheckpointError."""
        self._path = path
        self._data = data
        self._start = header.data_start
        self._heads: dict[str, int] = {}
        self._sizes = {info.name: _extent(path, info) for info in header.tensors}
        _check_layout(path, header, self._sizes, data.size)
        self._rope = next((info for info in header.tensors if info.name == ROPE_FACTORS), None)
        self._places: dict[str, TensorInfo] = {}
        for info in header.tensors:
            name = canonical(info.name)
            if name in self._places:
                both = f"{label(info.name)} and {label(self._places[name].name)}"
                raise CheckpointError(f"{path}: {both} are names of the same tensor, wanted one of them")
            if info is not self._rope:
                self._places[name] = info

    def interleaved(self, num_heads: int, num_kv_heads: int) -> None:
        """Say that rows of q and k are in llama.cpp's order (files of architecture llama)."""
        self._heads = {"q_proj": num_heads, "k_proj": num_kv_heads}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._places))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def load(self, name: str) -> Array:
        rows = self._read(self._places[name])
        heads = self._interleaved_heads(name)
        return rows if heads is None else _undo_interleave(rows, heads)

    def stored(self, name: str) -> Stored | None:
        info, heads = self._places[name], self._interleaved_heads(name)
        if len(info.shape) != 2:
            return None
        found = stored_form(self._raw(info), info.ggml_type)
        return found if found is None or heads is None else found.map(lambda array: _undo_interleave(array, heads))

    def _interleaved_heads(self, name: str) -> int | None:
        parts = name.split(".")
        return self._heads.get(parts[-2]) if len(parts) > 1 else None

    def rope_factors(self) -> Array | None:
        """[head_dim / 2] divisors of the rotary frequencies, where the file has them."""
        return None if self._rope is None else self._read(self._rope).reshape(-1)

    def _raw(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The bytes of the file, a row each."""
        start, size = self._start + info.offset, self._sizes[info.name]
        return self._data[start : start + size].reshape(math.prod(info.shape[:-1]), -1)

    def _read(self, info: TensorInfo) -> Array:
        try:
            return dequantize(self._raw(info), info.ggml_type, info.shape[-1]).reshape(info.shape)
        except NotImplementedError:
            kind = type_name(info.ggml_type)
            raise CheckpointError(
                f"{self._path}: {info.name} has type {kind}, which the gguf package cannot dequantise; "
                f"take a file of another quantisation"
            ) from None
