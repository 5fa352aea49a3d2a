"""Hugging Face folders: the same numbers and settings as transformers reads, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint import load_target
from tests.tiny import CHAT_TEMPLATE, make_target, read_safetensors, write_safetensors

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-bias": ("llama", {"tie_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-llama3-shards": ("llama", {"rope": "llama3", "num_shards": 3, "dtype": "bfloat16"}),
    "llama-linear-old": ("llama", {"rope": "linear", "rope_spelling": "rope_scaling", "head_dim": 24}),
    "llama-llama3-old": ("llama", {"rope": "llama3", "rope_spelling": "rope_scaling", "rope_theta": 5e5}),
    "llama-padded-mha": ("llama", {"vocab_size": 384, "num_kv_heads": 4, "dtype": "float16"}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_embeddings": True, "num_kv_heads": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3-bias": ("qwen3", {"attention_bias": True, "rope": "linear"}),
}


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; a value of ... removes the key."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_target(folder)
    message = str(error.value)
    assert str(folder) in message
    assert message.isprintable() and len(message) < 1000
    return message


@pytest.mark.parametrize("name", MODELS)
def test_target_equals_what_transformers_reads(tmp_path: Path, name: str) -> None:
    family, options = MODELS[name]
    ours = load_target(make_target(tmp_path, family, **options))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    config = theirs.config

    state = {key.removeprefix("model."): value for key, value in theirs.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    assert set(ours.tensors.names()) == set(state)
    for key, value in state.items():
        assert ours.tensors.shape(key) == tuple(value.shape)
        np.testing.assert_array_equal(ours.tensors.load(key), value.numpy(), err_msg=key)

    got = ours.config
    assert (got.family, got.vocab_size, got.hidden_size) == (family, config.vocab_size, config.hidden_size)
    assert (got.intermediate_size, got.num_layers) == (config.intermediate_size, config.num_hidden_layers)
    assert (got.num_heads, got.num_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert got.head_dim == theirs.model.layers[0].self_attn.head_dim
    assert (got.rms_norm_eps, got.max_position_embeddings) == (config.rms_norm_eps, config.max_position_embeddings)
    assert got.tie_embeddings == config.tie_word_embeddings
    assert got.rope.theta == config.rope_parameters["rope_theta"]
    assert got.rope.type == config.rope_parameters["rope_type"]
    for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        if key in config.rope_parameters:
            assert getattr(got.rope, key) == config.rope_parameters[key]
    assert got.eos_token_ids == (2, 0)  # generation_config's, config.json has 2 alone
    assert got.bos_token_id == 1


def test_target_tied_with_an_equal_lm_head_drops_it(tmp_path: Path) -> None:
    make_target(tmp_path, tie_embeddings=True)
    tensors = read_safetensors(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    target = load_target(tmp_path)
    assert target.config.tie_embeddings
    assert "lm_head.weight" not in target.tensors.names()


def test_target_tied_with_another_lm_head_is_untied_as_transformers_does(tmp_path: Path) -> None:
    make_target(tmp_path, tie_embeddings=True)
    tensors = read_safetensors(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = -tensors["model.embed_tokens.weight"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    target = load_target(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).lm_head.weight
    assert not target.config.tie_embeddings
    np.testing.assert_array_equal(target.tensors.load("lm_head.weight"), theirs.detach().numpy())


def test_target_tied_with_an_lm_head_alone_uses_it_for_both(tmp_path: Path) -> None:
    make_target(tmp_path, tie_embeddings=True)
    tensors = read_safetensors(tmp_path / "model.safetensors")
    table = tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    write_safetensors(tmp_path / "model.safetensors", tensors)
    np.testing.assert_array_equal(load_target(tmp_path).tensors.load("embed_tokens.weight"), table)


def test_target_assets_carry_tokenizer_template_and_generation_defaults(tmp_path: Path) -> None:
    make_target(tmp_path)
    edit(tmp_path / "generation_config.json", temperature=0.7, top_p=0.9, do_sample=True, max_length=20)
    assets = load_target(tmp_path).assets
    assert assets["tokenizer.json"] == (tmp_path / "tokenizer.json").read_bytes()
    config = json.loads(assets["tokenizer_config.json"])
    assert config == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    assert json.loads(assets["generation_config.json"]) == {
        "eos_token_id": [2, 0],
        "bos_token_id": 1,
        "pad_token_id": 2,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
    }


@pytest.mark.parametrize(
    ("key", "value", "note"),
    [
        ("temperature", -1, "temperature is -1, wanted [0, 1000000]"),
        ("temperature", "hot", "temperature is 'hot', wanted"),
        ("temperature", True, "temperature is True, wanted"),
        ("temperature", float("nan"), "temperature is nan, wanted"),
        ("temperature", 10**400, "temperature is 1000"),
        ("top_k", 2.5, "top_k is 2.5, wanted an integer in [-1, 2**31)"),
        ("top_k", 2**31, "top_k is 2147483648, wanted"),
        ("top_p", 0, "top_p is 0, wanted (0, 1]"),
        ("top_p", 5.0, "top_p is 5.0, wanted (0, 1]"),
        ("min_p", [0.1], "min_p is [0.1], wanted [0, 1]"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0, wanted (0, 1000000]"),
        ("do_sample", "\x1b[2J" + "x" * 9999, r"do_sample is '\x1b[2Jxxx"),
        ("max_new_tokens", 0, "max_new_tokens is 0, wanted an integer >= 1"),
        ("pad_token_id", -1, "pad_token_id is -1, wanted a token in [0, 320)"),
    ],
)
def test_target_generation_default_that_cannot_be_is_left_out_with_a_note(
    tmp_path: Path, key: str, value: Any, note: str
) -> None:
    make_target(tmp_path)
    edit(tmp_path / "generation_config.json", **{"min_p": 0.25, key: value})
    target = load_target(tmp_path)
    kept = json.loads(target.assets["generation_config.json"])
    assert key not in kept and (key == "min_p" or kept["min_p"] == 0.25)
    (told,) = target.notes
    assert told.startswith("generation_config.json: " + note) and told.endswith("; left out of the defaults")
    assert told.isprintable() and len(told) < 250


def test_target_generation_defaults_at_the_ends_of_their_ranges_are_kept(tmp_path: Path) -> None:
    make_target(tmp_path)
    values = {"temperature": 0, "top_k": -1, "top_p": 1, "min_p": 1.0, "repetition_penalty": 1.1, "max_new_tokens": 1}
    edit(tmp_path / "generation_config.json", **values)
    target = load_target(tmp_path)
    assert target.notes == ()
    assert values.items() <= json.loads(target.assets["generation_config.json"]).items()


def test_target_eos_falls_back_to_config_without_generation_config(tmp_path: Path) -> None:
    make_target(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert load_target(tmp_path).config.eos_token_ids == (2,)
    edit(tmp_path / "config.json", eos_token_id=None, bos_token_id=...)
    config = load_target(tmp_path).config
    assert (config.eos_token_ids, config.bos_token_id) == ((), None)


def test_target_chat_template_is_found_in_each_of_its_places(tmp_path: Path) -> None:
    def template() -> str | None:
        return json.loads(load_target(tmp_path).assets["tokenizer_config.json"]).get("chat_template")

    make_target(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    edit(config, chat_template=named, bos_token={"content": "<|im_start|>", "special": True})
    assert template() == "D"
    assert json.loads(load_target(tmp_path).assets["tokenizer_config.json"])["bos_token"] == "<|im_start|>"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "J"}')
    assert template() == "J"
    (tmp_path / "chat_template.jinja").write_text("{{ messages }} ü\n")
    assert template() == "{{ messages }} ü\n"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    assert "chat_template.jinja: is not UTF-8" in refusal(tmp_path)
    for name in ("chat_template.json", "chat_template.jinja", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    assert template() is None


@pytest.mark.parametrize("flags", [{"add_bos_token": True}, {"add_eos_token": True}, {"add_bos_token": False}], ids=str)
def test_target_tokenizer_json_decides_about_ends_as_in_transformers(tmp_path: Path, flags: dict[str, bool]) -> None:
    make_target(tmp_path)
    edit(tmp_path / "tokenizer_config.json", **flags)
    ours = Tokenizer.from_str(load_target(tmp_path).assets["tokenizer.json"].decode())
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode("the fox").ids == theirs.encode("the fox")
    assert ours.encode("the fox", add_special_tokens=False).ids == theirs.encode("the fox", add_special_tokens=False)


def test_target_tokenizer_left_with_truncation_and_padding_neither_cuts_nor_fills(tmp_path: Path) -> None:
    make_target(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=40)
    wanted = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("the quick brown fox jumps").ids
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_str(load_target(tmp_path).assets["tokenizer.json"].decode())
    assert ours.encode("the quick brown fox jumps").ids == wanted


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 16}


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "found architecture 'MambaForCausalLM', supported are LlamaForCausalLM",
        ),
        ({"architectures": []}, "found no architectures, supported are"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', supported is silu"),
        ({"sliding_window": 4096}, "sliding_window is 4096, supported is full attention only"),
        ({"sliding_window": 0}, "sliding_window is 0, supported is full attention only"),
        (SLIDING, "sliding_window is 16, supported is full attention only"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types holds 'sliding_attention'"),
        ({"layer_types": "full"}, "layer_types holds 'full', supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope type is 'yarn', supported are default"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differs per layer type"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor is nothing, wanted a finite number"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "rope factor is 0.5, needs >= 1"),
        ({"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type is 'dynamic'"),
        ({"rope_parameters": 3}, "rope_parameters is 3, wanted an object"),
        ({"quantization_config": {"bits": 4}}, "has a quantization_config, wanted float weights"),
        ({"hidden_size": "64"}, "hidden_size is '64', wanted an integer"),
        ({"hidden_size": True}, "hidden_size is True, wanted an integer"),
        ({"vocab_size": ...}, "vocab_size is nothing, wanted an integer"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny', wanted a finite number"),
        ({"max_position_embeddings": 1}, "max_position_embeddings is 1, needs >= 2"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.5}}, "rope theta is 0.5, needs >= 1"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 0}}, "low_freq_factor is 0.0, needs > 0"),
        (
            {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 0}},
            "original_max_position_embeddings is 0, needs >= 1",
        ),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, needs [0, 1)"),
        ({"hidden_size": 10**400}, "wanted an integer below 2**63"),
        ({"max_position_embeddings": 2**63}, "max_position_embeddings is 9223372036854775808, wanted an integer"),
        ({"rope_parameters": {"rope_theta": 10**400, "rope_type": "default"}}, "wanted a finite number"),
        ({"hidden_act": "\x1b[2J" + "x" * 9999}, r"hidden_act is '\x1b[2Jxxx"),
        ({"architectures": ["\u202e" * 9999]}, r"found architecture '\u202e\u202e"),
        ({"layer_types": [{"a": "\x07" * 9999}]}, r"layer_types holds {'a': '\x07"),
        ({"rope_parameters": {"rope_type": "\x9b" * 9999}}, r"rope type is '\x9b"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', wanted true or false"),
        ({"num_key_value_heads": 3}, "num_heads is 4, needs a multiple of num_kv_heads 3"),
        ({"num_hidden_layers": 0}, "num_layers is 0, needs >= 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, wanted at most 4096"),
        ({"num_attention_heads": 5}, "hidden_size 64 is no multiple of num_attention_heads 5"),
        ({"num_attention_heads": 0}, "is no multiple of num_attention_heads 0"),
        ({"head_dim": 15}, "head_dim is 15, needs an even number"),
        ({"hidden_size": 128, "head_dim": 16}, "has other shapes than its config says: embed_tokens.weight [320, 64]"),
        ({"num_hidden_layers": 5}, "misses layers.4.input_layernorm.weight"),
        ({"num_hidden_layers": 3}, "holds unknown tensors layers.3.input_layernorm.weight"),
        ({"attention_bias": True}, "misses layers.0.self_attn.k_proj.bias"),
    ],
    ids=lambda value: value.replace(" ", "-")[:40] if isinstance(value, str) else "",
)
def test_target_config_that_we_do_not_compute_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    make_target(tmp_path)
    edit(tmp_path / "config.json", **changes)
    assert message in refusal(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"sliding_window": None}, {"sliding_window": 32, "use_sliding_window": False}, {"head_dim": None}]
)
def test_target_config_null_window_and_null_head_dim_mean_the_plain_thing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    make_target(tmp_path)
    plain = load_target(tmp_path).config
    edit(tmp_path / "config.json", **changes)
    assert load_target(tmp_path).config == plain


def test_target_eos_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    make_target(tmp_path)
    edit(tmp_path / "generation_config.json", eos_token_id=[2, 320])
    assert "bos/eos token id 320 is outside [0, 320)" in refusal(tmp_path)
    edit(tmp_path / "generation_config.json", eos_token_id=[2, "x"])
    assert "eos_token_id is [2, 'x'], wanted a list of integers" in refusal(tmp_path)


def test_target_unknown_and_missing_tensors_are_told_together(tmp_path: Path) -> None:
    make_target(tmp_path, tensors_without=("lm_head.weight",))
    tensors = read_safetensors(tmp_path / "model.safetensors")
    write_safetensors(
        tmp_path / "model.safetensors", tensors | {"model.layers.0.mlp.experts.w1": tensors["model.norm.weight"]}
    )
    message = refusal(tmp_path)
    assert "misses lm_head.weight; holds unknown tensors layers.0.mlp.experts.w1" in message


def test_target_tokenizer_problems_are_refused(tmp_path: Path) -> None:
    make_target(tmp_path)
    path = tmp_path / "tokenizer.json"
    good = path.read_bytes()
    path.write_bytes(good[:-40])
    assert "tokenizer.json: is not valid JSON" in refusal(tmp_path)
    path.write_text('{"model": {"type": "Magic"}}')
    assert "is not a tokenizer that the tokenizers library reads" in refusal(tmp_path)
    tokenizer = json.loads(good)
    tokenizer["model"]["continuing_subword_prefix"] = "longer than the tokens"  # over which the library panics
    path.write_text(json.dumps(tokenizer))
    assert "is not a tokenizer that the tokenizers library reads" in refusal(tmp_path)
    path.unlink()
    assert "has no tokenizer.json; save the tokenizer in its fast form" in refusal(tmp_path)
    path.write_bytes(good)
    edit(tmp_path / "tokenizer_config.json", chat_template=[{"name": "x", "template": "y"}])
    assert "wanted a string, or a list with a template named 'default'" in refusal(tmp_path)
    edit(tmp_path / "tokenizer_config.json", chat_template=[{"name": [], "template": "y"}])
    assert "wanted a string, or a list with a template named 'default'" in refusal(tmp_path)
    edit(tmp_path / "tokenizer_config.json", chat_template="\ud800")
    assert r"chat_template is '\ud800', wanted a string" in refusal(tmp_path)
    edit(tmp_path / "tokenizer_config.json", chat_template=None, pad_token="\ud800")
    assert "pad_token" not in json.loads(load_target(tmp_path).assets["tokenizer_config.json"])
    edit(tmp_path / "tokenizer_config.json", chat_template=5)
    assert "chat_template is 5, wanted a string" in refusal(tmp_path)


def test_target_with_more_token_ids_than_rows_is_refused(tmp_path: Path) -> None:
    make_target(tmp_path, vocab_size=300)
    make_target(tmp_path / "larger", vocab_size=320)
    (tmp_path / "tokenizer.json").write_bytes((tmp_path / "larger" / "tokenizer.json").read_bytes())
    assert "has token ids up to 319, the model has 300 rows of embeddings" in refusal(tmp_path)


def test_target_shard_name_beyond_what_the_system_takes_is_refused(tmp_path: Path) -> None:
    make_target(tmp_path, num_shards=2)
    name = "x" * 300 + ".safetensors"
    edit(tmp_path / "model.safetensors.index.json", weight_map={"model.norm.weight": name})
    message = refusal(tmp_path)
    assert message.startswith("target: ") and "cannot be read (File name too long); check name" in message


def test_target_folder_that_may_not_be_searched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in: whoever runs the tests may be allowed everything."""
    make_target(tmp_path)

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert f"{tmp_path / 'config.json'} cannot be read (Permission denied)" in refusal(tmp_path)


def test_target_index_that_names_a_tensor_twice_is_refused(tmp_path: Path) -> None:
    make_target(tmp_path, num_shards=2)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x", "a": "y"}}')
    assert "model.safetensors.index.json: holds the key 'a' twice" in refusal(tmp_path)
