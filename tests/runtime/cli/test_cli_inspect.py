"""`dspark inspect`: what it shows, and one line for every bundle that cannot be used."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_runtime.bundle import open_bundle
from dspark_runtime.cli.inspect import tables


def test_inspect_shows_models_limits_and_files(dspark: Callable, tiny_bundle: Path) -> None:
    ended = dspark("inspect", tiny_bundle)
    assert ended.code == 0 and ended.err == ""
    for text in ("target.onnx", "draft.onnx", "llama", "dspark, proposes", "2 requests at once, 96 tokens each"):
        assert text in ended.out
    assert "hashes not read" in ended.out


def test_inspect_explains_the_rows_of_a_cache(tiny_bundle: Path) -> None:
    manifest = open_bundle(tiny_bundle).manifest

    def caches(**changes: object) -> str:
        (overview, *_) = tables(dataclasses.replace(manifest, **changes))
        (names, values) = ([str(cell) for cell in column.cells] for column in overview.columns)
        return dict(zip(names, values, strict=True))["caches"]

    proposals = "4 for a round's proposals behind the last token"
    assert caches() == f"101 rows a request: 96 for the tokens, {proposals}, 1 for padding of a step"
    exact = dataclasses.replace(manifest.limits, cache_capacity=100)
    assert caches(limits=exact) == f"100 rows a request: 96 for the tokens, {proposals}"
    assert caches(draft=None) == "101 rows a request: 96 for the tokens, 5 for padding of a step"


@pytest.mark.parametrize(("kind", "label"), [("dspark", "dspark (llama layers)"), ("model", "llama")])
def test_inspect_draft_is_labelled_by_what_it_is(dspark: Callable, tiny_bundle: Path, kind: str, label: str) -> None:
    manifest = open_bundle(tiny_bundle).manifest
    assert manifest.draft is not None
    engine = dataclasses.replace(manifest.draft.engine, architecture="llama")
    manifest = dataclasses.replace(manifest, draft=dataclasses.replace(manifest.draft, kind=kind, engine=engine))
    (models,) = (table.columns[1] for table in tables(manifest) if table.title == "engines")
    assert [str(cell) for cell in models.cells] == [manifest.target.architecture, label]


def test_inspect_json_is_the_manifest(dspark: Callable, tiny_bundle: Path) -> None:
    shown = json.loads(dspark("inspect", tiny_bundle, "--json").out)
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    assert {key: shown[key] for key in manifest} == manifest
    assert shown["bundle"] == str(tiny_bundle) and shown["verified"] is False


def test_inspect_verify_intact_bundle_says_so(dspark: Callable, tiny_bundle: Path) -> None:
    ended = dspark("inspect", tiny_bundle, "--verify")
    assert ended.code == 0 and "all hashes match" in ended.out


def test_inspect_verify_changed_byte_is_found(dspark: Callable, damaged: Callable[..., Path]) -> None:
    bundle = damaged()
    weights = bundle / "target.weights"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert dspark("inspect", bundle).code == 0  # same size: only the hash can tell
    error = dspark("inspect", bundle, "--verify").error
    assert "target.weights" in error and "SHA-256" in error


def test_inspect_markup_in_a_manifest_is_shown_not_obeyed(dspark: Callable, damaged: Callable[..., Path]) -> None:
    bundle = damaged(notes=["[bold]loud[/bold] \x1b[31mred"])
    shown = dspark("inspect", bundle).out
    assert "[bold]loud[/bold]" in shown and "\x1b" not in shown


def test_inspect_missing_folder_is_one_line(dspark: Callable, tmp_path: Path) -> None:
    error = dspark("inspect", tmp_path / "absent").error
    assert str(tmp_path / "absent") in error and "no such folder" in error


def test_inspect_folder_without_manifest_is_one_line(dspark: Callable, tmp_path: Path) -> None:
    assert "no manifest.json" in dspark("inspect", tmp_path).error


def test_inspect_truncated_file_is_one_line(dspark: Callable, damaged: Callable[..., Path]) -> None:
    bundle = damaged()
    weights = bundle / "target.weights"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-1])
    error = dspark("inspect", bundle).error
    assert "target.weights" in error and str(size) in error and str(size - 1) in error


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"format_version": [3, 0]}, ("format version 3.0", "update dspark-trt")),
        ({"limits": None}, ("limits",)),
        ({"surprise": 1}, ("surprise",)),
        (
            {"files": [{"path": "../target.onnx", "size": 1, "sha256": "0" * 64}]},
            ("../target.onnx", "leaves the bundle"),
        ),
        ({"files": [{"path": "/etc/passwd", "size": 1, "sha256": "0" * 64}]}, ("/etc/passwd", "not relative")),
    ],
    ids=["newer format", "missing part", "unknown key", "path above", "absolute path"],
)
def test_inspect_bad_manifest_is_one_line(
    dspark: Callable, damaged: Callable[..., Path], changes: dict, words: tuple[str, ...]
) -> None:
    error = dspark("inspect", damaged(**changes)).error
    for word in (*words, "manifest.json"):
        assert word in error


def test_inspect_manifest_that_is_not_json_is_one_line(dspark: Callable, damaged: Callable[..., Path]) -> None:
    bundle = damaged()
    (bundle / "manifest.json").write_text("{ not json")
    assert "not JSON" in dspark("inspect", bundle).error
