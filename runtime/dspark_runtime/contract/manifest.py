"""The manifest of an engine bundle: what is in the folder, and for whom it was built.

Plain data with strict parsing: unknown keys of a newer minor format are ignored, missing or
mistyped ones are an error. Knows no engine and no model code.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dspark_runtime.contract.compiled import CompiledInfo, compiled_problems
from dspark_runtime.contract.errors import BundleError, label, shown
from dspark_runtime.contract.names import FORMAT_VERSION, HEAD_STORAGES

T = TypeVar("T")

MAX_MANIFEST_BYTES = 4 << 20
"""A manifest is a few KB; more than this is not one."""
MAX_LAYERS = 4096
MAX_SIZE = 2**31 - 1
"""Of everything that counts rows, columns or tokens: what the graphs index with int32."""
MAX_PROBLEMS = 4
"""Named in a message; the others are counted."""


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
    storage: str = "float32"
    """Weights of linear layers that are not quantised: `float32`, or the forms of the checkpoint that they keep
    beside it, such as `q4_1+q8_0`."""
    compiled: CompiledInfo | None = None
    """What `graph` was compiled to, where it is an engine of TensorRT."""


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
    head_storage: str = "float32"
    """Of the sequential head's markov_w2: `float32`, `bfloat16` or `int8`."""


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


def dump_manifest(manifest: Manifest) -> str:
    """The manifest as indented JSON, keys in the order of the dataclass, ending in a newline."""
    return json.dumps(dataclasses.asdict(manifest), indent=2, ensure_ascii=False) + "\n"


