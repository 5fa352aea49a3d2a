"""GGUF metadata -> TargetConfig (architectures llama and qwen2)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dspark_runtime.contract.errors import CheckpointError, ConfigError, shown
from dspark_trt.checkpoint.fields import Fields
from dspark_trt.checkpoint.hf_config import MAX_LAYERS, check_token_ids
from dspark_trt.checkpoint.types import Array, TensorSource
from dspark_trt.config import RopeConfig, TargetConfig

FAMILIES = ("llama", "qwen2")
LLAMA3_CONTEXT = 8192
"""original_max_position_embeddings of every Llama 3; the file keeps only the factors made with it."""
_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
"""llama.cpp stops at each of these: end of text, of turn, of message."""


def llama3_factors(rope: RopeConfig, head_dim: int) -> Array:
    """[head_dim / 2] divisors of the rotary frequencies: 1 for short waves, `factor` for long ones, smooth between.

    With wave length w, s = (original / w - low) / (high - low) in between: 1 / ((1 - s) / factor + s).
    Source: transformers' `_compute_llama3_parameters`.
    """
    waves = 2 * math.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high, original = rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings
    smooth = np.clip((original / waves - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / rope.factor + smooth), np.float32)


def _with_factors(where: str, rope: RopeConfig, factors: Array, head_dim: int) -> RopeConfig:
    """The llama3 rope that explains the file's factors. Raises CheckpointError when there is none."""
    if np.all(factors == 1.0):
        return rope
    if rope.type == "default" and factors.shape == (head_dim // 2,) and np.isfinite(factors).all():
        guess = replace(
            rope, type="llama3", factor=max(1.0, float(factors.max())), original_max_position_embeddings=LLAMA3_CONTEXT
        )
        if np.allclose(llama3_factors(guess, head_dim), factors, rtol=1e-4):
            return guess
    raise CheckpointError(
        f"{where}: its rope_freqs factors (up to {factors.max():g}) are not those of Llama 3's rope with "
        f"original context {LLAMA3_CONTEXT}; take the safetensors form of this model"
    )


def _rope(fields: Fields, family: str, head_dim: int, factors: Array | None) -> RopeConfig:
    theta = fields.number(f"{family}.rope.freq_base", 10_000.0)
    kind = fields.text(f"{family}.rope.scaling.type", "none")
    # rope.scale_linear is the older spelling, without a type.
    factor = fields.number(f"{family}.rope.scaling.factor", fields.number(f"{family}.rope.scale_linear", 1.0))
    if kind not in ("none", "linear"):
        raise CheckpointError(f"{fields.where}: rope scaling type is {shown(kind)}, supported are none, linear, llama3")
    if kind == "none" and fields.has(f"{family}.rope.scaling.factor"):
        factor = 1.0
    rope = RopeConfig(theta=theta, type="linear", factor=factor) if factor != 1.0 else RopeConfig(theta=theta)
    return rope if factors is None else _with_factors(fields.where, rope, factors, head_dim)


def _head_dim(fields: Fields, family: str, hidden: int, heads: int) -> int:
    """attention.key_length, else rope.dimension_count, else hidden / heads; all that are there must agree."""
    if heads < 1:
        raise CheckpointError(f"{fields.where}: {family}.attention.head_count is {heads}, wanted >= 1")
    keys = [f"{family}.{key}" for key in ("attention.key_length", "rope.dimension_count", "attention.value_length")]
    found = {key: fields.integer(key) for key in keys if fields.has(key)}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{key} {value}" for key, value in found.items())
        raise CheckpointError(f"{fields.where}: head widths differ ({told}), supported is one width, rotated whole")
    return next(iter(found.values()), hidden // heads)


def gguf_config(fields: Fields, tensors: TensorSource, factors: Array | None) -> TargetConfig:
    """The configuration; raises CheckpointError.

    fields: the file's metadata. tensors: canonical names and shapes, which say what metadata leaves out
    (vocabulary, tying, biases). factors: [head_dim / 2] of rope_freqs, or None.
    """
    family = fields.text("general.architecture")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{fields.where}: found architecture {shown(family)}, supported are {', '.join(FAMILIES)}"
        )
    if fields.integer("split.count", 1) > 1:
        raise CheckpointError(
            f"{fields.where}: is one of {fields.integer('split.count')} parts; merge them with llama-gguf-split --merge"
        )
    if fields.integer(f"{family}.expert_count", 0):
        raise CheckpointError(f"{fields.where}: is a mixture of experts, supported are dense models")
    if window := fields.integer(f"{family}.attention.sliding_window", 0):
        raise CheckpointError(f"{fields.where}: sliding window is {window}, supported is full attention only")
    layers = fields.integer(f"{family}.block_count")
    if layers > MAX_LAYERS:
        raise CheckpointError(f"{fields.where}: block_count is {layers}, wanted at most {MAX_LAYERS}")
    names = set(tensors.names())
    if "embed_tokens.weight" not in names:
        raise CheckpointError(f"{fields.where}: misses token_embd.weight")
    hidden = fields.integer(f"{family}.embedding_length")
    heads = fields.integer(f"{family}.attention.head_count")
    head_dim = _head_dim(fields, family, hidden, heads)
    ends = [fields.integer(key) for key in _END_KEYS if fields.has(key)]
    has_bos = fields.has("tokenizer.ggml.bos_token_id")
    try:
        config = TargetConfig(
            family=family,
            vocab_size=tensors.shape("embed_tokens.weight")[0],
            hidden_size=hidden,
            intermediate_size=fields.integer(f"{family}.feed_forward_length"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.integer(f"{family}.attention.head_count_kv", heads),
            head_dim=head_dim,
            rms_norm_eps=fields.number(f"{family}.attention.layer_norm_rms_epsilon"),
            max_position_embeddings=fields.integer(f"{family}.context_length"),
            rope=_rope(fields, family, head_dim, factors),
            tie_embeddings="lm_head.weight" not in names,
            qkv_bias=family == "qwen2" or "layers.0.self_attn.q_proj.bias" in names,
            o_bias="layers.0.self_attn.o_proj.bias" in names,
            eos_token_ids=tuple(dict.fromkeys(ends)),
            bos_token_id=fields.integer("tokenizer.ggml.bos_token_id") if has_bos else None,
        )
    except ConfigError as error:
        raise CheckpointError(f"{fields.where}: {error}") from None
    check_token_ids(fields.where, config)
    return config
