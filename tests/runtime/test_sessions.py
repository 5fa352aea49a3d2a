"""Engines that cannot be loaded or run, and the head file: one sentence each."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dspark_runtime.sessions.onnxruntime as sessions
from dspark_runtime import LLM, SamplingParams
from dspark_runtime.contract.errors import BundleError, ConfigError
from dspark_runtime.sessions.onnxruntime import OnnxRuntimeSession
from dspark_runtime.sessions.operators import read_head
from tests.runtime.conftest import THREADS
from tests.tiny import write_safetensors

GetBundle = Callable[[str], Path]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def test_graph_that_is_no_graph_is_a_fault_of_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "target.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"target\.onnx: ONNX Runtime cannot load it"):
        OnnxRuntimeSession(tmp_path / "target.onnx", False, THREADS)


def test_bundle_with_our_operators_and_a_library_without_them_says_what_to_do(
    bundle: GetBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "has_onnxruntime_ops", lambda: False)
    with pytest.raises(BundleError, match=r"which this installation's operator library lacks; .* --dialect standard"):
        LLM(bundle("none"), num_threads=THREADS)
    with LLM(bundle("none-standard"), num_threads=THREADS) as llm:
        assert len(llm.generate([[5, 6]], GREEDY)[0].token_ids) == 12


def test_standard_dialect_says_once_that_it_is_slower(bundle: GetBundle, caplog: pytest.LogCaptureFixture) -> None:
    with LLM(bundle("good-standard"), num_threads=THREADS) as llm:
        llm.generate([[5, 6]], GREEDY)
    assert [record.levelname for record in caplog.records if "standard dialect" in record.message] == ["WARNING"]


def test_logits_that_are_no_numbers_end_their_request_and_the_slot_is_of_use_again(bundle: GetBundle) -> None:
    # Without reuse: rows that a prompt finds again are not stale, and here they change behind the engine's back.
    with LLM(bundle("good"), num_threads=THREADS, enable_prefix_caching=False) as llm:
        wanted = llm.generate([[5, 6]], GREEDY)[0].token_ids
        for array in llm.executor.caches.values():
            array[:] = np.nan
        # Only rows of the own prompt are read: break one of them under way.
        stream = llm.stream([5, 6, 7, 8], GREEDY)
        for _ in stream:
            llm.executor.caches["target_value.0"][0, :, 1] = np.nan
        (answer,) = stream.output.outputs
        assert (answer.finish_reason, answer.stop_reason) == ("error", None)
        assert answer.error is not None and "logits are not numbers (NaN)" in answer.error
        assert 0 < len(answer.token_ids) < 12
        assert llm.generate([[5, 6]] * 8, GREEDY)[7].token_ids == wanted


def test_stale_rows_that_hold_nan_never_show(bundle: GetBundle) -> None:
    # Without reuse: rows that a prompt finds again are not stale, and here they change behind the engine's back.
    with LLM(bundle("good"), num_threads=THREADS, enable_prefix_caching=False) as llm:
        wanted = llm.generate([[5, 6, 7]] * 3, GREEDY)
        for array in llm.executor.caches.values():
            array[:] = np.nan
        found = llm.generate([[5, 6, 7]] * 3, GREEDY)
    assert [output.token_ids for output in found] == [output.token_ids for output in wanted]


def test_two_threads_share_the_engines_and_get_their_own_texts(bundle: GetBundle) -> None:
    prompts = [[5 + i, 9] for i in range(6)]
    with LLM(bundle("good"), num_threads=THREADS) as llm:
        alone = [llm.generate([prompt], GREEDY)[0].token_ids for prompt in prompts]
        found: dict[int, Any] = {}

        def work(part: int) -> None:
            found[part] = [output.token_ids for output in llm.generate(prompts[part::2] * 4, GREEDY)]

        threads = [threading.Thread(target=work, args=(part,)) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {part: alone[part::2] * 4 for part in range(2)}


def with_generation_config(source: Path, folder: Path, values: dict[str, Any]) -> Path:
    """A copy of a bundle whose generation_config.json says something else."""
    shutil.copytree(source, folder)
    data = json.dumps(values).encode()
    (folder / "generation_config.json").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["path"] == "generation_config.json":
            entry["size"] = len(data)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_defaults_of_the_checkpoint_apply_where_no_parameters_are_given(bundle: GetBundle, tmp_path: Path) -> None:
    config = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "max_new_tokens": 5, "do_sample": True}
    with LLM(with_generation_config(bundle("none"), tmp_path / "b", config), num_threads=THREADS) as llm:
        assert llm.default_sampling_params == replace(
            SamplingParams(), temperature=0.7, top_k=20, top_p=0.8, max_tokens=5
        )
        assert llm.generate([[5, 6]])[0].stats.output_tokens <= 5


def test_default_penalty_acts(bundle: GetBundle, tmp_path: Path) -> None:
    strong = with_generation_config(bundle("none"), tmp_path / "b", {"repetition_penalty": 50.0, "do_sample": False})
    with LLM(bundle("none"), num_threads=THREADS) as llm:
        plain = llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=40))[0]
    with LLM(strong, num_threads=THREADS) as llm:
        assert llm.default_sampling_params.repetition_penalty == 50.0
        penalised = llm.generate([[5, 6]], replace(llm.default_sampling_params, max_tokens=40))[0]
    repeats = [
        len(output.outputs[0].token_ids) - len(set(output.outputs[0].token_ids)) for output in (plain, penalised)
    ]
    assert repeats[0] > 0 == repeats[1]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("top_p", 7, "top_p is 7.0, needs (0, 1]"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", float("inf"), "temperature is inf"),
        ("temperature", 1e39, "temperature is 1e+39"),
        ("temperature", "hot", "temperature is 'hot'"),
        ("top_k", float("inf"), "top_k is inf"),
        ("top_k", float("nan"), "top_k is nan"),
        ("top_k", 2.5, "top_k is 2.5"),
        ("top_k", 2**40, "top_k is 1099511627776"),
        ("max_new_tokens", 0, "max_tokens is 0"),
    ],
)
def test_default_that_cannot_be_is_left_out_by_name_and_the_others_stay(
    bundle: GetBundle, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: object, said: str
) -> None:
    folder = with_generation_config(bundle("none"), tmp_path / "b", {"min_p": 0.25, name: value})
    with LLM(folder, num_threads=THREADS) as llm:
        assert llm.default_sampling_params == SamplingParams(min_p=0.25)
    assert f"{name} is left out of the defaults" in caplog.text
    assert said in caplog.text


def test_default_number_written_with_a_point_is_an_integer(bundle: GetBundle, tmp_path: Path) -> None:
    folder = with_generation_config(bundle("none"), tmp_path / "b", {"top_k": 50.0, "temperature": None})
    with LLM(folder, num_threads=THREADS) as llm:
        assert llm.default_sampling_params == SamplingParams(top_k=50)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "2"])
def test_number_of_threads_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(ConfigError, match=f"num_threads is {count!r}, needs an integer >= 1"):
        sessions.share_threads(count)


def test_threads_far_beyond_the_cores_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(ConfigError, match="num_threads is 9, but this process may use 2 cores; needs at most 4 per"):
        sessions.share_threads(9)


def test_threads_above_the_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sessions, "_pool_threads", None)
    monkeypatch.setattr(sessions.onnxruntime, "set_global_thread_pool_sizes", lambda size, _: sizes.append(size))
    assert sessions.share_threads(8) == 8
    assert sizes == [8]
    assert "num_threads is 8 on 2 cores" in caplog.text


def test_head_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    weights = {"markov_w1": np.arange(6, dtype=np.float32).reshape(3, 2), "confidence_bias": np.ones(1, np.float32)}
    write_safetensors(tmp_path / "head", weights, "float32")
    found = read_head(tmp_path / "head")
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array)


def head(header: object, body: bytes = b"\0" * 8) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 7,
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 4) + b"nope",
        head([]),
        head({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 16]}}),
        head({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}),
        head({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}),
        head({"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}),
        head({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 8]}}),
        head({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]}}),
        head({"a": 3}),
    ],
)
def test_head_file_that_is_damaged_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "head").write_bytes(data)
    with pytest.raises(BundleError, match="damaged"):
        read_head(tmp_path / "head")


@pytest.mark.parametrize(
    "module",
    ["dspark_runtime.sessions.onnxruntime", "dspark_trt.backends.onnxruntime_probe"],
    ids=["runtime", "builder"],
)
def test_engine_import_reports_nothing_and_leaves_the_home_folder_empty(tmp_path: Path, module: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"} | {"HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
