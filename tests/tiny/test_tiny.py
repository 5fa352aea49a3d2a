"""The makers keep what they promise to every test that builds on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.tiny import CHAT_TEMPLATE, make_contrary, make_dspark_draft, make_target, read_safetensors


def logits(folder: Path, ids: list[int]) -> np.ndarray:
    """[len(ids), V] float32 by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids])).logits[0])


def test_make_target_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    one, same, other = (make_target(tmp_path / str(i), seed=seed) for i, seed in enumerate((0, 0, 1)))
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (one / name).read_bytes() == (same / name).read_bytes()
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_make_target_logits_are_spread_and_depend_on_the_context(tmp_path: Path, family: str) -> None:
    folder = make_target(tmp_path, family)
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 320, 200).tolist()
    rows = logits(folder, ids)
    best = np.sort(rows, axis=1)
    assert 2.0 < rows.std() < 8.0
    assert (best[:, -1] - best[:, -2] < 1e-3).mean() <= 0.01
    changed = logits(folder, [ids[0] + 1, *ids[1:]])
    assert np.abs(changed[20] - rows[20]).max() > 1e-3


def test_make_target_bigram_is_followed_by_the_next_token(tmp_path: Path) -> None:
    folder = make_target(tmp_path, bigram=True, layer_gain=0.1)
    ids = np.random.default_rng(0).integers(4, 319, 50)
    agreed = logits(folder, ids.tolist()).argmax(axis=1) == ids + 1
    assert agreed.mean() > 0.9


def test_make_dspark_draft_imitating_head_knows_the_bigrams(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", bigram=True, layer_gain=0.1)
    tensors = read_safetensors(make_dspark_draft(tmp_path / "draft", target, imitate=True) / "model.safetensors")
    bonus = tensors["markov_head.markov_w1.weight"] @ tensors["markov_head.markov_w2.weight"].T
    assert (bonus.argmax(axis=1)[4:-1] == np.arange(5, 320)).mean() > 0.9


def test_make_contrary_best_token_is_the_worst(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", tie_embeddings=True)
    contrary = make_contrary(tmp_path / "contrary", target)
    ids = [5, 60, 200]
    np.testing.assert_array_equal(logits(contrary, ids), -logits(target, ids))


def test_make_target_tokenizer_encodes_any_text_and_the_chat_template(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_target(tmp_path))
    assert len(tokenizer) == 320
    text = "naïve 漢字 👍\n\ttab"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_make_target_small_vocabulary_has_a_word_per_token(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_target(tmp_path, vocab_size=12))
    assert tokenizer.encode("t4 t11 <|im_end|>") == [4, 11, 2]
