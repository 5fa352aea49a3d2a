"""DSparkLinear through the Python binding and ONNX Runtime: its values, and what a row must not depend on."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from dspark_trt.stored import KINDS, Stored, pack
from tests.plugins.test_onnxruntime_ops import make_model, open_session
from tests.reference.linear import linear, unpack

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def random_stored(kind: str, rows: int, columns: int, seed: int = 0) -> Stored:
    """Every pattern of bits that a finite weight can have; scales from subnormal to 2 and of both signs."""
    rng = np.random.default_rng(seed)
    if kind == "bf16":
        values = rng.standard_normal((rows, columns), dtype=np.float32).view(np.uint32) >> 16
        return Stored(kind=kind, values=values.astype(np.uint16))
    shape = (rows, columns // 32)
    d = (rng.standard_normal(shape) * rng.choice([1e-7, 1e-5, 0.01, 1.0], shape)).astype(np.float16)
    if kind == "q8_0":
        return Stored(kind=kind, values=rng.integers(-128, 128, (rows, columns)).astype(np.int8), d=d)
    m = (rng.standard_normal(shape) * rng.choice([1e-7, 0.1], shape)).astype(np.float16)
    return Stored(kind=kind, values=rng.integers(0, 16, (rows, columns)).astype(np.uint8), d=d, m=m)


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@EVERY_KIND
@pytest.mark.parametrize("rows", [1, 5, 8, 9, 40])
@pytest.mark.parametrize(("out", "columns"), [(1, 32), (17, 64), (64, 96), (100, 576), (200, 32)], ids=str)
def test_linear_equals_reference(kind: str, rows: int, out: int, columns: int) -> None:
    weight = pack(random_stored(kind, out, columns))
    x, bias = floats(rows, columns), floats(out, seed=2)
    size = np.abs(x).astype(np.float64) @ np.abs(unpack(weight, kind, out)).T + 1
    for added in (None, bias):
        got = dspark_ops.linear(x=x, weight=weight, storage=kind, out_features=out, bias=added)
        assert (np.abs(got - linear(x, weight, kind, out, added)) <= 2e-6 * size).all()


@EVERY_KIND
def test_linear_weights_are_exact(kind: str) -> None:
    stored = random_stored(kind, 70, 64)
    weight = pack(stored)
    for rows in (8, 64):  # unpacked in registers, and to a panel
        unit = np.eye(64, dtype=np.float32)[:rows]
        got = dspark_ops.linear(x=unit, weight=weight, storage=kind, out_features=70)
        np.testing.assert_array_equal(got, stored.unpack().T[:rows])


@EVERY_KIND
@pytest.mark.parametrize(("out", "columns"), [(100, 64), (576, 576)], ids=str)
def test_linear_row_does_not_depend_on_other_rows_or_threads(kind: str, out: int, columns: int) -> None:
    weight = pack(random_stored(kind, out, columns))
    x, bias = floats(256, columns), floats(out, seed=2)

    def run(rows: int, parallel: bool) -> np.ndarray:
        part = np.ascontiguousarray(x[256 - rows :])
        return dspark_ops.linear(x=part, weight=weight, storage=kind, out_features=out, bias=bias, parallel=parallel)

    wanted = run(256, False)
    assert len(np.unique(wanted)) > 1000
    for rows in (*range(1, 18), 25, 64, 256):
        for parallel in (False, True):
            np.testing.assert_array_equal(run(rows, parallel), wanted[256 - rows :], err_msg=str(rows))


@pytest.mark.parametrize("level", [1, 3])
def test_linear_for_older_processors_gives_exact_weights_and_equal_rows(level: int, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    plugins = REPOSITORY / "plugins"
    sources = [plugins / "src" / name for name in ("status.cc", "cpu/linear.cc")]
    library = tmp_path / "linear.so"
    subprocess.run(
        [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-psabi", f"-DDSPARK_MAX_X86_LEVEL={level}",
         f"-I{plugins / 'include'}", f"-I{plugins / 'src'}", *map(str, sources), "-o", str(library)],
        check=True,
    )  # fmt: skip

    class Params(ctypes.Structure):
        _fields_ = (
            ("num_rows", ctypes.c_int64), ("in_features", ctypes.c_int64), ("out_features", ctypes.c_int64),
            ("storage", ctypes.c_int32), ("input", ctypes.c_void_p), ("weight", ctypes.c_void_p),
            ("bias", ctypes.c_void_p), ("output", ctypes.c_void_p),
        )  # fmt: skip

    run = ctypes.CDLL(str(library)).dspark_linear
    for number, kind in enumerate(KINDS):
        stored = random_stored(kind, 70, 64)
        weight = pack(stored)

        def product(x: np.ndarray, number: int = number, weight: np.ndarray = weight) -> np.ndarray:
            y = np.full((len(x), 70), np.nan, np.float32)
            params = Params(len(x), 64, 70, number, x.ctypes.data, weight.ctypes.data, None, y.ctypes.data)
            assert run(ctypes.byref(params), None) == 0
            return y

        np.testing.assert_array_equal(product(np.eye(64, dtype=np.float32)), stored.unpack().T)
        x = floats(9, 64)
        whole = product(x)
        for rows in range(1, 9):
            np.testing.assert_array_equal(product(np.ascontiguousarray(x[:rows])), whole[:rows])


def test_linear_without_rows_gives_an_empty_result() -> None:
    weight = pack(random_stored("q8_0", 20, 32))
    got = dspark_ops.linear(x=floats(0, 32), weight=weight, storage="q8_0", out_features=20)
    assert got.shape == (0, 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"storage": "q4_0"}, "storage is 'q4_0', wanted bf16, q8_0 or q4_1"),
        ({"out_features": 0}, "out_features is 0, wanted at least 1"),
        ({"out_features": 65}, "weight is int32 [1, 9, 64], wanted int32 [slabs, words, 64] = [2, 9, 64]"),
        ({"x": floats(2, 33)}, "in_features is 33, wanted a multiple of 32"),
        ({"x": floats(2, 64)}, "weight is int32 [1, 9, 64], wanted int32 [slabs, words, 64] = [1, 18, 64]"),
        ({"bias": floats(3)}, "bias is float32 [3], wanted float32 [N] = [20]"),
        ({"weight": np.zeros((1, 9, 64), np.float32)}, "weight is float32 [1, 9, 64], wanted int32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_linear_malformed_input_is_refused_in_a_sentence(changes: dict[str, object], message: str) -> None:
    arguments = {"x": floats(2, 32), "weight": np.zeros((1, 9, 64), np.int32), "storage": "q8_0", "out_features": 20}
    with pytest.raises(ValueError, match="linear: " + re.escape(message)):
        dspark_ops.linear(**(arguments | changes))


def graph_run(feeds: dict[str, np.ndarray], **attributes: object) -> np.ndarray:
    node = helper.make_node("DSparkLinear", list(feeds), ["y"], domain=names.OPERATOR_DOMAIN, **attributes)
    return open_session(make_model([node], feeds, {"y": (np.float32, 2)})).run(None, feeds)[0]


@EVERY_KIND
@pytest.mark.parametrize("rows", [1, 30])
def test_linear_node_equals_binding(kind: str, rows: int) -> None:
    feeds = {"x": floats(rows, 576), "weight": pack(random_stored(kind, 300, 576)), "bias": floats(300, seed=3)}
    wanted = dspark_ops.linear(**feeds, storage=kind, out_features=300)
    np.testing.assert_array_equal(graph_run(feeds, storage=kind, out_features=300), wanted)
    del feeds["bias"]
    assert not np.array_equal(graph_run(feeds, storage=kind, out_features=300), wanted)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"storage": "int3", "out_features": 20}, "attribute storage is 'int3', supported: bf16, q8_0, q4_1"),
        ({"storage": "q8_0"}, "lacks the attribute out_features"),
        ({"storage": "q8_0", "out_features": 65}, "weight has shape [1, 9, 64], needs [2, 9, 64]"),
        ({"storage": "q4_1", "out_features": 20}, "weight has shape [1, 9, 64], needs [1, 5, 64]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_linear_malformed_node_is_refused_in_a_sentence(attributes: dict[str, object], message: str) -> None:
    feeds = {"x": floats(2, 32), "weight": np.zeros((1, 9, 64), np.int32)}
    with pytest.raises(Exception, match=re.escape(message)):
        graph_run(feeds, **attributes)
