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
    names.CUTOFF_THRESHOLD: np.float32,
}


class SamplingInputs:
    """Fills the `[R]` inputs; does nothing again for requests that did not change since the last step."""

    def __init__(self, session: Session) -> None:
        self._buffers = {name: Buffer(dtype, session.tensor) for name, dtype in _DTYPES.items()}
        self._anchors = Buffer(np.int32, session.tensor)
        self._last: tuple[SlotSampling, ...] = ()
        self._tensors: dict[str, Tensor] = {}

    def fill(self, sampling: Sequence[SlotSampling], anchor_positions: IntArray) -> dict[str, Tensor]:
        """Inputs by name: SAMPLING_INPUTS, the cutoff's policy and threshold. anchor_positions: [R]."""
        key = tuple(sampling)
        if key != self._last:
            # Until all are filled nothing may be taken for the last step's.
            self._last = ()
            self._tensors = {name: buffer.view(len(key)) for name, buffer in self._buffers.items()}
            for name, tensor in self._tensors.items():
                tensor.array[:] = [getattr(entry, name) for entry in key]
            self._tensors[names.ANCHOR_POSITION] = self._anchors.view(len(key))
            self._last = key
        anchors: Array = self._tensors[names.ANCHOR_POSITION].array
        anchors[:] = anchor_positions
        return self._tensors
