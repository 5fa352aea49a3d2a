"""Engines that graphs are compiled for; the only files that import one."""

from dspark_trt.backends.base import ENGINES, Backend, CompileJob, Dialect, Report
from dspark_trt.backends.onnxruntime import OnnxRuntimeBackend
from dspark_trt.backends.tensorrt import TensorRtBackend
from dspark_trt.backends.tensorrt_rtx import TensorRtRtxBackend

__all__ = ["BACKENDS", "ENGINES", "Backend", "CompileJob", "Dialect", "Report"]

BACKENDS: dict[str, type[Backend]] = {
    "onnxruntime": OnnxRuntimeBackend,
    "tensorrt-rtx": TensorRtRtxBackend,
    "tensorrt": TensorRtBackend,
}
