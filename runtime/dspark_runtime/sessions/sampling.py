"""Per-request parameters of a step as the arrays that the operators read: how tokens are drawn, what is verified."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark_runtime.contract import names
from dspark_runtime.plan import RoundCutoff, SlotSampling
from dspark_runtime.sessions.base import Array, IntArray, Session, Tensor
from dspark_runtime.sessions.buffers import Buffer

_SAMPLING_DTYPES = {
    names.TEMPERATURE: np.float32,
    names.TOP_K: np.int32,
    names.TOP_P: np.float32,
    names.MIN_P: np.float32,
    names.ACCEPT_MODE: np.int32,
    names.SEED: np.int64,
    names.SAMPLE_INDEX: np.int32,
    names.CONFIDENCE_SIGNAL: np.int32,
}
NO_CUTOFF = RoundCutoff(
    policy=names.CUTOFF_POLICIES["all"], params=(0.0,) * names.CUTOFF_COLUMNS, inclusive=False, min_verify=0
)
"""For calls of a draft whose proposals nobody asks for."""


class SamplingInputs:
    """Fills the `[R]` inputs; does nothing again for requests that did not change since the last step."""

    def __init__(self, session: Session) -> None:
        self._buffers = {name: Buffer(dtype, session.tensor) for name, dtype in _SAMPLING_DTYPES.items()}
        self._anchors = Buffer(np.int32, session.tensor)
        self._last: tuple[SlotSampling, ...] = ()
        self._tensors: dict[str, Tensor] = {}

    def fill(self, sampling: Sequence[SlotSampling], anchor_positions: IntArray) -> dict[str, Tensor]:
        """SAMPLING_INPUTS and the confidence signal by name. anchor_positions: [R]."""
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


class CutoffInputs:
    """Fills what DSparkCutoff reads per request, but for the calibration; again only where something changed."""

    def __init__(self, session: Session) -> None:
        make = session.tensor
        self._policies = Buffer(np.int32, make)
        self._params = Buffer(np.float32, make)
        self._inclusive = Buffer(np.int32, make)
        self._min_verify = Buffer(np.int32, make)
        self._max_verify = Buffer(np.int32, make)
        self._last: tuple[tuple[RoundCutoff, ...], tuple[int, ...]] = ((), ())
        self._tensors: dict[str, Tensor] = {}

    def fill(self, cutoffs: Sequence[RoundCutoff], max_verify: Sequence[int]) -> dict[str, Tensor]:
        """Inputs by name for R requests. min_verify is at most max_verify."""
        key = (tuple(cutoffs), tuple(max_verify))
        if key != self._last:
            self._last = ((), ())
            count = len(key[0])
            self._tensors = {
                names.CUTOFF_POLICY: self._policies.view(count),
                names.CUTOFF_PARAMS: self._params.view(count, names.CUTOFF_COLUMNS),
                names.CUTOFF_INCLUSIVE: self._inclusive.view(count),
                names.MIN_VERIFY: self._min_verify.view(count),
                names.MAX_VERIFY: self._max_verify.view(count),
            }
            tensors = self._tensors
            tensors[names.CUTOFF_POLICY].array[:] = [entry.policy for entry in cutoffs]
            tensors[names.CUTOFF_PARAMS].array[:] = [entry.params for entry in cutoffs]
            tensors[names.CUTOFF_INCLUSIVE].array[:] = [entry.inclusive for entry in cutoffs]
            tensors[names.MAX_VERIFY].array[:] = max_verify
            tensors[names.MIN_VERIFY].array[:] = [entry.min_verify for entry in cutoffs]
            np.minimum(tensors[names.MIN_VERIFY].array, max_verify, out=tensors[names.MIN_VERIFY].array)
            self._last = key
        return self._tensors
