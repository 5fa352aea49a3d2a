"""One graph file to one engine file, by TensorRT-RTX or TensorRT: the library's module is a parameter.

Runs in a process of its own (tensorrt_worker), which bounds the memory of a build. External weights are
mapped by the parser; the engine is written from the library's own buffer, so our code copies nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspark_runtime.contract.compiled import CompiledInfo, Profile
from dspark_runtime.contract.errors import BuildError
from dspark_runtime.contract.gpu import find_gpus
from dspark_runtime.contract.graph_io import expected_tensors
from dspark_runtime.contract.manifest import Manifest
from dspark_trt.backends.tensorrt_judge import judge
from dspark_trt.backends.tensorrt_network import Network, as_json, read_network
from dspark_trt.backends.tensorrt_phases import PhaseTree

Progress = Callable[[str, float], None]
"""What is being done, and the share of this engine's build that lies behind, in [0, 1]."""

MAX_FAULTS = 3
"""Named in a message; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """What one engine is made of."""

    graph: Path
    engine: Path
    role: str
    """`target` or `draft`."""
    manifest: Manifest
    """Of the bundle in the making: what the engine must fit."""
    profiles: tuple[Profile, ...]
    compute_capabilities: tuple[str, ...]
    """To build for, such as `8.6`; empty for the GPU of this machine, on which kernels are timed then."""
    plugins: tuple[Path, ...]
    """Libraries with the creators of the graph's plugin nodes."""
    inspect: Path | None
    """Where to describe the layers; None for nowhere."""
    library: str
    """`tensorrt_rtx` or `tensorrt`, for the manifest."""


def build_engine(trt: Any, job: EngineJob, progress: Progress) -> CompiledInfo:
    """Parse, judge, compile, write. trt: the module. Raises BuildError; nothing is written then."""
    log = Log()
    logger = make_logger(trt, log)
    gpus = find_gpus()
    builder = trt.Builder(logger)
    for plugin in job.plugins:
        if builder.get_plugin_registry().load_library(str(plugin)) is None:
            raise BuildError(f"{plugin.name} holds no plugin that {job.library} can load{log.last_error()}")
    progress("parse", 0.0)
    network, parser = parse_graph(trt, builder, logger, job.graph)
    description = read_network(trt, network)
    check_network(job.graph.name, description, job.manifest, job.role)

    config = builder.create_builder_config()
    if job.compute_capabilities:
        names = supported_capabilities(trt)
        config.num_compute_capabilities = len(job.compute_capabilities)
        for index, capability in enumerate(job.compute_capabilities):
            config.set_compute_capability(trt.ComputeCapability.__members__[names[capability]], index)
    for profile in job.profiles:
        if config.add_optimization_profile(make_profile(builder, network, profile)) < 0:
            raise BuildError(f"{job.graph.name}: profile {profile.name} is refused{log.last_error()}")
    if job.inspect is not None:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.progress_monitor = make_monitor(trt, progress)
    started = time.perf_counter()
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BuildError(f"{job.graph.name} cannot be compiled by {job.library} {trt.__version__}{log.last_error()}")
    seconds = time.perf_counter() - started
    del network, parser  # only now: the build reads the weights through them
    layers = describe_layers(trt, logger, plan, description, bool(gpus)) if job.inspect is not None else ""
    try:
        with job.engine.open("wb") as file:
            file.write(plan)
        if job.inspect is not None:
            job.inspect.write_text(layers, encoding="utf-8")
    except OSError as error:
        raise BuildError(
            f"{job.engine.name} cannot be written: {error.strerror}; free some space or give another folder"
        ) from None
    gpu = gpus[0] if gpus and not job.compute_capabilities else None
    return CompiledInfo(
        library=job.library,
        library_version=trt.__version__,
        compute_capabilities=(gpu.compute_capability,) if gpu is not None else job.compute_capabilities,
        gpu=gpu.name if gpu is not None else None,
        profiles=log.with_memory(job.profiles),
        tensors=expected_tensors(job.manifest, job.role),
        weights_bytes=log.weights_bytes(),
        build_ms=round(seconds * 1000),
        peak_memory_bytes=peak_memory_bytes(),
    )


