"""Keep the kernels that TensorRT-RTX compiles for a GPU, so that only the first start on it waits for them.

An engine of TensorRT-RTX is finished on the machine that runs it: kernels are compiled when an execution context is
made and, lazily, in its first steps. The library keeps them in an IRuntimeCache and can write that as bytes. The file
is not a part of the bundle, whose files never change after a build and may be read-only; it lives under a folder of
the user's, by engine, GPU and version of the library.

A cache is a convenience: whatever is wrong with its file costs a warning and time, never the run. Nothing is needed
for it when an engine is built. Of TensorRT only objects are used that a caller hands in, so a test can stand in for
them; no machine of ours has executed this with an engine yet (docs/tensorrt.md).
"""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Protocol

from dspark_runtime.contract.compiled import CompiledInfo
from dspark_runtime.contract.gpu import Gpu
from dspark_runtime.contract.manifest import FileEntry

log = logging.getLogger(__name__)

SUFFIX = ".kernels"
MAX_BYTES = 2 << 30
"""Kernels of an engine take some MiB; more than this was not written by us."""
_HASH_DIGITS = 32


class RuntimeCache(Protocol):
    """IRuntimeCache of TensorRT-RTX 1.7."""

    def deserialize(self, blob: bytes) -> bool:
        """Whether the bytes fit library, GPU and driver, and were taken; nothing changes where they do not."""

    def serialize(self) -> bytes:
        """Everything compiled so far; an object with the buffer protocol."""


class RuntimeConfig(Protocol):
    """IRuntimeConfig of TensorRT-RTX 1.7."""

    def create_runtime_cache(self) -> RuntimeCache: ...
    def set_runtime_cache(self, cache: RuntimeCache) -> bool: ...


class Engine(Protocol):
    """ICudaEngine of TensorRT-RTX 1.7, as far as a cache needs it."""

    def create_runtime_config(self) -> RuntimeConfig: ...


def kernel_cache_file(root: Path, engine: FileEntry, compiled: CompiledInfo, gpu: Gpu) -> Path:
    """Where the kernels of an engine on a GPU lie: `root/LIBRARY-VERSION/GPU-CAPABILITY/HASH.kernels`.

    root: a folder of the user's. engine: its entry in the manifest, whose hash tells it from any other build. The
    version of the driver has no part in it: the library compares that itself, and the file is then written anew.
    """
    words = f"{gpu.name}-{gpu.compute_capability}"
    return (
        root
        / _plain(f"{compiled.library}-{compiled.library_version}")
        / _plain(words)
        / f"{engine.sha256[:_HASH_DIGITS]}{SUFFIX}"
    )


class KernelCache:
    """The cache of one engine: `configure` before its execution context is made, `save` when it is done."""

    def __init__(self, path: Path) -> None:
        """path: as kernel_cache_file says; the file and its folders need not exist."""
        self._path = path
        self._cache: RuntimeCache | None = None
        self._known = b""

    def configure(self, engine: Engine) -> RuntimeConfig:
        """The configuration for `engine.create_execution_context`: with the kernels of earlier runs where they fit."""
        config = engine.create_runtime_config()
        cache = config.create_runtime_cache()
        blob = self._read()
        if blob and cache.deserialize(blob):
            self._known = blob
        elif blob:
            log.warning("%s is of another GPU, driver or library: kernels are compiled again", self._path)
        if config.set_runtime_cache(cache):
            self._cache = cache
        else:
            log.warning("%s is not used: the library takes no cache for this engine", self._path)
        return config

    def save(self) -> None:
        """Write what was compiled since `configure`, if anything. A reader never sees half a file."""
        blob = bytes(self._cache.serialize()) if self._cache is not None else b""
        if not blob or blob == self._known:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".", delete=False) as file:
                try:
                    file.write(blob)
                    file.close()
                    Path(file.name).replace(self._path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            self._known = blob
        except OSError as error:
            log.warning("%s cannot be written (%s): kernels are compiled again", self._path, error.strerror or error)

    def _read(self) -> bytes:
        """The file, or nothing where there is none or it is not to be trusted: what is in it runs on the GPU."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
                    log.warning("%s can be written by others: kernels are compiled again", self._path)
                    return b""
                if found.st_size > MAX_BYTES:
                    log.warning("%s holds %d bytes, at most %d are read", self._path, found.st_size, MAX_BYTES)
                    return b""
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            log.warning("%s cannot be read (%s): kernels are compiled again", self._path, error.strerror or error)
            return b""


def _plain(text: str) -> str:
    """`text` as the name of a folder: letters, digits, dots and dashes, never hidden."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.").lower() or "unknown"
