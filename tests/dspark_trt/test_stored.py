"""Stored forms stand for what `load` gives, bit for bit, and packing loses nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dspark_trt import stored as module
from dspark_trt.checkpoint import load_target
from dspark_trt.stored import KINDS, concatenate, pack
from tests.plugins.test_linear import random_stored
from tests.reference.linear import unpack
from tests.tiny import make_gguf, make_target


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 64, 150])
def test_pack_read_by_reference_equals_unpack(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 64)
    stored = random_stored(kind, rows, 96)
    words = pack(stored)
    assert words.dtype == np.int32 and words.shape[0] == -(-rows // 64)
    # float64 says d * q + m without rounding; float32 rounds that once.
    np.testing.assert_array_equal(unpack(words, kind, rows).astype(np.float32), stored.unpack())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_concatenate_follow_the_unpacked_values(kind: str) -> None:
    first, second = random_stored(kind, 5, 64), random_stored(kind, 9, 64, seed=1)
    both = concatenate([first, second])
    values = np.concatenate([first.unpack(), second.unpack()])
    np.testing.assert_array_equal(both.unpack(), values)
    np.testing.assert_array_equal(both.rows(np.array([12, 0, 7])).unpack(), values[[12, 0, 7]])


@pytest.mark.parametrize(
    ("kind", "quantization", "family"),
    [("q8_0", "Q8_0", "llama"), ("q4_1", "Q4_1", "llama"), ("q4_1", "Q4_1", "qwen2")],
)
def test_gguf_stored_form_equals_load_bit_for_bit(kind: str, quantization: str, family: str, tmp_path: Path) -> None:
    tensors = load_target(make_gguf(tmp_path, family, quantization=quantization)).tensors
    matrices = [name for name in tensors.names() if len(tensors.shape(name)) == 2]
    for name in tensors.names():
        found = tensors.stored(name)
        assert (found is not None) == (name in matrices), name
        if found is not None:
            assert found.kind == kind
            np.testing.assert_array_equal(found.unpack(), tensors.load(name), err_msg=name)


@pytest.mark.parametrize("quantization", ["F32", "F16"])
def test_gguf_of_other_types_has_no_stored_form(quantization: str, tmp_path: Path) -> None:
    tensors = load_target(make_gguf(tmp_path, quantization=quantization)).tensors
    assert {tensors.stored(name) for name in tensors.names()} == {None}


def test_safetensors_bfloat16_stored_form_equals_load_bit_for_bit(tmp_path: Path) -> None:
    tensors = load_target(make_target(tmp_path, dtype="bfloat16", num_shards=2)).tensors
    for name in tensors.names():
        found = tensors.stored(name)
        assert (found is not None) == (len(tensors.shape(name)) == 2), name
        if found is not None:
            np.testing.assert_array_equal(found.unpack(), tensors.load(name), err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_safetensors_of_other_types_has_no_stored_form(dtype: str, tmp_path: Path) -> None:
    tensors = load_target(make_target(tmp_path, dtype=dtype)).tensors
    assert {tensors.stored(name) for name in tensors.names()} == {None}
