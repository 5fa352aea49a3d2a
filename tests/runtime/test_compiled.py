"""The part of a manifest that describes compiled engines: round trip, old manifests, contradictions, memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dspark_runtime.contract.compiled import AxisRange, CompiledInfo, Profile, TensorInfo, cache_sizes
from dspark_runtime.contract.errors import BundleError
from dspark_runtime.contract.manifest import CompiledInfo as OfManifest
from dspark_runtime.contract.manifest import Manifest, dump_manifest, parse_manifest, parse_object
from tests.runtime.test_manifest import manifest as cpu_manifest

SHAPE, AXES = (-1, 2, 71, 8), ("B", "", "", "")
COMPILED = CompiledInfo(
    library="tensorrt_rtx",
    library_version="1.7.1.116",
    compute_capabilities=("8.9", "12.0"),
    gpu=None,
    profiles=(
        Profile(
            name="rounds",
            ranges=(AxisRange(axis="B", min=1, opt=2, max=2), AxisRange(axis="T", min=1, opt=10, max=10)),
            device_memory_bytes=8 << 20,
        ),
        Profile(name="prefill", ranges=(AxisRange(axis="B", min=1, opt=1, max=1),), device_memory_bytes=None),
    ),
    tensors=(
        TensorInfo(name="token_ids", direction="input", dtype="int32", shape=(-1,), axes=("T",)),
        TensorInfo(name="target_key.0", direction="input", dtype="bfloat16", shape=SHAPE, axes=AXES),
        TensorInfo(
            name="target_key.0.present",
            direction="output",
            dtype="bfloat16",
            shape=SHAPE,
            axes=AXES,
            alias="target_key.0",
        ),
    ),
    weights_bytes=3 << 20,
    build_ms=1500,
    peak_memory_bytes=300 << 20,
)


def manifest() -> Manifest:
    """A bundle of engines; both of its models have the same description, which is enough here."""
    plain = cpu_manifest()
    assert plain.draft is not None
    return replace(
        plain,
        format_version=(2, 0),
        backend="tensorrt-rtx",
        target=replace(plain.target, compiled=COMPILED),
        draft=replace(plain.draft, engine=replace(plain.draft.engine, compiled=COMPILED)),
    )


def test_compiled_engines_dumped_and_parsed_are_the_same() -> None:
    assert parse_manifest(dump_manifest(manifest()), "m") == manifest()


def test_manifest_without_compiled_engines_has_none() -> None:
    raw = json.loads(dump_manifest(cpu_manifest()))
    del raw["target"]["compiled"], raw["draft"]["engine"]["compiled"]
    parsed = parse_manifest(json.dumps(raw), "m")
    assert parsed.target.compiled is None
    assert parsed == cpu_manifest()


def test_description_alone_is_parsed_as_strictly() -> None:
    raw = json.loads(dump_manifest(manifest()))["target"]["compiled"]
    assert parse_object(raw, OfManifest, "target.engine") == COMPILED
    with pytest.raises(BundleError, match=r"^target\.engine: build_ms: found text, wanted an integer$"):
        parse_object({**raw, "build_ms": "1"}, OfManifest, "target.engine")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("library", "openvino", "target library is 'openvino', wanted tensorrt_rtx or tensorrt"),
        ("compute_capabilities", [], "target names no compute capability"),
        ("compute_capabilities", ["sm89"], "target compute capability is 'sm89', wanted a form like 8.6"),
        ("profiles", [], "target has no profile"),
        ("profiles.0.ranges.1.min", 11, "target profile rounds has T 11..10..10, wanted them ascending"),
        ("profiles.0.ranges.1.opt", 11, "target profile rounds has T 1..11..10, wanted them ascending"),
        ("profiles.0.ranges.0.min", -1, "target profile rounds has B -1..2..2, wanted them ascending"),
        ("profiles.0.device_memory_bytes", -5, "target profile rounds needs -5 bytes, wanted >= 0"),
        ("tensors.1.name", "token_ids", "target tensor 'token_ids' is listed twice"),
        ("tensors.0.direction", "both", "target tensor 'token_ids' is 'both', wanted input or output"),
        ("tensors.0.dtype", "int4", "target tensor 'token_ids' is of 'int4', wanted one of bool, int32"),
        ("tensors.0.shape", [-1, 2], "target tensor 'token_ids' has shape (-1, 2) and axes ('T',), which do not fit"),
        ("tensors.0.shape", [-2], "target tensor 'token_ids' has shape (-2,) and axes ('T',), which do not fit"),
        ("tensors.2.alias", "token", "'target_key.0.present' is an alias of 'token', which is no input of an output"),
        ("tensors.2.alias", "token_ids", "'target_key.0.present' differs in type or shape from its alias 'token_ids'"),
        (
            "tensors.0.alias",
            "target_key.0",
            "'token_ids' is an alias of 'target_key.0', which is no input of an output",
        ),
        ("weights_bytes", -1, "target weights_bytes is -1, needs >= 0"),
        ("peak_memory_bytes", -1, "target peak_memory_bytes is -1, needs >= 0"),
    ],
)
def test_description_that_contradicts_itself_is_refused_with_the_place(path: str, value: Any, message: str) -> None:
    raw = json.loads(dump_manifest(manifest()))
    *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = raw["target"]["compiled"]
    for part in parts:
        place = place[part]
    place[last] = value
    with pytest.raises(BundleError) as caught:
        parse_manifest(json.dumps(raw), "m")
    assert message in str(caught.value)


def test_engine_bundle_without_a_description_is_refused() -> None:
    plain = replace(cpu_manifest(), backend="tensorrt-rtx")
    with pytest.raises(
        BundleError, match=r"target engine of backend 'tensorrt-rtx' lacks its description \(compiled\)"
    ):
        parse_manifest(dump_manifest(plain), "m")


def test_cache_sizes_follow_slots_shape_and_type() -> None:
    assert cache_sizes(COMPILED, 3) == {"target_key.0": 3 * 2 * 71 * 8 * 2}
