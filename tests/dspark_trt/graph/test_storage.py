"""Graphs that keep a checkpoint's own weights say what transformers says, and what float32 graphs say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from dspark_runtime.contract import names
from dspark_runtime.contract.errors import ConfigError
from dspark_runtime.contract.manifest import parse_manifest
from dspark_trt.backends import Dialect
from dspark_trt.build import build, make_plan
from dspark_trt.config import BuildConfig
from dspark_trt.graph import storage_of
from tests.dspark_trt.graph.driver import Chunk, GraphDriver
from tests.dspark_trt.graph.models import needs_operators, reference, reference_run, write_tiny
from tests.runtime.conftest import THREADS
from tests.tiny import make_dspark_draft, make_gguf, make_target

TOLERANCE = 1e-4
PACKED = ("trt", "packed")
BFLOAT16: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-tied": {"family": "llama", "tie_embeddings": True},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-wide-heads": {"family": "llama", "head_dim": 24, "num_heads": 8, "num_kv_heads": 1},
    "qwen2": {"family": "qwen2", "tie_embeddings": True},
    "qwen3": {"family": "qwen3", "head_dim": 24},
}

pytestmark = needs_operators


def check_against(model: Any, folder: Path) -> None:
    """A prefill, a chunk behind it and single tokens, logits of every row."""
    driver = GraphDriver(folder / names.TARGET_GRAPH, *PACKED, num_slots=2)
    sequence = np.random.default_rng(5).integers(4, 320, 30).tolist()
    wanted, _ = reference_run(model, sequence)
    for start, stop in ((0, 17), (17, 28), (28, 29), (29, 30)):
        got = driver.run([Chunk(1, sequence[start:stop], start)])[names.LOGITS]
        np.testing.assert_allclose(got, wanted[start:stop], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("options", BFLOAT16.values(), ids=BFLOAT16)
def test_bfloat16_target_equals_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", dtype="bfloat16", **options)
    write_tiny(tmp_path / "graphs", PACKED, target, storage="checkpoint")
    assert storage_of(tmp_path / "graphs" / names.TARGET_GRAPH) == "bf16"
    check_against(reference(target), tmp_path / "graphs")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_1"])
def test_gguf_target_equals_transformers(quantization: str, family: str, tied: bool, tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "target", family, quantization=quantization, tie_embeddings=tied)
    write_tiny(tmp_path / "graphs", PACKED, file)
    assert storage_of(tmp_path / "graphs" / names.TARGET_GRAPH) == quantization.lower()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    check_against(model.eval(), tmp_path / "graphs")


def test_width_that_the_operator_does_not_take_stays_float32(tmp_path: Path) -> None:
    # Rows of 80 + 1 values: an odd intermediate size leaves down_proj alone in float32.
    target = make_target(tmp_path / "target", dtype="bfloat16", intermediate_size=81)
    write_tiny(tmp_path / "graphs", PACKED, target)
    check_against(reference(target), tmp_path / "graphs")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target = make_target(tmp_path_factory.mktemp("target"), dtype="bfloat16", layer_gain=0.1, bigram=True)
    return target, make_dspark_draft(tmp_path_factory.mktemp("draft"), target)


@pytest.mark.parametrize("options", [{}, {"draft_vocab": 100}, {"draft_quantize": "int8"}], ids=str)
def test_speculative_output_of_packed_weights_equals_plain_and_float32(
    pair: tuple[Path, Path], options: dict[str, Any], tmp_path: Path
) -> None:
    target, draft = pair
    prompts = [[(7 * i + j * j) % 300 + 4 for j in range(length)] for i, length in enumerate((3, 20, 1, 37))]
    outputs = []
    for storage in ("checkpoint", "float32"):
        config = BuildConfig(
            target=target, draft=draft, output=tmp_path / storage, max_seq_len=96, storage=storage, **options
        )
        with LLM(build(config), num_threads=THREADS) as llm:
            for speculative in (SpeculativeParams(enabled=False), SpeculativeParams(cutoff="all")):
                params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, speculative=speculative)
                outputs.append([output.token_ids for output in llm.generate(prompts, params)])
    assert outputs == [outputs[0]] * 4
    text = (tmp_path / "checkpoint" / names.MANIFEST).read_text(encoding="utf-8")
    assert parse_manifest(text, "manifest").target.storage == "bf16"


def test_auto_is_the_checkpoints_form_where_graphs_can_say_it(tiny_target: Path, tmp_path: Path) -> None:
    def storage(dialect: str, **options: Any) -> str:
        config = BuildConfig(target=tiny_target, output=tmp_path, **options)
        return make_plan(config, Dialect(dialect)).storage

    assert storage("trt") == "checkpoint"
    assert storage("standard") == "float32"
    assert storage("trt", storage="float32") == "float32"
    assert storage("trt", backend="tensorrt-rtx") == "float32"


def test_float32_checkpoint_keeps_float32(tiny_target: Path, tmp_path: Path) -> None:
    write_tiny(tmp_path, PACKED, tiny_target)
    assert storage_of(tmp_path / names.TARGET_GRAPH) == "float32"


@pytest.mark.parametrize("options", [{"backend": "tensorrt-rtx"}, {"dialect": "standard"}], ids=str)
def test_storage_that_graphs_cannot_say_is_refused_in_one_sentence(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storage is 'checkpoint', which onnxruntime's trt dialect alone can say"):
        BuildConfig(target=tmp_path, output=tmp_path, storage="checkpoint", **options)


def test_storage_where_the_library_has_no_operators_is_refused_in_one_sentence(tmp_path: Path) -> None:
    config = BuildConfig(target=tmp_path, output=tmp_path, storage="checkpoint")
    with pytest.raises(
        ConfigError, match="storage is 'checkpoint', which the trt dialect alone can say, but it is old"
    ):
        make_plan(config, Dialect("standard", "it is old"))
