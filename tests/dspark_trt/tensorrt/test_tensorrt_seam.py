"""Full TensorRT as far as a machine without it goes: what is refused and how, and the job that the worker would get."""

from __future__ import annotations

import importlib.util
import shutil
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
from tests.dspark_trt.tensorrt.networks import Written, doctor, ignore, write
from tests.tiny import make_dspark_draft, make_target

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


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "qwen2, tied": {"family": "qwen2", "tie_embeddings": True},
    "qwen3": {"family": "qwen3", "head_dim": 24},
}
DRAFTS: dict[str, dict[str, Any]] = {
    "none": {},
    "model": {"kind": "model"},
    "vanilla": {"head": "vanilla"},
    "gated": {"head": "gated"},
    "rnn": {"head": "rnn"},
    "no head, no confidence": {"head": "none", "confidence": False},
    "reduced vocabulary": {"head": "vanilla", "draft_vocab": 96},
    "shortened block": {"head": "vanilla", "block_size": 6, "keep": 3},
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plugin_graphs_of_every_family_have_the_tensors_of_the_manifest(
    tmp_path: Path, family: str, dtype: str
) -> None:
    target = make_target(tmp_path / "target", num_layers=2, **FAMILIES[family])
    made = write(tmp_path / "graphs", target, None, GRAPH, backend="tensorrt", dtype=dtype)
    assert_tensors(made, "target")


@pytest.mark.parametrize("name", DRAFTS)
def test_plugin_graphs_of_every_draft_have_the_tensors_of_the_manifest(
    tmp_path: Path, tiny_target: Path, name: str
) -> None:
    settings = dict(DRAFTS[name])
    options = {"draft_vocab": settings.pop("draft_vocab", None), "block_size": settings.pop("keep", None)}
    draft = None
    if settings.pop("kind", "dspark") == "model":
        draft = make_target(tmp_path / "draft", "llama", num_layers=2, seed=7)
        options["draft_kind"] = "model"
    elif settings:
        draft = make_dspark_draft(tmp_path / "draft", tiny_target, **settings)
    made = write(tmp_path / "graphs", tiny_target, draft, GRAPH, backend="tensorrt", **options)
    for role in ("target",) if draft is None else ("target", "draft"):
        assert_tensors(made, role)


def test_plugin_graph_that_lost_an_input_is_caught(plugin_graphs: Written, tmp_path: Path) -> None:
    copy = Written(Path(shutil.copytree(plugin_graphs.folder, tmp_path / "graphs")), plugin_graphs.manifest)
    doctor(copy.graph("draft"), lambda graph: graph.input.pop())
    with pytest.raises(AssertionError):
        assert_tensors(copy, "draft")


def assert_tensors(made: Written, role: str) -> None:
    """The parser of TensorRT-RTX takes no plugins, so the graph file itself is compared."""
    types = {1: "float32", 6: "int32", 7: "int64", 10: "float16", 16: "bfloat16"}
    graph = onnx.load(str(made.graph(role)), load_external_data=False).graph
    for direction, values in (("input", graph.input), ("output", graph.output)):
        found = {(value.name, types[value.type.tensor_type.elem_type], tuple(_shape(value))) for value in values}
        expected = expected_tensors(made.manifest, role)
        assert found == {(t.name, t.dtype, t.shape) for t in expected if t.direction == direction}
    nodes = {node.op_type for node in graph.node if node.domain == "dspark"}
    is_block = role == "draft" and made.manifest.draft is not None and made.manifest.draft.kind == "dspark"
    # A model draft stops at its proposal: the runtime cuts off between its steps.
    drafting = {"DSparkDraft", "DSparkCutoff"} if is_block else {"DSparkDraft"}
    assert nodes == ({"DSparkAccept"} if role == "target" else drafting)


def _shape(value: Any) -> list[int]:
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]
