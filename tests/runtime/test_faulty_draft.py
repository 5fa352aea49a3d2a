"""A draft whose logits are faulty behind some tokens: it proposes less there, and the output is still the target's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from dspark_runtime.contract import names
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.tiny import make_dspark_draft, make_target

PROMPTS = [[7, 80, 3], [44, 45, 46, 47], [200, 17]]
ALL = SpeculativeParams(cutoff="all")
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, speculative=ALL)
COUPLED = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True, speculative=ALL)


def damage(bundle: Path, name: str, rows: list[int]) -> None:
    """Write NaN into rows of a float32 matrix of the draft graph; files keep their sizes, which is what is checked."""
    model = onnx.load(str(bundle / names.DRAFT_GRAPH), load_external_data=False)
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    width = tensor.dims[1]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries:
        array = numpy_helper.to_array(tensor).copy()
        array[rows] = np.nan
        tensor.raw_data = array.tobytes()
        (bundle / names.DRAFT_GRAPH).write_bytes(model.SerializeToString())
        return
    with (bundle / entries["location"]).open("r+b") as file:
        for row in rows:
            file.seek(int(entries["offset"]) + row * width * 4)
            file.write(np.full(width, np.nan, np.float32).tobytes())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(
        tmp_path_factory.mktemp("target") / "t", bigram=True, layer_gain=0.35, max_position_embeddings=128
    )


@pytest.fixture(scope="module", params=["dspark", "model"])
def engines(
    request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`engines(which)`: a bundle with no draft, a sound one, or the same one damaged behind tokens of the output."""
    folder = tmp_path_factory.mktemp(request.param)

    def made(which: str, draft: Path | None) -> Path:
        kind = "none" if draft is None else request.param
        sizes = {"max_seq_len": 64, "max_batch_size": 4}
        return build(BuildConfig(target=target, output=folder / which, draft=draft, draft_kind=kind, **sizes))

    draft, table = target, "embed_tokens.weight"
    if request.param == "dspark":
        draft, table = make_dspark_draft(folder / "draft", target, imitate=True, block_size=4), "head.markov_w1"
    with LLM(made("none", None), num_threads=2) as llm:
        plain = llm.generate(PROMPTS, GREEDY) + llm.generate(PROMPTS, COUPLED)
    made("sound", draft)
    damage(made("broken", draft), table, sorted({output.token_ids[5] for output in plain}))
    return folder.joinpath


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_output_is_that_of_plain_decoding_with_fewer_proposals(
    engines: Callable[[str], Path], params: SamplingParams
) -> None:
    outputs = {}
    for which in ("none", "sound", "broken"):
        with LLM(engines(which), num_threads=2) as llm:
            outputs[which] = llm.generate(PROMPTS, params)
    plain, sound, broken = ([output.token_ids for output in outputs[which]] for which in ("none", "sound", "broken"))
    assert sound == plain and broken == plain
    counted = {which: sum(output.stats.proposed for output in found) for which, found in outputs.items()}
    # Per round as well: a round that proposes nothing is followed by more rounds.
    rounds = {which: sum(output.stats.rounds for output in found) for which, found in outputs.items()}
    assert counted["broken"] / rounds["broken"] < counted["sound"] / rounds["sound"]
