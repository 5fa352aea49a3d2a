"""Which tensors a configuration asks for, and the check of a source against them."""

from __future__ import annotations

from dspark_runtime.contract.errors import CheckpointError, label
from dspark_trt.checkpoint.types import TensorSource
from dspark_trt.config import DecoderConfig, DSparkDraftConfig, TargetConfig

Shapes = dict[str, tuple[int, ...]]
_LISTED = 4
"""Names told in a message; the rest is a count."""


def decoder_shapes(config: DecoderConfig) -> Shapes:
    """Layers and final norm of a decoder stack."""
    hidden, inner, width = config.hidden_size, config.intermediate_size, config.head_dim
    shapes: Shapes = {"norm.weight": (hidden,)}
    for i in range(config.num_layers):
        prefix = f"layers.{i}."
        attention = f"{prefix}self_attn."
        for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            shapes[f"{attention}{part}_proj.weight"] = (heads * width, hidden)
            if config.qkv_bias:
                shapes[f"{attention}{part}_proj.bias"] = (heads * width,)
        shapes[f"{attention}o_proj.weight"] = (hidden, config.num_heads * width)
        if config.o_bias:
            shapes[f"{attention}o_proj.bias"] = (hidden,)
        if config.qk_norm:
            shapes[f"{attention}q_norm.weight"] = (width,)
            shapes[f"{attention}k_norm.weight"] = (width,)
        for part, rows, cols in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            shapes[f"{prefix}mlp.{part}_proj.weight"] = (rows, cols)
            if config.mlp_bias:
                shapes[f"{prefix}mlp.{part}_proj.bias"] = (rows,)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def target_shapes(config: TargetConfig) -> Shapes:
    table = (config.vocab_size, config.hidden_size)
    shapes = {"embed_tokens.weight": table, **decoder_shapes(config)}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = table
    return shapes


def dspark_shapes(config: DSparkDraftConfig) -> Shapes:
    """All tensors of a DSpark draft (dspark.md section 3), whose features have its own hidden size."""
    hidden, vocab, rank = config.decoder.hidden_size, config.decoder.vocab_size, config.markov_rank
    shapes = {
        "fc.weight": (hidden, len(config.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        **decoder_shapes(config.decoder),
    }
    if config.has_embed_tokens:
        shapes["embed_tokens.weight"] = (vocab, hidden)
    if config.has_lm_head:
        shapes["lm_head.weight"] = (vocab, hidden)
    if rank:
        shapes["markov_head.markov_w1.weight"] = (vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (vocab, rank)
    if config.markov_head_type == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, hidden + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if config.markov_head_type == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if config.has_confidence_head:
        shapes["confidence_head.proj.weight"] = (1, hidden + (rank if config.confidence_with_markov else 0))
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def _some(names: list[str]) -> str:
    return ", ".join(map(label, names[:_LISTED])) + _rest(names)


def _rest(names: list[str]) -> str:
    return f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""


def check_tensors(where: str, source: TensorSource, wanted: Shapes) -> None:
    """All problems in one message: missing tensors, unknown ones, other shapes. Raises CheckpointError."""
    found = set(source.names())
    problems = []
    if missing := sorted(set(wanted) - found):
        problems.append(f"misses {_some(missing)}")
    if unknown := sorted(found - set(wanted)):
        problems.append(f"holds unknown tensors {_some(unknown)}")
    wrong = [name for name in sorted(found & set(wanted)) if source.shape(name) != wanted[name]]
    if wrong:
        told = [f"{name} {list(source.shape(name))}, wanted {list(wanted[name])}" for name in wrong[:_LISTED]]
        problems.append(f"has other shapes than its config says: {', '.join(told)}{_rest(wrong)}")
    if problems:
        raise CheckpointError(f"{where}: " + "; ".join(problems))