def peak_memory_bytes() -> int:
    """Most memory that this program had resident so far.

    From /proc, because getrusage's ru_maxrss starts from the size of the process that started this one.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def parse_graph(trt: Any, builder: Any, logger: Any, graph: Path) -> tuple[Any, Any]:
    """Network and parser of a graph file; the parser owns the mapped weights that the network points into.

    Strongly typed: every element type is the graph's, none is chosen by timing. Raises BuildError.
    """
    flags = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(1 << int(flags) if flags is not None else 0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        reasons = "; ".join(parser.get_error(i).desc() for i in range(min(parser.num_errors, MAX_FAULTS)))
        raise BuildError(f"{graph.name} is not understood by TensorRT's parser: {_one_line(reasons)}")
    return network, parser


def check_network(where: str, network: Network, manifest: Manifest, role: str) -> None:
    """BuildError with the first faults that the judge finds."""
    faults = judge(network, manifest, role)
    if faults:
        more = f" and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        first = "; ".join(faults[:MAX_FAULTS])
        raise BuildError(f"{where} did not become what the manifest says: {first}{more}; this is a bug")


def supported_capabilities(trt: Any) -> dict[str, str]:
    """Compute capability (`8.6`) to the library's name of it (`SM86`), ascending."""
    return {_dotted(name): name for name in trt.ComputeCapability.__members__ if name.startswith("SM")}


def make_profile(builder: Any, network: Any, profile: Profile) -> Any:
    """The library's profile: shapes of every input at the smallest, the best and the largest size."""
    sizes = {entry.axis: (entry.min, entry.opt, entry.max) for entry in profile.ranges}
    made = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        axes = [tensor.get_dimension_name(i) for i in range(len(tensor.shape))]
        shapes = [
            tuple(size if size >= 0 else sizes[axis][which] for size, axis in zip(tensor.shape, axes, strict=True))
            for which in range(3)
        ]
        made.set_shape(tensor.name, *shapes)
    return made


def describe_layers(trt: Any, logger: Any, plan: Any, network: Network, has_gpu: bool) -> str:
    """JSON of the engine's layers by the library's inspector where a GPU can load it, else of the network's."""
    if has_gpu:
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        if engine is not None:
            text: str = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
            return json.dumps({"source": "engine", "engine": json.loads(text)}, indent=1) + "\n"
    return json.dumps({"source": "network", "layers": as_json(network)}, indent=1) + "\n"


class Log:
    """What the library says while it works; the builder plans memory aloud and nowhere else."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._activations: list[int] = []
        self._weights: list[int] = []

    def add(self, severity: str, text: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(text)
        elif found := re.match(r"Total (Activation|Weights) Memory: ([0-9]+) bytes", text):
            kind = self._activations if found[1] == "Activation" else self._weights
            kind.append(int(found[2]))

    def last_error(self) -> str:
        """`: …` of the last error, or nothing."""
        return f": {_one_line(self.errors[-1])}" if self.errors else ""

    def with_memory(self, profiles: tuple[Profile, ...]) -> tuple[Profile, ...]:
        """The profiles with what was said about each, in their order; unchanged where that does not fit."""
        if len(self._activations) != len(profiles):
            return profiles
        pairs = zip(profiles, self._activations, strict=True)
        return tuple(replace(profile, device_memory_bytes=size) for profile, size in pairs)

    def weights_bytes(self) -> int | None:
        return self._weights[-1] if self._weights else None


def make_logger(trt: Any, log: Log) -> Any:
    """The library's logger interface over a Log."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            log.add(severity.name, text)

    return Logger()


def make_monitor(trt: Any, progress: Progress) -> Any:
    """The library's progress interface over a PhaseTree."""
    tree = PhaseTree()

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
            tree.start(name, parent, num_steps)

        def step_complete(self, name: str, step: int) -> bool:
            if tree.step(name, step):
                progress(tree.current, tree.share)
            return True

        def phase_finish(self, name: str) -> None:
            tree.finish(name)

    return Monitor()


def _dotted(name: str) -> str:
    """`SM86` as `8.6`, `SM120` as `12.0`."""
    return f"{name[2:-1]}.{name[-1]}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]
