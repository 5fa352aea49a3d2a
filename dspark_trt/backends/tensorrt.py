"""Full TensorRT: engines for the GPU of this machine, with the DSpark operators inside as plugin layers.

Everything that differs from TensorRT-RTX is here: the module, the plugin library, and that a GPU is needed, since
kernels are chosen by timing them. The building itself is tensorrt_builder, which CI runs with TensorRT-RTX; no
machine of ours has executed this file's `compile` yet.
"""

from __future__ import annotations

from typing import ClassVar

from dspark_runtime.contract.compiled import CompiledInfo
from dspark_runtime.contract.errors import BuildError
from dspark_runtime.contract.gpu import find_gpus
from dspark_runtime.contract.manifest import parse_object
from dspark_runtime.oplib import library_path
from dspark_trt.backends.base import ENGINES, CompileJob, Dialect, Report
from dspark_trt.backends.tensorrt_process import run_job
from dspark_trt.backends.tensorrt_rtx import GRAPH_WEIGHT, engine_task, find_module
from dspark_trt.config import BuildConfig

MODULE = "tensorrt"
LIBRARY = "tensorrt"
PLUGIN = "libdspark_plugin.so"
"""Creators of the three operators, beside the operator library."""


class TensorRtBackend:
    """Compiles both graphs for the GPU that is here."""

    keeps_graphs: ClassVar[bool] = False
    graph_weight: ClassVar[int] = GRAPH_WEIGHT

    def __init__(self, config: BuildConfig) -> None:
        self._config = config
        self._version = ""
        self._gpu = ""

    def choose_dialect(self, wanted: str) -> Dialect:
        if wanted == "standard":
            raise BuildError("dialect is 'standard', which TensorRT runs without cache lengths; leave --dialect out")
        if find_module((MODULE,)) is None:
            raise BuildError("backend is 'tensorrt', but TensorRT is not installed; pip install tensorrt-cu13")
        gpus = find_gpus()
        if not gpus:
            raise BuildError(
                "backend is 'tensorrt', but this machine has no NVIDIA GPU, and TensorRT chooses kernels by timing "
                "them on one; build where the GPU is, or with --backend tensorrt-rtx"
            )
        plugin = library_path().with_name(PLUGIN)
        if not plugin.is_file():
            raise BuildError(
                f"backend is 'tensorrt', but {PLUGIN} is not installed beside the operator library; "
                "install dspark-trt where TensorRT's headers are (TENSORRT_ROOT)"
            )
        self._version = run_job({"task": "describe", "module": MODULE}, lambda phase, share: None)["version"]
        self._gpu = gpus[0].name
        return Dialect("trt", query_form="padded", operators="graph")

    def compile(self, job: CompileJob, report: Report) -> CompiledInfo:
        engine = ENGINES[job.role]
        report(f"compile {engine}", weight=GRAPH_WEIGHT)
        task = engine_task(self._config, job, MODULE, LIBRARY, plugins=(str(library_path().with_name(PLUGIN)),))
        result = run_job(task, lambda phase, share: report(f"compile {engine}", inside=share))
        return parse_object(result, CompiledInfo, engine)

    def versions(self) -> dict[str, str]:
        return {LIBRARY: self._version, "gpu": self._gpu}
