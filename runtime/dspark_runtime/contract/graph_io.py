"""The inputs and outputs that a graph or an engine must have, worked out from the manifest alone.

Deliberately not from the graph: the builder's judge compares what TensorRT's parser made of a graph with this, and the
runtime what ONNX Runtime loaded. The table that it follows is in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from dspark_runtime.contract import names
from dspark_runtime.contract.compiled import TensorInfo
from dspark_runtime.contract.manifest import EngineInfo, Manifest

SAMPLING_DTYPES = {
    names.TEMPERATURE: "float32",
    names.TOP_K: "int32",
    names.TOP_P: "float32",
    names.MIN_P: "float32",
    names.ACCEPT_MODE: "int32",
    names.SEED: "int64",
    names.SAMPLE_INDEX: "int32",
    names.ANCHOR_POSITION: "int32",
}

TARGET_CACHES = (names.TARGET_KEY, names.TARGET_VALUE)
CONTEXT_CACHES = (names.CONTEXT_KEY, names.CONTEXT_VALUE)
DRAFT_CACHES = (names.DRAFT_KEY, names.DRAFT_VALUE)

Shape = tuple[int | str, ...]


def expected_tensors(manifest: Manifest, role: str) -> tuple[TensorInfo, ...]:
    """Inputs, then outputs, of the `target` or `draft` of a bundle. Order means nothing."""
    parts = _target(manifest) if role == "target" else _draft(manifest)
    tensors = tuple(parts)
    return tuple(sorted(tensors, key=lambda tensor: tensor.direction))


def cache_names(manifest: Manifest, role: str) -> tuple[tuple[str, EngineInfo], ...]:
    """Name of every cache that the graph updates, with the model whose layers it belongs to."""
    draft = manifest.draft
    if role == "target":
        owned = [(TARGET_CACHES, manifest.target)]
        if draft is not None and draft.kind == "dspark":
            owned.append((CONTEXT_CACHES, draft.engine))
    else:
        assert draft is not None
        owned = [(CONTEXT_CACHES if draft.kind == "dspark" else DRAFT_CACHES, draft.engine)]
    return tuple(
        (name.format(layer), model) for pair, model in owned for name in pair for layer in range(model.num_layers)
    )


def _target(manifest: Manifest) -> Iterator[TensorInfo]:
    yield from _step(manifest, "target")
    yield _input(names.LOGIT_ROWS, "int32", "N")
    yield _output(names.LOGITS, "float32", "N", manifest.target.vocab_size)
    if manifest.operators != "graph":
        return
    draft = manifest.draft
    block = draft.block_size if draft is not None else 0
    yield _input(names.ROW_OFFSETS, "int32", "R+1")
    if draft is not None:
        yield _input(names.DRAFT_TOKENS, "int32", "R", block)
        yield _input(names.DRAFT_LOGITS, "float32", "Rj", block, draft.draft_vocab)
        yield _input(names.CONFIDENCES, "float32", "Rc", block)
    yield from _sampling()
    yield _input(names.PENALTIES, "float32", "R", 3)
    yield _input(names.TOKEN_HISTORY, "int32", "B", manifest.limits.cache_capacity)
    yield _input(names.SLOTS, "int32", "R")
    yield _input(names.PROMPT_LENGTHS, "int32", "R")
    yield _input(names.RULES, "int32", "E", 3)
    yield _input(names.RULE_OFFSETS, "int32", "R+1")
    yield _input(names.TOKEN_MASKS, "int32", "M", (manifest.target.vocab_size + 31) // 32)
    yield _input(names.MASK_ROWS, "int32", "N")
    yield _input(names.RELAXATION, "float32", "R", 2)
    yield _input(names.NUM_LOGPROBS, "int32", "R")
    yield _output(names.ACCEPTED, "int32", "R")
    yield _output(names.TOKENS, "int32", "R", block + 1)
    yield _output(names.ROUND_ENDS, "int32", "R")
    yield _output(names.LOGPROBS, "float32", "R", block + 1, names.MAX_LOGPROBS + 1)
    yield _output(names.LOGPROB_IDS, "int32", "R", block + 1, names.MAX_LOGPROBS + 1)
    yield _output(names.LOGPROB_RANKS, "int32", "R", block + 1)


def _draft(manifest: Manifest) -> Iterator[TensorInfo]:
    draft = manifest.draft
    assert draft is not None
    is_block = draft.kind == "dspark"
    yield from _step(manifest, "draft")
    if is_block:
        yield _output(names.HIDDEN, "float32", "R*K", draft.engine.hidden_size)
        yield _output(names.LOGITS, "float32", "R*K", draft.draft_vocab)
    else:
        yield _input(names.LOGIT_ROWS, "int32", "N")
        yield _output(names.LOGITS, "float32", "N", draft.engine.vocab_size)
    if manifest.operators != "graph":
        return
    columns = draft.block_size if is_block else 1
    yield _input(names.ANCHOR_TOKENS, "int32", "R")
    yield _input(names.BLOCK_OFFSET, "int32", 1)
    yield from _sampling()
    yield _input(names.CONFIDENCE_SIGNAL, "int32", "R")
    yield _input(names.CUTOFF_POLICY, "int32", "R")
    yield _output(names.DRAFT_TOKENS, "int32", "R", columns)
    yield _output(names.CONFIDENCE_LOGITS, "float32", "R", columns)
    yield _output(names.DRAFT_LOGITS, "float32", "Rj", columns, draft.draft_vocab)
    yield _output(names.ENTROPIES, "float32", "R", columns)
    if is_block:
        yield _input(names.CALIBRATION_TEMPERATURES, "float32", "R", columns)
        yield _input(names.CUTOFF_PARAMS, "float32", "R", names.CUTOFF_COLUMNS)
        yield _input(names.CUTOFF_INCLUSIVE, "int32", "R")
        yield _input(names.MIN_VERIFY, "int32", "R")
        yield _input(names.MAX_VERIFY, "int32", "R")
        yield _output(names.VERIFY_LENGTHS, "int32", "R")
        yield _output(names.SURVIVALS, "float32", "R", columns)
        yield _output(names.CONFIDENCES, "float32", "R", columns)


def _step(manifest: Manifest, role: str) -> Iterator[TensorInfo]:
    yield _input(names.TOKEN_IDS, "int32", "T")
    yield _input(names.POSITIONS, "int64", "T")
    yield _input(names.WRITE_INDICES, "int32", "B")
    if manifest.dialect == "standard":  # the mask says all about lengths
        yield _input(names.ATTENTION_MASK, "bool", "B", 1, "Q", manifest.limits.cache_capacity)
    else:
        yield _input(names.UPDATE_LENGTHS, "int32", "B+1")
        yield _input(names.KV_LENGTHS, "int32", "B")
    if manifest.query_form == "padded" or manifest.dialect == "standard":
        yield _input(names.QUERY_ROWS, "int32", "B", "Q")
        yield _input(names.OUTPUT_ROWS, "int32", "T")
    for name, model in cache_names(manifest, role):
        shape = ("B", model.num_kv_heads, manifest.limits.cache_capacity, model.head_dim)
        yield _input(name, model.dtype, *shape)
        yield _output(name + names.PRESENT, model.dtype, *shape, alias=name)


def _sampling() -> Iterator[TensorInfo]:
    for name in names.SAMPLING_INPUTS:
        yield _input(name, SAMPLING_DTYPES[name], "R")


def _input(name: str, dtype: str, *shape: int | str) -> TensorInfo:
    return _tensor(name, "input", dtype, shape, None)


def _output(name: str, dtype: str, *shape: int | str, alias: str | None = None) -> TensorInfo:
    return _tensor(name, "output", dtype, shape, alias)


def _tensor(name: str, direction: str, dtype: str, shape: Shape, alias: str | None) -> TensorInfo:
    return TensorInfo(
        name=name,
        direction=direction,
        dtype=dtype,
        shape=tuple(-1 if isinstance(size, str) else size for size in shape),
        axes=tuple(size if isinstance(size, str) else "" for size in shape),
        alias=alias,
    )
