"""Bundles of TensorRT-RTX engines, really compiled on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dspark_runtime.bundle import open_bundle
from dspark_runtime.contract.errors import BuildError, ConfigError
from dspark_runtime.contract.graph_io import expected_tensors
from dspark_runtime.contract.manifest import Manifest
from dspark_trt.backends import tensorrt_rtx
from dspark_trt.build import build
from dspark_trt.cli import main
from dspark_trt.config import BuildConfig
from tests.dspark_trt.tensorrt.networks import library
from tests.tiny import make_target

pytestmark = pytest.mark.tensorrt


@pytest.fixture(scope="module", autouse=True)
def _needs_the_library() -> None:
    library()


def config(output: Path, target: Path, draft: Path | None, **options: Any) -> BuildConfig:
    options = {"max_batch_size": 2, "max_seq_len": 64, "prefill_chunk": 32, **options}
    return BuildConfig(target=target, draft=draft, output=output, backend="tensorrt-rtx", **options)


@pytest.fixture(scope="module")
def shares() -> list[tuple[str, float]]:
    return []


@pytest.fixture(scope="module")
def bundle(
    tmp_path_factory: pytest.TempPathFactory, tiny_target: Path, tiny_draft: Path, shares: list[tuple[str, float]]
) -> Path:
    """A tiny target with its DSpark draft, default options of the backend; `shares` is what was reported meanwhile."""
    output = tmp_path_factory.mktemp("rtx") / "bundle"
    wanted = config(output, tiny_target, tiny_draft, inspect_engine=True)
    return build(wanted, lambda part, share: shares.append((part, share)))


def compiled(manifest: Manifest) -> list[Any]:
    engines = [manifest.target] + ([manifest.draft.engine] if manifest.draft is not None else [])
    return [engine.compiled for engine in engines]


def test_bundle_holds_engines_in_place_of_graphs_and_weights(bundle: Path) -> None:
    held = {path.name for path in bundle.iterdir()}
    assert {"target.engine", "draft.engine", "draft_head.safetensors", "tokenizer.json"} <= held
    assert not [name for name in held if name.endswith((".onnx", ".weights"))]
    for name in ("target.engine", "draft.engine"):
        # Tiny weights, but code for every target: an empty or cut engine would be far smaller.
        assert (bundle / name).stat().st_size > 1_000_000


def test_manifest_says_what_was_compiled_and_for_whom(bundle: Path) -> None:
    manifest = open_bundle(bundle, verify=True).manifest
    assert (manifest.backend, manifest.query_form, manifest.operators) == ("tensorrt-rtx", "padded", "host")
    assert (manifest.target.graph, manifest.target.dtype) == ("target.engine", "bfloat16")
    version = manifest.versions["tensorrt_rtx"]
    for role, info in zip(("target", "draft"), compiled(manifest), strict=True):
        assert (info.library, info.library_version, info.gpu) == ("tensorrt_rtx", version, None)
        assert {"8.0", "8.6", "8.9", "12.0"} <= set(info.compute_capabilities)
        assert "7.5" not in info.compute_capabilities  # no bfloat16 there
        assert info.tensors == expected_tensors(manifest, role)
        assert all(profile.device_memory_bytes > 0 for profile in info.profiles)
        assert info.weights_bytes > 0 and info.build_ms > 0 and info.peak_memory_bytes > 50e6
    assert [profile.name for profile in manifest.target.compiled.profiles] == ["rounds", "prefill"]


def test_draft_engine_shares_its_caches_with_the_target(bundle: Path) -> None:
    target, draft = compiled(open_bundle(bundle).manifest)
    caches = [{t.alias: (t.dtype, t.shape) for t in info.tensors if t.alias} for info in (target, draft)]
    assert caches[1] and caches[1].items() < caches[0].items()


def test_progress_rises_through_the_compilation_of_both_engines(bundle: Path, shares: list[tuple[str, float]]) -> None:
    values = [share for _, share in shares]
    assert values == sorted(values) and values[-1] == 1.0
    for engine in ("target.engine", "draft.engine"):
        inside = {round(share, 3) for part, share in shares if part == f"compile {engine}"}
        assert len(inside) > 3


def test_layers_are_described_on_request(bundle: Path) -> None:
    description = json.loads((bundle / "target.layers.json").read_text())
    assert description["source"] in ("network", "engine")
    if description["source"] == "network":
        updates = [layer for layer in description["layers"] if layer["kind"] == "KV_CACHE_UPDATE"]
        assert updates[0]["facts"]["update_form"] == "PACKED_NHD"
        # Four layers of the target and two of the draft, keys and values.
        assert len(updates) == 12


def test_float16_is_built_for_older_gpus_too(tmp_path: Path, tiny_target: Path) -> None:
    manifest = open_bundle(build(config(tmp_path / "b", tiny_target, None, dtype="float16"))).manifest
    assert "7.5" in manifest.target.compiled.compute_capabilities
    assert manifest.draft is None
    assert not (tmp_path / "b" / "target.layers.json").exists()


def test_model_draft_is_compiled_for_the_targets_that_were_asked_for(tmp_path: Path, tiny_target: Path) -> None:
    draft = make_target(tmp_path / "draft", "llama", num_layers=2, seed=7)
    wanted = config(tmp_path / "b", tiny_target, draft, draft_kind="model", compute_capabilities=("12.0", "8.9"))
    manifest = open_bundle(build(wanted)).manifest
    assert [info.compute_capabilities for info in compiled(manifest)] == [("12.0", "8.9")] * 2
    assert [profile.name for profile in compiled(manifest)[1].profiles] == ["rounds", "prefill"]


def test_command_line_builds_engines(tmp_path: Path, tiny_target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--backend", "tensorrt-rtx", "--compute-capability", "8.9, 12.0", "--max-seq-len", "64", "--json"]
    assert main(["--target", str(tiny_target), "--output", str(tmp_path / "b"), *options]) == 0
    assert json.loads(capsys.readouterr().out)["query_form"] == "padded"
    manifest = open_bundle(tmp_path / "b").manifest
    assert manifest.target.compiled is not None
    assert manifest.target.compiled.compute_capabilities == ("8.9", "12.0")


FULL = """
import resource, sys
from dspark_trt.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
sys.exit(main(["--target", sys.argv[1], "--output", sys.argv[2], "--backend", "tensorrt-rtx", "--max-seq-len", "32"]))
"""


def test_engine_that_finds_no_room_is_one_line_and_leaves_nothing(tmp_path: Path, tiny_target: Path) -> None:
    """The graphs and weights of a tiny model fit, the engine does not."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FULL, str(tiny_target), str(tmp_path / "b")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "dspark-build: error: target.engine cannot be written: File too large; free some space or give another folder\n"
    )
    assert list(tmp_path.iterdir()) == []


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int8"}, "quantize is 'int8', backend tensorrt-rtx runs weights of its dtype only"),
        ({"dtype": "float32"}, "dtype is 'float32', backend tensorrt-rtx runs bfloat16 or float16"),
        ({"query_form": "packed"}, "query_form is 'packed', backend tensorrt-rtx has kernels for padded queries only"),
        ({"compute_capabilities": ("sm89",)}, "compute capability is 'sm89', wanted a form like 8.6"),
        ({"compute_capabilities": ("8.9", "8.9")}, "compute capabilities 8.9, 8.9 name one twice"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0, needs [1, 8192]"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_option_that_the_backend_cannot_take_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, tmp_path, None, **options)
    assert str(caught.value) == f"build: {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bfloat16"}, "build: dtype is 'bfloat16', backend onnxruntime runs float32"),
        (
            {"compute_capabilities": ("8.9",)},
            "build: compute capabilities are for tensorrt-rtx, but the backend is onnxruntime",
        ),
        (
            {"inspect_engine": True},
            "build: inspect_engine describes engines of TensorRT, but the backend is onnxruntime",
        ),
    ],
    ids=["dtype", "capabilities", "inspect"],
)
def test_option_of_tensorrt_is_refused_by_the_cpu_backend(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BuildConfig(target=tmp_path, output=tmp_path, **options)
    assert str(caught.value) == message


def test_compute_capability_that_the_library_lacks_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_target: Path
) -> None:
    with pytest.raises(BuildError, match=r"^compute capability 9\.0 is none that the library builds for"):
        build(config(tmp_path / "b", tiny_target, None, compute_capabilities=("9.0",)))
    assert list(tmp_path.iterdir()) == []


def test_compute_capability_without_the_arithmetic_is_refused(tmp_path: Path, tiny_target: Path) -> None:
    with pytest.raises(BuildError, match=r"^compute capability 7\.5 has no bfloat16; build with --dtype float16, or"):
        build(config(tmp_path / "b", tiny_target, None, compute_capabilities=("7.5",)))
    assert list(tmp_path.iterdir()) == []


def test_standard_dialect_is_refused(tmp_path: Path, tiny_target: Path) -> None:
    with pytest.raises(BuildError, match="dialect is 'standard', but tensorrt-rtx drops the lengths of that dialect"):
        build(config(tmp_path / "b", tiny_target, None, dialect="standard"))


def test_build_without_the_library_is_refused_in_one_sentence(
    tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt_rtx, "MODULES", ("a_module_that_nobody_has",))
    with pytest.raises(BuildError, match=r"TensorRT-RTX is not installed; pip install 'dspark-trt\[tensorrt-rtx\]'$"):
        build(config(tmp_path / "b", tiny_target, None))
