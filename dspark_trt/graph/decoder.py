"""What the families share: a pre-norm decoder layer, and the stack from token ids to hidden states."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_trt.config import DecoderConfig
from dspark_trt.graph.builder import Value
from dspark_trt.graph.layers import CacheNames, RopeTables, add, attention, embed, make_rope, mlp, rms_norm
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The residual stream of a model, `[T, hidden]` each."""

    table: Value
    """embed_tokens, [V, hidden]."""
    embeddings: Value
    layers: tuple[Value, ...]
    """Output of every decoder layer; what Hugging Face calls `hidden_states[i + 1]`."""

    def feature(self, layer_id: int) -> Value:
        """Output of decoder layer `layer_id`; -1 is the embedding output."""
        return self.embeddings if layer_id == -1 else self.layers[layer_id]


def decoder_stack(ctx: Context, config: DecoderConfig, tensors: Tensors, caches: CacheNames) -> Stack:
    """Embedding and all layers; the final norm is left to the rows whose logits are wanted."""
    ctx.options.report("embed_tokens")
    table = ctx.builder.weight("embed_tokens.weight", tensors.load("embed_tokens.weight"))
    x = embeddings = embed(ctx, ctx.step.token_ids, table)
    rope = make_rope(ctx, config.rope, config.head_dim)
    layers = []
    for index in range(config.num_layers):
        x = decoder_layer(ctx, x, config, tensors, index, rope, caches)
        layers.append(x)
    return Stack(table=table, embeddings=embeddings, layers=tuple(layers))
