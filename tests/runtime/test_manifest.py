"""The manifest: round trip, and one sentence for everything that can be wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dspark_runtime.contract.errors import BundleError
from dspark_runtime.contract.manifest import (
    DraftInfo,
    EngineInfo,
    FileEntry,
    Limits,
    Manifest,
    dump_manifest,
    parse_manifest,
)


def engine(graph: str) -> EngineInfo:
    return EngineInfo(
        graph=graph,
        architecture="llama",
        vocab_size=97,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        dtype="float32",
        quantize="none",
        min_rows=1,
    )


def manifest() -> Manifest:
    return Manifest(
        format_version=(2, 0),
        backend="onnxruntime",
        dialect="trt",
        query_form="packed",
        operators="graph",
        limits=Limits(max_batch_size=2, max_seq_len=64, cache_capacity=71),
        target=engine("target.onnx"),
        draft=DraftInfo(
            kind="dspark",
            engine=engine("draft.onnx"),
            block_size=4,
            pass_size=7,
            draft_vocab=50,
            mask_token_id=3,
            signal="head",
            head_type="vanilla",
            markov_rank=8,
        ),
        eos_token_ids=(2, 5),
        bos_token_id=None,
        files=tuple(FileEntry(path=p, size=1, sha256="0" * 64) for p in ("target.onnx", "draft.onnx")),
        versions={"onnx": "1.23"},
        argv=("--target", "x"),
        created="2026-01-01T00:00:00Z",
        notes=("ü",),
    )


def test_manifest_dumped_and_parsed_is_the_same() -> None:
    assert parse_manifest(dump_manifest(manifest()), "m") == manifest()


def test_manifest_newer_minor_ignores_unknown_keys() -> None:
    raw = json.loads(dump_manifest(manifest()))
    raw["format_version"] = [2, 9]
    raw["flavour"] = "new"
    raw["target"]["flavour"] = "new"
    assert parse_manifest(json.dumps(raw), "m").format_version == (2, 9)


def edited(path: str, value: Any) -> str:
    raw = json.loads(dump_manifest(manifest()))
    *parents, last = path.split(".")
    node: Any = raw
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node[key]
    last_key: Any = int(last) if isinstance(node, list) else last
    if value is ...:
        del node[last_key]
    else:
        node[last_key] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("draft.head_storage", "int4", "head_storage is 'int4', wanted float32, bfloat16, int8"),
        ("format_version", [3, 0], "format version 3.0, this runtime reads 2.x; update dspark-trt"),
        ("format_version", [0, 9], "format version 0.9, this runtime reads 2.x; build the bundle again"),
        ("format_version", "1.0", "format_version: found text, wanted a list"),
        ("format_version", ..., "format_version: found nothing, wanted a list"),
        ("target", ..., "missing keys target"),
        ("flavour", 1, "unknown keys flavour"),
        ("target.vocab_size", True, "target: vocab_size: found true/false, wanted an integer"),
        ("target.vocab_size", "97", "target: vocab_size: found text, wanted an integer"),
        ("target.vocab_size", 0, "target vocab_size is 0, needs >= 1"),
        ("files", {}, "files: found an object, wanted a list"),
        ("files.0.path", "../evil", "leaves the bundle"),
        ("files.0.path", "/etc/passwd", "is not relative"),
        ("files.0.path", "C:\\x", "is not relative"),
        ("files.0.path", "a//b", "leaves the bundle"),
        ("files.0.path", "", "names no file"),
        ("files.0.sha256", "xyz", "64 hexadecimal digits"),
        ("files.0.path", "draft.onnx", "listed twice"),
        ("target.graph", "other.onnx", "target graph 'other.onnx' is not among the files"),
        ("target.graph", "../t.onnx", "leaves the bundle"),
        ("limits.cache_capacity", 66, "cache_capacity is 66, needs >= 71"),
        ("limits.max_batch_size", 0, "max_batch_size is 0"),
        ("draft.block_size", 8, "block_size is 8, needs at most pass_size 7"),
        ("draft.mask_token_id", None, "mask_token_id is None"),
        ("target.num_layers", 4097, "target num_layers is 4097, needs >= 1 and at most 4096"),
        ("target.vocab_size", 2**31, "target vocab_size is 2147483648, needs >= 1 and at most 2147483647"),
        ("target.min_rows", 2**40, "target min_rows is 1099511627776, needs >= 1 and at most 4096"),
        ("limits.max_batch_size", 2**31, "limits max_batch_size is 2147483648, needs at most 2147483647"),
        ("target.vocab_size", 10**400, "vocab_size: found 1000"),
        ("draft.kind", "\x1b[2J", r"draft kind is '\x1b[2J', wanted dspark or model"),
        ("\x1b" * 9999, 1, r"unknown keys '\x1b\x1b"),
        ("files", [{"path": f"{i}/../\x1b", "size": 1, "sha256": "0" * 64} for i in range(99)], " and 97 more"),
        ("dialect", "latin", "dialect is 'latin', wanted trt or standard"),
        ("eos_token_ids", [1, "2"], "eos_token_ids[1]: found text, wanted an integer"),
    ],
)
def test_manifest_with_a_fault_is_refused_with_the_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        parse_manifest(edited(path, value), "folder/manifest.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("folder/manifest.json: ")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nonsense"])
def test_manifest_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match="not JSON"):
        parse_manifest(text, "m")


def test_manifest_that_is_a_list_is_refused() -> None:
    with pytest.raises(BundleError, match="found a list at the top"):
        parse_manifest("[]", "m")


def test_manifest_larger_than_any_manifest_is_refused_before_parsing() -> None:
    with pytest.raises(BundleError, match="no manifest"):
        parse_manifest(" " * (5 << 20), "m")
