"""Int8 weights: layout as ONNX Runtime reads it, bounded error, rows that do not depend on their number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from dspark_runtime.contract import names
from dspark_trt.quantize import BLOCK_SIZE, dequantize_int8, quantize_int8
from tests.dspark_trt.graph.driver import Chunk, GraphDriver, shared_pool_options
from tests.dspark_trt.graph.models import FORMS, needs_operators, write_tiny


def sample_weight(num_rows: int, num_columns: int) -> np.ndarray:
    weight = np.random.default_rng(1).standard_normal((num_rows, num_columns)).astype(np.float32)
    weight[3] *= 100
    weight[5, :BLOCK_SIZE] = 0
    return weight


def test_quantize_int8_error_stays_within_half_a_step_of_its_block() -> None:
    weight = sample_weight(9, 80)  # 80 is no multiple of the block
    quantized = quantize_int8(weight)
    error = np.abs(dequantize_int8(quantized, 80) - weight)
    half_steps = np.repeat(quantized.scales, BLOCK_SIZE, axis=1)[:, :80] / 2
    assert (error <= half_steps * 1.0001).all()
    assert (dequantize_int8(quantized, 80)[5, :BLOCK_SIZE] == 0).all()


def test_quantize_int8_rows_beyond_one_batch_equal_those_of_a_smaller_call(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = sample_weight(9, 64)
    whole = quantize_int8(weight)
    monkeypatch.setattr("dspark_trt.quantize.ROWS_AT_ONCE", 4)
    parts = quantize_int8(weight)
    assert (whole.packed == parts.packed).all() and (whole.scales == parts.scales).all()


def test_matmul_nbits_reads_the_layout_that_quantize_int8_writes() -> None:
    weight = sample_weight(40, 80)
    quantized = quantize_int8(weight)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=80, N=40, bits=8, block_size=BLOCK_SIZE
    )  # without accuracy_level: activations stay float32, so the product is exact
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("T", 80))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("T", 40))],
        [numpy_helper.from_array(quantized.packed, "w"), numpy_helper.from_array(quantized.scales, "s")],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    x = np.random.default_rng(2).standard_normal((3, 80)).astype(np.float32)
    got = ort.InferenceSession(model.SerializeToString(), shared_pool_options()).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, x @ dequantize_int8(quantized, 80).T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_target_int8_logits_stay_near_the_float_ones(tiny_target: Path, form: tuple[str, str], tmp_path: Path) -> None:
    logits = []
    for quantize in ("none", "int8"):
        write_tiny(tmp_path / quantize, form, tiny_target, quantize=quantize)
        driver = GraphDriver(tmp_path / quantize / names.TARGET_GRAPH, *form, num_slots=2)
        logits.append(driver.run([Chunk(0, range(10, 40), 0)])[names.LOGITS])
    error = np.sqrt(((logits[0] - logits[1]) ** 2).mean()) / logits[0].std()
    assert 1e-4 < error < 0.05


@needs_operators
@pytest.mark.parametrize("quantize, min_rows", [("none", 1), ("int8", 2)])
def test_target_row_is_bitwise_the_same_in_a_step_of_any_length(
    tiny_target: Path, quantize: str, min_rows: int, tmp_path: Path
) -> None:
    form = ("trt", "packed")
    write_tiny(tmp_path, form, tiny_target, quantize=quantize)
    driver = GraphDriver(tmp_path / names.TARGET_GRAPH, *form, num_slots=1)
    tokens = list(range(20, 28))
    whole = driver.run([Chunk(0, tokens, 0)])[names.LOGITS]
    for length in range(min_rows, 8):
        part = driver.run([Chunk(0, tokens[8 - length :], 8 - length)])[names.LOGITS]
        assert (part == whole[8 - length :]).all(), length
