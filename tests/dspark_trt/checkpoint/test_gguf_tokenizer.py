"""Ids and texts equal transformers' own reading of the same GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint.fields import Fields
from dspark_trt.checkpoint.gguf_header import read_header
from dspark_trt.checkpoint.gguf_tokenizer import SPLITS, gguf_tokenizer
from tests.dspark_trt.checkpoint.sample_text import LINES, WHOLE
from tests.tiny import make_gguf

USER_DEFINED = "ox"
"""A token of SmolLM2 that the written vocabularies mark as user-defined."""


def metadata(path: Path) -> dict[str, Any]:
    return read_header(path, np.fromfile(path, np.uint8)).metadata


def judge(path: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def write_vocabulary(path: Path, source: dict[str, Any], family: str, pre: str, add_bos: bool = False) -> Path:
    """A GGUF without tensors: the vocabulary of `source` under another architecture and pre-tokenizer."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    types = list(source["tokenizer.ggml.token_type"])
    types[source["tokenizer.ggml.tokens"].index(USER_DEFINED)] = gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(source["tokenizer.ggml.tokens"])
    writer.add_token_types(types)
    writer.add_token_merges(source["tokenizer.ggml.merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(add_bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def assert_same(ours: Tokenizer, theirs: PreTrainedTokenizerBase) -> None:
    for text in (*LINES, WHOLE):
        # Pieces before merging: this vocabulary has no tokens of several digits to tell patterns apart.
        pieces = theirs.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert ours.pre_tokenizer.pre_tokenize_str(text) == pieces, text[:60]
        for special in (False, True):
            wanted = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special).ids == wanted, text[:60]
            for skip in (False, True):
                decoded = theirs.decode(wanted, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(wanted, skip_special_tokens=skip) == decoded, text[:60]


def test_tokenizer_real_smollm2_equals_transformers_on_every_script(smollm2_gguf: Path) -> None:
    ours, facts = gguf_tokenizer(Fields("smollm2", metadata(smollm2_gguf)))
    theirs = judge(smollm2_gguf)
    assert_same(ours, theirs)
    assert ours.get_vocab(with_added_tokens=True) == theirs.get_vocab()
    assert facts.chat_template == theirs.chat_template
    assert facts.special == {
        "bos_token": theirs.bos_token,
        "eos_token": theirs.eos_token,
        "unk_token": theirs.unk_token,
        "pad_token": theirs.pad_token,
    }


def test_tokenizer_round_trip_gives_the_text_back(smollm2_gguf: Path) -> None:
    ours, _ = gguf_tokenizer(Fields("smollm2", metadata(smollm2_gguf)))
    for text in (*LINES, WHOLE):
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "family, pre, add_bos",
    [
        ("llama", "smollm", False),
        ("llama", "llama-bpe", True),
        ("llama", "default", True),
        ("qwen2", "qwen2", False),
    ],
)
def test_tokenizer_each_pre_tokenizer_equals_transformers(
    tmp_path: Path, smollm2_gguf: Path, family: str, pre: str, add_bos: bool
) -> None:
    path = write_vocabulary(tmp_path / "vocabulary.gguf", metadata(smollm2_gguf), family, pre, add_bos)
    ours, _ = gguf_tokenizer(Fields("written", metadata(path)))
    assert_same(ours, judge(path))
    assert ours.encode("a fox", add_special_tokens=True).ids[0] == (1 if add_bos else ours.encode("a").ids[0])
    assert USER_DEFINED in ours.encode("foxes").tokens  # cut out although "fox" is a token


def test_tokenizer_pre_tokenizers_cut_digits_differently(tmp_path: Path) -> None:
    """A negative control: the comparison above would not notice patterns that are all alike."""
    source = metadata(make_gguf(tmp_path))
    cuts = {}
    for pre in ("gpt-2", "qwen2", "llama-bpe"):
        tokenizer, _ = gguf_tokenizer(Fields("control", source | {"tokenizer.ggml.pre": pre}))
        cuts[pre] = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("x1234")]
    assert cuts == {
        "gpt-2": ["x", "1234"],
        "qwen2": ["x", "1", "2", "3", "4"],
        "llama-bpe": ["x", "123", "4"],
    }


def test_tokenizer_tiny_qwen2_file_equals_transformers(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "qwen2")
    ours, _ = gguf_tokenizer(Fields("tiny", metadata(path)))
    assert_same(ours, judge(path))


def test_tokenizer_token_outside_the_byte_alphabet_is_spelled_in_bytes(smollm2_gguf: Path) -> None:
    source = metadata(smollm2_gguf)
    tokens, types = list(source["tokenizer.ggml.tokens"]), list(source["tokenizer.ggml.token_type"])
    tokens[-1], types[-1] = "日 本", 3
    merges = [m for m in source["tokenizer.ggml.merges"] if m.replace(" ", "") != source["tokenizer.ggml.tokens"][-1]]
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges}
    ours, _ = gguf_tokenizer(Fields("changed", source | changed))
    assert ours.get_vocab_size(with_added_tokens=True) == len(tokens)
    assert ours.decode([len(tokens) - 1], skip_special_tokens=False) == "日 本"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer model is 'llama', supported is gpt2"),
        ({"tokenizer.ggml.pre": "tekken"}, f"pre-tokenizer is 'tekken', supported are {', '.join(SPLITS)}"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing, wanted a list of strings"),
        ({"tokenizer.ggml.merges": ["a"]}, "merges holds 'a', wanted two tokens"),
        ({"tokenizer.ggml.merges": ["a \u0100\u0100"]}, "tokens and merges do not go together"),
        ({"tokenizer.ggml.token_type": [1]}, "320 tokens have 1 types, wanted one each"),
        ({"tokenizer.ggml.bos_token_id": 320}, "bos_token_id is 320, wanted [0, 320)"),
        ({"tokenizer.ggml.tokens": ["a"] * 320}, "holds 319 tokens twice"),
        ({"tokenizer.ggml.add_bos_token": 3}, "add_bos_token is 3, wanted true or false"),
    ],
)
def test_tokenizer_damaged_metadata_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = metadata(make_gguf(tmp_path))
    with pytest.raises(CheckpointError) as refused:
        gguf_tokenizer(Fields("tiny.gguf", source | changes))
    assert message in str(refused.value) and str(refused.value).startswith("tiny.gguf: ")
