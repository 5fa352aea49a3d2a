"""Bundles of compiled engines on the command line. The engines are doctored in: no library is needed here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark_runtime.contract.gpu import Gpu
from dspark_runtime.sessions import machine
from tests.runtime.test_compiled import COMPILED

LATER = "12.34.56"


def with_engines(damaged: Callable[..., Path], tiny_bundle: Path, **changes: Any) -> Path:
    """The tiny bundle as if it had been built with tensorrt-rtx; `changes` replace keys of each description."""
    raw = json.loads((tiny_bundle / "manifest.json").read_text())
    compiled = {**dataclasses.asdict(COMPILED), **changes}
    raw["target"]["compiled"] = raw["draft"]["engine"]["compiled"] = compiled
    return damaged(backend="tensorrt-rtx", operators="host", target=raw["target"], draft=raw["draft"])


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no cell is wrapped."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("wide")
def test_inspect_shows_targets_profiles_and_memory(
    dspark: Callable, damaged: Callable[..., Path], tiny_bundle: Path
) -> None:
    changes = {"profiles": [dataclasses.asdict(COMPILED.profiles[0])]}
    ended = dspark("inspect", with_engines(damaged, tiny_bundle, **changes))
    assert ended.code == 0
    lines = ended.out.splitlines()

    def row(*cells: str) -> bool:
        return any(all(cell in line for cell in cells) for line in lines)

    # 3 MiB of weights, 8 MiB of a step, and a cache of 4.5 KiB, which rounds away.
    assert row("target", "tensorrt_rtx 1.7.1.116", "8.9, 12.0", "3.0 MiB", "11.0 MiB", "1.5 s", "300.0 MiB")
    assert row("target", "rounds", "B 1..2, T 1..10", "8.0 MiB")
    assert row("all, shared caches once", "22.0 MiB")


@pytest.mark.usefixtures("wide")
def test_inspect_says_unknown_where_the_builder_kept_a_number_back(
    dspark: Callable, damaged: Callable[..., Path], tiny_bundle: Path
) -> None:
    out = dspark("inspect", with_engines(damaged, tiny_bundle)).out
    assert [line for line in out.splitlines() if "prefill" in line and "unknown" in line]


def test_inspect_json_holds_the_description(dspark: Callable, damaged: Callable[..., Path], tiny_bundle: Path) -> None:
    shown = json.loads(dspark("inspect", with_engines(damaged, tiny_bundle), "--json").out)
    assert shown["target"]["compiled"]["compute_capabilities"] == ["8.9", "12.0"]
    assert shown["draft"]["engine"]["compiled"]["profiles"][0]["device_memory_bytes"] == 8 << 20


def test_inspect_of_a_cpu_bundle_shows_no_engines(dspark: Callable, tiny_bundle: Path) -> None:
    assert "compiled engines" not in dspark("inspect", tiny_bundle).out


def test_generate_with_another_version_of_the_library_is_one_sentence(
    dspark: Callable, damaged: Callable[..., Path], tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version check looks at the manifest and at the installed package, before any engine is touched."""
    monkeypatch.setattr(machine, "installed_version", lambda library: "1.7.1.116")
    bundle = with_engines(damaged, tiny_bundle, library_version=LATER)
    error = dspark("generate", bundle, "--prompt", "x").error
    assert f"built with TensorRT-RTX {LATER}, found 1.7.1.116; build the bundle again" in error


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ((), "found no NVIDIA GPU; build with --backend onnxruntime"),
        ((Gpu("NVIDIA H200", "9.0"),), "found NVIDIA H200 of 9.0; build the bundle for it"),
    ],
    ids=["no gpu", "another gpu"],
)
def test_generate_without_a_fitting_gpu_is_one_sentence(
    dspark: Callable,
    damaged: Callable[..., Path],
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[Gpu, ...],
    message: str,
) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda library: COMPILED.library_version)
    monkeypatch.setattr(machine, "find_gpus", lambda: gpus)
    error = dspark("generate", with_engines(damaged, tiny_bundle), "--prompt", "x").error
    assert error.endswith(f"built for GPUs of compute capability 8.9, 12.0, {message}")
