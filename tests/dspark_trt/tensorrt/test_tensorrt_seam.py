"""Full TensorRT as far as a machine without it goes: what is refused and how, and the job that the worker would get."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import onnx
import pytest

from dspark_runtime.contract.errors import BuildError, ConfigError
from dspark_runtime.contract.gpu import Gpu
from dspark_runtime.contract.graph_io import expected_tensors
from dspark_trt.backends import CompileJob, Dialect, tensorrt
from dspark_trt.backends.tensorrt import TensorRtBackend
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.dspark_trt.tensorrt.networks import Written, ignore, write

GRAPH = Dialect("trt", query_form="padded", operators="graph")
GPU = Gpu("NVIDIA H200", "9.0")


@pytest.fixture
def config(tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> BuildConfig:
    return BuildConfig(
        target=tiny_target, draft=tiny_draft, output=tmp_path / "bundle", backend="tensorrt", max_seq_len=64
    )


def pretend(
    monkeypatch: pytest.MonkeyPatch, *, library: bool = True, gpus: tuple[Gpu, ...] = (GPU,), plugin: Path | None = None
) -> None:
    monkeypatch.setattr(tensorrt, "find_module", lambda names: names[0] if library else None)
    monkeypatch.setattr(tensorrt, "find_gpus", lambda: gpus)
    if plugin is not None:
        monkeypatch.setattr(tensorrt, "library_path", lambda: plugin.with_name("libdspark_ops.so"))


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_build_without_the_library_is_refused_in_one_sentence(config: BuildConfig) -> None:
    with pytest.raises(BuildError, match=r"^backend is 'tensorrt', but TensorRT is not installed; pip install"):
        build(config)
    assert not config.output.exists()


def test_build_without_a_gpu_is_refused_in_one_sentence(config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpus=())
    with pytest.raises(BuildError, match=r"this machine has no NVIDIA GPU, .* or with --backend tensorrt-rtx$"):
        build(config)


def test_build_without_the_plugin_is_refused_in_one_sentence(
    config: BuildConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, plugin=tmp_path / "libdspark_plugin.so")
    with pytest.raises(BuildError, match=r"but libdspark_plugin\.so is not installed beside the operator library"):
        build(config)


def test_backend_with_everything_wants_padded_queries_and_plugin_nodes(
    config: BuildConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plugin = tmp_path / "libdspark_plugin.so"
    plugin.touch()
    pretend(monkeypatch, plugin=plugin)
    monkeypatch.setattr(tensorrt, "run_job", lambda job, progress: {"version": "11.4.0", "compute_capabilities": []})
    backend = TensorRtBackend(config)
    assert backend.choose_dialect("auto") == GRAPH
    assert backend.versions() == {"tensorrt": "11.4.0", "gpu": "NVIDIA H200"}


def test_worker_gets_the_plugin_library_and_the_graphs_with_plugin_nodes(
    config: BuildConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plugin_graphs: Written
) -> None:
    jobs: list[dict[str, Any]] = []

    def run(job: dict[str, Any], progress: object) -> dict[str, Any]:
        jobs.append(job)
        raise BuildError("stop here")

    pretend(monkeypatch, plugin=tmp_path / "libdspark_plugin.so")
    monkeypatch.setattr(tensorrt, "run_job", run)
    job = CompileJob(graph=plugin_graphs.graph("target"), role="target", manifest=plugin_graphs.manifest)
    with pytest.raises(BuildError, match="stop here"):
        TensorRtBackend(config).compile(job, ignore)
    expected = {
        "module": "tensorrt",
        "library": "tensorrt",
        "role": "target",
        "plugins": [str(tmp_path / "libdspark_plugin.so")],
        "engine": str(plugin_graphs.folder / "target.engine"),
        "compute_capabilities": [],
    }
    assert jobs[0].items() >= expected.items()


@pytest.fixture(scope="module")
def plugin_graphs(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path, tiny_draft: Path) -> Written:
    return write(tmp_path_factory.mktemp("plugins"), tiny_target, tiny_draft, GRAPH, backend="tensorrt")


def test_standard_dialect_is_refused(config: BuildConfig) -> None:
    with pytest.raises(BuildError, match="dialect is 'standard', which TensorRT runs without cache lengths"):
        TensorRtBackend(config).choose_dialect("standard")


def test_compute_capabilities_are_refused_since_kernels_are_timed_here(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compute capabilities are for tensorrt-rtx, but the backend is tensorrt"):
        BuildConfig(target=tmp_path, output=tmp_path, backend="tensorrt", compute_capabilities=("9.0",))


def test_inputs_and_outputs_of_plugin_graphs_are_those_of_the_manifest(plugin_graphs: Written) -> None:
    """The parser of TensorRT-RTX takes no plugins, so the graph file itself is compared."""
    types = {1: "float32", 6: "int32", 7: "int64", 16: "bfloat16"}
    for role in ("target", "draft"):
        graph = onnx.load(str(plugin_graphs.graph(role)), load_external_data=False).graph
        for direction, values in (("input", graph.input), ("output", graph.output)):
            found = {(value.name, types[value.type.tensor_type.elem_type], tuple(_shape(value))) for value in values}
            expected = expected_tensors(plugin_graphs.manifest, role)
            assert found == {(t.name, t.dtype, t.shape) for t in expected if t.direction == direction}


def _shape(value: Any) -> list[int]:
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]
