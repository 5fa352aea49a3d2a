"""Opening engine bundles where they cannot run: one sentence that says what was found and what to do."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_runtime.contract.compiled import AxisRange, CompiledInfo, Profile, TensorInfo
from dspark_runtime.contract.errors import BundleError
from dspark_runtime.contract.gpu import Gpu, find_gpus
from dspark_runtime.sessions import machine
from dspark_runtime.sessions.machine import engine_problem, installed_version

ENGINE = CompiledInfo(
    library="tensorrt_rtx",
    library_version="1.7.1.116",
    compute_capabilities=("8.9", "12.0"),
    gpu=None,
    profiles=(Profile(name="rounds", ranges=(AxisRange(axis="B", min=1, opt=8, max=8),), device_memory_bytes=1 << 20),),
    tensors=(TensorInfo(name="token_ids", direction="input", dtype="int32", shape=(-1,), axes=("T",)),),
    weights_bytes=1,
    build_ms=1,
    peak_memory_bytes=1,
)
ADA = Gpu("NVIDIA GeForce RTX 4090", "8.9")
HOPPER = Gpu("NVIDIA H200", "9.0")


@pytest.mark.parametrize(
    ("change", "installed", "gpus", "message"),
    [
        (
            {},
            None,
            [ADA],
            "built for TensorRT-RTX 1.7.1.116, which is not installed; "
            "pip install tensorrt-rtx-cu13-libs==1.7.1.116 tensorrt-rtx-cu13-bindings==1.7.1.116",
        ),
        (
            {"library_version": "1.6.0.35"},
            "1.7.1.116",
            [ADA],
            "built with TensorRT-RTX 1.6.0.35, found 1.7.1.116; build the bundle again, or "
            "pip install tensorrt-rtx-cu13-libs==1.6.0.35 tensorrt-rtx-cu13-bindings==1.6.0.35",
        ),
        (
            {},
            "1.7.1.116",
            [],
            "built for GPUs of compute capability 8.9, 12.0, found no NVIDIA GPU; build with --backend onnxruntime",
        ),
        (
            {},
            "1.7.1.116",
            [HOPPER, ADA],
            "built for GPUs of compute capability 8.9, 12.0, found NVIDIA H200 of 9.0; build the bundle for it",
        ),
        (
            {"library": "tensorrt", "gpu": "NVIDIA L4"},
            "1.7.1.116",
            [ADA],
            "built on NVIDIA L4, found NVIDIA GeForce RTX 4090; build the bundle again on this machine",
        ),
        (
            {},
            "1.7.1.116",
            [ADA],
            "TensorRT-RTX engines are built and inspected by this version, not run yet; "
            "build with --backend onnxruntime",
        ),
    ],
    ids=["no library", "another version", "no gpu", "another gpu", "another model", "everything fits"],
)
def test_engine_that_cannot_run_says_why_and_what_to_do(
    change: dict[str, Any], installed: str | None, gpus: list[Gpu], message: str
) -> None:
    assert engine_problem(replace(ENGINE, **change), installed, gpus) == message


def test_version_of_a_library_is_that_of_the_first_package_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.PACKAGES, "tensorrt", ("a-package-that-nobody-has", "pytest"))
    assert installed_version("tensorrt") == pytest.__version__
    monkeypatch.setitem(machine.PACKAGES, "tensorrt", ("a-package-that-nobody-has",))
    assert installed_version("tensorrt") is None


# --- the driver ------------------------------------------------------------------------------

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int index) { *device = 40 + index; return index == BROKEN ? 101 : 0; }
int cuDeviceGetName(char* name, int size, int device) {
  strncpy(name, device == 40 ? "First" : "Second", size);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? (device == 40 ? 12 : 8) : attribute == 76 ? (device == 40 ? 0 : 9) : -1;
  return 0;
}
"""


def driver(folder: Path, **defines: int) -> str:
    """A stand-in for the NVIDIA driver that answers with two GPUs."""
    source, library = folder / "driver.c", folder / "driver.so"
    source.write_text(DRIVER)
    values = {"INIT": 0, "BROKEN": -1, **defines}
    flags = [f"-D{name}={value}" for name, value in values.items()]
    subprocess.run(["cc", "-shared", "-fPIC", *flags, str(source), "-o", str(library)], check=True)
    return str(library)


def test_gpus_are_found_through_the_driver(tmp_path: Path) -> None:
    assert find_gpus(driver(tmp_path)) == (Gpu("First", "12.0"), Gpu("Second", "8.9"))


def test_gpu_that_the_driver_cannot_open_is_left_out(tmp_path: Path) -> None:
    assert find_gpus(driver(tmp_path, BROKEN=0)) == (Gpu("Second", "8.9"),)


def test_driver_without_a_device_finds_none(tmp_path: Path) -> None:
    assert find_gpus(driver(tmp_path, INIT=100)) == ()


def test_machine_without_a_driver_finds_none() -> None:
    assert find_gpus("libcuda-that-nobody-has.so") == ()


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="no NVIDIA GPU")
def test_gpu_of_this_machine_is_found() -> None:
    assert find_gpus()[0].name and float(find_gpus()[0].compute_capability) >= 7.5


def test_bundles_for_the_cpu_are_never_refused() -> None:
    machine.check_machine("b", _manifest(None))


def test_bundle_that_cannot_run_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda library: None)
    with pytest.raises(BundleError, match=r"^engines/b: built for TensorRT-RTX 1\.7\.1\.116, which is not installed"):
        machine.check_machine("engines/b", _manifest(ENGINE))


def _manifest(compiled: CompiledInfo | None) -> Any:
    return SimpleNamespace(target=SimpleNamespace(compiled=compiled))
