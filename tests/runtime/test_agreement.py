"""A manifest that says something else about its graphs is refused when the bundle is opened, not in a step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dspark_runtime.bundle import open_bundle
from dspark_runtime.contract.compiled import TensorInfo
from dspark_runtime.contract.errors import BundleError
from dspark_runtime.contract.graph_io import expected_tensors
from dspark_runtime.executor import open_executor
from dspark_runtime.sessions.agreement import check_agreement
from tests.runtime.conftest import THREADS


def doctored(folder: Path, bundle: Path, path: str, value: Any) -> Path:
    """A copy whose manifest says `value` at the dotted `path`."""
    shutil.copytree(bundle, folder)
    manifest = folder / "manifest.json"
    raw = json.loads(manifest.read_text())
    node = raw
    *parents, last = path.split(".")
    for key in parents:
        node = node[key]
    assert node[last] != value
    node[last] = value
    manifest.write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize(
    ("path", "value", "graph", "fault"),
    [
        ("target.vocab_size", 999, "target.onnx", "output logits has shape [?, 320], wanted [?, 999]"),
        ("target.num_layers", 2, "target.onnx", "input target_key.2 is not expected; input target_value.2 is not"),
        ("target.num_layers", 4, "target.onnx", "input target_key.3 is missing"),
        ("target.head_dim", 32, "target.onnx", "input target_key.0 has shape [?, 2, 102, 16], wanted [?, 2, 102, 32]"),
        ("target.dtype", "bfloat16", "target.onnx", "input target_key.0 is float32, wanted bfloat16"),
        ("limits.cache_capacity", 200, "target.onnx", "input context_key.0 has shape [?, 2, 102, 24], wanted"),
        ("query_form", "padded", "target.onnx", "input output_rows is missing; input query_rows is missing"),
        ("dialect", "standard", "target.onnx", "input attention_mask is missing"),
        ("operators", "host", "target.onnx", "input accept_mode is not expected"),
        ("draft.block_size", 4, "target.onnx", "input draft_tokens has shape [?, 5], wanted [?, 4]"),
        ("draft.draft_vocab", 100, "target.onnx", "input draft_logits has shape [?, 5, 320], wanted [?, 5, 100]"),
        ("draft.kind", "model", "target.onnx", "input context_key.0 is not expected"),
        ("draft.engine.hidden_size", 32, "draft.onnx", "output hidden has shape [?, 64], wanted [?, 32]"),
        ("target.graph", "draft.onnx", "draft.onnx", "input draft_logits is missing"),
    ],
)
def test_manifest_that_says_something_else_about_a_graph_is_refused(
    tmp_path: Path, bundle: Callable[[str], Path], path: str, value: Any, graph: str, fault: str
) -> None:
    folder = doctored(tmp_path / "b", bundle("good"), path, value)
    with pytest.raises(BundleError) as caught:
        open_executor(open_bundle(folder), THREADS)
    message = str(caught.value)
    assert message.startswith(f"{folder}: {graph} is not what manifest.json says: "), message
    assert fault in message and message.endswith("; build the bundle again"), message


@pytest.mark.parametrize(
    "name", ["none", "good", "good-reduced", "itself", "good-padded", "itself-padded", "none-standard", "good-standard"]
)
def test_bundle_as_built_agrees_with_its_manifest(bundle: Callable[[str], Path], name: str) -> None:
    opened = open_bundle(bundle(name))
    open_executor(opened, THREADS)
    # Not because nothing is compared.
    assert len(expected_tensors(opened.manifest, "target")) > 12


@dataclass
class Graph:
    name: str = "g.onnx"
    inputs: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)


def test_names_of_a_graph_are_shown_escaped_and_further_faults_counted() -> None:
    graph = Graph(inputs={f"\x1b{i}": () for i in range(6)})
    wanted = TensorInfo(name="x", direction="output", dtype="int32", shape=(-1,), axes=("T",))
    with pytest.raises(BundleError) as caught:
        check_agreement("b", graph, [wanted])
    assert re.fullmatch(
        r"b: g\.onnx is not what manifest\.json says: input '\\x1b0' is not expected; .* and 4 more; build .* again",
        str(caught.value),
    )
