"""The DSpark draft (dspark.md 2.2): its context rows in the target graph, its block in a graph of its own.

The draft attends to features of the target's verified positions. Those rows are computed where
the features are: the target graph ends in the draft's context K/V. So features never leave that
graph, a prefill needs no draft pass, and the draft graph has block rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark_runtime.contract import names
from dspark_trt.config import DSparkDraftConfig
from dspark_trt.graph.builder import FLOAT, GraphBuilder, Out, Value
from dspark_trt.graph.decoder import Stack, decoder_layer
from dspark_trt.graph.layers import (
    CacheNames,
    apply_rope,
    embed,
    head_norm,
    linear,
    linear_float,
    make_rope,
    read_weight,
    rms_norm,
    update_cache,
)
from dspark_trt.graph.operators import HeadWeights, cutoff_node, draft_node
from dspark_trt.graph.step import Array, Context, GraphOptions, Tensors, open_step
from dspark_trt.graph.weights import WeightFile, WeightRef
from dspark_trt.head_storage import store_markov_w2
from dspark_trt.stored import Stored

PASS_SIZE = "pass_size"
"""Metadata of the draft graph: rows of a request's block."""

CONTEXT_CACHES = CacheNames(names.CONTEXT_KEY, names.CONTEXT_VALUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkDraft:
    """A draft as the graphs need it."""

    config: DSparkDraftConfig
    tensors: Tensors
    block_size: int
    """Proposals per round, at most config.block_size: the trained block runs, the rest is cut off."""
    d2t: Array | None
    """[Vd] int32, ascending target ids that the draft's lm_head keeps; None: all."""
    head_storage: str = "float32"
    """Of markov_w2: float32, bfloat16 or int8."""

    @property
    def vocab_size(self) -> int:
        return self.config.decoder.vocab_size if self.d2t is None else len(self.d2t)

    @property
    def signal(self) -> str:
        return "head" if self.config.has_confidence_head else "top1"


def context_part(ctx: Context, stack: Stack, draft: DSparkDraft) -> None:
    """`H = norm(fc(concat of features))`, then K and V of every draft layer, written to its context cache.

    All layers' k and v are one matrix product, and their keys are normed and rotated together as
    `layers * Hkv` heads. Kept in float32: a context row must not depend on how many rows a step has.
    """
    b, config, tensors = ctx.builder, draft.config.decoder, draft.tensors
    layers, kv_heads, width = config.num_layers, config.num_kv_heads, config.head_dim
    ctx.options.report("context")
    with b.scope("context"):
        features = [stack.feature(i) for i in draft.config.target_layer_ids]
        size = sum(int(feature.shape[1]) for feature in features)
        joined = b.node("Concat", features, Out("features", ("T", size)), axis=1)
        fc = _exact(ctx, joined, "fc", ["fc.weight"], tensors)
        normed = rms_norm(ctx, fc, "hidden_norm", tensors.load("hidden_norm.weight"), config.rms_norm_eps)

        prefixes = [f"layers.{i}.self_attn" for i in range(layers)]
        projections = [f"{prefix}.{part}_proj" for part in "kv" for prefix in prefixes]
        bias = np.concatenate([tensors.load(f"{name}.bias") for name in projections]) if config.qkv_bias else None
        both = _exact(ctx, normed, "kv_proj", [f"{name}.weight" for name in projections], tensors, bias)
        half = layers * kv_heads * width
        sizes = b.constant(np.array([half, half], np.int64))
        k, v = b.nodes("Split", (both, sizes), (Out("k_flat", ("T", half)), Out("v_flat", ("T", half))), axis=-1)
        if config.qk_norm:
            per_head = np.repeat([tensors.load(f"{prefix}.k_norm.weight") for prefix in prefixes], kv_heads, axis=0)
            heads = b.reshape(k, ("T", layers * kv_heads, width), "k_heads")
            k = head_norm(ctx, heads, "k_norm", per_head, config.rms_norm_eps)
        rope = make_rope(ctx, config.rope, width)
        k = apply_rope(ctx, k, rope, layers * kv_heads, width)
        v = b.reshape(v, ("T", layers * kv_heads, width), "v")
        sizes = b.constant(np.full(layers, kv_heads, np.int64))
        for name, value in ((CONTEXT_CACHES.key, k), (CONTEXT_CACHES.value, v)):
            outs = [Out(f"{name.format(i)}_rows".replace(".", "_"), ("T", kv_heads, width)) for i in range(layers)]
            for i, rows in enumerate(b.nodes("Split", (value, sizes), outs, axis=1)):
                with b.scope(f"layers.{i}"):
                    update_cache(ctx, name.format(i), rows)


def _exact(
    ctx: Context, x: Value, name: str, parts: Sequence[str], tensors: Tensors, bias: Array | None = None
) -> Value:
    """A linear layer that is never quantised, whatever the graph's other layers are."""
    weight = read_weight(ctx, tensors, parts, exact=True)
    if isinstance(weight, Stored):
        return linear(ctx, x, name, weight, bias)
    return linear_float(ctx, x, name, ctx.builder.weight(f"{name}.weight", weight), bias)


def write_dspark_graph(
    options: GraphOptions,
    draft: DSparkDraft,
    target: Tensors,
    *,
    shared_table: WeightRef | None,
) -> None:
    """Write draft.onnx: token_ids [R * Kt], the anchor and masks of every request, to proposals [R, K].

    target: where embed_tokens and lm_head come from when the draft carries none.
    shared_table: the target's embed_tokens as another graph of the folder wrote it.
    """
    config, tensors = draft.config, draft.tensors
    with WeightFile(options.folder, names.DRAFT_WEIGHTS) as weights:
        b = GraphBuilder(options.folder, names.DRAFT_GRAPH, weights, options.element_type)
        b.remark(PASS_SIZE, config.block_size)
        ctx = open_step(b, options)
        options.report("draft embed_tokens")
        if config.has_embed_tokens or shared_table is None:
            source = tensors if config.has_embed_tokens else target
            table = b.weight("embed_tokens.weight", source.load("embed_tokens.weight"))
        else:
            table = b.shared_weight("embed_tokens.weight", shared_table)
        x = embed(ctx, ctx.step.token_ids, table)
        rope = make_rope(ctx, config.decoder.rope, config.decoder.head_dim)
        for index in range(config.decoder.num_layers):
            x = decoder_layer(ctx, x, config.decoder, tensors, index, rope, CONTEXT_CACHES, causal_kind="none")
        hidden = rms_norm(ctx, x, "norm", tensors.load("norm.weight"), config.decoder.rms_norm_eps)
        hidden = _first_of_block(b, hidden, config.block_size, draft.block_size)
        options.report("draft lm_head")
        logits = b.cast(_lm_head(ctx, hidden, draft, target, table), FLOAT, "logits_float")
        hidden = b.cast(hidden, FLOAT, "hidden_float")
        b.output(hidden, names.HIDDEN)
        b.output(logits, names.LOGITS)
        if options.operators == "graph":
            _head(b, logits, hidden, draft)
        b.save()


def _first_of_block(b: GraphBuilder, hidden: Value, trained: int, wanted: int) -> Value:
    """The first `wanted` rows of every request's block. [R * trained, d] -> [R * wanted, d]."""
    width = hidden.shape[1]
    if wanted == trained:
        return Value(hidden.name, hidden.dtype, ("R*K", width))
    blocks = b.reshape(hidden, ("R", trained, width), "blocks")
    start, end, axis = (b.constant(np.array([n], np.int64)) for n in (0, wanted, 1))
    cut = b.node("Slice", (blocks, start, end, axis), Out("cut", ("R", wanted, width)))
    return b.reshape(cut, ("R*K", width), "cut_flat")


def _lm_head(ctx: Context, hidden: Value, draft: DSparkDraft, target: Tensors, table: Value) -> Value:
    """Base logits [R * K, Vd] by the draft's own lm_head, or the target's, or the rows of it that d2t keeps."""
    own, config = draft.tensors, draft.config
    if config.has_lm_head:
        source, name = own, "lm_head.weight"
    elif "lm_head.weight" in target.names():
        source, name = target, "lm_head.weight"
    else:
        source, name = target, "embed_tokens.weight"
    weight = read_weight(ctx, source, [name])
    if isinstance(weight, Stored):
        return linear(ctx, hidden, "lm_head", weight if draft.d2t is None else weight.rows(draft.d2t))
    is_table = source is target and name == "embed_tokens.weight" and not config.has_embed_tokens
    if is_table and draft.d2t is None and ctx.options.quantize == "none":
        return linear_float(ctx, hidden, "lm_head", table)
    return linear(ctx, hidden, "lm_head", weight if draft.d2t is None else weight[draft.d2t])


def head_arrays(draft: DSparkDraft) -> dict[str, Array]:
    """Weights of the sequential and the confidence head by HeadWeights' names; absent ones left out.

    markov_w1 [V, r] is read by target id; markov_w2 [Vd, r] has the rows that d2t keeps, in the draft's head_storage.
    """
    load, config = draft.tensors.load, draft.config
    arrays: dict[str, Array] = {}
    if config.markov_head_type != "none":
        arrays["markov_w1"] = load("markov_head.markov_w1.weight")
        w2 = load("markov_head.markov_w2.weight")
        arrays |= store_markov_w2(w2 if draft.d2t is None else w2[draft.d2t], draft.head_storage)
    inner = {"gated": "gate_proj", "rnn": "joint_proj"}.get(config.markov_head_type)
    if inner is not None:
        arrays["head_weight"] = load(f"markov_head.{inner}.weight")
        arrays["head_bias"] = load(f"markov_head.{inner}.bias")
    if config.has_confidence_head:
        arrays["confidence_weight"] = load("confidence_head.proj.weight").reshape(-1)
        arrays["confidence_bias"] = load("confidence_head.proj.bias").reshape(-1)
    if draft.d2t is not None:
        arrays["d2t"] = draft.d2t
    return arrays


def _head(b: GraphBuilder, logits: Value, hidden: Value, draft: DSparkDraft) -> None:
    config, block = draft.config, draft.block_size
    with b.scope("head"):
        weights = HeadWeights(**{name: b.weight(name, array, keep=True) for name, array in head_arrays(draft).items()})
    reads_hidden = config.has_confidence_head or config.markov_head_type in ("gated", "rnn")
    drafted = draft_node(
        b,
        b.reshape(logits, ("R", block, logits.shape[1]), "block_logits"),
        b.reshape(hidden, ("R", block, hidden.shape[1]), "block_hidden") if reads_hidden else None,
        weights,
        head_type=config.markov_head_type,
        confidence_with_markov=config.confidence_with_markov,
    )
    cutoff_node(b, drafted)
