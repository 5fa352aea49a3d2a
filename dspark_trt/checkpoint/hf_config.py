"""config.json of transformers -> configurations. Refuses by name what no graph of ours computes."""

from __future__ import annotations

from typing import Any

from dspark_runtime.contract.errors import CheckpointError, ConfigError, shown
from dspark_trt.checkpoint.fields import Fields
from dspark_trt.config import DecoderConfig, RopeConfig, TargetConfig

FAMILIES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
MAX_LAYERS = 4096
"""More is a damaged file: names of all layers are listed before weights are looked at."""


def architecture(fields: Fields) -> str:
    """The first name of `architectures`; "" where there is none."""
    value = fields.values.get("architectures")
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    return ""


def rope(fields: Fields) -> RopeConfig:
    """`rope_parameters` of transformers 5, or `rope_theta` beside `rope_scaling`. Raises CheckpointError."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    theta = fields.number("rope_theta", 10_000.0)
    if scaling is None:
        return RopeConfig(theta=theta)
    if any(isinstance(value, dict) for value in scaling.values.values()):
        raise CheckpointError(f"{scaling.where}: differs per layer type, supported is one rope for all layers")
    # `type` is the older spelling of `rope_type`.
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    theta = scaling.number("rope_theta", theta)
    partial = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise CheckpointError(f"{scaling.where}: partial_rotary_factor is {partial}, supported is 1 (whole heads)")
    if kind == "linear":
        return RopeConfig(theta=theta, type=kind, factor=scaling.number("factor"))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            type=kind,
            factor=scaling.number("factor"),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
            original_max_position_embeddings=scaling.integer("original_max_position_embeddings"),
        )
    return RopeConfig(theta=theta, type=kind)


def refuse_unsupported(fields: Fields) -> None:
    """Activation, sliding windows and quantised weights. Raises CheckpointError."""
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise CheckpointError(f"{fields.where}: hidden_act is {shown(activation)}, supported is silu")
    if fields.has("quantization_config"):
        raise CheckpointError(
            f"{fields.where}: has a quantization_config, wanted float weights; "
            f"take the unquantised checkpoint and let the build quantise it"
        )
    window = fields.values.get("sliding_window")
    # Qwen writes a window next to use_sliding_window false; null and false both mean full attention.
    if window is not None and fields.flag("use_sliding_window", True):
        raise CheckpointError(
            f"{fields.where}: sliding_window is {shown(window)}, supported is full attention only (null)"
        )
    layer_types = fields.values.get("layer_types")
    if layer_types is not None:
        kinds = layer_types if isinstance(layer_types, list) else [layer_types]
        if odd := [kind for kind in kinds if kind != "full_attention"]:
            raise CheckpointError(
                f"{fields.where}: layer_types holds {shown(odd[0])}, supported is full_attention only"
            )


def geometry(fields: Fields, family: str) -> dict[str, Any]:
    """Keyword arguments of DecoderConfig that targets and drafts share."""
    refuse_unsupported(fields)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    layers = fields.integer("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise CheckpointError(f"{fields.where}: num_hidden_layers is {layers}, wanted at most {MAX_LAYERS}")
    if fields.has("head_dim"):
        head_dim = fields.integer("head_dim")
    elif family == "qwen3" and "head_dim" not in fields.values:
        head_dim = 128  # Qwen3's own default
    elif heads < 1 or hidden % heads:
        raise CheckpointError(
            f"{fields.where}: head_dim is absent, and hidden_size {hidden} is no multiple of "
            f"num_attention_heads {heads}"
        )
    else:
        head_dim = hidden // heads
    bias = fields.flag("attention_bias", False)
    return {
        "family": family,
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "max_position_embeddings": fields.integer("max_position_embeddings"),
        "rope": rope(fields),
        "qkv_bias": bias or family == "qwen2",
        "o_bias": bias and family != "qwen2",
        "mlp_bias": family == "llama" and fields.flag("mlp_bias", False),
        "qk_norm": family == "qwen3",
    }


def token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """An id, a list of ids, or nothing."""
    if not fields.has(key):
        return ()
    return fields.integers(key) if isinstance(fields.values[key], list) else (fields.integer(key),)


def stop_tokens(config: Fields, generation: Fields) -> tuple[tuple[int, ...], int | None]:
    """(end-of-sequence ids, beginning-of-sequence id): generation_config first, then config."""
    source = generation if generation.has("eos_token_id") else config
    bos = generation if generation.has("bos_token_id") else config
    return token_ids(source, "eos_token_id"), bos.integer("bos_token_id") if bos.has("bos_token_id") else None


def check_token_ids(where: str, config: TargetConfig) -> None:
    """Raises CheckpointError for an end or beginning token outside the vocabulary."""
    ids = [*config.eos_token_ids, *([] if config.bos_token_id is None else [config.bos_token_id])]
    if odd := [i for i in ids if not 0 <= i < config.vocab_size]:
        raise CheckpointError(f"{where}: bos/eos token id {odd[0]} is outside [0, {config.vocab_size})")


def target_config(fields: Fields, generation: Fields) -> TargetConfig:
    """The configuration of a target, or of a `model` draft. Raises CheckpointError.

    fields: config.json; generation: generation_config.json, empty where there is none.
    """
    name = architecture(fields)
    if name not in FAMILIES:
        found = f"architecture {shown(name)}" if name else "no architectures"
        raise CheckpointError(f"{fields.where}: found {found}, supported are {', '.join(FAMILIES)}")
    eos, bos = stop_tokens(fields, generation)
    try:
        config = TargetConfig(
            **geometry(fields, FAMILIES[name]),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            eos_token_ids=eos,
            bos_token_id=bos,
        )
    except ConfigError as error:
        raise CheckpointError(f"{fields.where}: {error}") from None
    check_token_ids(fields.where, config)
    return config


def draft_decoder(fields: Fields) -> DecoderConfig:
    """The layers of a Qwen3-style DSpark draft. Raises CheckpointError."""
    try:
        return DecoderConfig(**geometry(fields, "qwen3"))
    except ConfigError as error:
        raise CheckpointError(f"{fields.where}: {error}") from None
