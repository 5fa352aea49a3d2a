"""Can this machine run the engines of a bundle? Compares the manifest with the installed library and the GPU.

Loads neither the library nor an engine: an engine that does not fit would fail deep inside, in another language.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from dspark_runtime.contract.compiled import CompiledInfo
from dspark_runtime.contract.errors import BundleError
from dspark_runtime.contract.gpu import Gpu, find_gpus
from dspark_runtime.contract.manifest import Manifest

PACKAGES = {
    "tensorrt_rtx": ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings", "tensorrt-rtx"),
    "tensorrt": ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
}
"""Distributions that install each library; the first one found says the version."""
TITLES = {"tensorrt_rtx": "TensorRT-RTX", "tensorrt": "TensorRT"}
INSTALL = {
    "tensorrt_rtx": "pip install tensorrt-rtx-cu13-libs=={0} tensorrt-rtx-cu13-bindings=={0}",
    "tensorrt": "pip install tensorrt-cu13=={0}",
}


def check_machine(where: str, manifest: Manifest) -> None:
    """BundleError in one sentence unless the engines of the bundle can run here; graphs for the CPU always can."""
    if manifest.target.compiled is not None:
        engine = manifest.target.compiled
        if problem := engine_problem(engine, installed_version(engine.library), find_gpus()):
            raise BundleError(f"{where}: {problem}")


def installed_version(library: str) -> str | None:
    """Version of the installed library of that name; None without one."""
    for package in PACKAGES[library]:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def engine_problem(engine: CompiledInfo, installed: str | None, gpus: Sequence[Gpu]) -> str | None:
    """Why an engine cannot run with that version and those GPUs, and what to do; None when it can."""
    title = TITLES[engine.library]
    todo = INSTALL[engine.library].format(engine.library_version)
    if installed is None:
        return f"built for {title} {engine.library_version}, which is not installed; {todo}"
    if installed != engine.library_version:
        return f"built with {title} {engine.library_version}, found {installed}; build the bundle again, or {todo}"
    targets = ", ".join(engine.compute_capabilities)
    if not gpus:
        return f"built for GPUs of compute capability {targets}, found no NVIDIA GPU; build with --backend onnxruntime"
    gpu = gpus[0]
    if gpu.compute_capability not in engine.compute_capabilities:
        found = f"{gpu.name} of {gpu.compute_capability}"
        return f"built for GPUs of compute capability {targets}, found {found}; build the bundle for it"
    if engine.gpu not in (None, gpu.name):
        return f"built on {engine.gpu}, found {gpu.name}; build the bundle again on this machine"
    return f"{title} engines are built and inspected by this version, not run yet; build with --backend onnxruntime"
