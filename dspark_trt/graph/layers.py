"""The layers that models are made of, and the one place that knows how dialects say them.

Activations are packed: `[T, width]`, all tokens of all requests of a step in one row order.
Every function takes the context of the graph, the input and its weights, and returns a value.
A layer's nodes are few on purpose: at batch 1 each costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark_runtime.contract import names
from dspark_trt.config import DecoderConfig, RopeConfig
from dspark_trt.graph.builder import Out, Value
from dspark_trt.graph.operators import linear_node
from dspark_trt.graph.rope import rope_tables
from dspark_trt.graph.step import Array, Context, Tensors
from dspark_trt.quantize import BLOCK_SIZE, quantize_int8
from dspark_trt.stored import Stored, concatenate, pack


@dataclass(frozen=True, slots=True)
class CacheNames:
    """Names of a layer's key and value cache, `{}` being the layer."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RopeTables:
    cos: Value
    sin: Value


# --- dense layers --------------------------------------------------------------------------


def read_weight(ctx: Context, tensors: Tensors, names: Sequence[str], *, exact: bool = False) -> Array | Stored:
    """The rows of these matrices one after another: as the checkpoint stores them where the graph keeps that.

    float32 where it does not, where the parts differ in form, and where the layer is to be quantised
    (`exact`: it never is).
    """
    if ctx.options.storage == "checkpoint" and (exact or ctx.options.quantize == "none"):
        parts = [tensors.stored(name) for name in names]
        found = [part for part in parts if part is not None and part.fits]
        if len(found) == len(names) and len({part.kind for part in found}) == 1:
            return concatenate(found)
        del parts, found
    arrays = [tensors.load(name) for name in names]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def linear(ctx: Context, x: Value, name: str, weight: Array | Stored, bias: Array | None = None) -> Value:
    """`y = x W^T + b`, in the graph's quantisation. x: [rows, in], weight: [out, in], bias: [out]."""
    if isinstance(weight, Stored):
        return linear_stored(ctx, x, name, weight, bias)
    if ctx.options.quantize == "int8":
        return _linear_int8(ctx, x, name, weight, bias)
    return linear_float(ctx, x, name, ctx.builder.weight(f"{name}.weight", weight), bias)


def linear_float(ctx: Context, x: Value, name: str, weight: Value, bias: Array | None = None) -> Value:
    """`y = x W^T + b` in float32 with a weight that the graph holds already. weight: [out, in]."""
    inputs: list[Value | None] = [x, weight]
    if bias is not None:
        inputs.append(ctx.builder.weight(f"{name}.bias", bias))
    return ctx.builder.node("Gemm", inputs, Out(name, (x.shape[0], weight.shape[0])), transB=1)


def linear_stored(ctx: Context, x: Value, name: str, weight: Stored, bias: Array | None = None) -> Value:
    """`y = x W^T + b` in float32 with a weight that stays as the checkpoint has it."""
    b = ctx.builder
    inputs: list[Value | None] = [x, b.weight(f"{name}.weight_{weight.kind}", pack(weight))]
    if bias is not None:
        inputs.append(b.weight(f"{name}.bias", bias))
    num_out = weight.shape[0]
    out = Out(name, (x.shape[0], num_out))
    return linear_node(b, inputs, out, weight.kind, num_out)


def _linear_int8(ctx: Context, x: Value, name: str, weight: Array, bias: Array | None) -> Value:
    b = ctx.builder
    num_out, num_in = weight.shape
    quantized = quantize_int8(weight)
    packed = b.weight(f"{name}.weight_int8", quantized.packed)
    scales = b.weight(f"{name}.weight_scales", quantized.scales)
    inputs: list[Value | None] = [x, packed, scales, None, None]
    if bias is not None:
        inputs.append(b.weight(f"{name}.bias", bias))
    return b.node(
        "MatMulNBits",
        inputs,
        Out(name, (x.shape[0], num_out)),
        domain="com.microsoft",
        K=num_in,
        N=num_out,
        bits=8,
        block_size=BLOCK_SIZE,
        accuracy_level=4,  # activations in eight bits too: the fast path of CPUs
    )


