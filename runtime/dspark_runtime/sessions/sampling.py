"""Per-request parameters of a step as the arrays that the operators read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark_runtime.contract import names
from dspark_runtime.plan import SlotSampling
from dspark_runtime.sessions.base import Array, IntArray, Session, Tensor
from dspark_runtime.sessions.buffers import Buffer

_DTYPES = {
    names.TEMPERATURE: np.float32,
    names.TOP_K: np.int32,
    names.TOP_P: np.float32,
    names.MIN_P: np.float32,
    names.ACCEPT_MODE: np.int32,
    names.SEED: np.int64,
    names.SAMPLE_INDEX: np.int32,
    names.CUTOFF_POLICY: np.int32,
}


class SamplingInputs:
    """Fills the `[R]` inputs; does nothing again for requests that did not change since the last step."""

    def __init__(self, session: Session, signal: str = "top1") -> None:
        """signal: the confidence signal of every request, one of CONFIDENCE_SIGNALS; a target reads none."""
        self._signal = names.CONFIDENCE_SIGNALS[signal]
        self._confidence_signal = Buffer(np.int32, session.tensor)
        self._cutoff_params = Buffer(np.float32, session.tensor)
        self._cutoff_inclusive = Buffer(np.int32, session.tensor)
        self._min_verify = Buffer(np.int32, session.tensor)
        self._buffers = {name: Buffer(dtype, session.tensor) for name, dtype in _DTYPES.items()}
        self._anchors = Buffer(np.int32, session.tensor)
        self._last: tuple[SlotSampling, ...] = ()
        self._tensors: dict[str, Tensor] = {}

    def fill(self, sampling: Sequence[SlotSampling], anchor_positions: IntArray) -> dict[str, Tensor]:
        """Inputs by name: SAMPLING_INPUTS, the confidence signal, and the cutoff's inputs but for max_verify and the
        calibration. anchor_positions: [R]."""
        key = tuple(sampling)
        if key != self._last:
            # Until all are filled nothing may be taken for the last step's.
            self._last = ()
            self._tensors = {name: buffer.view(len(key)) for name, buffer in self._buffers.items()}
            for name, tensor in self._tensors.items():
                tensor.array[:] = [getattr(entry, name) for entry in key]
            self._fill_cutoff(key)
            self._tensors[names.ANCHOR_POSITION] = self._anchors.view(len(key))
            self._last = key
        anchors: Array = self._tensors[names.ANCHOR_POSITION].array
        anchors[:] = anchor_positions
        return self._tensors

    def _fill_cutoff(self, sampling: tuple[SlotSampling, ...]) -> None:
        """The bundle's signal, and a policy whose one parameter is its threshold."""
        count = len(sampling)
        for name, buffer, value in (
            (names.CONFIDENCE_SIGNAL, self._confidence_signal, self._signal),
            (names.CUTOFF_INCLUSIVE, self._cutoff_inclusive, 0),
            (names.MIN_VERIFY, self._min_verify, 0),
        ):
            tensor = self._tensors[name] = buffer.view(count)
            tensor.array[:] = value
        params = self._tensors[names.CUTOFF_PARAMS] = self._cutoff_params.view(count, names.CUTOFF_COLUMNS)
        params.array[:] = 0
        params.array[:, 0] = [entry.cutoff_threshold for entry in sampling]


class RuleInputs:
    """The inputs of DSparkAccept that say what logits become and what is reported: all neutral."""

    def __init__(self, session: Session, capacity: int, vocab_size: int) -> None:
        """capacity: of the token history; vocab_size: of the target."""
        make = session.tensor
        self._capacity, self._mask_words = capacity, (vocab_size + 31) // 32
        self._floats = {name: Buffer(np.float32, make) for name in (names.PENALTIES, names.RELAXATION)}
        self._ints = {name: Buffer(np.int32, make) for name in names.ACCEPT_INPUTS if name not in self._floats}
        self._confidences = Buffer(np.float32, make)

    def fill(self, num_requests: int, num_rows: int, num_slots: int, block_size: int) -> dict[str, Tensor]:
        """ACCEPT_INPUTS and the confidences by name, for R requests and N rows of logits."""
        shapes = {
            names.TOKEN_HISTORY: (num_slots, self._capacity),
            names.SLOTS: (num_requests,),
            names.PROMPT_LENGTHS: (num_requests,),
            names.RULES: (0, 3),
            names.RULE_OFFSETS: (num_requests + 1,),
            names.TOKEN_MASKS: (0, self._mask_words),
            names.MASK_ROWS: (num_rows,),
            names.NUM_LOGPROBS: (num_requests,),
        }
        tensors = {name: self._ints[name].view(*shape) for name, shape in shapes.items()}
        tensors[names.MASK_ROWS].array[:] = -1
        tensors[names.NUM_LOGPROBS].array[:] = -1
        penalties = tensors[names.PENALTIES] = self._floats[names.PENALTIES].view(num_requests, 3)
        penalties.array[:] = (1, 0, 0)
        tensors[names.RELAXATION] = self._floats[names.RELAXATION].view(num_requests, 2)
        if block_size:
            tensors[names.CONFIDENCES] = self._confidences.view(0, block_size)
        return tensors
