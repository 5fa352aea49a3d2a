"""Runs a graph of a bundle in ONNX Runtime, caches in place: the least that a test needs of a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from dspark_runtime.contract import names
from dspark_runtime.oplib import library_path
from dspark_runtime.sessions.onnxruntime import share_threads

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
CACHES = ("target_key", "target_value", "context_key", "context_value", "draft_key", "draft_value")


@dataclass(frozen=True)
class Chunk:
    """Tokens of one slot in a step; they go to the cache rows from `start` on."""

    slot: int
    tokens: Sequence[int]
    start: int


def shared_pool_options() -> ort.SessionOptions:
    """Options for a session on the product's pool: once it exists, ONNX Runtime refuses sessions with their own."""
    share_threads()
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    return options


class GraphDriver:
    """One graph and its caches. `dialect`: trt or standard; `query_form`: packed or padded (left)."""

    def __init__(
        self,
        graph: Path,
        dialect: str,
        query_form: str,
        num_slots: int,
        caches: dict[str, np.ndarray] | None = None,
    ) -> None:
        options = shared_pool_options()
        if dialect == "trt":
            options.register_custom_ops_library(str(library_path()))
        self.session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self.dialect, self.query_form, self.num_slots = dialect, query_form, num_slots
        self.inputs = {item.name: item for item in self.session.get_inputs()}
        self.outputs = [item.name for item in self.session.get_outputs()]
        self.caches = caches if caches is not None else {}
        for name, item in self.inputs.items():
            if name.split(".")[0] in CACHES and name not in self.caches:
                self.caches[name] = np.zeros((num_slots, *item.shape[1:]), np.float32)
        self._cache_values = {
            name: ort.OrtValue.ortvalue_from_numpy(self.caches[name]) for name in self.inputs if name in self.caches
        }
        self.lengths = np.zeros(num_slots, np.int32)
        """Where an idle slot's write index points: its next free row."""

    def run(self, chunks: Sequence[Chunk], *, causal: bool = True, **extra: Any) -> dict[str, np.ndarray]:
        """Outputs of a step over `chunks` (slots ascending); `extra` are inputs by name and win over defaults."""
        arrays = self.step_inputs(chunks, causal)
        for name, value in extra.items():
            arrays[name] = np.asarray(value, DTYPES[self.inputs[name].type])
        if names.MASK_ROWS in self.inputs:
            arrays[names.MASK_ROWS] = np.full(len(arrays[names.LOGIT_ROWS]), -1, np.int32)
        binding = self.session.io_binding()
        for name in self.inputs:
            value = self._cache_values.get(name)
            if value is None:
                value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(arrays[name]))
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            past = name.removesuffix(names.PRESENT)
            if past != name:
                binding.bind_ortvalue_output(name, self._cache_values[past])
            else:
                binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        results = binding.get_outputs()
        return {n: r.numpy() for n, r in zip(self.outputs, results, strict=True) if not n.endswith(names.PRESENT)}

    def step_inputs(self, chunks: Sequence[Chunk], causal: bool) -> dict[str, np.ndarray]:
        counts = np.zeros(self.num_slots, np.int32)
        write = self.lengths.copy()
        for chunk in chunks:
            counts[chunk.slot], write[chunk.slot] = len(chunk.tokens), chunk.start
        ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        tokens = np.concatenate([np.asarray(c.tokens, np.int32) for c in chunks])
        positions = np.concatenate([c.start + np.arange(len(c.tokens)) for c in chunks])
        num_requests = len(chunks)
        arrays = {
            names.TOKEN_IDS: tokens,
            names.POSITIONS: positions.astype(np.int64),
            names.WRITE_INDICES: write,
            names.UPDATE_LENGTHS: ends,
            names.KV_LENGTHS: write + counts,
            names.LOGIT_ROWS: np.arange(len(tokens), dtype=np.int32),
            # One row each, verify length 0: acceptance has its own tests.
            names.ROW_OFFSETS: np.arange(num_requests + 1, dtype=np.int32),
            names.TOP_P: np.ones(num_requests, np.float32),
            names.PENALTIES: np.tile(np.array([1, 0, 0], np.float32), (num_requests, 1)),
            names.NUM_LOGPROBS: np.full(num_requests, -1, np.int32),
        }
        if names.QUERY_ROWS in self.inputs:
            arrays |= self._padded_rows(chunks, counts, ends, causal)
        for name, item in self.inputs.items():
            if name not in arrays and name not in self.caches:
                sizes = {"R": num_requests, "R+1": num_requests + 1, "B": self.num_slots, "N": len(tokens)}
                sizes |= dict.fromkeys(("Rj", "Rc", "E", "M"), 0)
                shape = [sizes[size] if isinstance(size, str) else size for size in item.shape]
                arrays[name] = np.zeros(shape, DTYPES[item.type])
        if names.CALIBRATION_TEMPERATURES in arrays:
            arrays[names.CALIBRATION_TEMPERATURES][:] = 1
        return arrays

    def _padded_rows(
        self, chunks: Sequence[Chunk], counts: np.ndarray, ends: np.ndarray, causal: bool
    ) -> dict[str, np.ndarray]:
        longest = int(counts.max())
        query_rows = np.zeros((self.num_slots, longest), np.int32)
        output_rows = np.zeros(int(ends[-1]), np.int32)
        for chunk in chunks:
            count, first = len(chunk.tokens), int(ends[chunk.slot])
            pad = longest - count if self.dialect == "trt" else 0
            query_rows[chunk.slot, pad : pad + count] = first + np.arange(count)
            output_rows[first : first + count] = chunk.slot * longest + pad + np.arange(count)
        arrays = {names.QUERY_ROWS: query_rows, names.OUTPUT_ROWS: output_rows}
        if names.ATTENTION_MASK in self.inputs:
            capacity = self.inputs[names.ATTENTION_MASK].shape[-1]
            mask = np.zeros((self.num_slots, 1, longest, capacity), np.bool_)
            mask[..., 0] = True  # rows without a query see one key, so that no softmax is empty
            for chunk in chunks:
                for i in range(len(chunk.tokens)):
                    mask[chunk.slot, 0, i, : chunk.start + (i + 1 if causal else len(chunk.tokens))] = True
            arrays[names.ATTENTION_MASK] = mask
        return arrays
