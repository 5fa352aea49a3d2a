"""The DSpark draft over several rounds against the PyTorch reading of dspark.md, and negative controls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from dspark_runtime.contract import names
from dspark_trt.graph import head_arrays
from tests.dspark_trt.graph.driver import Chunk, GraphDriver
from tests.dspark_trt.graph.models import FORMS, needs_operators, reference, reference_run, write_tiny
from tests.reference.dspark_torch import DSparkReference, Round
from tests.tiny import make_dspark_draft, make_target, read_safetensors

TOLERANCE = 1e-4
BLOCK = 4
SLOT = 1
PROMPT = [5, 70, 130, 9, 201, 44]

HEADS: dict[str, dict[str, Any]] = {
    "vanilla": {"head": "vanilla"},
    "gated": {"head": "gated", "own_embeddings": True},
    "rnn": {"head": "rnn", "num_layers": 3, "layer_ids": (0, 2)},
    "none": {"head": "none", "own_embeddings": True, "own_lm_head": False},
    "no-confidence": {"head": "vanilla", "confidence": False},
    "confidence-without-markov": {"head": "gated", "with_markov": False, "layer_ids": (2, -1, 1)},
}


@pytest.fixture(scope="module")
def tied_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("tied-target"), tie_embeddings=True)


class Judge:
    """The reference of a draft folder on its target folder."""

    def __init__(self, target: Path, draft: Path) -> None:
        self.model = reference(target)
        self.config = json.loads((draft / "config.json").read_text())
        weights = {
            name: torch.from_numpy(array.copy())
            for name, array in read_safetensors(draft / "model.safetensors").items()
        }
        embed = self.model.get_input_embeddings().weight.detach()
        self.draft = DSparkReference(self.config, weights, embed, self.model.lm_head.weight.detach())

    def round(self, tokens: list[int], anchor: int, shift: int = 0) -> Round:
        """A round behind verified `tokens`; `shift` moves every layer id (negative control)."""
        _, states = reference_run(self.model, tokens)
        # states[0] is the embedding output, so layer i is states[i + 1].
        features = np.concatenate([states[i + 1 + shift] for i in self.config["target_layer_ids"]], axis=1)
        with torch.no_grad():
            return self.draft.round(torch.from_numpy(features), anchor)


def draft_block(driver: GraphDriver, judge: Judge, length: int, anchor: int, **extra: Any) -> dict[str, np.ndarray]:
    signal = "head" if judge.config["enable_confidence_head"] else "top1"
    block = [anchor] + [judge.config["mask_token_id"]] * (judge.config["block_size"] - 1)
    chunk = Chunk(SLOT, block, length)
    if names.ANCHOR_TOKENS in driver.inputs:
        extra |= {
            names.ANCHOR_TOKENS: [anchor],
            names.MAX_VERIFY: [driver.inputs[names.CALIBRATION_TEMPERATURES].shape[1]],
            names.CONFIDENCE_SIGNAL: [names.CONFIDENCE_SIGNALS[signal]],
        }
    return driver.run([chunk], causal=False, **extra)


def open_pair(folder: Path, form: tuple[str, str]) -> tuple[GraphDriver, GraphDriver]:
    """Target and draft on the same context caches."""
    target = GraphDriver(folder / names.TARGET_GRAPH, *form, num_slots=2)
    return target, GraphDriver(folder / names.DRAFT_GRAPH, *form, num_slots=2, caches=target.caches)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("head", HEADS, ids=str)
def test_draft_rounds_of_every_accepted_count_equal_the_reference(
    tied_target: Path, head: str, form: tuple[str, str], tmp_path: Path
) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tied_target, block_size=BLOCK, **HEADS[head])
    judge = Judge(tied_target, draft)
    write_tiny(tmp_path / "graphs", form, tied_target, draft)
    target, proposer = open_pair(tmp_path / "graphs", form)

    # The prompt in two chunks: the context must not care.
    target.run([Chunk(SLOT, PROMPT[:4], 0)])
    target.run([Chunk(SLOT, PROMPT[4:], 4)])
    tokens, anchor = list(PROMPT), 17
    rng = np.random.default_rng(3)
    for accepted in (0, 1, 2, 3, 4, 2, 0, 4):
        got = draft_block(proposer, judge, len(tokens), anchor)
        wanted = judge.round(tokens, anchor)
        np.testing.assert_allclose(got[names.HIDDEN], wanted.hidden.numpy(), atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(got[names.LOGITS], wanted.base_logits.numpy(), atol=TOLERANCE, rtol=0)
        if names.DRAFT_TOKENS in got:
            assert got[names.DRAFT_TOKENS][0].tolist() == wanted.tokens
            assert got[names.VERIFY_LENGTHS].tolist() == [BLOCK]  # policy `all`
            if wanted.confidence_logits is not None:
                confidences = wanted.confidence_logits.numpy()
                np.testing.assert_allclose(got[names.CONFIDENCE_LOGITS][0], confidences, atol=TOLERANCE, rtol=0)
        proposals = rng.integers(4, 320, BLOCK).tolist()
        target.run([Chunk(SLOT, [anchor, *proposals], len(tokens))])
        tokens += [anchor, *proposals[:accepted]]
        anchor = int(rng.integers(4, 320))


@pytest.mark.parametrize("fault", ["layer ids", "anchor", "length"])
def test_draft_reading_shifted_by_one_differs(tied_target: Path, fault: str, tmp_path: Path) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tied_target, block_size=BLOCK, layer_ids=(0, 1))
    judge = Judge(tied_target, draft)
    write_tiny(tmp_path / "graphs", ("standard", "padded"), tied_target, draft)
    target, proposer = open_pair(tmp_path / "graphs", ("standard", "padded"))
    target.run([Chunk(SLOT, PROMPT, 0)])
    wanted = {
        "layer ids": lambda: judge.round(PROMPT, 17, shift=1),
        "anchor": lambda: judge.round(PROMPT, PROMPT[-1]),
        "length": lambda: judge.round(PROMPT[:-1], 17),
    }[fault]()
    got = draft_block(proposer, judge, len(PROMPT), 17)
    assert np.abs(got[names.HIDDEN] - wanted.hidden.numpy()).max() > 100 * TOLERANCE


@pytest.mark.parametrize("form", FORMS)
def test_draft_shorter_block_gives_the_prefix_of_the_full_one(
    tied_target: Path, form: tuple[str, str], tmp_path: Path
) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tied_target, block_size=BLOCK)
    judge = Judge(tied_target, draft)
    got = {}
    for size in (BLOCK, 2):
        plan = write_tiny(tmp_path / str(size), form, tied_target, draft, block_size=size)
        assert (plan.block_size, plan.pass_size) == (size, BLOCK)
        target, proposer = open_pair(tmp_path / str(size), form)
        target.run([Chunk(SLOT, PROMPT, 0)])
        got[size] = draft_block(proposer, judge, len(PROMPT), 17)
    for name in (names.HIDDEN, names.LOGITS):
        assert got[2][name].shape[0] == 2
        np.testing.assert_allclose(got[2][name], got[BLOCK][name][:2], atol=1e-5, rtol=0)
    if names.DRAFT_TOKENS in got[2]:
        assert got[2][names.DRAFT_TOKENS].tolist() == got[BLOCK][names.DRAFT_TOKENS][:, :2].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_draft_reduced_vocabulary_gives_the_kept_columns(
    tied_target: Path, form: tuple[str, str], tmp_path: Path
) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tied_target, block_size=BLOCK)
    judge = Judge(tied_target, draft)
    plan = write_tiny(tmp_path / "graphs", form, tied_target, draft, draft_vocab=100)
    d2t = head_arrays(plan.draft)["d2t"]  # type: ignore[arg-type]
    assert len(d2t) == 100 and (np.diff(d2t) > 0).all() and 2 in d2t
    target, proposer = open_pair(tmp_path / "graphs", form)
    target.run([Chunk(SLOT, PROMPT, 0)])
    got = draft_block(proposer, judge, len(PROMPT), 17)
    wanted = judge.round(PROMPT, 17)
    np.testing.assert_allclose(got[names.LOGITS], wanted.base_logits.numpy()[:, d2t], atol=TOLERANCE, rtol=0)
    if names.DRAFT_TOKENS in got:
        first = d2t[wanted.logits[0].numpy()[d2t].argmax()]
        assert got[names.DRAFT_TOKENS][0, 0] == first


def test_draft_embedding_table_is_the_targets_own_file(tied_target: Path, tmp_path: Path) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tied_target)
    write_tiny(tmp_path / "graphs", ("standard", "padded"), tied_target, draft)
    graph = onnx.load(str(tmp_path / "graphs" / names.DRAFT_GRAPH), load_external_data=False).graph
    (table,) = (t for t in graph.initializer if t.name == "embed_tokens.weight")
    assert {e.key: e.value for e in table.external_data}["location"] == names.TARGET_WEIGHTS


@needs_operators
def test_draft_graph_is_named_by_the_contract(tied_target: Path, tmp_path: Path) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tied_target)
    write_tiny(tmp_path / "graphs", ("trt", "packed"), tied_target, draft)
    onnx.checker.check_model(str(tmp_path / "graphs" / names.DRAFT_GRAPH), full_check=True)
    graph = onnx.load(str(tmp_path / "graphs" / names.DRAFT_GRAPH), load_external_data=False).graph
    caches = [name.format(i) for name in (names.CONTEXT_KEY, names.CONTEXT_VALUE) for i in range(2)]
    inputs = [
        names.TOKEN_IDS, names.POSITIONS, names.WRITE_INDICES, names.UPDATE_LENGTHS, names.KV_LENGTHS,
        names.ANCHOR_TOKENS, names.BLOCK_OFFSET, names.CONFIDENCE_SIGNAL, names.CUTOFF_POLICY, names.CUTOFF_PARAMS,
        names.CUTOFF_INCLUSIVE, names.MIN_VERIFY, names.MAX_VERIFY, names.CALIBRATION_TEMPERATURES,
        *names.SAMPLING_INPUTS,
    ]  # fmt: skip
    outputs = [
        names.LOGITS, names.HIDDEN, names.DRAFT_TOKENS, names.CONFIDENCE_LOGITS, names.DRAFT_LOGITS,
        names.ENTROPIES, names.VERIFY_LENGTHS, names.SURVIVALS, names.CONFIDENCES,
    ]  # fmt: skip
    assert sorted(item.name for item in graph.input) == sorted(inputs + caches)
    assert sorted(item.name for item in graph.output) == sorted(outputs + [n + names.PRESENT for n in caches])
