"""A draft that is a language model: the target's graph over its own caches, one proposal per call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dspark_runtime.contract import names
from tests.dspark_trt.graph.driver import Chunk, GraphDriver
from tests.dspark_trt.graph.models import FORMS, needs_operators, reference, reference_run, write_tiny
from tests.tiny import make_target

TOKENS = [7, 33, 250, 18, 99]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another family and geometry than the target, same vocabulary."""
    return make_target(tmp_path_factory.mktemp("small"), "qwen3", hidden_size=48, head_dim=16, num_layers=2, seed=9)


@pytest.mark.parametrize("form", FORMS)
def test_model_draft_logits_equal_transformers(
    tiny_target: Path, small_model: Path, form: tuple[str, str], tmp_path: Path
) -> None:
    plan = write_tiny(tmp_path, form, tiny_target, small_model, draft_kind="model")
    assert (plan.block_size, plan.pass_size) == (4, 1)
    driver = GraphDriver(tmp_path / names.DRAFT_GRAPH, *form, num_slots=2)
    wanted = reference_run(reference(small_model), TOKENS)[0]
    anchors = {}
    if names.ANCHOR_TOKENS in driver.inputs:
        anchors = {names.ANCHOR_TOKENS: [0], names.CONFIDENCE_SIGNAL: [names.CONFIDENCE_SIGNALS["top1"]]}
    first = driver.run([Chunk(1, TOKENS[:3], 0)], logit_rows=[2], **anchors)
    second = driver.run([Chunk(1, TOKENS[3:], 3)], logit_rows=[1], **anchors)
    np.testing.assert_allclose(first[names.LOGITS][0], wanted[2], atol=1e-4, rtol=0)
    np.testing.assert_allclose(second[names.LOGITS][0], wanted[4], atol=1e-4, rtol=0)
    if names.DRAFT_TOKENS in second:
        assert second[names.DRAFT_TOKENS].tolist() == [[wanted[4].argmax()]]
        top1 = 1 / np.exp(wanted[4] - wanted[4].max()).sum()
        assert second[names.CONFIDENCE_LOGITS][0, 0] == pytest.approx(np.log(top1 / (1 - top1)), abs=1e-3)


@needs_operators
def test_model_draft_graph_is_named_by_the_contract(tiny_target: Path, small_model: Path, tmp_path: Path) -> None:
    write_tiny(tmp_path, ("trt", "packed"), tiny_target, small_model, draft_kind="model")
    onnx.checker.check_model(str(tmp_path / names.DRAFT_GRAPH), full_check=True)
    graph = onnx.load(str(tmp_path / names.DRAFT_GRAPH), load_external_data=False).graph
    caches = [name.format(i) for name in (names.DRAFT_KEY, names.DRAFT_VALUE) for i in range(2)]
    inputs = [
        names.TOKEN_IDS, names.POSITIONS, names.WRITE_INDICES, names.UPDATE_LENGTHS, names.KV_LENGTHS, names.LOGIT_ROWS,
        names.ANCHOR_TOKENS, names.BLOCK_OFFSET, names.CONFIDENCE_SIGNAL, names.CUTOFF_POLICY, *names.SAMPLING_INPUTS,
    ]  # fmt: skip
    outputs = [names.LOGITS, names.DRAFT_TOKENS, names.CONFIDENCE_LOGITS, names.DRAFT_LOGITS, names.ENTROPIES]
    assert sorted(item.name for item in graph.input) == sorted(inputs + caches)
    assert sorted(item.name for item in graph.output) == sorted(outputs + [n + names.PRESENT for n in caches])
