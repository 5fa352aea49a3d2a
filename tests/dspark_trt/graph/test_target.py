"""Target graphs of every family, dialect and step shape against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dspark_runtime.contract import names
from tests.dspark_trt.graph.driver import Chunk, GraphDriver
from tests.dspark_trt.graph.models import FORMS, needs_operators, reference, reference_run, write_tiny
from tests.tiny import make_target

TOLERANCE = 1e-4
NUM_SLOTS = 3
LONGEST_ROUND = 6

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-tied": {"family": "llama", "tie_embeddings": True, "rope_theta": 100_000.0},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-llama3": {"family": "llama", "rope": "llama3", "rope_spelling": "rope_scaling"},
    "llama-linear": {"family": "llama", "rope": "linear"},
    "llama-wide-heads": {"family": "llama", "head_dim": 24, "num_heads": 8, "num_kv_heads": 1},
    "llama-no-groups": {"family": "llama", "num_kv_heads": 4},
    "qwen2": {"family": "qwen2", "tie_embeddings": True},
    "qwen3": {"family": "qwen3", "head_dim": 24},
    "qwen3-biases": {"family": "qwen3", "head_dim": 32, "attention_bias": True, "rope": "llama3"},
}


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = make_target(tmp_path_factory.mktemp(request.param), **FAMILIES[request.param])
    return folder, reference(folder)


def make_driver(folder: Path, form: tuple[str, str], target: Path, **options: Any) -> GraphDriver:
    write_tiny(folder, form, target, **options)
    return GraphDriver(folder / names.TARGET_GRAPH, *form, num_slots=NUM_SLOTS)


@pytest.mark.parametrize("form", FORMS)
def test_target_prefill_chunks_and_rounds_equal_transformers(
    checkpoint: tuple[Path, Any], form: tuple[str, str], tmp_path: Path
) -> None:
    target, model = checkpoint
    driver = make_driver(tmp_path, form, target)
    rng = np.random.default_rng(5)
    sequences = {slot: rng.integers(4, 320, 40).tolist() for slot in range(NUM_SLOTS)}
    wanted = {slot: reference_run(model, sequence)[0] for slot, sequence in sequences.items()}

    # (slot, start, stop): a prefill of one slot, chunked prefills side by side, then rounds of every
    # length whose tail is rolled back (the next start lies before the last stop).
    steps = [
        [(1, 0, 9)],
        [(0, 0, 5), (2, 0, 1)],
        [(0, 5, 7), (1, 9, 10), (2, 1, 12)],
    ]
    start = {0: 7, 1: 10, 2: 12}
    for length in range(1, LONGEST_ROUND + 1):
        lengths = {0: length, 1: LONGEST_ROUND + 1 - length, 2: 1 + length % 3}
        idle = length % 4  # 3: nobody
        steps.append([(slot, start[slot], start[slot] + n) for slot, n in lengths.items() if slot != idle])
        for slot, n in lengths.items():
            if slot != idle:
                start[slot] += 1 + n // 2

    for step in steps:
        chunks = [Chunk(slot, sequences[slot][a:b], a) for slot, a, b in step]
        for slot, a, _ in step:
            driver.lengths[slot] = a
        logits = driver.run(chunks)[names.LOGITS]
        expected = np.concatenate([wanted[slot][a:b] for slot, a, b in step])
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=0, err_msg=str(step))
        for slot, _, b in step:
            driver.lengths[slot] = b


@pytest.mark.parametrize("form", FORMS)
def test_target_logit_rows_give_those_rows_in_that_order(
    tiny_target: Path, form: tuple[str, str], tmp_path: Path
) -> None:
    driver = make_driver(tmp_path, form, tiny_target)
    chunk = Chunk(1, [5, 9, 17, 33, 8], 0)
    every = driver.run([chunk])[names.LOGITS]
    some = driver.run([chunk], logit_rows=[4, 0, 4])[names.LOGITS]
    np.testing.assert_allclose(some, every[[4, 0, 4]], atol=1e-5, rtol=0)
    assert np.abs(every[4] - every[0]).max() > 0.1


@needs_operators
@pytest.mark.parametrize("form", [("trt", "packed"), ("trt", "padded")], ids=["packed", "padded"])
def test_target_dummy_row_outside_every_slot_changes_nothing(
    tiny_target: Path, form: tuple[str, str], tmp_path: Path
) -> None:
    driver = make_driver(tmp_path, form, tiny_target)
    chunk = Chunk(2, [7, 11, 13], 0)
    plain = driver.run([chunk])[names.LOGITS]
    cache = {name: array.copy() for name, array in driver.caches.items()}
    inputs = driver.step_inputs([chunk], causal=True)
    longer = {
        names.TOKEN_IDS: np.append(inputs[names.TOKEN_IDS], 1),
        names.POSITIONS: np.append(inputs[names.POSITIONS], 0),
        names.LOGIT_ROWS: [0, 1, 2],
    }
    if form[1] == "padded":
        longer[names.OUTPUT_ROWS] = np.append(inputs[names.OUTPUT_ROWS], 0)
    np.testing.assert_allclose(driver.run([chunk], **longer)[names.LOGITS], plain, atol=1e-5, rtol=0)
    for name, array in driver.caches.items():
        np.testing.assert_allclose(array, cache[name], atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_target_graph_passes_the_checker_and_is_named_by_the_contract(
    tiny_target: Path, tiny_draft: Path, form: tuple[str, str], tmp_path: Path
) -> None:
    write_tiny(tmp_path, form, tiny_target, tiny_draft)
    onnx.checker.check_model(str(tmp_path / names.TARGET_GRAPH), full_check=True)
    graph = onnx.load(str(tmp_path / names.TARGET_GRAPH), load_external_data=False).graph
    layers = {names.TARGET_KEY: 4, names.TARGET_VALUE: 4, names.CONTEXT_KEY: 2, names.CONTEXT_VALUE: 2}
    caches = [name.format(i) for name, count in layers.items() for i in range(count)]
    step = [names.TOKEN_IDS, names.POSITIONS, names.WRITE_INDICES, names.LOGIT_ROWS]
    outputs = [names.LOGITS]
    if form[0] == "trt":
        step += [names.UPDATE_LENGTHS, names.KV_LENGTHS, names.ROW_OFFSETS, names.DRAFT_TOKENS, names.DRAFT_LOGITS]
        step += [*names.SAMPLING_INPUTS, *names.ACCEPT_INPUTS, names.CONFIDENCES]
        outputs += [names.ACCEPTED, names.TOKENS, names.ROUND_ENDS]
        outputs += [names.LOGPROBS, names.LOGPROB_IDS, names.LOGPROB_RANKS]
    if form[1] == "padded":
        step += [names.QUERY_ROWS, names.OUTPUT_ROWS]
    if form[0] == "standard":
        step += [names.ATTENTION_MASK]
    assert sorted(item.name for item in graph.input) == sorted(step + caches)
    assert sorted(item.name for item in graph.output) == sorted(outputs + [name + names.PRESENT for name in caches])


def test_target_weights_are_stored_once_and_aligned(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", tie_embeddings=True)
    write_tiny(tmp_path / "graphs", ("standard", "padded"), target)
    graph = onnx.load(str(tmp_path / "graphs" / names.TARGET_GRAPH), load_external_data=False).graph
    external = [{e.key: e.value for e in t.external_data} for t in graph.initializer if t.external_data]
    assert external and all(int(entry["offset"]) % 4096 == 0 for entry in external)
    tables = [t.name for t in graph.initializer if tuple(t.dims) == (320, 64)]
    assert tables == ["embed_tokens.weight"]
