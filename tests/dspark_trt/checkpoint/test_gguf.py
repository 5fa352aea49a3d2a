"""GGUF files: weights and settings equal transformers' reading; damaged or foreign files are refused."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint import gguf_quants, load_target
from dspark_trt.checkpoint.gguf_config import llama3_factors
from dspark_trt.checkpoint.types import TargetCheckpoint
from dspark_trt.config import RopeConfig
from tests.tiny import make_gguf, make_target


def judge(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


def assert_same(ours: TargetCheckpoint, theirs: PreTrainedModel) -> None:
    """Every weight bit for bit, and every number of the configuration."""
    config = theirs.config
    state = {key.removeprefix("model."): value for key, value in theirs.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    assert set(ours.tensors.names()) == set(state)
    for name, value in state.items():
        np.testing.assert_array_equal(ours.tensors.load(name), value.numpy(), err_msg=name)
    got = ours.config
    assert (got.family, got.vocab_size, got.hidden_size) == (config.model_type, config.vocab_size, config.hidden_size)
    assert (got.num_layers, got.intermediate_size) == (config.num_hidden_layers, config.intermediate_size)
    assert (got.num_heads, got.num_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert got.head_dim == theirs.model.layers[0].self_attn.head_dim
    assert (got.rms_norm_eps, got.max_position_embeddings) == (config.rms_norm_eps, config.max_position_embeddings)
    assert (got.rope.theta, got.rope.type) == (config.rope_parameters["rope_theta"], "default")
    assert (got.eos_token_ids, got.bos_token_id) == ((config.eos_token_id,), config.bos_token_id)
    assert got.tie_embeddings == config.tie_word_embeddings


@pytest.mark.parametrize(
    "family, options",
    [
        ("llama", {}),
        ("llama", {"tie_embeddings": True, "quantization": "Q8_0", "num_kv_heads": 1}),
        ("llama", {"head_dim": 32, "quantization": "F16", "vocab_size": 384}),
        ("qwen2", {}),
        ("qwen2", {"tie_embeddings": True, "quantization": "Q8_0", "rope_theta": 1e6}),
    ],
    ids=str,
)
def test_gguf_tiny_file_equals_transformers(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    path = make_gguf(tmp_path, family, **options)
    assert_same(load_target(path), judge(path))


def test_gguf_float32_file_gives_back_the_folder_it_was_made_of(tmp_path: Path) -> None:
    """The row order of q and k, judged without transformers."""
    from_gguf = load_target(make_gguf(tmp_path / "gguf"))
    from_folder = load_target(make_target(tmp_path / "folder"))
    assert from_gguf.tensors.names() == from_folder.tensors.names()
    for name in from_folder.tensors.names():
        np.testing.assert_array_equal(from_gguf.tensors.load(name), from_folder.tensors.load(name), err_msg=name)


@pytest.mark.slow
def test_gguf_real_smollm2_equals_transformers(smollm2_gguf: Path) -> None:
    assert_same(load_target(smollm2_gguf), judge(smollm2_gguf))


def test_gguf_real_smollm2_has_the_settings_it_is_known_for(smollm2_gguf: Path) -> None:
    target = load_target(smollm2_gguf.parent)  # a folder that holds exactly one
    config = target.config
    assert target.path == smollm2_gguf
    assert (config.family, config.num_layers, config.hidden_size, config.vocab_size) == ("llama", 30, 576, 49152)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert config.tie_embeddings and config.rope.theta == 100_000.0
    generation = json.loads(target.assets["generation_config.json"])
    assert generation == {"eos_token_id": [2], "bos_token_id": 1, "pad_token_id": 2}
    assert "<|im_start|>" in json.loads(target.assets["tokenizer_config.json"])["chat_template"]


def test_gguf_opening_reads_no_weights_and_loading_keeps_none(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, hidden_size=256, intermediate_size=2048, num_layers=6, quantization="Q8_0")
    load_target(path)  # imports and caches of the first call
    weights = path.stat().st_size
    tracemalloc.start()
    try:
        target = load_target(path)
        _, opened = tracemalloc.get_traced_memory()
        biggest = 0
        for name in target.tensors.names():
            biggest = max(biggest, target.tensors.load(name).nbytes)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opened < 0.3 * weights
    # Float32 out, and the package's own intermediate results for one piece.
    assert peak < opened + 5 * biggest
    assert peak < weights


def test_gguf_all_end_tokens_stop(tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 2}
    assert load_target(make_gguf(tmp_path, extra_fields=ends)).config.eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({"llama.rope.scaling.type": "none"}, RopeConfig()),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            RopeConfig(type="linear", factor=4.0),
        ),
        ({"llama.rope.scale_linear": 2.0}, RopeConfig(type="linear", factor=2.0)),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, RopeConfig()),
    ],
)
def test_gguf_rope_scaling_keys_are_read(tmp_path: Path, fields: dict[str, Any], wanted: RopeConfig) -> None:
    assert load_target(make_gguf(tmp_path, extra_fields=fields)).config.rope == wanted


LLAMA3 = RopeConfig(theta=500_000.0, type="llama3", factor=32.0)


def test_gguf_llama3_factors_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    values = {
        "rope_type": "llama3",
        "rope_theta": LLAMA3.theta,
        "factor": LLAMA3.factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=values)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = LLAMA3.theta ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / llama3_factors(LLAMA3, 64), scaled.numpy(), rtol=1e-5)


def test_gguf_rope_factors_of_llama3_become_its_rope(tmp_path: Path) -> None:
    tensors = {"rope_freqs.weight": llama3_factors(LLAMA3, 64)}
    path = make_gguf(tmp_path, head_dim=64, rope_theta=500_000.0, extra_tensors=tensors)
    target = load_target(path)
    assert target.config.rope == LLAMA3
    assert "rope_freqs.weight" not in target.tensors.names()


def test_gguf_rope_factors_of_one_mean_nothing(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, extra_tensors={"rope_freqs.weight": np.ones(8, np.float32)})
    assert load_target(path).config.rope == RopeConfig()


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_target(path)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("factors", [np.linspace(1, 3, 8), np.full(5, 2.0), np.full(8, np.nan)], ids=str)
def test_gguf_other_rope_factors_are_refused(tmp_path: Path, factors: np.ndarray) -> None:
    path = make_gguf(tmp_path, extra_tensors={"rope_freqs.weight": factors.astype(np.float32)})
    assert "are not those of Llama 3's rope with original context 8192" in refusal(path)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling type is 'yarn', supported are none, linear, llama3"),
        ({"llama.attention.sliding_window": 4096}, "sliding window is 4096, supported is full attention only"),
        ({"llama.expert_count": 8}, "is a mixture of experts, supported are dense models"),
        ({"split.count": 3}, "is one of 3 parts; merge them with llama-gguf-split --merge"),
        ({"llama.attention.value_length": 8}, "head widths differ (llama.rope.dimension_count 16"),
        ({"tokenizer.ggml.eot_token_id": 999}, "bos/eos token id 999 is outside [0, 320)"),
        ({"general.alignment": 3}, "general.alignment is 3, wanted a power of two"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.5}, "rope factor is 0.5, needs >= 1"),
    ],
)
def test_gguf_settings_that_we_do_not_compute_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    assert message in refusal(make_gguf(tmp_path, extra_fields=fields))


def test_gguf_unknown_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_gate_exps.weight": np.zeros((2, 64), np.float32)}
    assert "holds unknown tensors blk.0.ffn_gate_exps.weight" in refusal(make_gguf(tmp_path, extra_tensors=extra))
    missing = make_gguf(tmp_path, tensors_without=("model.layers.1.mlp.up_proj.weight",))
    assert "misses layers.1.mlp.up_proj.weight" in refusal(missing)
    bare = make_gguf(tmp_path, tensors_without=("model.embed_tokens.weight",))
    assert "misses token_embd.weight" in refusal(bare)


def header_with(architecture: str) -> bytes:
    """A whole file without tensors that names an architecture."""
    key, value = b"general.architecture", architecture.encode()
    return (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + struct.pack("<Q", len(key))
        + key
        + struct.pack("<IQ", 8, len(value))
        + value
    )


def headers() -> Iterator[Any]:
    start = b"GGUF" + struct.pack("<I", 3)
    key = struct.pack("<Q", 1) + b"k"
    info = struct.pack("<Q", 1) + b"t"
    dims = struct.pack("<IQ", 1, 32)
    for name, data, message in (
        ("empty", b"", "is truncated, the file is empty"),
        ("magic", b"PK\3\4" + b"\0" * 60, "is not a GGUF file, it begins with b'PK"),
        ("old", b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "has GGUF version 1, supported are 2 and 3"),
        ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "has GGUF version 50331648"),
        ("short", start + b"\0", "is truncated or damaged, found 9 bytes, its header wants 8 more at byte 8"),
        ("many-tensors", start + struct.pack("<QQ", 2**60, 0), "is truncated or damaged"),
        ("many-values", start + struct.pack("<QQ", 0, 2**60), "is truncated or damaged"),
        ("long-key", start + struct.pack("<QQQ", 0, 1, 2**60) + b"\0" * 9, "is truncated or damaged"),
        ("odd-type", start + struct.pack("<QQ", 0, 1) + key + struct.pack("<IQ", 77, 0), "of unknown type 77"),
        (
            "long-array",
            start + struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 4, 2**61),
            "is truncated or damaged",
        ),
        (
            "long-strings",
            start + struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 8, 2**61),
            "is truncated or damaged",
        ),
        (
            "nested-array",
            start + struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 9, 1),
            "holds an array of type 9",
        ),
        (
            "not-utf8",
            start + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1) + b"\xff" + b"\0" * 9,
            "holds a string that is not UTF-8",
        ),
        (
            "twice",
            start + struct.pack("<QQ", 0, 2) + 2 * (key + struct.pack("<II", 4, 1)),
            "holds the key 'k' twice",
        ),
        (
            "weights-as-metadata",
            start + struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 0, 2**24 + 1) + b"\0" * (2**24 + 1),
            "holds a value of 16777217 parts at byte 49, wanted at most 16777216",
        ),
        (
            "values-without-end",
            start + struct.pack("<QQ", 0, 2**16 + 1) + b"\0" * (12 * (2**16 + 1)),
            "claims 0 tensors and 65537 values, wanted at most 1048576 and 65536",
        ),
        (
            "controls",
            start + struct.pack("<QQQ", 1, 0, 5) + b"\x1b[2J\x07" + struct.pack("<I", 9) + b"\0" * 20,
            r"'\x1b[2J\x07' has 9 dimensions",
        ),
        (
            "two-names",
            start
            + struct.pack("<QQ", 2, 0)
            + (struct.pack("<Q", 18) + b"output_norm.weight" + dims + struct.pack("<IQ", 0, 0))
            + (struct.pack("<Q", 11) + b"norm.weight" + dims + struct.pack("<IQ", 0, 128))
            + b"\0" * 300,
            "norm.weight and output_norm.weight are names of the same tensor, wanted one of them",
        ),
        ("dimensions", start + struct.pack("<QQ", 1, 0) + info + struct.pack("<I", 9) + b"\0" * 20, "has 9 dimensions"),
        ("nothing", start + struct.pack("<QQ", 1, 0) + info + struct.pack("<IQIQ", 1, 0, 0, 0), "t is empty"),
        (
            "type",
            start + struct.pack("<QQ", 1, 0) + info + dims + struct.pack("<IQ", 999, 0),
            "t has the unknown ggml type 999",
        ),
        (
            "row",
            start + struct.pack("<QQ", 1, 0) + info + struct.pack("<IQIQ", 1, 31, 8, 0),
            "t has rows of 31 values, which Q8_0 cannot hold",
        ),
        (
            "offset",
            start + struct.pack("<QQ", 1, 0) + info + dims + struct.pack("<IQ", 0, 2**60),
            "is truncated, found",
        ),
        (
            "same-name",
            start + struct.pack("<QQ", 2, 0) + 2 * (info + dims + struct.pack("<IQ", 0, 0)) + b"\0" * 200,
            "holds two tensors of the same name",
        ),
        (
            "overlap",
            start
            + struct.pack("<QQ", 2, 0)
            + (info + dims + struct.pack("<IQ", 0, 0))
            + (struct.pack("<Q", 1) + b"u" + dims + struct.pack("<IQ", 0, 32))
            + b"\0" * 300,
            "u begins at data byte 32 and overlaps t",
        ),
        ("architecture", header_with("mamba") + b"\0" * 64, "found architecture 'mamba', supported are llama, qwen2"),
        ("no-architecture", start + struct.pack("<QQ", 0, 0) + b"\0" * 64, "general.architecture is nothing"),
    ):
        yield pytest.param(data, message, id=name)


@pytest.mark.parametrize("data, message", list(headers()))
def test_gguf_damaged_header_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    assert message in refusal(path)


def test_gguf_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    path = make_gguf(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, len(whole) // 60):
        path.write_bytes(whole[:length])
        refusal(path)


def test_gguf_damaged_byte_never_escapes_as_another_error(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, num_layers=1, quantization="Q8_0")
    whole = path.read_bytes()
    reader = gguf.GGUFReader(path)
    end = reader.data_offset
    rng = np.random.default_rng(0)
    refusals = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(end)] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            target = load_target(path)
            for name in target.tensors.names():
                target.tensors.load(name)
        except CheckpointError:
            refusals += 1
    assert refusals > 30


def test_gguf_type_that_the_package_cannot_dequantise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(raw: object, kind: object) -> None:
        raise NotImplementedError

    target = load_target(make_gguf(tmp_path, quantization="Q8_0"))
    monkeypatch.setattr(gguf.quants, "dequantize", cannot)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight has type Q8_0, which the gguf package cannot"):
        target.tensors.load("embed_tokens.weight")


def test_gguf_without_the_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_gguf(tmp_path)
    monkeypatch.setattr(gguf_quants, "gguf", None)
    assert 'pip install "dspark-trt[gguf]"' in refusal(path)


def test_gguf_folders_that_are_ambiguous_or_empty_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"target: .* does not exist"):
        load_target(tmp_path / "nowhere")
    assert "holds neither config.json nor a .gguf file" in refusal(tmp_path)
    (tmp_path / "weights.onnx").write_bytes(b"x")
    assert "is a file, wanted a folder with config.json, or a .gguf file" in refusal(tmp_path / "weights.onnx")
    make_gguf(tmp_path).rename(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert "holds 2 .gguf files (a.gguf, b.gguf), wanted one; name the file itself" in refusal(tmp_path)
    assert load_target(tmp_path / "a.gguf").config.num_layers == 4


def test_target_path_that_the_system_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long\)"):
        load_target(tmp_path / ("x" * 5000))
