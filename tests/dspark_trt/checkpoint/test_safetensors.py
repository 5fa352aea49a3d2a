"""Files that lie are refused in a sentence; honest ones load bit by bit, one tensor at a time."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint.safetensors import INDEX, SafetensorsFile, open_folder
from tests.tiny import write_safetensors
from tests.tiny.target import write_weights

RAMP = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write_raw(path: Path, header: object, data: bytes = b"\0" * 8) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        SafetensorsFile(path)
    message = str(error.value)
    assert message.startswith(str(path))
    assert message.isprintable() and len(message) < len(str(path)) + 400
    return message


@pytest.mark.parametrize("dtype, bits", [("float32", 0), ("float16", 11), ("bfloat16", 8)])
def test_safetensors_each_dtype_loads_as_the_float32_it_stands_for(tmp_path: Path, dtype: str, bits: int) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"model.a": RAMP, "b": RAMP[0]}, dtype)
    source = open_folder(tmp_path)
    assert source.names() == ("a", "b")
    assert source.shape("a") == (3, 4)
    loaded = source.load("a")
    assert loaded.dtype == np.float32 and loaded.flags.c_contiguous and loaded.flags.writeable
    np.testing.assert_allclose(loaded, RAMP, rtol=2.0**-bits if bits else 0)
    assert source.load("a") is not source.load("a")


def test_safetensors_file_of_the_official_writer_loads_bit_for_bit(tmp_path: Path) -> None:
    tensors = {"x": RAMP, "scalar": np.array(3.5, np.float32), "half": RAMP.astype(np.float16)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "np"})
    source = open_folder(tmp_path)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(source.load(name), tensor.astype(np.float32))


def test_safetensors_shards_are_joined_by_their_index(tmp_path: Path) -> None:
    tensors = {f"model.t{i}": RAMP + i for i in range(5)}
    write_weights(tmp_path, tensors, "float32", num_shards=3)
    source = open_folder(tmp_path)
    assert source.names() == tuple(f"t{i}" for i in range(5))
    for i in range(5):
        np.testing.assert_array_equal(source.load(f"t{i}"), RAMP + i)


def test_safetensors_rotary_buffers_are_left_out(tmp_path: Path) -> None:
    tensors = {"model.layers.0.self_attn.rotary_emb.inv_freq": RAMP[0], "model.norm.weight": RAMP[0]}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert open_folder(tmp_path).names() == ("norm.weight",)


def test_safetensors_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    big = np.zeros((512, 1024), np.float32)
    write_safetensors(tmp_path / "model.safetensors", {f"t{i}": big for i in range(8)}, "bfloat16")
    tracemalloc.start()
    try:
        source = open_folder(tmp_path)
        for name in source.names():
            source.load(name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * big.nbytes


@pytest.mark.parametrize(
    "header, message",
    [
        (b"{", "header: is not valid JSON"),
        (b"[]", "header: found a JSON list, wanted an object"),
        (b"[" * 100_000, "header: is not valid JSON"),
        ({"a": [1]}, "header entry 'a' wants dtype, shape and data_offsets"),
        ({"a": {**entry(), "more": 1}}, "header entry 'a' wants dtype, shape and data_offsets"),
        ({"a": entry("F33")}, "a has dtype 'F33', which is not one of safetensors'"),
        ({"a": entry(shape=[-2])}, "a has shape [-2], wanted a list of sizes"),
        ({"a": entry(shape=[True])}, "a has shape [True], wanted a list of sizes"),
        ({"a": entry(shape="2")}, "a has shape '2', wanted a list of sizes"),
        ({"a": entry(shape=[10**4000])}, "a has shape [1000000"),
        ({"a": entry(shape=[2**62] * 32)}, "a spans 8 bytes, wanted"),
        ({"a": entry(shape=[1] * 33)}, "a has 33 dimensions, wanted at most 32"),
        (b'{"a": {"shape": [' + b"9" * 5000 + b"]}}", "header: holds a number of thousands of digits"),
        (b'{"a": 1, "b": {}, "a": 1}', "header: holds the key 'a' twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F16"}}', "header: holds the key 'dtype' twice"),
        ({"\x1b[31m" + "x" * 9999: entry("F33")}, r"'\x1b[31mxxx"),
        ({"a": entry("\n" * 9999)}, r"a has dtype '\n\n"),
        ({"a": entry(offsets=[0, 10**4000])}, "a has data_offsets [0, 1000000"),
        ({"a": entry(offsets=[0])}, "a has data_offsets [0], wanted [begin, end]"),
        ({"a": entry(offsets=[8, 0])}, "a spans -8 bytes, wanted 8 for F32 [2]"),
        ({"a": entry(shape=[3])}, "a spans 8 bytes, wanted 12 for F32 [3]"),
        ({"a": entry(shape=[2**62, 2**62])}, "a spans 8 bytes, wanted"),
        ({"a": entry(offsets=[4, 12])}, "leaves a gap before it"),
        ({"a": entry(), "b": entry(shape=[1], offsets=[4, 8])}, "overlaps the tensor before it"),
        ({"a": entry(shape=[4], offsets=[0, 16])}, "is truncated, found"),
        ({"a": entry(shape=[1], offsets=[0, 4])}, "has 4 bytes that belong to no tensor"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_safetensors_lying_header_is_refused(tmp_path: Path, header: object, message: str) -> None:
    assert message in refused(write_raw(tmp_path / "model.safetensors", header))


def test_safetensors_file_without_a_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"abc")
    assert "is truncated, found 3 bytes" in refused(path)
    path.write_bytes(struct.pack("<Q", 50) + b"{}")
    assert "is truncated, found 10 bytes, its header alone wants 58" in refused(path)
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    assert "it is not a safetensors file" in refused(path)
    assert "cannot be read (No such file or directory)" in refused(tmp_path / "none.safetensors")


def test_safetensors_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "whole", {"a": RAMP, "b": RAMP}).read_bytes()
    for length in range(0, len(whole), 5):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            open_folder(tmp_path)


def test_safetensors_damaged_byte_never_escapes_as_another_error(tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "whole", {"model.a": RAMP, "model.b": RAMP}).read_bytes()
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = np.random.default_rng(0)
    refusals = 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.integers(header_end)] = rng.integers(256)
        (tmp_path / "model.safetensors").write_bytes(damaged)
        try:
            source = open_folder(tmp_path)
            for name in source.names():
                source.load(name)
        except CheckpointError:
            refusals += 1
    assert refusals > 200


def test_safetensors_dtype_without_a_float_meaning_is_refused(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", {"a": entry("I64", [1])})
    with pytest.raises(CheckpointError, match="a has dtype I64, supported are F32, F16, BF16; quantised"):
        open_folder(tmp_path)


def test_safetensors_same_tensor_with_and_without_prefix_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"model.a": RAMP, "a": RAMP})
    with pytest.raises(CheckpointError, match="a is there twice"):
        open_folder(tmp_path)


def test_folder_with_pickles_only_asks_for_safetensors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04never unpickled")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*convert to safetensors"):
        open_folder(tmp_path)


def test_folder_without_weights_says_what_it_wants(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"but no weights, wanted model\.safetensors or"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weight_map": {}}, "wants a weight_map"),
        ({"weight_map": 3}, "wants a weight_map"),
        ({"weight_map": {"t0": "../other.safetensors"}}, "wanted a .safetensors file of this folder"),
        ({"weight_map": {"t0": "/etc/passwd"}}, "wanted a .safetensors file of this folder"),
        ({"weight_map": {"t0": "weights.bin"}}, "wanted a .safetensors file of this folder"),
        ({"weight_map": {"t0": "model-00009-of-00002.safetensors"}}, "misses 1 of 1 shards: model-00009"),
        ({"weight_map": {"t0": "model-00001-of-00002.safetensors", "t9": "model-00001-of-00002.safetensors"}}, "t9"),
        ({"weight_map": {"t0": "model-00001-of-00002.safetensors"}}, "differ in t2"),
    ],
)
def test_index_that_does_not_fit_its_shards_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_weights(tmp_path, {f"t{i}": RAMP for i in range(3)}, "float32", num_shards=2)
    (tmp_path / INDEX).write_text(json.dumps(change))
    with pytest.raises(CheckpointError) as error:
        open_folder(tmp_path)
    assert message in str(error.value)
