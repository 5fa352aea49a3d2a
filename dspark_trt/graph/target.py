"""The target graph, and the graph of a draft that is a whole model: stack, logits, operator nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import GraphError
from dspark_trt.config import DecoderConfig, TargetConfig
from dspark_trt.graph.builder import FLOAT, INT32, GraphBuilder, Out, Value
from dspark_trt.graph.decoder import Stack
from dspark_trt.graph.dspark import DSparkDraft, context_part
from dspark_trt.graph.layers import CacheNames, linear, linear_float, read_weight, rms_norm
from dspark_trt.graph.llama import llama
from dspark_trt.graph.operators import HeadWeights, accept_node, draft_node
from dspark_trt.graph.qwen import qwen2, qwen3
from dspark_trt.graph.step import Context, GraphOptions, Tensors, open_step
from dspark_trt.graph.weights import WeightFile, WeightRef
from dspark_trt.stored import Stored

FAMILIES: dict[str, Callable[[Context, DecoderConfig, Tensors, CacheNames], Stack]] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
}

TARGET_CACHES = CacheNames(names.TARGET_KEY, names.TARGET_VALUE)
DRAFT_CACHES = CacheNames(names.DRAFT_KEY, names.DRAFT_VALUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """What a draft hands to the target's DSparkAccept."""

    block_size: int
    """K; 0 without a draft."""
    vocab_size: int
    """Vd."""


def write_target_graph(
    options: GraphOptions, config: TargetConfig, tensors: Tensors, proposals: Proposals, draft: DSparkDraft | None
) -> WeightRef | None:
    """Write target.onnx; with a dspark draft the graph also writes the draft's context caches.

    Returns where embed_tokens lies, for graphs that read the same table.
    """
    with WeightFile(options.folder, names.TARGET_WEIGHTS) as weights:
        b = GraphBuilder(options.folder, names.TARGET_GRAPH, weights, options.element_type)
        ctx = open_step(b, options)
        stack = _stack(ctx, config, tensors, TARGET_CACHES)
        logits = _logits(ctx, stack, config, tensors)
        b.output(logits, names.LOGITS)
        if draft is not None:
            context_part(ctx, stack, draft)
        if options.operators == "graph":
            d2t = b.weight("d2t", draft.d2t) if draft is not None and draft.d2t is not None else None
            accept_node(
                b,
                logits,
                block_size=proposals.block_size,
                draft_vocab=proposals.vocab_size,
                capacity=options.cache_capacity,
                d2t=d2t,
            )
        b.save()
        return b.ref(stack.table.name)


def write_model_draft_graph(options: GraphOptions, config: TargetConfig, tensors: Tensors) -> None:
    """Write draft.onnx of a draft that is a language model: one proposal per request and call."""
    with WeightFile(options.folder, names.DRAFT_WEIGHTS) as weights:
        b = GraphBuilder(options.folder, names.DRAFT_GRAPH, weights, options.element_type)
        ctx = open_step(b, options)
        logits = _logits(ctx, _stack(ctx, config, tensors, DRAFT_CACHES), config, tensors)
        b.output(logits, names.LOGITS)
        if options.operators == "graph":
            block = b.reshape(logits, ("R", 1, config.vocab_size), "block_logits")
            draft_node(b, block, None, HeadWeights(), head_type="none", confidence_with_markov=False)
        b.save()


def _stack(ctx: Context, config: TargetConfig, tensors: Tensors, caches: CacheNames) -> Stack:
    if config.family not in FAMILIES:
        raise GraphError(f"model family is '{config.family}', described are {', '.join(FAMILIES)}")
    return FAMILIES[config.family](ctx, config, tensors, caches)


def _logits(ctx: Context, stack: Stack, config: TargetConfig, tensors: Tensors) -> Value:
    """Final norm and lm_head of the rows in `logit_rows` alone. [N, V] float32."""
    b = ctx.builder
    ctx.options.report("lm_head")
    rows = b.input(names.LOGIT_ROWS, ("N",), INT32)
    last = stack.layers[-1]
    wanted = b.node("Gather", (last, rows), Out("wanted", ("N", config.hidden_size)), axis=0)
    hidden = rms_norm(ctx, wanted, "norm", tensors.load("norm.weight"), config.rms_norm_eps)
    weight = read_weight(ctx, tensors, ["embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"])
    # A float32 table is stored once; a packed one is read by columns, and the embedding by rows.
    if config.tie_embeddings and ctx.options.quantize == "none" and not isinstance(weight, Stored):
        return b.cast(linear_float(ctx, hidden, "lm_head", stack.table), FLOAT, "logits_float")
    return b.cast(linear(ctx, hidden, "lm_head", weight), FLOAT, "logits_float")
