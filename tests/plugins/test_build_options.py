"""DSPARK_ONNXRUNTIME_OPS: what is built with and without ONNX Runtime's headers, and what CMake says about it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")

REPOSITORY = Path(__file__).resolve().parents[2]


def configure(
    folder: Path, *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = ["cmake", "-S", str(REPOSITORY), "-B", str(folder), "-DDSPARK_PYTHON=OFF", *options]
    merged = {**os.environ, "ONNXRUNTIME_INCLUDE_DIR": "", **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, env=merged, check=False)


def without_network(folder: Path) -> dict[str, str]:
    """An environment in which the headers cannot be fetched."""
    folder.mkdir()
    tool = folder / "apt-get"
    tool.write_text("#!/bin/sh\necho 'no network' >&2\nexit 100\n")
    tool.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.slow
def test_build_without_onnxruntime_ops_keeps_the_c_abi(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", "-DDSPARK_ONNXRUNTIME_OPS=OFF")
    assert done.returncode == 0, done.stderr
    assert "left out (DSPARK_ONNXRUNTIME_OPS=OFF); bundles use the standard dialect" in done.stdout
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    library = ctypes.CDLL(str(tmp_path / "build" / "libdspark_ops.so"))
    assert not hasattr(library, "RegisterCustomOps")
    assert library.dspark_abi_version() == 2
    for name in ("draft", "cutoff", "accept", "kv_update", "attention"):
        assert hasattr(library, f"dspark_{name}")


@pytest.mark.skipif(Path("/usr/include/onnxruntime").exists(), reason="the system has the headers")
def test_configure_auto_without_headers_says_so_and_goes_on(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", environment=without_network(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert "fetching the headers failed (100): no network" in done.stdout
    assert "Install libonnxruntime-dev or set ONNXRUNTIME_INCLUDE_DIR" in done.stdout


@pytest.mark.skipif(Path("/usr/include/onnxruntime").exists(), reason="the system has the headers")
def test_configure_on_without_headers_fails_with_the_remedy(tmp_path: Path) -> None:
    environment = without_network(tmp_path / "bin")
    done = configure(tmp_path / "build", "-DDSPARK_ONNXRUNTIME_OPS=ON", environment=environment)
    assert done.returncode != 0
    assert "install libonnxruntime-dev or" in " ".join(done.stderr.split())


def test_configure_with_a_wrong_include_dir_names_it(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", environment={"ONNXRUNTIME_INCLUDE_DIR": str(tmp_path)})
    assert done.returncode != 0
    assert "holds no onnxruntime_cxx_api.h" in " ".join(done.stderr.split())


def test_configure_unknown_choice_lists_the_choices(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", "-DDSPARK_ONNXRUNTIME_OPS=maybe")
    assert done.returncode != 0
    assert "needs AUTO, ON or OFF" in " ".join(done.stderr.split())
