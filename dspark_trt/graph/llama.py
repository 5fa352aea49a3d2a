"""Llama (SmolLM2, Llama 2 and 3): pre-norm decoder with grouped-query attention and a gated MLP.

Also what Qwen builds on: the differences of that family are configuration.
"""

from __future__ import annotations

from dspark_trt.config import DecoderConfig
from dspark_trt.graph.builder import Value
from dspark_trt.graph.layers import CacheNames, RopeTables, add, attention, mlp, rms_norm
from dspark_trt.graph.step import Context, Tensors


def decoder_layer(
    ctx: Context,
    x: Value,
    config: DecoderConfig,
    tensors: Tensors,
    index: int,
    rope: RopeTables,
    caches: CacheNames,
    *,
    causal_kind: str = "lower_right",
) -> Value:
    """`x += attention(norm(x)); x += mlp(norm(x))`. x: [T, hidden], the residual stream."""
    name = f"layers.{index}"
    own = CacheNames(caches.key.format(index), caches.value.format(index))
    ctx.options.report(name)
    with ctx.builder.scope(name):
        weight = tensors.load(f"{name}.input_layernorm.weight")
        normed = rms_norm(ctx, x, "input_layernorm", weight, config.rms_norm_eps)
        with ctx.builder.scope("self_attn"):
            prefix = f"{name}.self_attn"
            attended = attention(ctx, normed, config, tensors, prefix, rope, own, causal_kind=causal_kind)
        x = add(ctx, x, attended, "after_attention")
        weight = tensors.load(f"{name}.post_attention_layernorm.weight")
        normed = rms_norm(ctx, x, "post_attention_layernorm", weight, config.rms_norm_eps)
        with ctx.builder.scope("mlp"):
            product = mlp(ctx, normed, config, tensors, f"{name}.mlp")
        return add(ctx, x, product, "output")
