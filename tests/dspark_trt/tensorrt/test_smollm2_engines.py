"""SmolLM2 and its DSpark draft, compiled once per type: judged, of the expected size, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dspark_runtime.bundle import open_bundle
from dspark_trt.backends import CompileJob
from dspark_trt.backends.tensorrt_profiles import make_profiles
from dspark_trt.backends.tensorrt_rtx import TensorRtRtxBackend
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.dspark_trt.tensorrt.networks import ignore, library, write

pytestmark = [pytest.mark.tensorrt, pytest.mark.slow]

MIB = 2**20


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_smollm2_and_its_draft_are_compiled(
    tmp_path: Path, smollm2_gguf: Path, smollm2_dspark: Path, dtype: str
) -> None:
    """The judge accepted both networks, or this would have raised."""
    library()
    options = {"backend": "tensorrt-rtx", "dtype": dtype}
    output = build(BuildConfig(target=smollm2_gguf, draft=smollm2_dspark, output=tmp_path / "bundle", **options))
    manifest = open_bundle(output, verify=True).manifest
    assert manifest.draft is not None
    target, draft = manifest.target.compiled, manifest.draft.engine.compiled
    assert target is not None and draft is not None and target.weights_bytes and draft.weights_bytes
    # 30 layers of keys and values, and the context of the draft's layers.
    assert sum(tensor.alias is not None for tensor in target.tensors) == 2 * (30 + manifest.draft.engine.num_layers)
    # 134.5 million parameters of two bytes, and the draft's context projections.
    assert 256 * MIB < target.weights_bytes < 280 * MIB
    for name, info in (("target", target), ("draft", draft)):
        size = (output / f"{name}.engine").stat().st_size
        assert info.weights_bytes is not None
        assert info.weights_bytes < size < info.weights_bytes + 80 * MIB
        assert info.peak_memory_bytes < 8 * info.weights_bytes + 400 * MIB


BARE = """
import sys
import {module} as trt
from dspark_trt.backends.tensorrt_builder import peak_memory_bytes
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(sys.argv[1])
config = builder.create_builder_config()
config.num_compute_capabilities = len({targets})
for index, name in enumerate({targets}):
    config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
for ranges in {profiles}:
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        sizes = [
            [size if size >= 0 else ranges[tensor.get_dimension_name(i)][which] for i, size in enumerate(tensor.shape)]
            for which in (0, 1, 2)
        ]
        profile.set_shape(tensor.name, *sizes)
    config.add_optimization_profile(profile)
assert builder.build_serialized_network(network, config) is not None
print(peak_memory_bytes())
"""
"""The library alone: the same graph, targets and profiles, none of our code."""


def test_our_code_adds_less_than_a_copy_of_the_weights_to_what_the_library_uses(
    tmp_path: Path, smollm2_gguf: Path, smollm2_dspark: Path
) -> None:
    """On the draft, whose engine is built in seconds; both graphs go through the same code."""
    module = library().__name__
    options = {"compute_capabilities": ("8.6", "12.0"), "max_batch_size": 4, "max_seq_len": 512}
    made = write(tmp_path / "graphs", smollm2_gguf, smollm2_dspark, **options)
    (profile,) = make_profiles(made.manifest, "draft", 256)
    ranges = {entry.axis: (entry.min, entry.opt, entry.max) for entry in profile.ranges}
    script = BARE.format(module=module, targets=["SM86", "SM120"], profiles=[ranges])
    command = [sys.executable, "-c", script, str(made.graph("draft"))]
    alone = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])

    config = BuildConfig(
        target=smollm2_gguf, draft=smollm2_dspark, output=tmp_path / "unused", backend="tensorrt-rtx", **options
    )
    backend = TensorRtRtxBackend(config)
    backend.choose_dialect("auto")
    job = CompileJob(graph=made.graph("draft"), role="draft", manifest=made.manifest)
    ours = backend.compile(job, ignore).peak_memory_bytes
    # Its own file, and the table of embeddings in the target's.
    weights = made.graph("draft").with_suffix(".weights").stat().st_size + 49152 * 576 * 2
    print(f"library alone {alone / MIB:.0f} MiB, with our code {ours / MIB:.0f} MiB, weights {weights / MIB:.0f} MiB")
    assert ours - alone < weights
