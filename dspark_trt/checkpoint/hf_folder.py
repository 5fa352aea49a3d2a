"""A Hugging Face folder as a target: config.json, safetensors, tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dspark_runtime.contract import names
from dspark_trt.checkpoint.assets import read_assets
from dspark_trt.checkpoint.expected import check_tensors, target_shapes
from dspark_trt.checkpoint.fields import Fields, read_object
from dspark_trt.checkpoint.finite import FiniteSource
from dspark_trt.checkpoint.generation import generation_defaults
from dspark_trt.checkpoint.hf_config import target_config
from dspark_trt.checkpoint.safetensors import SafetensorsSource, open_folder
from dspark_trt.checkpoint.types import TargetCheckpoint
from dspark_trt.config import TargetConfig

EMBEDDINGS, LM_HEAD = "embed_tokens.weight", "lm_head.weight"


def _settle_tying(config: TargetConfig, source: SafetensorsSource) -> tuple[TargetConfig, SafetensorsSource]:
    """A tied model whose file has an lm_head too: drop an equal copy, believe another one (as transformers does)."""
    found = source.names()
    if not config.tie_embeddings or LM_HEAD not in found:
        return config, source
    if EMBEDDINGS not in found:
        return config, source.renamed(LM_HEAD, EMBEDDINGS)
    if source.equal(EMBEDDINGS, LM_HEAD):
        return config, source.without(LM_HEAD)
    return replace(config, tie_embeddings=False), source


def load_folder(folder: Path) -> TargetCheckpoint:
    """Check everything, map the weights, read none of them. Raises CheckpointError."""
    path = folder / "config.json"
    fields = Fields(str(path), read_object(path))
    generation_path = folder / names.GENERATION_CONFIG
    generation = read_object(generation_path) if generation_path.is_file() else {}
    config = target_config(fields, Fields(str(generation_path), generation))
    config, source = _settle_tying(config, open_folder(folder))
    check_tensors(str(folder), source, target_shapes(config))
    pad = {"pad_token_id": generation.get("pad_token_id", fields.values.get("pad_token_id"))}
    defaults, notes = generation_defaults(names.GENERATION_CONFIG, generation | pad, config.vocab_size)
    return TargetCheckpoint(
        path=folder,
        config=config,
        tensors=FiniteSource(str(folder), source),
        assets=read_assets(folder, config, defaults),
        notes=notes,
    )
