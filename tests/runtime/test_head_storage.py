"""Storage of the sequential head through builds and engines: the bundle says it, and the output does not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from dspark_runtime.bundle import open_bundle
from dspark_runtime.contract import names
from dspark_runtime.oplib import has_onnxruntime_ops
from dspark_runtime.sessions.operators import HEAD_FILE, read_head

STORED = ("bfloat16", "int8")
PROMPTS = [[7, 80, 3], [44, 45, 46, 47], [200]]
ALL = SpeculativeParams(cutoff="all")
SAMPLED = SamplingParams(temperature=0.9, seed=5, max_tokens=16, ignore_eos=True, speculative=ALL)
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, speculative=ALL)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("form", ["", "-standard"])
@pytest.mark.parametrize("storage", STORED)
def test_output_is_that_of_plain_decoding(
    shared_llm: Callable[[str], LLM], storage: str, form: str, params: SamplingParams
) -> None:
    plain = shared_llm(f"none{form}").generate(PROMPTS, params)
    outputs = shared_llm(f"good-head-{storage}{form}").generate(PROMPTS, params)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert sum(output.stats.accepted for output in outputs) > 0


@pytest.mark.parametrize("storage", STORED)
def test_bundle_names_the_storage_and_its_file_has_it(bundle: Callable[[str], Path], storage: str) -> None:
    folder = bundle(f"good-head-{storage}-standard")
    draft = open_bundle(folder).manifest.draft
    assert draft is not None and draft.head_storage == storage
    head = read_head(folder / HEAD_FILE)
    assert head["markov_w2"].dtype == {"bfloat16": np.uint16, "int8": np.int8}[storage]
    assert ("markov_w2_scales" in head) == (storage == "int8")


@pytest.mark.skipif(not has_onnxruntime_ops(), reason="built without ONNX Runtime's headers")
@pytest.mark.parametrize("storage", STORED)
def test_graph_holds_the_matrix_in_its_storage(bundle: Callable[[str], Path], storage: str) -> None:
    graph = onnx.load(str(bundle(f"good-head-{storage}") / names.DRAFT_GRAPH), load_external_data=False).graph
    (matrix,) = (tensor for tensor in graph.initializer if tensor.name == "head.markov_w2")
    assert matrix.data_type == {"bfloat16": TensorProto.BFLOAT16, "int8": TensorProto.INT8}[storage]
