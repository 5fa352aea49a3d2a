"""The manifest of an engine bundle: what is in the folder, and for whom it was built.

Plain data with strict parsing: unknown keys of a newer minor format are ignored, missing or
mistyped ones are an error. Knows no engine and no model code.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of the bundle; `path` is relative, inside the folder, without links."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request or a batch may ask for. Tokens, but for max_batch_size (slots, B)."""

    max_batch_size: int
    max_seq_len: int
    cache_capacity: int
    """S, rows of every cache: max_seq_len plus room for a block's proposals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """One compiled graph and the caches it owns."""

    graph: str
    """File name of the graph or engine."""
    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    quantize: str
    min_rows: int
    """Fewest packed tokens (and logit rows) of a step: 2 where one row takes another arithmetic path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInfo:
    """The draft beside the target; absent for kind none."""

    kind: str
    """`dspark` or `model`."""
    engine: EngineInfo
    block_size: int
    """K, tokens proposed per round."""
    pass_size: int
    """Rows a draft pass runs per request; >= block_size (dspark: the trained block; model: 1)."""
    draft_vocab: int
    """Vd, columns of the draft's logits; differs from engine.vocab_size where it was reduced."""
    mask_token_id: int | None
    signal: str
    """Confidence signal: `head` or `top1`."""
    head_type: str
    markov_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    format_version: tuple[int, int]
    backend: str
    dialect: str
    """`trt` or `standard`."""
    query_form: str
    """`packed` or `padded`."""
    operators: str
    """`graph`: DSparkDraft/Cutoff/Accept are nodes; `host`: the runtime calls them between engines."""
    limits: Limits
    target: EngineInfo
    draft: DraftInfo | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    files: tuple[FileEntry, ...]
    versions: dict[str, str]
    argv: tuple[str, ...]
    created: str
    """UTC, ISO 8601."""
    rank: int = 0
    world_size: int = 1
    notes: tuple[str, ...] = field(default=())
