"""TensorRT-RTX: engines for GeForce and RTX PRO GPUs, built ahead of time on a machine that needs no GPU.

This flavour takes no plugins: graphs end at logits and the runtime calls the operators on the engine's stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import ClassVar

from dspark_runtime.contract import names
from dspark_runtime.contract.compiled import CompiledInfo
from dspark_runtime.contract.errors import BuildError
from dspark_runtime.contract.manifest import dump_manifest, parse_object
from dspark_trt.backends.base import ENGINES, CompileJob, Dialect, Report
from dspark_trt.backends.tensorrt_process import run_job
from dspark_trt.backends.tensorrt_targets import choose_targets
from dspark_trt.config import BuildConfig

MODULES = ("tensorrt_rtx", "tensorrt_rtx_bindings")
"""What the two kinds of its packages install."""
LIBRARY = "tensorrt_rtx"
GRAPH_WEIGHT = 60
"""How long one engine takes, in parts of writing a graph."""


class TensorRtRtxBackend:
    """Compiles both graphs for the compute capabilities that were asked for."""

    keeps_graphs: ClassVar[bool] = False
    graph_weight: ClassVar[int] = GRAPH_WEIGHT

    def __init__(self, config: BuildConfig) -> None:
        self._config = config
        self._module = find_module(MODULES)
        self._version = ""
        self._targets: tuple[str, ...] = ()

    def choose_dialect(self, wanted: str) -> Dialect:
        if wanted == "standard":
            raise BuildError(
                "dialect is 'standard', but tensorrt-rtx drops the lengths of that dialect and would read whole "
                "caches; leave --dialect out"
            )
        if self._module is None:
            raise BuildError(
                "backend is 'tensorrt-rtx', but TensorRT-RTX is not installed; pip install 'dspark-trt[tensorrt-rtx]'"
            )
        known = run_job({"task": "describe", "module": self._module}, lambda phase, share: None)
        self._version = known["version"]
        known_targets = known["compute_capabilities"]
        self._targets = choose_targets(self._config.compute_capabilities, known_targets, self._config.arithmetic)
        return Dialect("trt", query_form="padded", operators="host")

    def compile(self, job: CompileJob, report: Report) -> CompiledInfo:
        engine = ENGINES[job.role]
        report(f"compile {engine}", weight=GRAPH_WEIGHT)
        assert self._module is not None
        task = engine_task(self._config, job, self._module, LIBRARY, targets=self._targets)
        result = run_job(task, lambda phase, share: report(f"compile {engine}", inside=share))
        return parse_object(result, CompiledInfo, engine)

    def versions(self) -> dict[str, str]:
        return {LIBRARY: self._version}


def engine_task(
    config: BuildConfig,
    job: CompileJob,
    module: str,
    library: str,
    *,
    targets: Sequence[str] = (),
    plugins: Sequence[str] = (),
) -> dict[str, object]:
    """The worker's job for one graph: the engine lands beside it. Fields as in tensorrt_builder.EngineJob."""
    folder = job.graph.parent
    return {
        "task": "build",
        "module": module,
        "library": library,
        "graph": str(job.graph),
        "engine": str(folder / ENGINES[job.role]),
        "role": job.role,
        "manifest": dump_manifest(job.manifest),
        "prefill_chunk": config.prefill_chunk,
        "compute_capabilities": list(targets),
        "plugins": list(plugins),
        "inspect": str(folder / names.LAYERS.format(job.role)) if config.inspect_engine else None,
    }


def find_module(candidates: Sequence[str]) -> str | None:
    """The first of the modules that is installed; none is imported."""
    return next((name for name in candidates if find_spec(name) is not None), None)
