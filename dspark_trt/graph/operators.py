"""The DSpark operators as graph nodes: which tensor goes to which input (table in docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from dspark_runtime.contract import names
from dspark_trt.graph.builder import FLOAT, INT32, INT64, GraphBuilder, Out, Value

LINEAR = "DSparkLinear"

SAMPLING_DTYPES = {
    names.TEMPERATURE: FLOAT,
    names.TOP_K: INT32,
    names.TOP_P: FLOAT,
    names.MIN_P: FLOAT,
    names.ACCEPT_MODE: INT32,
    names.SEED: INT64,
    names.SAMPLE_INDEX: INT32,
    names.ANCHOR_POSITION: INT32,
}
LOGPROB_COLUMNS = names.MAX_LOGPROBS + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWeights:
    """Weights of the sequential and the confidence head as DSparkDraft takes them; None where absent."""

    markov_w1: Value | None = None
    markov_w2: Value | None = None
    """float32, bfloat16, or int8 with markov_w2_scales."""
    markov_w2_scales: Value | None = None
    head_weight: Value | None = None
    head_bias: Value | None = None
    confidence_weight: Value | None = None
    confidence_bias: Value | None = None
    d2t: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What DSparkCutoff reads of a DSparkDraft node: its outputs [R, K], and the policies [R] that both read."""

    tokens: Value
    confidence_logits: Value
    entropies: Value
    policy: Value


def sampling_inputs(b: GraphBuilder) -> list[Value]:
    """One value per request for every sampling parameter, in the order of the contract."""
    return [b.input(name, ("R",), SAMPLING_DTYPES[name]) for name in names.SAMPLING_INPUTS]


def draft_node(
    b: GraphBuilder,
    logits: Value,
    hidden: Value | None,
    weights: HeadWeights,
    *,
    head_type: str,
    confidence_with_markov: bool,
) -> Drafted:
    """DSparkDraft. logits: [R, K, Vd], hidden: [R, K, d]. Its outputs are graph outputs."""
    _, block, vocab = logits.shape
    anchors = b.input(names.ANCHOR_TOKENS, ("R",), INT32)
    offset = b.input(names.BLOCK_OFFSET, (1,), INT32)
    signal = b.input(names.CONFIDENCE_SIGNAL, ("R",), INT32)
    policy = b.input(names.CUTOFF_POLICY, ("R",), INT32)
    tokens, confidences, draft_logits, entropies = b.nodes(
        "DSparkDraft",
        (
            logits, hidden, anchors, offset, *sampling_inputs(b), signal, policy,
            weights.markov_w1, weights.markov_w2, weights.markov_w2_scales, weights.head_weight, weights.head_bias,
            weights.confidence_weight, weights.confidence_bias, weights.d2t,
        ),
        (
            Out("head.tokens", ("R", block), INT32),
            Out("head.confidences", ("R", block), FLOAT),
            Out("head.logits", ("Rj", block, vocab), FLOAT),
            Out("head.entropies", ("R", block), FLOAT),
        ),
        domain=names.OPERATOR_DOMAIN,
        head_type=names.HEAD_TYPES[head_type],
        confidence_with_markov=int(confidence_with_markov),
    )  # fmt: skip
    b.output(tokens, names.DRAFT_TOKENS)
    b.output(confidences, names.CONFIDENCE_LOGITS)
    b.output(draft_logits, names.DRAFT_LOGITS)
    b.output(entropies, names.ENTROPIES)
    return Drafted(tokens=tokens, confidence_logits=confidences, entropies=entropies, policy=policy)


def linear_node(b: GraphBuilder, inputs: Sequence[Value | None], out: Out, storage: str, num_out: int) -> Value:
    """DSparkLinear. inputs: x [rows, in], the words of the weight, and the bias [out] where there is one."""
    return b.node(LINEAR, inputs, out, domain=names.OPERATOR_DOMAIN, storage=storage, out_features=num_out)


def storage_of(graph: Path) -> str:
    """How the linear layers of a graph file keep their weights: `float32`, or forms of `Stored` joined by `+`."""
    nodes = onnx.load(str(graph), load_external_data=False).graph.node
    kinds = {a.s.decode() for node in nodes if node.op_type == LINEAR for a in node.attribute if a.name == "storage"}
    return "+".join(sorted(kinds)) or "float32"


