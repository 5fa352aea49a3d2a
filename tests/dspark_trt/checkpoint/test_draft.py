"""DSpark and model drafts: every variant is read as it was written; what does not fit is refused, found and wanted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_runtime.contract.errors import CheckpointError, ConfigError
from dspark_trt.checkpoint import DSparkDraftCheckpoint, TargetCheckpoint, load_draft, load_target
from tests.tiny import make_contrary, make_dspark_draft, make_gguf, make_target, make_tokenizer, read_safetensors


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> TargetCheckpoint:
    return load_target(tiny_target)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def dspark(folder: Path, target: TargetCheckpoint) -> DSparkDraftCheckpoint:
    draft = load_draft(folder, target)
    assert isinstance(draft, DSparkDraftCheckpoint)
    return draft


def refusal(folder: Path, target: TargetCheckpoint, kind: str = "auto") -> str:
    with pytest.raises(CheckpointError) as error:
        load_draft(folder, target, kind)
    return str(error.value)


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn", "none"])
@pytest.mark.parametrize("confidence, with_markov", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("own", [False, True])
def test_dspark_draft_every_variant_loads_as_written(
    tmp_path: Path, target: TargetCheckpoint, head: str, confidence: bool, with_markov: bool, own: bool
) -> None:
    with_markov = with_markov and head != "none"
    make_dspark_draft(
        tmp_path, target.path, head, confidence=confidence, with_markov=with_markov, own_embeddings=own, block_size=5
    )
    draft = dspark(tmp_path, target)
    config = draft.config
    assert (config.markov_head_type, config.markov_rank) == (head, 0 if head == "none" else 8)
    assert (config.has_confidence_head, config.confidence_with_markov) == (confidence, with_markov)
    assert (config.has_embed_tokens, config.has_lm_head) == (own, own)
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (5, 3, (-1, 0, 2))
    assert config.num_target_layers == 4
    decoder = config.decoder
    assert (decoder.family, decoder.qk_norm, decoder.head_dim, decoder.num_layers) == ("qwen3", True, 24, 2)
    written = read_safetensors(tmp_path / "model.safetensors")
    assert set(draft.tensors.names()) == set(written)
    for name, tensor in written.items():
        np.testing.assert_array_equal(draft.tensors.load(name), tensor)


def test_dspark_draft_own_lm_head_without_own_embeddings(tmp_path: Path, target: TargetCheckpoint) -> None:
    make_dspark_draft(tmp_path, target.path, own_lm_head=True)
    config = dspark(tmp_path, target).config
    assert (config.has_embed_tokens, config.has_lm_head) == (False, True)


def test_dspark_draft_real_one_fits_the_real_target(smollm2_gguf: Path, smollm2_dspark: Path) -> None:
    draft = dspark(smollm2_dspark, load_target(smollm2_gguf))
    assert draft.config.target_layer_ids == (1, 8, 14, 21, 27)
    assert (draft.config.block_size, draft.config.markov_rank) == (7, 64)
    assert draft.tensors.load("fc.weight").shape == (576, 2880)


def test_dspark_draft_with_null_window_has_full_attention(tmp_path: Path, target: TargetCheckpoint) -> None:
    make_dspark_draft(tmp_path, target.path)
    edit(tmp_path, sliding_window=None, use_sliding_window=False)
    assert dspark(tmp_path, target).config.block_size == 4
    edit(tmp_path, sliding_window=64, use_sliding_window=True)
    assert "sliding_window is 64, supported is full attention only" in refusal(tmp_path, target)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"block_size": 0}, "config.json: draft: block_size is 0, needs >= 1"),
        ({"block_size": None}, "block_size is nothing, wanted an integer"),
        ({"mask_token_id": 320}, "mask_token_id is 320, needs [0, 320)"),
        ({"mask_token_id": -1}, "mask_token_id is -1, needs [0, 320)"),
        ({"target_layer_ids": []}, "target_layer_ids is empty, needs at least one layer"),
        ({"target_layer_ids": "all"}, "target_layer_ids is 'all', wanted a list of integers"),
        ({"markov_head_type": "lstm"}, "markov_head_type is 'lstm', supported are none, vanilla, gated, rnn"),
        ({"markov_head_type": "none"}, "markov_rank 8 does not go with head type 'none'"),
        ({"markov_rank": -1}, "markov_rank is -1, wanted 0 (no head) or more"),
        ({"markov_rank": 0, "confidence_head_with_markov": True}, "confidence_head_with_markov needs markov_rank > 0"),
        ({"markov_rank": 4}, "markov_head.markov_w1.weight [320, 8], wanted [320, 4]"),
        ({"markov_head_type": "gated"}, "misses markov_head.gate_proj.bias, markov_head.gate_proj.weight"),
        ({"enable_confidence_head": False}, "holds unknown tensors confidence_head.proj.bias"),
        ({"confidence_head_with_markov": False}, "confidence_head.proj.weight [1, 72], wanted [1, 64]"),
        ({"target_layer_ids": [0, 2]}, "fc.weight [64, 192], wanted [64, 128]"),
        ({"num_hidden_layers": 3}, "misses layers.2.input_layernorm.weight"),
        ({"attention_bias": True}, "misses layers.0.self_attn.k_proj.bias"),
        ({"vocab_size": 400}, "vocabulary has 400 tokens, wanted 320"),
        ({"hidden_size": 32}, "hidden size is 32, wanted 64"),
        ({"target_layer_ids": [0, 1, 3]}, "target_layer_ids hold 3, wanted [-1, 2] for 4 layers"),
        ({"target_layer_ids": [-2, 0, 1]}, "target_layer_ids hold -2, wanted [-1, 2] for 4 layers"),
        ({"target_layer_ids": [0, 1, 1]}, "target_layer_ids [0, 1, 1] name a layer twice"),
        ({"num_target_layers": 30}, "num_target_layers is 30, wanted 4"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type is 'yarn'"),
        (
            {"architectures": ["Gemma4DSparkModel"]},
            "is a Gemma 4 draft (Gemma4DSparkModel), which is not supported yet",
        ),
        ({"architectures": ["DSparkDraftModel"], "dflash_config": {}}, "is the SpecForge format (DSparkDraftModel)"),
        ({"speculators_model_type": "dspark"}, "is the speculators format ('dspark'), which is not supported yet"),
        ({"architectures": ["EagleModel"]}, "found architecture 'EagleModel', supported drafts are Qwen3DSparkModel"),
    ],
    ids=lambda value: value.replace(" ", "-")[:40] if isinstance(value, str) else "",
)
def test_dspark_draft_that_cannot_be_is_refused(
    tmp_path: Path, target: TargetCheckpoint, changes: dict[str, Any], message: str
) -> None:
    make_dspark_draft(tmp_path, target.path)
    edit(tmp_path, **changes)
    found = refusal(tmp_path, target)
    assert message in found
    assert str(tmp_path) in found


def test_dspark_draft_all_misfits_are_told_at_once(tmp_path: Path, target: TargetCheckpoint) -> None:
    make_dspark_draft(tmp_path, target.path)
    edit(tmp_path, vocab_size=400, num_target_layers=8, target_layer_ids=[0, 1, 7])
    message = refusal(tmp_path, target)
    assert "the draft does not fit the target: vocabulary has 400" in message
    assert "hold 7" in message and "num_target_layers is 8" in message
    assert message.endswith("was it trained for another target?")


def test_dspark_draft_missing_and_odd_tensors_are_named(tmp_path: Path, target: TargetCheckpoint) -> None:
    make_dspark_draft(
        tmp_path,
        target.path,
        tensors_without=("confidence_head.proj.bias",),
        extra_tensors={"markov_head.other": np.zeros(3, np.float32)},
    )
    message = refusal(tmp_path, target)
    assert "misses confidence_head.proj.bias; holds unknown tensors markov_head.other" in message


def test_model_draft_of_the_same_tokenizer_loads(tmp_path: Path, target: TargetCheckpoint) -> None:
    folder = make_target(tmp_path, "qwen2", hidden_size=32, num_layers=2, seed=5)
    draft = load_draft(folder, target)
    assert isinstance(draft, TargetCheckpoint)
    assert (draft.config.family, draft.config.hidden_size) == ("qwen2", 32)
    assert isinstance(load_draft(target.path, target, "model"), TargetCheckpoint)


def test_model_draft_from_gguf_with_the_same_vocabulary_loads(tmp_path: Path, target: TargetCheckpoint) -> None:
    draft = load_draft(make_gguf(tmp_path), target)
    assert isinstance(draft, TargetCheckpoint)
    # Another file, the same tokens at the same ids.
    assert draft.assets["tokenizer.json"] != target.assets["tokenizer.json"]


def test_model_draft_contrary_prefers_what_the_target_likes_least(tmp_path: Path, target: TargetCheckpoint) -> None:
    draft = load_draft(make_contrary(tmp_path / "contrary", target.path), target)
    np.testing.assert_array_equal(draft.tensors.load("lm_head.weight"), -target.tensors.load("lm_head.weight"))


def test_model_draft_of_another_vocabulary_size_is_refused(tmp_path: Path, target: TargetCheckpoint) -> None:
    message = refusal(make_target(tmp_path, vocab_size=384), target)
    assert "the draft does not fit the target: vocabulary has 384 rows, wanted 320" in message


def test_model_draft_of_another_tokenizer_is_refused(tmp_path: Path, target: TargetCheckpoint) -> None:
    make_target(tmp_path)
    make_tokenizer(tmp_path, size=300)
    message = refusal(tmp_path, target)
    assert "20 tokens differ between the tokenizers, for instance" in message
    assert "has id None, wanted 3" in message


def test_draft_kind_that_was_not_asked_for_is_refused(
    tmp_path: Path, target: TargetCheckpoint, tiny_draft: Path
) -> None:
    assert "is a draft of kind dspark, wanted model as --draft-kind says" in refusal(tiny_draft, target, "model")
    assert "is a draft of kind model, wanted dspark as --draft-kind says" in refusal(target.path, target, "dspark")
    assert isinstance(load_draft(tiny_draft, target, "dspark"), DSparkDraftCheckpoint)
    with pytest.raises(ConfigError, match="draft_kind is 'eagle', supported are auto, dspark, model"):
        load_draft(tiny_draft, target, "eagle")


def test_draft_paths_that_hold_nothing_are_refused(tmp_path: Path, target: TargetCheckpoint) -> None:
    assert refusal(tmp_path / "none", target) == f"draft: {tmp_path / 'none'} does not exist"
    assert "holds neither config.json nor a .gguf file" in refusal(tmp_path, target)
    make_dspark_draft(tmp_path / "draft", target.path)
    (tmp_path / "draft" / "model.safetensors").unlink()
    assert "has a config.json but no weights" in refusal(tmp_path / "draft", target)


def test_target_path_with_a_draft_in_it_is_refused(tmp_path: Path, tiny_draft: Path) -> None:
    with pytest.raises(CheckpointError, match="is a DSpark draft, wanted a target; were the two paths swapped"):
        load_target(tiny_draft)
    shutil.copytree(tiny_draft, tmp_path / "speculators")
    edit(tmp_path / "speculators", speculators_model_type="dspark")
    with pytest.raises(CheckpointError, match="is a DSpark draft, wanted a target"):
        load_target(tmp_path / "speculators")
