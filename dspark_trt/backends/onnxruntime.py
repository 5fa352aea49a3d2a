"""ONNX Runtime on the CPU: graphs are run as they are, so compiling means proving that they run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from typing import ClassVar

import onnx

from dspark_runtime.contract.errors import BuildError
from dspark_runtime.oplib import has_onnxruntime_ops
from dspark_trt.backends.base import CompileJob, Dialect, Report
from dspark_trt.config import BuildConfig

PROBE = "dspark_trt.backends.onnxruntime_probe"


class OnnxRuntimeBackend:
    """Checks a graph with onnx.checker, then runs one step of it in a process of its own.

    The process bounds the memory of the build: what ONNX Runtime maps and packs is gone with it,
    and a crash inside a library becomes a BuildError.
    """

    keeps_graphs: ClassVar[bool] = True
    graph_weight: ClassVar[int] = 2

    def __init__(self, config: BuildConfig) -> None:
        pass

    def choose_dialect(self, wanted: str) -> Dialect:
        if wanted == "standard":
            return Dialect(wanted)
        if has_onnxruntime_ops():
            return Dialect("trt")
        missing = "the installed operator library has no ONNX Runtime operators"
        todo = "reinstall dspark-trt where it finds ONNX Runtime's headers (ONNXRUNTIME_INCLUDE_DIR)"
        if wanted == "trt":
            raise BuildError(f"dialect is 'trt', but {missing}; {todo}, or build with --dialect standard")
        return Dialect(
            "standard", f"{missing}, so the bundle uses the slower standard dialect; {todo} for the fast one"
        )

    def compile(self, job: CompileJob, report: Report) -> None:
        graph, dialect = job.graph, job.manifest.dialect
        report(f"check {graph.name}")
        try:
            onnx.checker.check_model(str(graph), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise BuildError(f"{graph.name} is not valid ONNX: {_one_line(str(error))}; this is a bug") from error
        report(f"run {graph.name}")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", PROBE, str(graph), dialect]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise BuildError(f"{graph.name} does not run in ONNX Runtime: {_one_line(last[0])}")

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("onnx", "onnxruntime", "numpy")}


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]
