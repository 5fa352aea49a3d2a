"""The DSpark operators called from Python, where a bundle's graphs end at logits (`"operators": "host"`).

Names and shapes of the arrays are those of contract/names.py; the weights of the sequential head come from a file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from dspark_runtime.contract.errors import BundleError, DsparkError
from dspark_runtime.contract.manifest import DraftInfo
from dspark_runtime.sessions.acceptance import Outcome
from dspark_runtime.sessions.base import Array, FloatArray, IntArray, Tensor

HEAD_FILE = "draft_head.safetensors"
_HEAD_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code) for name, code in {"F32": "<f4", "I32": "<i4", "BF16": "<u2", "I8": "i1"}.items()
}
"""bfloat16 as its bits, which is how DSparkDraft takes it."""
_MAX_HEADER_BYTES = 1 << 20


def read_head(path: Path) -> dict[str, Array]:
    """Arrays of a small safetensors file, of _HEAD_DTYPES. Raises BundleError when it is damaged."""
    data = path.read_bytes()
    try:
        (size,) = struct.unpack_from("<Q", data)
        if size > min(_MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError(f"header of {size} bytes in a file of {len(data)}")
        body = memoryview(data)[8 + size :]
        arrays = {}
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            dtype, shape = _HEAD_DTYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(body):
                raise ValueError(f"{name} lies at {begin}..{end} of {len(body)} bytes")
            # A copy, so that rows are aligned.
            arrays[name] = np.frombuffer(body[begin:end], dtype).reshape(shape).copy()
        return arrays
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise BundleError(f"{path}: damaged ({error}); build the bundle again") from None


@dataclass(frozen=True, slots=True)
class Drafted:
    """What DSparkDraft gave: tokens, confidence_logits and entropies [R, K], logits [R, K, Vd] where wanted."""

    tokens: IntArray
    confidence_logits: FloatArray
    logits: FloatArray | None
    entropies: FloatArray


class HostDraft:
    """DSparkDraft over logits that a session wrote."""

    def __init__(self, draft: DraftInfo, head: Mapping[str, Array]) -> None:
        """head: the arrays of HEAD_FILE; empty for a draft without any head."""
        self._weights = dict(head)
        self._options = {
            "head_type": names.HEAD_TYPES[draft.head_type],
            # The confidence reads [h; w1] or h alone: its width tells.
            "confidence_with_markov": len(head.get("confidence_weight", ())) > draft.engine.hidden_size,
        }

    def __call__(
        self, base_logits: Array, hidden: Array | None, inputs: Mapping[str, Tensor], wants_logits: bool
    ) -> Drafted:
        """base_logits: [R, K, Vd]; hidden: [R, K, d] or None; inputs: those that the graph node would read."""
        read = (names.ANCHOR_TOKENS, *names.SAMPLING_INPUTS, names.CONFIDENCE_SIGNAL, names.CUTOFF_POLICY)
        arguments = {name: inputs[name].array for name in read}
        tokens, confidence_logits, logits, entropies = _call(
            dspark_ops.draft,
            base_logits=base_logits,
            hidden=hidden,
            block_offset=int(inputs[names.BLOCK_OFFSET].array[0]),
            want_draft_logits=wants_logits,
            **arguments,
            **self._weights,
            **self._options,
        )
        return Drafted(tokens, confidence_logits, logits, entropies)


class HostCutoff:
    """DSparkCutoff over the columns so far, as the graph node has it and between steps of a model draft."""

    def __init__(self, calibration: FloatArray) -> None:
        """calibration: [K] temperatures per position."""
        self._calibration = calibration

    def __call__(
        self,
        confidence_logits: Array,
        entropies: Array,
        draft_tokens: Array,
        inputs: Mapping[str, Tensor],
        max_verify: Array,
    ) -> tuple[IntArray, FloatArray]:
        """Verify lengths [R] and confidences [R, k] for columns [R, k], k <= K, and max_verify [R] in [0, k]."""
        lengths, _, confidences = _call(
            dspark_ops.cutoff,
            confidence_logits=np.ascontiguousarray(confidence_logits),
            entropies=np.ascontiguousarray(entropies),
            draft_tokens=np.ascontiguousarray(draft_tokens),
            cutoff_policy=inputs[names.CUTOFF_POLICY].array,
            cutoff_params=inputs[names.CUTOFF_PARAMS].array,
            cutoff_inclusive=inputs[names.CUTOFF_INCLUSIVE].array,
            min_verify=np.minimum(inputs[names.MIN_VERIFY].array, max_verify),
            max_verify=max_verify,
            calibration_temperatures=calibration_rows(self._calibration, confidence_logits.shape),
            parallel=False,
        )
        return lengths, confidences


def calibration_rows(calibration: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """calibration [K] for each of R requests: [R, k], k <= K."""
    num_requests, columns = shape
    return np.ascontiguousarray(np.broadcast_to(calibration[:columns], (num_requests, columns)))


def host_accept(logits: Array, inputs: Mapping[str, Tensor], d2t: Array | None) -> Outcome:
    """DSparkAccept for R requests and target logits [N, V]; inputs as the graph node's."""
    wanted = (
        names.ROW_OFFSETS, names.DRAFT_TOKENS, names.DRAFT_LOGITS, *names.SAMPLING_INPUTS, *names.ACCEPT_INPUTS,
        names.CONFIDENCES,
    )  # fmt: skip
    arguments = {name: inputs[name].array for name in wanted if name in inputs}
    return Outcome(*_call(dspark_ops.accept, logits=logits, d2t=d2t, **arguments))


def host_logprobs(logits: FloatArray, tokens: IntArray, most: int) -> tuple[FloatArray, IntArray, IntArray]:
    """Log-probabilities of `tokens` [N] under logits [N, V], and of the `most` most probable tokens of each row.

    Returns values and ids [N, MAX_LOGPROBS+1], the token itself first, -1 where there is none, and its ranks [N].
    """
    counts = np.full(len(tokens), most, np.int32)
    found: tuple[FloatArray, IntArray, IntArray] = _call(
        dspark_ops.logprobs, logits=logits, tokens=tokens, num_logprobs=counts
    )
    return found


def operator_seconds() -> tuple[float, float, float]:
    """Seconds spent so far in DSparkDraft, DSparkCutoff and DSparkAccept, in graphs and from Python (profile)."""
    draft, cutoff, accept = (dspark_ops.op_nanoseconds(op) * 1e-9 for op in ("draft", "cutoff", "accept"))
    return draft, cutoff, accept


def _call(operator: Callable[..., Any], **arguments: Any) -> Any:
    try:
        return operator(**arguments)
    except (ValueError, RuntimeError) as error:
        raise DsparkError(f"operator refused a step: {error}") from None
