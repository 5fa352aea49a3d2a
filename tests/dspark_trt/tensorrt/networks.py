"""Graphs as a TensorRT-RTX build writes them, and the networks that its parser makes of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from dspark_runtime.contract.errors import BundleError
from dspark_runtime.contract.manifest import Manifest
from dspark_runtime.oplib import has_onnxruntime_ops
from dspark_trt.backends import Dialect
from dspark_trt.backends.tensorrt_builder import Log, make_logger, parse_graph
from dspark_trt.backends.tensorrt_network import Network, read_network
from dspark_trt.backends.tensorrt_rtx import MODULES, find_module
from dspark_trt.build import GRAPHS, describe, make_plan, write_graphs
from dspark_trt.config import BuildConfig

RTX = Dialect("trt", query_form="padded", operators="host")


def library() -> Any:
    """The module of TensorRT-RTX; the test is skipped where it is not installed."""
    name = find_module(MODULES)
    if name is None:
        pytest.skip("TensorRT-RTX is not installed (pip install 'dspark-trt[tensorrt-rtx]')")
    return importlib.import_module(name)


def _has_operators() -> bool:
    try:
        return has_onnxruntime_ops()
    except BundleError:
        return False


needs_operators = pytest.mark.skipif(
    not _has_operators(), reason="the installed operator library has no ONNX Runtime operators"
)


@dataclass(frozen=True)
class Written:
    """Graph files and the manifest of their bundle."""

    folder: Path
    manifest: Manifest

    def graph(self, role: str) -> Path:
        return self.folder / GRAPHS[role]


def ignore(part: str, *, weight: int = 1, inside: float | None = None) -> None:
    """A Report that nobody reads."""


def write(folder: Path, target: Path, draft: Path | None, dialect: Dialect = RTX, **options: Any) -> Written:
    """The graphs of a build for `tensorrt-rtx`, not compiled."""
    options = {"backend": "tensorrt-rtx", "max_batch_size": 4, "max_seq_len": 64, **options}
    config = BuildConfig(target=target, draft=draft, output=folder / "unused", **options)
    plan = make_plan(config, dialect)
    folder.mkdir(parents=True, exist_ok=True)
    write_graphs(plan, folder, ignore)
    return Written(folder, describe(plan, {}, ()))


def parse(trt: Any, graph: Path) -> Network:
    logger = make_logger(trt, Log())
    network, parser = parse_graph(trt, trt.Builder(logger), logger, graph)
    description = read_network(trt, network)
    del network, parser
    return description


def doctor(graph: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    """Change a graph file in place; its weights stay where they are."""
    model = onnx.load(str(graph), load_external_data=False)
    change(model.graph)
    onnx.save(model, str(graph))
    return graph


def node(graph: onnx.GraphProto, output: str) -> onnx.NodeProto:
    """The node that makes the edge `output`."""
    return next(node for node in graph.node if output in node.output)