def cutoff_node(b: GraphBuilder, drafted: Drafted) -> None:
    """DSparkCutoff over what a draft gave; its outputs are graph outputs."""
    shape = drafted.confidence_logits.shape
    lengths, survivals, confidences = b.nodes(
        "DSparkCutoff",
        (
            drafted.confidence_logits,
            drafted.entropies,
            drafted.tokens,
            b.input(names.CALIBRATION_TEMPERATURES, shape, FLOAT),
            drafted.policy,
            b.input(names.CUTOFF_PARAMS, ("R", names.CUTOFF_COLUMNS), FLOAT),
            b.input(names.CUTOFF_INCLUSIVE, ("R",), INT32),
            b.input(names.MIN_VERIFY, ("R",), INT32),
            b.input(names.MAX_VERIFY, ("R",), INT32),
        ),
        (
            Out("cutoff.lengths", ("R",), INT32),
            Out("cutoff.survivals", shape, FLOAT),
            Out("cutoff.confidences", shape, FLOAT),
        ),
        domain=names.OPERATOR_DOMAIN,
    )
    b.output(lengths, names.VERIFY_LENGTHS)
    b.output(survivals, names.SURVIVALS)
    b.output(confidences, names.CONFIDENCES)


def accept_node(
    b: GraphBuilder, logits: Value, *, block_size: int, draft_vocab: int, capacity: int, d2t: Value | None
) -> None:
    """DSparkAccept over target logits [N, V]; its outputs are graph outputs.

    block_size 0 stands for a target without a draft; capacity: of the token history.
    """
    offsets = b.input(names.ROW_OFFSETS, ("R+1",), INT32)
    draft_tokens = draft_logits = confidences = None
    if block_size:
        draft_tokens = b.input(names.DRAFT_TOKENS, ("R", block_size), INT32)
        draft_logits = b.input(names.DRAFT_LOGITS, ("Rj", block_size, draft_vocab), FLOAT)
        confidences = b.input(names.CONFIDENCES, ("Rc", block_size), FLOAT)
    columns = block_size + 1
    outputs = {
        names.ACCEPTED: (("R",), INT32),
        names.TOKENS: (("R", columns), INT32),
        names.ROUND_ENDS: (("R",), INT32),
        names.LOGPROBS: (("R", columns, LOGPROB_COLUMNS), FLOAT),
        names.LOGPROB_IDS: (("R", columns, LOGPROB_COLUMNS), INT32),
        names.LOGPROB_RANKS: (("R", columns), INT32),
    }
    values = b.nodes(
        "DSparkAccept",
        (
            logits, offsets, draft_tokens, draft_logits, *sampling_inputs(b),
            *_accept_inputs(b, logits.shape[1], capacity), confidences, d2t,
        ),
        tuple(Out(f"accept.{name}", shape, dtype) for name, (shape, dtype) in outputs.items()),
        domain=names.OPERATOR_DOMAIN,
        block_size=block_size,
    )  # fmt: skip
    for name, value in zip(outputs, values, strict=True):
        b.output(value, name)


def _accept_inputs(b: GraphBuilder, vocab: int | str, capacity: int) -> list[Value]:
    """What logits become before they are filtered, and what is reported: ACCEPT_INPUTS, in their order."""
    assert isinstance(vocab, int)
    shapes: dict[str, tuple[int | str, ...]] = {
        names.PENALTIES: ("R", 3),
        names.TOKEN_HISTORY: ("B", capacity),
        names.SLOTS: ("R",),
        names.PROMPT_LENGTHS: ("R",),
        names.RULES: ("E", 3),
        names.RULE_OFFSETS: ("R+1",),
        names.TOKEN_MASKS: ("M", (vocab + 31) // 32),
        names.MASK_ROWS: ("N",),
        names.RELAXATION: ("R", 2),
        names.NUM_LOGPROBS: ("R",),
    }
    floats = (names.PENALTIES, names.RELAXATION)
    return [b.input(name, shapes[name], FLOAT if name in floats else INT32) for name in names.ACCEPT_INPUTS]
