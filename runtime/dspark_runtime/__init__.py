"""Run engine bundles: `from dspark_runtime import LLM, SamplingParams`.

The names below are loaded when first used, so that the builder can import `dspark_runtime.contract` without
loading an engine.
"""

from __future__ import annotations

import os
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark_runtime.async_llm import AsyncLLM, AsyncStream
    from dspark_runtime.contract.errors import DsparkError, QueueFullError
    from dspark_runtime.llm import LLM
    from dspark_runtime.outputs import CompletionOutput, RequestOutput, RequestStats
    from dspark_runtime.params import SamplingParams
    from dspark_runtime.speculative import SpeculativeParams
    from dspark_runtime.stats import ServiceStats
    from dspark_runtime.tickets import Delta

    __version__: str

# ONNX Runtime reports its use, and keeps a database for it in the home folder, from the moment it is imported.
# Not ours to send: off, unless the environment says otherwise.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncStream",
    "CompletionOutput",
    "Delta",
    "DsparkError",
    "QueueFullError",
    "RequestOutput",
    "RequestStats",
    "SamplingParams",
    "ServiceStats",
    "SpeculativeParams",
    "__version__",
]

_HOME = {
    "LLM": "llm",
    "AsyncLLM": "async_llm",
    "AsyncStream": "async_llm",
    "Delta": "tickets",
    "QueueFullError": "contract.errors",
    "ServiceStats": "stats",
    "DsparkError": "contract.errors",
    "CompletionOutput": "outputs",
    "RequestOutput": "outputs",
    "RequestStats": "outputs",
    "SamplingParams": "params",
    "SpeculativeParams": "speculative",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return metadata.version("dspark-trt")
        except metadata.PackageNotFoundError:
            return "0+unknown"  # a bare checkout
    if name not in _HOME:
        raise AttributeError(f"module 'dspark_runtime' has no attribute '{name}'")
    return getattr(import_module(f"dspark_runtime.{_HOME[name]}"), name)
