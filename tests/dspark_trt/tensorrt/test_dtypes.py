"""Graphs in bfloat16 and float16, executed: as near to float32 as their types allow, in every part."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from dspark_runtime.contract.errors import GraphError
from dspark_trt.graph.builder import FLOAT16, GraphBuilder
from dspark_trt.graph.weights import WeightFile
from tests.dspark_trt.graph.driver import Chunk, GraphDriver
from tests.dspark_trt.tensorrt.evaluator import Evaluator
from tests.dspark_trt.tensorrt.networks import Written, needs_operators, write
from tests.tiny import make_dspark_draft, make_target

NUMPY = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ONNX = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
TOLERANCE = {"float32": 1e-5, "float16": 0.006, "bfloat16": 0.05}
"""Of `error`, after four layers at 24, 11 and 8 significant bits."""

# A chunk, then a step in which two slots have unequal numbers of tokens, so that one is padded on the left.
STEPS = (
    [Chunk(0, [5, 9, 17, 33, 80, 7, 12], 0)],
    [Chunk(0, [40, 41, 6], 7), Chunk(1, [100, 3, 77, 8, 21], 0)],
    [Chunk(1, [9], 5)],
)


def evaluator(made: Written, role: str, dtype: str, driver: GraphDriver, caches: dict[str, np.ndarray]) -> Evaluator:
    """The graph with zeroed caches of its type, or those of `caches` that it has."""
    for name in driver.caches:
        caches.setdefault(name, np.zeros(driver.caches[name].shape, NUMPY[dtype]))
    return Evaluator(made.graph(role), caches)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Length of the difference over that of the wanted values."""
    return float(np.linalg.norm(found.astype(np.float32) - wanted) / np.linalg.norm(wanted))


@needs_operators
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_graph_in_a_smaller_type_stays_near_float32(tmp_path: Path, family: str, dtype: str) -> None:
    target = make_target(tmp_path / "target", family)
    draft = make_dspark_draft(tmp_path / "draft", target)
    single = write(tmp_path / "single", target, draft, backend="onnxruntime", query_form="padded")
    made = single if dtype == "float32" else write(tmp_path / dtype, target, draft, dtype=dtype)
    driver = GraphDriver(single.graph("target"), "trt", "padded", 2)
    caches: dict[str, np.ndarray] = {}
    graph = evaluator(made, "target", dtype, driver, caches)
    errors = []
    for chunks in STEPS:
        inputs = driver.step_inputs(chunks, causal=True)
        errors.append(error(graph.run(inputs)["logits"], driver.run(chunks)["logits"]))
    assert max(errors) < TOLERANCE[dtype]
    for name, cache in caches.items():
        assert cache.dtype == NUMPY[dtype]
        assert error(cache, driver.caches[name]) < TOLERANCE[dtype], name

    block = single.manifest.draft
    assert block is not None
    rows = Chunk(0, [12, *[block.mask_token_id or 0] * (block.pass_size - 1)], 10)
    drafter = GraphDriver(single.graph("draft"), "trt", "padded", 2, caches=driver.caches)
    inputs = drafter.step_inputs([rows], causal=False)
    found = evaluator(made, "draft", dtype, drafter, caches).run(inputs)
    wanted = drafter.run([rows], causal=False)
    for name in ("hidden", "logits"):
        assert found[name].dtype == np.float32
        assert error(found[name], wanted[name]) < TOLERANCE[dtype], name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_graph_holds_float32_nowhere_but_at_its_outputs(
    tmp_path: Path, tiny_target: Path, tiny_draft: Path, dtype: str
) -> None:
    made = write(tmp_path, tiny_target, tiny_draft, dtype=dtype)
    for role, outputs in (("target", {"logits"}), ("draft", {"logits", "hidden"})):
        graph = onnx.load(str(made.graph(role)), load_external_data=False).graph
        values = [*graph.input, *graph.value_info, *graph.output]
        types = {value.name: value.type.tensor_type.elem_type for value in values}
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        assert {name for name, kind in types.items() if kind == onnx.TensorProto.FLOAT} == outputs
        assert ONNX[dtype] in types.values()


def test_graph_in_bfloat16_halves_the_weights(tmp_path: Path, tiny_target: Path) -> None:
    sizes = []
    for dtype in ("float32", "bfloat16"):
        backend = {"backend": "onnxruntime"} if dtype == "float32" else {}
        made = write(tmp_path / dtype, tiny_target, None, dtype=dtype, **backend)
        sizes.append((made.folder / "target.weights").stat().st_size)
    # Every tensor begins on a page of 4 KiB, so the file does not halve exactly.
    assert sizes[1] < 0.6 * sizes[0]


def test_weight_beyond_float16_is_refused_by_name(tmp_path: Path) -> None:
    with WeightFile(tmp_path, "w") as weights:
        builder = GraphBuilder(tmp_path, "g.onnx", weights, FLOAT16)
        with pytest.raises(GraphError, match=r"lm_head: holds 7e\+04, beyond float16's 65504; build with bfloat16"):
            builder.weight("lm_head", np.array([[1.0, 70_000.0]], np.float32))
