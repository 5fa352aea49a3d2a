"""The cache of TensorRT-RTX's kernels, with stand-ins for the library's objects; and what the library itself says."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from dspark_runtime.contract.compiled import CompiledInfo
from dspark_runtime.contract.gpu import Gpu, find_gpus
from dspark_runtime.contract.manifest import FileEntry
from dspark_runtime.sessions import kernel_cache
from dspark_runtime.sessions.kernel_cache import KernelCache, kernel_cache_file
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.dspark_trt.tensorrt.networks import library

COMPILED = CompiledInfo(
    library="tensorrt_rtx",
    library_version="1.7.1.116",
    compute_capabilities=("8.9",),
    gpu=None,
    profiles=(),
    tensors=(),
    weights_bytes=None,
    build_ms=0,
    peak_memory_bytes=0,
)
ENGINE = FileEntry(path="target.engine", size=1, sha256="0123456789abcdef" * 4)
GPU = Gpu("NVIDIA GeForce RTX 4090", "8.9")
MACHINE = b"GPU A, driver 580;"


class Cache:
    """Kernels behind a line that says whose they are, as the library checks it."""

    def __init__(self, machine: bytes) -> None:
        self.machine = machine
        self.kernels = b""

    def deserialize(self, blob: bytes) -> bool:
        if not blob.startswith(self.machine):
            return False
        self.kernels = blob[len(self.machine) :]
        return True

    def serialize(self) -> memoryview:  # the library's IHostMemory is a buffer, not bytes
        return memoryview(self.machine + self.kernels)


class Config:
    def __init__(self, machine: bytes, takes: bool) -> None:
        self._machine, self._takes = machine, takes
        self.cache: Cache | None = None

    def create_runtime_cache(self) -> Cache:
        return Cache(self._machine)

    def set_runtime_cache(self, cache: Cache) -> bool:
        if self._takes:
            self.cache = cache
        return self._takes


class Engine:
    """An engine; `run` compiles a kernel for what it has not met."""

    def __init__(self, machine: bytes = MACHINE, takes: bool = True) -> None:
        self._machine, self._takes = machine, takes
        self.compiled = 0

    def create_runtime_config(self) -> Config:
        return Config(self._machine, self._takes)

    def run(self, config: Config, *shapes: bytes) -> None:
        assert config.cache is not None
        for shape in shapes:
            if shape not in config.cache.kernels:
                self.compiled += 1
                config.cache.kernels += shape


def start(path: Path, *shapes: bytes, machine: bytes = MACHINE) -> int:
    """One process: open, run, close. How many kernels it compiled."""
    engine, cache = Engine(machine), KernelCache(path)
    engine.run(cache.configure(engine), *shapes)
    cache.save()
    return engine.compiled


def test_kernels_are_compiled_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.kernels"
    assert start(path, b"round", b"chunk") == 2
    assert start(path, b"round", b"chunk") == 0
    assert start(path, b"round", b"other") == 1
    assert start(path, b"chunk", b"other") == 0
    assert [file.name for file in path.parent.iterdir()] == ["a.kernels"]
    assert path.stat().st_mode & 0o077 == 0


def test_file_that_holds_everything_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.kernels"
    start(path, b"round")
    before = path.stat()
    start(path, b"round")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_file_of_another_driver_is_left_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.kernels"
    start(path, b"round", machine=b"GPU A, driver 570;")
    with caplog.at_level(logging.WARNING):
        assert start(path, b"round") == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is of another GPU, driver or library: kernels are compiled again"
    ]
    assert start(path, b"round") == 0


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_may_write_is_not_read(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.kernels"
    start(path, b"round")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert start(path, b"round") == 1
    assert "can be written by others" in caplog.text


def test_file_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.kernels"
    start(path, b"round")
    monkeypatch.setattr(kernel_cache, "MAX_BYTES", 4)
    with caplog.at_level(logging.WARNING):
        assert start(path, b"round") == 1
    assert "at most 4 are read" in caplog.text


def test_place_that_cannot_be_used_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert start(tmp_path / "file" / "a.kernels", b"round") == 1
    assert "cannot be read (Not a directory)" in caplog.text and "cannot be written" in caplog.text


def test_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.kernels"
    start(path, b"round")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with caplog.at_level(logging.WARNING):
        assert start(path, b"other") == 1
    assert "cannot be written (No space left on device)" in caplog.text
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_engine_that_takes_no_cache_runs_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = KernelCache(tmp_path / "a.kernels")
    with caplog.at_level(logging.WARNING):
        assert cache.configure(Engine(takes=False)).cache is None
    cache.save()
    assert "the library takes no cache for this engine" in caplog.text and list(tmp_path.iterdir()) == []


def test_file_is_told_apart_by_engine_gpu_and_version(tmp_path: Path) -> None:
    def place(sha256: str = ENGINE.sha256, version: str = "1.7.1.116", gpu: Gpu = GPU) -> Path:
        entry = FileEntry(path="target.engine", size=1, sha256=sha256)
        return kernel_cache_file(tmp_path, entry, replace(COMPILED, library_version=version), gpu)

    assert place() == (
        tmp_path / "tensorrt-rtx-1.7.1.116" / "nvidia-geforce-rtx-4090-8.9" / "0123456789abcdef0123456789abcdef.kernels"
    )
    others = [place("f" * 64), place(version="1.7.2.1"), place(gpu=Gpu("NVIDIA GeForce RTX 5090", "12.0"))]
    assert len({place(), *others}) == 4


@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", "", "\0", "\x1b[2J"])
def test_file_stays_below_its_root_whatever_the_gpu_is_called(tmp_path: Path, name: str) -> None:
    path = kernel_cache_file(tmp_path, ENGINE, COMPILED, Gpu(name, "8.9"))
    assert path.resolve().is_relative_to(tmp_path.resolve()) and len(path.relative_to(tmp_path).parts) == 3


@pytest.mark.tensorrt
def test_library_has_the_calls_that_the_stand_ins_have() -> None:
    trt = library()
    for kind, stand_in in ((trt.ICudaEngine, Engine), (trt.IRuntimeConfig, Config), (trt.IRuntimeCache, Cache)):
        calls = [name for name in vars(stand_in) if not name.startswith("_") and name != "run"]
        assert calls and [name for name in calls if not hasattr(kind, name)] == []


@pytest.mark.tensorrt
@pytest.mark.skipif(bool(find_gpus()), reason="here an engine can be loaded")
def test_library_makes_a_cache_only_for_a_loaded_engine_and_loads_none_without_a_gpu(
    tmp_path: Path, tiny_target: Path
) -> None:
    """Why this part is not executed in CI. An engine that loads here is the day to do so."""
    trt = library()
    options = {"compute_capabilities": ("8.9",), "max_batch_size": 1, "max_seq_len": 32}
    bundle = build(BuildConfig(target=tiny_target, output=tmp_path / "b", backend="tensorrt-rtx", **options))
    for kind in (trt.IRuntimeConfig, trt.IRuntimeCache):
        with pytest.raises(TypeError, match="No constructor defined"):
            kind()
    said: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: object, text: str) -> None:
            said.append(text)

    logger = Logger()
    assert trt.Runtime(logger).deserialize_cuda_engine((bundle / "target.engine").read_bytes()) is None
    assert any("deserializeCudaEngine" in text and "Cuda Runtime" in text for text in said), said
