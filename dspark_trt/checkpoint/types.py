"""What a reader hands to the rest of the builder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dspark_trt.config import DSparkDraftConfig, TargetConfig
from dspark_trt.stored import Stored

Array = npt.NDArray[np.float32]


class TensorSource(Protocol):
    """Weights by canonical name: Hugging Face's, without the leading `model.`. Matrices are [out, in]."""

    def names(self) -> tuple[str, ...]:
        """Sorted names of all tensors of the model; a tied model has no `lm_head.weight`."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a tensor, without reading it. Raises KeyError for an unknown name."""
        ...

    def load(self, name: str) -> Array:
        """A fresh float32 array, contiguous and the caller's own; nothing is kept. Raises KeyError."""
        ...

    def stored(self, name: str) -> Stored | None:
        """A matrix as the file stores it (`unpack` equals `load`), or None for other forms. Raises KeyError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheckpoint:
    """A language model: a target, or a draft of kind `model`."""

    path: Path
    config: TargetConfig
    tensors: TensorSource
    assets: dict[str, bytes]
    """File name -> content for the bundle: tokenizer.json, tokenizer_config.json, generation_config.json."""
    notes: tuple[str, ...] = ()
    """Sentences about what was left out of the assets, for whoever builds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkDraftCheckpoint:
    """A DSpark draft that fits its target."""

    path: Path
    config: DSparkDraftConfig
    tensors: TensorSource