def parse_manifest(text: str, where: str) -> Manifest:
    """The inverse of `dump_manifest`, strict.

    where: how messages name the file. Raises BundleError on text that is not JSON, on another major
    format, on missing, unknown or mistyped keys (unknown keys of a newer minor format are ignored), on
    paths that leave the folder, and on numbers that contradict each other.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{where}: {len(text)} characters, wanted at most {MAX_MANIFEST_BYTES}; this is no manifest")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: not JSON ({error}); build the bundle again") from None
    if not isinstance(raw, dict):
        raise BundleError(f"{where}: found {_kind(raw)} at the top, wanted an object; build the bundle again")
    version = _convert(raw.get("format_version"), tuple[int, int], f"{where}: format_version", False)
    if version[0] != FORMAT_VERSION[0]:
        todo = "update dspark-trt" if version[0] > FORMAT_VERSION[0] else "build the bundle again"
        raise BundleError(
            f"{where}: format version {version[0]}.{version[1]}, this runtime reads {FORMAT_VERSION[0]}.x; {todo}"
        )
    manifest: Manifest = _convert(raw, Manifest, where, version[1] > FORMAT_VERSION[1])
    problems = _contradictions(manifest)
    if problems:
        more = f" and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise BundleError(f"{where}: {'; '.join(problems[:MAX_PROBLEMS])}{more}")
    return manifest


def parse_object(value: object, wanted: type[T], where: str) -> T:
    """One dataclass of the manifest out of JSON, as strict as `parse_manifest`. Raises BundleError."""
    part: T = _convert(value, wanted, where, False)
    return part


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "an integer", float: "a number"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)


def _convert(value: object, wanted: Any, where: str, lenient: bool) -> Any:
    """`value` from JSON as the annotated type `wanted`; BundleError naming `where` otherwise."""
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        if not isinstance(value, dict):
            raise BundleError(f"{where}: found {_kind(value)}, wanted an object")
        return _convert_object(value, wanted, where, lenient)
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _convert(value, inner, where, lenient)
    if origin is tuple:
        if not isinstance(value, list):
            raise BundleError(f"{where}: found {_kind(value)}, wanted a list")
        if arguments[-1] is Ellipsis:
            return tuple(_convert(item, arguments[0], f"{where}[{i}]", lenient) for i, item in enumerate(value))
        if len(value) != len(arguments):
            raise BundleError(f"{where}: found {len(value)} entries, wanted {len(arguments)}")
        return tuple(
            _convert(item, kind, f"{where}[{i}]", lenient)
            for i, (item, kind) in enumerate(zip(value, arguments, strict=True))
        )
    if origin is dict:
        if not isinstance(value, dict):
            raise BundleError(f"{where}: found {_kind(value)}, wanted an object")
        return {key: _convert(item, arguments[1], f"{where}.{key}", lenient) for key, item in value.items()}
    # bool is an int in Python; `true` is not a size.
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise BundleError(f"{where}: found {_kind(value)}, wanted {'an integer' if wanted is int else 'text'}")
    if isinstance(value, int) and not -(2**63) < value < 2**63:
        raise BundleError(f"{where}: found {shown(value)}, wanted an integer below 2**63")
    return value


def _convert_object(value: dict[str, object], wanted: type, where: str, lenient: bool) -> Any:
    hints = typing.get_type_hints(wanted)
    fields = {entry.name: entry for entry in dataclasses.fields(wanted)}
    unknown = sorted(value.keys() - fields.keys())
    if unknown and not lenient:
        raise BundleError(f"{where}: unknown keys {', '.join(map(label, unknown[:MAX_PROBLEMS]))}")
    required = [
        name
        for name, entry in fields.items()
        if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in value]
    if missing:
        raise BundleError(f"{where}: missing keys {', '.join(missing)}; build the bundle again")
    known = {name: _convert(value[name], hints[name], f"{where}: {name}", lenient) for name in fields if name in value}
    return wanted(**known)


def path_problem(path: str) -> str | None:
    """Why `path` may not name a file of a bundle, or None where it may: relative, inside, portable."""
    if not path or "\0" in path:
        return f"path {shown(path)} names no file"
    if path.startswith("/") or "\\" in path or re.match(r"[A-Za-z]:", path):
        return f"path {shown(path)} is not relative, wanted one inside the bundle"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return f"path {shown(path)} leaves the bundle, wanted one inside it"
    return None


_ENGINE_SIZES = {
    "vocab_size": MAX_SIZE, "hidden_size": MAX_SIZE, "num_layers": MAX_LAYERS, "num_heads": MAX_SIZE,
    "num_kv_heads": MAX_SIZE, "head_dim": MAX_SIZE, "min_rows": MAX_LAYERS,
}  # fmt: skip


def _contradictions(manifest: Manifest) -> list[str]:
    """What no single key can show: paths, ranges, and numbers that must fit each other."""
    problems = [problem for entry in manifest.files if (problem := path_problem(entry.path))]
    listed = [entry.path for entry in manifest.files]
    problems += [f"file {shown(path)} is listed twice" for path, n in sorted(Counter(listed).items()) if n > 1]
    for entry in manifest.files:
        if entry.size < 0 or not re.fullmatch(r"[0-9a-f]{64}", entry.sha256):
            problems.append(f"file {shown(entry.path)} needs a size >= 0 and 64 hexadecimal digits of SHA-256")
    for name, value, known in (
        ("dialect", manifest.dialect, ("trt", "standard")),
        ("query_form", manifest.query_form, ("packed", "padded")),
        ("operators", manifest.operators, ("graph", "host")),
    ):
        if value not in known:
            problems.append(f"{name} is {shown(value)}, wanted {' or '.join(known)}")
    engines = [("target", manifest.target)]
    if manifest.draft is not None:
        engines.append(("draft", manifest.draft.engine))
    for name, engine in engines:
        if (problem := path_problem(engine.graph)) is not None:
            problems.append(problem)
        elif engine.graph not in listed:
            problems.append(f"{name} graph {shown(engine.graph)} is not among the files")
        problems += [
            f"{name} {key} is {getattr(engine, key)}, needs >= 1"
            + (f" and at most {most}" if getattr(engine, key) > most else "")
            for key, most in _ENGINE_SIZES.items()
            if not 1 <= getattr(engine, key) <= most
        ]
        if engine.compiled is not None:
            problems += compiled_problems(name, engine.compiled)
        elif manifest.backend.startswith("tensorrt"):
            problems.append(f"{name} engine of backend {shown(manifest.backend)} lacks its description (compiled)")
    limits = manifest.limits
    problems += [
        f"limits {key} is {getattr(limits, key)}, needs at most {MAX_SIZE}"
        for key in ("max_batch_size", "max_seq_len", "cache_capacity")
        if getattr(limits, key) > MAX_SIZE
    ]
    if limits.max_batch_size < 1 or limits.max_seq_len < 2:
        problems.append(
            f"max_batch_size is {limits.max_batch_size} and max_seq_len {limits.max_seq_len}, need >= 1 and >= 2"
        )
    if limits.cache_capacity < limits.max_seq_len:
        problems.append(f"cache_capacity is {limits.cache_capacity}, needs >= max_seq_len {limits.max_seq_len}")
    if manifest.draft is not None:
        problems += _draft_contradictions(manifest, manifest.draft)
    return problems


def _draft_contradictions(manifest: Manifest, draft: DraftInfo) -> list[str]:
    problems = []
    if draft.kind not in ("dspark", "model"):
        problems.append(f"draft kind is {shown(draft.kind)}, wanted dspark or model")
    if draft.pass_size < 1 or draft.block_size < 1:
        problems.append(f"block_size is {draft.block_size} and pass_size {draft.pass_size}, need >= 1")
    if draft.kind == "dspark" and draft.block_size > draft.pass_size:
        problems.append(f"block_size is {draft.block_size}, needs at most pass_size {draft.pass_size}")
    if draft.signal not in ("head", "top1"):
        problems.append(f"signal is {shown(draft.signal)}, wanted head or top1")
    if draft.head_storage not in HEAD_STORAGES:
        problems.append(f"head_storage is {shown(draft.head_storage)}, wanted {', '.join(HEAD_STORAGES)}")
    if draft.draft_vocab < 1:
        problems.append(f"draft_vocab is {draft.draft_vocab}, needs >= 1")
    if draft.kind == "dspark" and (
        draft.mask_token_id is None or not 0 <= draft.mask_token_id < draft.engine.vocab_size
    ):
        problems.append(f"mask_token_id is {draft.mask_token_id}, needs [0, {draft.engine.vocab_size})")
    # A draft pass writes its whole block behind the last committed row.
    wanted = manifest.limits.max_seq_len + draft.pass_size
    if manifest.limits.cache_capacity < wanted:
        problems.append(
            f"cache_capacity is {manifest.limits.cache_capacity}, needs >= {wanted} (max_seq_len + pass_size)"
        )
    return problems
