"""Executes a graph node by node in its own element types, on ONNX's reference implementation.

The CPU backend runs float32 only, so this is what executes bfloat16 and float16 graphs without a GPU. The two
operators of TensorRT are written here once more, from their documentation: sums in float32, results in the type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


class TRT_KVCacheUpdate(OpRun):  # noqa: N801  the class name is the operator's
    """Packed form: rows update_lengths[b]..update_lengths[b+1] of slot b go to the cache from write_indices[b] on."""

    op_domain = "trt"

    def _run(self, cache: Any, update: Any, write: Any, ends: Any, update_form: str, mode: str) -> tuple[Any]:
        assert (update_form, mode) == ("packed_nhd", "linear")
        present = cache.copy()
        for slot, start in enumerate(write):
            rows = update[ends[slot] : ends[slot + 1]]
            present[slot, :, start : start + len(rows)] = rows.swapaxes(0, 1)
        return (present,)


class TRT_Attention(OpRun):  # noqa: N801
    """Left-padded queries: query i of Q stands at cache row kv_lengths - Q + i."""

    op_domain = "trt"

    def _run(
        self, q: Any, k: Any, v: Any, mask: Any, query_lengths: Any, kv_lengths: Any, causal_kind: str, **rest: Any
    ) -> tuple[Any]:
        assert mask is None and query_lengths is None and rest["query_form"] == rest["kv_form"] == "padded_bhnd"
        groups = q.shape[1] // k.shape[1]
        out = np.zeros(q.shape, np.float32)
        for slot, length in enumerate(kv_lengths):
            keys, values = (np.repeat(x[slot, :, :length].astype(np.float32), groups, axis=0) for x in (k, v))
            scores = q[slot].astype(np.float32) @ keys.swapaxes(1, 2)
            if causal_kind == "lower_right":
                last = length - q.shape[2] + np.arange(q.shape[2])
                scores = np.where(np.arange(length)[None] <= last[:, None], scores, -np.inf)
            # Padding rows see nothing, or nothing but stale keys; nobody reads them.
            weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e30))
            out[slot] = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30) @ values
        return (out.astype(q.dtype),)


class Evaluator:
    """A graph with its caches, which every run updates."""

    def __init__(self, graph: Path, caches: dict[str, Any]) -> None:
        self._evaluator = ReferenceEvaluator(str(graph), new_ops=[TRT_KVCacheUpdate, TRT_Attention])
        self.caches = caches

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Outputs by name; caches are taken from and put back into `caches`."""
        names = list(self._evaluator.output_names)
        given = {name: inputs.get(name, self.caches.get(name)) for name in self._evaluator.input_names}
        outputs = dict(zip(names, self._evaluator.run(None, given), strict=True))
        for name in names:
            if name.endswith(".present"):
                self.caches[name.removesuffix(".present")] = outputs.pop(name)
        return outputs
