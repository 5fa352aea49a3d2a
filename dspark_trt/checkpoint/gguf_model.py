"""A GGUF file as a target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint.assets import check_vocabulary, make_assets
from dspark_trt.checkpoint.expected import check_tensors, target_shapes
from dspark_trt.checkpoint.fields import Fields
from dspark_trt.checkpoint.finite import FiniteSource
from dspark_trt.checkpoint.generation import generation_defaults
from dspark_trt.checkpoint.gguf_config import gguf_config
from dspark_trt.checkpoint.gguf_header import read_header
from dspark_trt.checkpoint.gguf_quants import require_gguf
from dspark_trt.checkpoint.gguf_tensors import GgufSource
from dspark_trt.checkpoint.gguf_tokenizer import gguf_tokenizer
from dspark_trt.checkpoint.types import TargetCheckpoint


def load_gguf(path: Path) -> TargetCheckpoint:
    """Check everything, map the weights, read none of them. Raises CheckpointError."""
    require_gguf(path)
    try:
        if path.stat().st_size == 0:  # which cannot be mapped
            raise CheckpointError(f"{path}: is truncated, the file is empty")
        data: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    header = read_header(path, data)
    fields = Fields(str(path), header.metadata)
    source = GgufSource(path, data, header)
    config = gguf_config(fields, source, source.rope_factors())
    check_tensors(str(path), source, target_shapes(config))
    if config.family == "llama":
        source.interleaved(config.num_heads, config.num_kv_heads)
    tokenizer, facts = gguf_tokenizer(fields)
    check_vocabulary(tokenizer, config, str(path))
    pad = {"pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id")}
    defaults, notes = generation_defaults(path.name, pad, config.vocab_size)
    assets = make_assets(tokenizer.to_str().encode(), facts, config, defaults)
    return TargetCheckpoint(
        path=path, config=config, tensors=FiniteSource(str(path), source), assets=assets, notes=notes
    )
