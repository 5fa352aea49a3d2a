"""Engines that graphs are compiled for; the only files that import one."""

from dspark_trt.backends.base import Backend, Dialect
from dspark_trt.backends.onnxruntime import OnnxRuntimeBackend

__all__ = ["BACKENDS", "Backend", "Dialect", "OnnxRuntimeBackend"]

BACKENDS: dict[str, type[Backend]] = {"onnxruntime": OnnxRuntimeBackend}
