"""ONNX Runtime: load a graph, bind our memory, run. The only file of the runtime that imports it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import onnxruntime

from dspark_runtime.checks import as_integer
from dspark_runtime.contract.errors import BundleError, ConfigError, DsparkError, shown
from dspark_runtime.contract.names import PRESENT
from dspark_runtime.oplib import has_onnxruntime_ops, library_path
from dspark_runtime.sessions.base import Array, Tensor

log = logging.getLogger(__name__)

MAX_THREADS_PER_CORE = 4
"""More only take time and memory from each other; a mistyped number must not start thousands."""
LOG_ERRORS = 3
"""ONNX Runtime's severity level: warnings of the optimiser are not for users."""

DTYPES = {
    "tensor(bool)": "bool",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
}
"""ONNX Runtime's names of element types to ours."""

_pool_lock = threading.Lock()
_pool_threads: int | None = None


def share_threads(num_threads: int | None = None) -> int:
    """Fix the one thread pool that all sessions of this process share; returns its size.

    num_threads: None is one per core that this process may use. Two sessions with pools of their own steal each
    other's cores: speculative decoding then costs more than it gains. The first call decides; raises
    ConfigError when a later one wants another size, or more than MAX_THREADS_PER_CORE.
    """
    global _pool_threads
    cores = len(os.sched_getaffinity(0))
    if num_threads is not None:
        number = as_integer(num_threads)
        if number is None or number < 1:
            raise ConfigError(f"num_threads is {shown(num_threads)}, needs an integer >= 1")
        if number > MAX_THREADS_PER_CORE * cores:
            raise ConfigError(
                f"num_threads is {shown(number)}, but this process may use {cores} cores; "
                f"needs at most {MAX_THREADS_PER_CORE} per core, best is one"
            )
        num_threads = number
    with _pool_lock:
        if _pool_threads is None:
            wanted = num_threads if num_threads is not None else cores
            if wanted > cores:
                log.warning(
                    "num_threads is %d on %d cores: threads that wait for a core slow the others", wanted, cores
                )
            try:
                onnxruntime.set_global_thread_pool_sizes(wanted, 1)
            except Exception as error:  # pybind raises its own classes
                raise ConfigError(f"num_threads: ONNX Runtime's shared pool cannot be set ({error})") from None
            _pool_threads = wanted
        elif num_threads is not None and num_threads != _pool_threads:
            raise ConfigError(
                f"num_threads is {num_threads}, but this process runs its engines on {_pool_threads} already; "
                "use that number, or another process"
            )
        return _pool_threads


class OnnxRuntimeSession:
    """A graph of a bundle, loaded. Satisfies `sessions.base.Session`."""

    def __init__(self, graph: Path, custom_operators: bool, num_threads: int | None = None) -> None:
        """custom_operators: the graph uses ours. Raises BundleError when it cannot be loaded here."""
        share_threads(num_threads)
        options = onnxruntime.SessionOptions()
        options.use_per_session_threads = False
        options.log_severity_level = LOG_ERRORS
        if custom_operators:
            if not has_onnxruntime_ops():
                raise BundleError(
                    f"{graph.parent}: built with our attention and cache operators, which this installation's operator "
                    "library lacks; reinstall with ONNX Runtime's headers, or build with --dialect standard"
                )
            options.register_custom_ops_library(str(library_path()))
        try:
            self._session = onnxruntime.InferenceSession(
                str(graph), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # pybind raises its own classes
            raise BundleError(
                f"{graph}: ONNX Runtime cannot load it ({_one_line(error)}); build the bundle again"
            ) from None
        self.name = graph.name
        self.inputs = {node.name: _shape(node.shape) for node in self._session.get_inputs()}
        self.outputs = {node.name: _shape(node.shape) for node in self._session.get_outputs()}
        nodes = (*self._session.get_inputs(), *self._session.get_outputs())
        self.dtypes = {node.name: DTYPES.get(node.type, node.type) for node in nodes}
        """Element type of every input and output, as the manifest names them."""

    def tensor(self, array: Array) -> Tensor:
        assert array.flags.c_contiguous
        return Tensor(array, onnxruntime.OrtValue.ortvalue_from_numpy(array))

    def bind(self, caches: Mapping[str, Array]) -> OnnxRuntimeBinding:
        binding = OnnxRuntimeBinding(self.name, self._session, frozenset(self.inputs))
        for name, array in caches.items():
            if name in self.inputs:
                binding.bind_in_place(name, self.tensor(array))
        return binding


class OnnxRuntimeBinding:
    """An IOBinding that rebinds only what changed since the last step."""

    def __init__(self, name: str, session: onnxruntime.InferenceSession, inputs: frozenset[str]) -> None:
        self._name = name
        self._session = session
        self._binding = session.io_binding()
        self._inputs = inputs
        self._bound_inputs: dict[str, Tensor] = {}
        self._bound_outputs: dict[str, Tensor] = {}

    def bind_in_place(self, name: str, tensor: Tensor) -> None:
        """Past and present are the same memory: the operator appends, and nothing is copied."""
        self._bound_inputs[name] = self._bound_outputs[name + PRESENT] = tensor
        self._binding.bind_ortvalue_input(name, tensor.handle)
        self._binding.bind_ortvalue_output(name + PRESENT, tensor.handle)

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        bound, binding = self._bound_inputs, self._binding
        for name, tensor in inputs.items():
            # Binding a name that the graph lacks would break the binding for good.
            if bound.get(name) is not tensor and name in self._inputs:
                binding.bind_ortvalue_input(name, tensor.handle)
                bound[name] = tensor
        bound = self._bound_outputs
        for name, tensor in outputs.items():
            if bound.get(name) is not tensor:
                binding.bind_ortvalue_output(name, tensor.handle)
                bound[name] = tensor
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # pybind raises its own classes
            raise DsparkError(f"{self._name}: the engine refused a step: {_one_line(error)}") from None


def _shape(shape: list[object]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
