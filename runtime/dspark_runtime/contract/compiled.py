"""What the manifest says about an engine that was compiled ahead of time: targets, profiles, tensors, memory.

An optional part of the manifest (format 1.1): graphs that ONNX Runtime reads have none. Plain data and its own rules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dspark_runtime.contract.errors import label, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRange:
    """Sizes of one axis (a letter of names.py) that a profile takes; kernels are chosen for `opt`."""

    axis: str
    min: int
    opt: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One optimisation profile; a step selects it by its index in CompiledInfo.profiles."""

    name: str
    """`rounds`: up to all slots, a few tokens each; `prefill`: one slot, a chunk of its prompt."""
    ranges: tuple[AxisRange, ...]
    device_memory_bytes: int | None
    """Activations and scratch of a step, as the builder planned them; None where it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """An input or output of the engine."""

    name: str
    direction: str
    """`input` or `output`."""
    dtype: str
    """bool, int32, int64, float32, float16 or bfloat16."""
    shape: tuple[int, ...]
    """-1 where the size varies."""
    axes: tuple[str, ...]
    """Letter of each varying axis (of names.py, or a product such as R*K); empty where the size is fixed."""
    alias: str | None = None
    """Outputs: the input that must be bound to the same memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledInfo:
    """An engine file: what it runs on and what a session must know to bind it."""

    library: str
    """`tensorrt_rtx` or `tensorrt`."""
    library_version: str
    """The engine runs with this version only."""
    compute_capabilities: tuple[str, ...]
    """GPUs that it was built for, such as `8.6`."""
    gpu: str | None
    """Name of the GPU that it was tuned on; None for an engine built without one."""
    profiles: tuple[Profile, ...]
    tensors: tuple[TensorInfo, ...]
    weights_bytes: int | None
    """Device memory for the weights, as the builder planned it."""
    build_ms: int
    peak_memory_bytes: int
    """Largest resident memory of the process that built it."""


DTYPE_BYTES = {"bool": 1, "int32": 4, "int64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
LIBRARIES = ("tensorrt_rtx", "tensorrt")


def cache_sizes(info: CompiledInfo, num_slots: int) -> dict[str, int]:
    """Bytes of every in-place cache when `num_slots` are bound. Engines that name the same cache share it."""
    inputs = {tensor.name: tensor for tensor in info.tensors if tensor.direction == "input"}
    sizes = {}
    for name in (tensor.alias for tensor in info.tensors if tensor.alias is not None):
        sizes[name] = DTYPE_BYTES[inputs[name].dtype]
        for length in inputs[name].shape:
            sizes[name] *= num_slots if length == -1 else length
    return sizes


def compiled_problems(where: str, info: CompiledInfo) -> Iterator[str]:
    """What contradicts itself in the description of one engine."""
    if info.library not in LIBRARIES:
        yield f"{where} library is {shown(info.library)}, wanted {' or '.join(LIBRARIES)}"
    if not info.compute_capabilities:
        yield f"{where} names no compute capability"
    for capability in info.compute_capabilities:
        if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
            yield f"{where} compute capability is {shown(capability)}, wanted a form like 8.6"
    if not info.profiles:
        yield f"{where} has no profile"
    for profile in info.profiles:
        for entry in profile.ranges:
            if not 0 <= entry.min <= entry.opt <= entry.max:
                sizes = f"{entry.min}..{entry.opt}..{entry.max}"
                yield f"{where} profile {label(profile.name)} has {label(entry.axis)} {sizes}, wanted them ascending"
        if profile.device_memory_bytes is not None and profile.device_memory_bytes < 0:
            yield f"{where} profile {label(profile.name)} needs {profile.device_memory_bytes} bytes, wanted >= 0"
    yield from _tensor_problems(where, info.tensors)
    for name in ("weights_bytes", "build_ms", "peak_memory_bytes"):
        if (getattr(info, name) or 0) < 0:
            yield f"{where} {name} is {getattr(info, name)}, needs >= 0"


def _tensor_problems(where: str, tensors: tuple[TensorInfo, ...]) -> Iterator[str]:
    counts = Counter(tensor.name for tensor in tensors)
    for name in sorted(name for name, count in counts.items() if count > 1):
        yield f"{where} tensor {shown(name)} is listed twice"
    inputs = {tensor.name: tensor for tensor in tensors if tensor.direction == "input"}
    for tensor in tensors:
        what = f"{where} tensor {shown(tensor.name)}"
        if tensor.direction not in ("input", "output"):
            yield f"{what} is {shown(tensor.direction)}, wanted input or output"
        if tensor.dtype not in DTYPE_BYTES:
            yield f"{what} is of {shown(tensor.dtype)}, wanted one of {', '.join(DTYPE_BYTES)}"
        if len(tensor.axes) != len(tensor.shape) or any(length < -1 for length in tensor.shape):
            yield f"{what} has shape {shown(tensor.shape)} and axes {shown(tensor.axes)}, which do not fit"
        if tensor.alias is None:
            continue
        source = inputs.get(tensor.alias)
        if tensor.direction != "output" or source is None:
            yield f"{what} is an alias of {shown(tensor.alias)}, which is no input of an output"
        elif (source.dtype, source.shape) != (tensor.dtype, tensor.shape):
            yield f"{what} differs in type or shape from its alias {shown(tensor.alias)}"