def rms_norm(ctx: Context, x: Value, name: str, weight: Array, eps: float) -> Value:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis. weight: [width]."""
    scale = ctx.builder.weight(f"{name}.weight", weight)
    return ctx.builder.node("RMSNormalization", (x, scale), Out(name, x.shape), axis=-1, epsilon=eps)


def add(ctx: Context, x: Value, y: Value, name: str) -> Value:
    return ctx.builder.node("Add", (x, y), Out(name, x.shape))


def embed(ctx: Context, token_ids: Value, table: Value) -> Value:
    """Rows of the embedding table. token_ids: [T], table: [V, width] -> [T, width]."""
    return ctx.builder.node("Gather", (table, token_ids), Out("embeddings", ("T", table.shape[1])), axis=0)


def mlp(ctx: Context, x: Value, config: DecoderConfig, tensors: Tensors, prefix: str) -> Value:
    """`down(silu(gate(x)) * up(x))`; gate and up are one matrix product."""
    b, width = ctx.builder, config.intermediate_size
    parts = ("gate_proj", "up_proj")
    merged = read_weight(ctx, tensors, [f"{prefix}.{part}.weight" for part in parts])
    bias = np.concatenate([tensors.load(f"{prefix}.{part}.bias") for part in parts]) if config.mlp_bias else None
    both = linear(ctx, x, "gate_up_proj", merged, bias)
    del merged
    sizes = b.constant(np.array([width, width], np.int64))
    outs = (Out("gate", ("T", width)), Out("up", ("T", width)))
    gate, up = b.nodes("Split", (both, sizes), outs, axis=-1)
    # Not ONNX's Swish: ONNX Runtime expands that into four nodes, and fuses this pair into one.
    act = b.node("Mul", (gate, b.node("Sigmoid", (gate,), Out("sigmoid", gate.shape))), Out("act", gate.shape))
    product = b.node("Mul", (act, up), Out("product", gate.shape))
    down_bias = tensors.load(f"{prefix}.down_proj.bias") if config.mlp_bias else None
    return linear(ctx, product, "down_proj", read_weight(ctx, tensors, [f"{prefix}.down_proj.weight"]), down_bias)


# --- positions -----------------------------------------------------------------------------


def make_rope(ctx: Context, rope: RopeConfig, head_dim: int) -> RopeTables:
    """Tables for every row a cache can hold, [S, D/2] each.

    At least as many rows as a step has tokens: ONNX Runtime takes the packed tokens for one sequence
    and refuses a sequence longer than the table, whatever its positions.
    """
    rows = max(ctx.options.cache_capacity, ctx.options.max_step_tokens)
    cos, sin = rope_tables(rope, head_dim, rows)
    return RopeTables(ctx.builder.weight("rope.cos", cos), ctx.builder.weight("rope.sin", sin))


def apply_rope(ctx: Context, x: Value, rope: RopeTables, num_heads: int, head_dim: int) -> Value:
    """Rotate the two halves of every head at the step's positions.

    x: [T, heads * D] or [T, heads, D]; returns [T, heads, D].
    """
    b = ctx.builder
    row = b.reshape(x, (1, "T", num_heads * head_dim), "rope_in")
    rotated = b.node(
        "RotaryEmbedding",
        (row, rope.cos, rope.sin, ctx.step.positions),
        Out("rope", (1, "T", num_heads * head_dim)),
        num_heads=num_heads,
    )
    return b.reshape(rotated, ("T", num_heads, head_dim), "rope_out")


# --- attention -----------------------------------------------------------------------------


def attention(
    ctx: Context,
    x: Value,
    config: DecoderConfig,
    tensors: Tensors,
    prefix: str,
    rope: RopeTables,
    caches: CacheNames,
    *,
    causal_kind: str = "lower_right",
) -> Value:
    """Grouped-query attention over a cache that this step extends. x: [T, width] -> [T, width].

    q, k and v are one matrix product. Queries and keys are normed and rotated together, as
    `H + Hkv` heads; the scale `1/sqrt(D)` lies in the query rows of the weights (in the q_norm
    weight where there is one), since TRT_Attention applies none and RoPE is linear. Rows that stay as
    the checkpoint stores them cannot take it up: the rotated queries are multiplied then.
    """
    b, heads, kv_heads, width = ctx.builder, config.num_heads, config.num_kv_heads, config.head_dim
    both = heads + kv_heads
    scale = np.float32(width**-0.5)
    merged = read_weight(ctx, tensors, [f"{prefix}.{part}_proj.weight" for part in "qkv"])
    biases = [tensors.load(f"{prefix}.{part}_proj.bias") for part in "qkv"] if config.qkv_bias else []
    scale_queries = isinstance(merged, Stored) and not config.qk_norm
    if not (config.qk_norm or isinstance(merged, Stored)):
        merged[: heads * width] *= scale
        biases[:1] = [bias * scale for bias in biases[:1]]
    qkv = linear(ctx, x, "qkv_proj", merged, np.concatenate(biases) if biases else None)
    del merged

    sizes = b.constant(np.array([both * width, kv_heads * width], np.int64))
    outs = (Out("qk_flat", ("T", both * width)), Out("v_flat", ("T", kv_heads * width)))
    qk, v = b.nodes("Split", (qkv, sizes), outs, axis=-1)
    if config.qk_norm:
        q_weight = tensors.load(f"{prefix}.q_norm.weight") * scale
        k_weight = tensors.load(f"{prefix}.k_norm.weight")
        per_head = np.stack([q_weight] * heads + [k_weight] * kv_heads)
        qk = head_norm(ctx, b.reshape(qk, ("T", both, width), "qk_heads"), "qk_norm", per_head, config.rms_norm_eps)
    qk = apply_rope(ctx, qk, rope, both, width)
    sizes = b.constant(np.array([heads, kv_heads], np.int64))
    q, k = b.nodes("Split", (qk, sizes), (Out("q", ("T", heads, width)), Out("k", ("T", kv_heads, width))), axis=1)
    v = b.reshape(v, ("T", kv_heads, width), "v")
    if scale_queries:
        q = b.node("Mul", (q, b.constant(np.array(scale))), Out("q_scaled", q.shape))

    keys = update_cache(ctx, caches.key, k)
    values = update_cache(ctx, caches.value, v)
    attended = _attend(ctx, q, keys, values, causal_kind)
    flat = b.reshape(attended, ("T", heads * width), "attended_flat")
    o_bias = tensors.load(f"{prefix}.o_proj.bias") if config.o_bias else None
    return linear(ctx, flat, "o_proj", read_weight(ctx, tensors, [f"{prefix}.o_proj.weight"]), o_bias)


def head_norm(ctx: Context, x: Value, name: str, weight: Array, eps: float) -> Value:
    """RMS norm of every head with a weight per head. x: [T, heads, D], weight: [heads, D]."""
    ones = ctx.builder.constant(np.ones(weight.shape[1], np.float32))
    normed = ctx.builder.node("RMSNormalization", (x, ones), Out(f"{name}_unit", x.shape), axis=-1, epsilon=eps)
    scale = ctx.builder.weight(f"{name}.weight", weight)
    return ctx.builder.node("Mul", (normed, scale), Out(name, x.shape))


def update_cache(ctx: Context, name: str, update: Value) -> Value:
    """Write the step's rows into a cache, bound in place as `name` and `name.present`.

    update: [T, Hkv, D]. Returns the cache after the update, [B, Hkv, S, D].
    """
    b, step = ctx.builder, ctx.step
    _, kv_heads, width = update.shape
    shape = ("B", kv_heads, ctx.options.cache_capacity, width)
    past = b.input(name, shape)
    out = Out(f"{name.split('.')[0]}_present", shape)
    if ctx.options.dialect == "standard":
        rows = _pad(ctx, update, out.name + "_rows")
        present = b.node("TensorScatter", (past, rows, step.write_indices), out, axis=-2, mode="linear")
    else:
        present = b.node(
            "TRT_KVCacheUpdate",
            (past, update, step.write_indices, step.update_lengths),
            out,
            domain=names.ATTENTION_DOMAIN,
            update_form="packed_nhd",
            mode="linear",
        )
    b.output(present, name + names.PRESENT)
    return present


def _attend(ctx: Context, q: Value, keys: Value, values: Value, causal_kind: str) -> Value:
    """Scaled queries against the caches. q: [T, H, D] -> [T, H, D] (packed) or [T, H * D] (padded)."""
    b, step = ctx.builder, ctx.step
    _, heads, width = q.shape
    if not ctx.options.padded:
        return b.node(
            "TRT_Attention",
            (q, keys, values, None, step.update_lengths, step.kv_lengths),
            Out("attended", q.shape),
            domain=names.ATTENTION_DOMAIN,
            query_form="packed_nhd",
            kv_form="padded_bhnd",
            causal_kind=causal_kind,
            TRT_decomposable=1,
        )
    padded = _pad(ctx, q, "q_padded")
    out = Out("attended_padded", padded.shape)
    if ctx.options.dialect == "standard":
        attended = b.node("Attention", (padded, keys, values, step.attention_mask), out, scale=1.0)
    else:
        attended = b.node(
            "TRT_Attention",
            (padded, keys, values, None, None, step.kv_lengths),
            out,
            domain=names.ATTENTION_DOMAIN,
            query_form="padded_bhnd",
            kv_form="padded_bhnd",
            causal_kind=causal_kind,
            TRT_decomposable=1,
        )
    back = b.node("Transpose", (attended,), Out("attended_rows", ("B", "Q", heads, width)), perm=(0, 2, 1, 3))
    flat = b.reshape(back, ("B*Q", int(heads) * int(width)), "attended_table")
    assert step.output_rows is not None
    return b.node("Gather", (flat, step.output_rows), Out("attended", ("T", flat.shape[1])), axis=0)


def _pad(ctx: Context, x: Value, name: str) -> Value:
    """Packed rows to one padded block per slot. x: [T, heads, D] -> [B, heads, Q, D]."""
    b, rows = ctx.builder, ctx.step.query_rows
    assert rows is not None
    _, heads, width = x.shape
    gathered = b.node("Gather", (x, rows), Out(f"{name}_gathered", ("B", "Q", heads, width)), axis=0)
    return b.node("Transpose", (gathered,), Out(name, ("B", heads, "Q", width)), perm=(0, 2, 1, 3))
