"""DSpark drafts in DeepSpec's own format (dspark.md section 3), and the formats beside it by name."""

from __future__ import annotations

from pathlib import Path

from dspark_runtime.contract.errors import CheckpointError, ConfigError, shown
from dspark_trt.checkpoint.expected import check_tensors, dspark_shapes
from dspark_trt.checkpoint.fields import Fields
from dspark_trt.checkpoint.finite import FiniteSource
from dspark_trt.checkpoint.fit import check_dspark_fit
from dspark_trt.checkpoint.hf_config import architecture, draft_decoder
from dspark_trt.checkpoint.safetensors import open_folder
from dspark_trt.checkpoint.types import DSparkDraftCheckpoint, TargetCheckpoint
from dspark_trt.config import DSparkDraftConfig

ARCHITECTURE = "Qwen3DSparkModel"


def foreign_format(fields: Fields) -> str | None:
    """Name of a DSpark format that is recognised but not read yet; None for anything else."""
    name = architecture(fields)
    if "speculators_model_type" in fields.values:
        return f"the speculators format ({shown(fields.values['speculators_model_type'])})"
    if name == "DSparkDraftModel" or "dflash_config" in fields.values:
        return "the SpecForge format (DSparkDraftModel)"
    if name == "Gemma4DSparkModel":
        return "a Gemma 4 draft (Gemma4DSparkModel)"
    return None


def dspark_config(fields: Fields, names: tuple[str, ...]) -> DSparkDraftConfig:
    """The configuration; `names` are the canonical names of the file's tensors. Raises CheckpointError."""
    rank = fields.integer("markov_rank", 0)
    if rank < 0:
        raise fields.wrong("markov_rank", "0 (no head) or more")
    head = fields.text("markov_head_type", "vanilla") if rank else "none"
    confidence = fields.flag("enable_confidence_head", False)
    decoder = draft_decoder(fields)
    try:
        return DSparkDraftConfig(
            decoder=decoder,
            block_size=fields.integer("block_size"),
            mask_token_id=fields.integer("mask_token_id"),
            target_layer_ids=fields.integers("target_layer_ids"),
            num_target_layers=fields.integer("num_target_layers") if fields.has("num_target_layers") else None,
            markov_head_type=head,
            markov_rank=rank,
            has_confidence_head=confidence,
            # Without a confidence head the flag says nothing.
            confidence_with_markov=confidence and fields.flag("confidence_head_with_markov", False),
            has_embed_tokens="embed_tokens.weight" in names,
            has_lm_head="lm_head.weight" in names,
        )
    except ConfigError as error:
        raise CheckpointError(f"{fields.where}: {error}") from None


def load_dspark(folder: Path, fields: Fields, target: TargetCheckpoint) -> DSparkDraftCheckpoint:
    """The draft of a DeepSpec folder, checked against its target. Raises CheckpointError."""
    source = open_folder(folder)
    config = dspark_config(fields, source.names())
    check_dspark_fit(fields.where, config, target.config)
    check_tensors(str(folder), source, dspark_shapes(config))
    return DSparkDraftCheckpoint(path=folder, config=config, tensors=FiniteSource(str(folder), source))
