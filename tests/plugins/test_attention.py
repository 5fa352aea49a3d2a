"""TRT_Attention through the Python binding, against the float64 reference; and what its results must not depend on."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from tests.reference.attention import LOWER_RIGHT, NONE, UPPER_LEFT, attention_packed, attention_padded

CAUSAL = pytest.mark.parametrize("causal", [NONE, UPPER_LEFT, LOWER_RIGHT], ids=["none", "upper_left", "lower_right"])
TOLERANCE = 1e-5
"""Of values of size 1: float32 sums over up to 700 keys."""


class Step:
    """Random packed queries and caches whose stale rows are NaN: reading one would show."""

    def __init__(
        self,
        queries: list[int],
        keys: list[int],
        *,
        heads: int,
        kv_heads: int,
        width: int,
        spare: int = 0,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        capacity = max([1, *keys]) + 5
        self.query_lengths = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
        self.kv_lengths = np.array(keys, np.int32)
        shape = (int(self.query_lengths[-1]) + spare, heads, width)
        self.query = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(width))
        self.key = rng.standard_normal((len(keys), kv_heads, capacity, width), dtype=np.float32)
        self.value = rng.standard_normal((len(keys), kv_heads, capacity, width), dtype=np.float32)
        for b, n in enumerate(keys):
            self.key[b, :, n:] = np.nan
            self.value[b, :, n:] = np.nan

    def run(self, causal: int, *, parallel: bool = True) -> np.ndarray:
        return dspark_ops.attention(
            query=self.query,
            key=self.key,
            value=self.value,
            query_lengths=self.query_lengths,
            kv_lengths=self.kv_lengths,
            causal=causal,
            parallel=parallel,
        )

    def wanted(self, causal: int) -> np.ndarray:
        return attention_packed(self.query, self.key, self.value, self.query_lengths, self.kv_lengths, causal)

    def alone(self, causal: int, slot: int, first: int, last: int, keys: int) -> np.ndarray:
        """Queries [first, last) of a slot, in a step of their own that ends at `keys` cached rows."""
        start = self.query_lengths[slot]
        return dspark_ops.attention(
            query=self.query[start + first : start + last].copy(),
            key=self.key[slot : slot + 1],
            value=self.value[slot : slot + 1],
            query_lengths=np.array([0, last - first], np.int32),
            kv_lengths=np.array([keys], np.int32),
            causal=causal,
        )


@CAUSAL
@pytest.mark.parametrize("width", [3, 8, 32, 64, 80, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (8, 1)], ids=["9/3", "4/4", "8/1"])
def test_attention_packed_equals_reference(causal: int, width: int, heads: int, kv_heads: int) -> None:
    step = Step([1, 0, 5, 33, 2], [300, 7, 5, 130, 1], heads=heads, kv_heads=kv_heads, width=width, spare=2)
    output = step.run(causal)
    np.testing.assert_allclose(output, step.wanted(causal), rtol=0, atol=TOLERANCE)
    assert (output[-2:] == 0).all(), "rows past the last cumulative length must be zeros"


@CAUSAL
@pytest.mark.parametrize("width", [8, 64, 80])
def test_attention_padded_equals_reference(causal: int, width: int) -> None:
    rng = np.random.default_rng(1)
    query = rng.standard_normal((3, 6, 7, width), dtype=np.float32) / np.float32(np.sqrt(width))
    key, value = (rng.standard_normal((3, 2, 90, width), dtype=np.float32) for _ in range(2))
    lengths = np.array([85, 3, 0], np.int32)
    for b, n in enumerate(lengths):
        key[b, :, n:] = value[b, :, n:] = np.nan
    output = dspark_ops.attention(query=query, key=key, value=value, kv_lengths=lengths, causal=causal)
    np.testing.assert_allclose(output, attention_padded(query, key, value, lengths, causal), rtol=0, atol=TOLERANCE)


@CAUSAL
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_attention_any_lengths_equal_reference(causal: int, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 4))
    queries = data.draw(st.lists(st.integers(0, 9), min_size=slots, max_size=slots))
    keys = data.draw(st.lists(st.integers(0, 140), min_size=slots, max_size=slots))
    kv_heads = data.draw(st.integers(1, 2))
    heads = kv_heads * data.draw(st.integers(1, 7))
    width = data.draw(st.integers(1, 40))
    step = Step(queries, keys, heads=heads, kv_heads=kv_heads, width=width, spare=1, seed=data.draw(st.integers(0, 9)))
    np.testing.assert_allclose(step.run(causal), step.wanted(causal), rtol=0, atol=TOLERANCE)


@CAUSAL
@pytest.mark.parametrize("keys", [40, 700], ids=["one chunk", "split keys"])
def test_attention_one_thread_and_many_are_bitwise_equal(causal: int, keys: int) -> None:
    step = Step([8, 70], [keys, keys - 3], heads=9, kv_heads=3, width=64)
    np.testing.assert_array_equal(step.run(causal, parallel=True), step.run(causal, parallel=False))


@CAUSAL
@pytest.mark.parametrize("width", [64, 80])
def test_attention_slot_alone_or_in_a_batch_is_bitwise_equal(causal: int, width: int) -> None:
    queries, keys = [1, 4, 8, 70], [600, 33, 257, 90]
    step = Step(queries, keys, heads=9, kv_heads=3, width=width)
    batch = step.run(causal)
    for slot, (count, n) in enumerate(zip(queries, keys, strict=True)):
        rows = slice(step.query_lengths[slot], step.query_lengths[slot + 1])
        np.testing.assert_array_equal(batch[rows], step.alone(causal, slot, 0, count, n))


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 100])
def test_attention_chunked_prefill_is_bitwise_equal_to_one_prefill(chunk: int) -> None:
    total = 290
    step = Step([total], [total], heads=6, kv_heads=2, width=64)
    whole = step.run(LOWER_RIGHT)
    for first in range(0, total, chunk):
        last = min(total, first + chunk)
        np.testing.assert_array_equal(whole[first:last], step.alone(LOWER_RIGHT, 0, first, last, last))


def test_attention_padded_and_packed_are_bitwise_equal() -> None:
    step = Step([5, 5], [70, 300], heads=9, kv_heads=3, width=64)
    padded = dspark_ops.attention(
        query=np.ascontiguousarray(step.query.reshape(2, 5, 9, 64).transpose(0, 2, 1, 3)),
        key=step.key,
        value=step.value,
        kv_lengths=step.kv_lengths,
        causal=LOWER_RIGHT,
    )
    np.testing.assert_array_equal(padded.transpose(0, 2, 1, 3).reshape(10, 9, 64), step.run(LOWER_RIGHT))


def test_attention_nan_in_a_later_token_stays_out_of_earlier_rows() -> None:
    step = Step([6], [80], heads=6, kv_heads=2, width=64)
    clean = step.run(LOWER_RIGHT)
    step.key[0, :, 77] = np.nan
    step.value[0, :, 77] = np.nan
    output = step.run(LOWER_RIGHT)
    np.testing.assert_array_equal(output[:3], clean[:3])
    assert np.isnan(output[3:]).all()


def test_attention_scores_far_apart_stay_finite() -> None:
    step = Step([4], [500], heads=3, kv_heads=1, width=32)
    step.query *= np.float32(400)
    output = step.run(NONE)
    np.testing.assert_allclose(output, step.wanted(NONE), rtol=0, atol=1e-3)


def test_attention_queries_that_see_no_key_give_zeros() -> None:
    step = Step([5], [2], heads=2, kv_heads=1, width=8)
    output = step.run(LOWER_RIGHT)
    assert (output[:3] == 0).all()
    assert (output[3:] != 0).all()


def test_attention_idle_slot_may_hold_any_length() -> None:
    step = Step([2, 0], [9, 4], heads=2, kv_heads=1, width=8)
    wanted = step.run(LOWER_RIGHT)
    step.kv_lengths[1] = 10**6
    np.testing.assert_array_equal(step.run(LOWER_RIGHT), wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lengths": [10**6, 4]}, r"kv_lengths\[0\] is 1000000, needs \[0, 14\]"),
        ({"kv_lengths": [9, -1]}, r"kv_lengths\[1\] is -1"),
        ({"query_lengths": [0, 3, 2]}, r"query_lengths\[2\] is 2, needs at least the entry before it"),
        ({"query_lengths": [0, 3, 9]}, r"query_lengths\[2\] is 9, needs at most the 5 packed rows"),
        ({"causal": 3}, "causal is 3, needs 0"),
    ],
)
def test_attention_bad_arguments_are_refused(change: dict[str, list[int] | int], message: str) -> None:
    step = Step([3, 2], [9, 4], heads=2, kv_heads=1, width=8)
    causal = LOWER_RIGHT
    for name, value in change.items():
        if isinstance(value, int):
            causal = value
        else:
            setattr(step, name, np.array(value, np.int32))
    with pytest.raises(ValueError, match=message):
        step.run(causal)


def test_attention_heads_that_do_not_share_evenly_are_refused() -> None:
    step = Step([3], [9], heads=5, kv_heads=2, width=8)
    with pytest.raises(ValueError, match="num_heads is 5, needs a multiple of num_kv_heads, 2"):
        step.run(NONE)


class Params(ctypes.Structure):
    """dspark_attention_params."""

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("slots", "heads", "kv_heads", "capacity", "width", "tokens")],
        ("form", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("query", "key", "value", "query_lengths", "kv_lengths", "output")],
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("level", [1, 3])
def test_attention_code_for_older_processors_equals_reference(level: int, tmp_path: Path) -> None:
    plugins = Path(__file__).resolve().parents[2] / "plugins"
    library = tmp_path / "libattention.so"
    sources = ["src/cpu/attention.cc", "src/status.cc"]
    command = ["g++", "-std=c++17", "-O3", "-fPIC", "-shared", "-w", f"-DDSPARK_MAX_X86_LEVEL={level}"]
    command += [f"-I{plugins / 'include'}", f"-I{plugins / 'src'}", *[str(plugins / name) for name in sources]]
    subprocess.run([*command, "-o", str(library)], check=True)
    attention = ctypes.CDLL(str(library)).dspark_attention
    attention.argtypes = [ctypes.POINTER(Params), ctypes.c_void_p]
    for width in (3, 64, 80):
        step = Step([1, 5, 33], [300, 5, 130], heads=9, kv_heads=3, width=width)
        output = np.empty_like(step.query)
        pointers = [
            array.ctypes.data
            for array in (step.query, step.key, step.value, step.query_lengths, step.kv_lengths, output)
        ]
        shape = (3, 9, 3, step.key.shape[2], width, len(step.query))
        assert attention(Params(*shape, 0, LOWER_RIGHT, *pointers), None) == 0
        np.testing.assert_allclose(output, step.wanted(LOWER_RIGHT), rtol=0, atol=TOLERANCE)
