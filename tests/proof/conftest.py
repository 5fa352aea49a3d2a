"""The real target, its reference outputs by transformers, and bundles with four different drafts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspark_runtime import LLM
from dspark_trt.build import build
from dspark_trt.checkpoint import load_draft, load_target
from dspark_trt.config import BuildConfig
from tests.proof.prompts import ALL

MAX_TOKENS = 48
REPO = Path(__file__).parents[2]
DRAFT = REPO / "examples" / "smollm2-dspark"
NEVER_SAID = 9
"""A reserved special token of SmolLM2 that greedy decoding of our prompts never produces."""


@dataclass(frozen=True)
class Reference:
    """Greedy outputs of transformers in float32; gaps[p][i] is the margin of token i of prompt p."""

    prompt_ids: list[list[int]]
    outputs: list[list[int]]
    gaps: list[list[float]]


@pytest.fixture(scope="session")
def reference(smollm2_gguf: Path) -> Reference:
    where = {"pretrained_model_name_or_path": str(smollm2_gguf.parent), "gguf_file": smollm2_gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    prompt_ids, outputs, gaps = [], [], []
    for prompt in ALL:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        made = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        best = [torch.topk(row[0], 2).values for row in made.logits]
        prompt_ids.append(list(ids))
        outputs.append(made.sequences[0, len(ids) :].tolist())
        gaps.append([float(top[0] - top[1]) for top in best])
    return Reference(prompt_ids, outputs, gaps)


def _always_wrong_draft(gguf: Path, folder: Path) -> Path:
    """The real draft with a Markov head that adds a huge bonus to one token the target never says."""
    folder.mkdir()
    shutil.copy(DRAFT / "config.json", folder)
    source = load_draft(DRAFT, load_target(gguf)).tensors
    tensors = {name: np.array(source.load(name)) for name in source.names()}
    w1, w2 = tensors["markov_head.markov_w1.weight"], tensors["markov_head.markov_w2.weight"]
    w1[:], w2[:] = 0.0, 0.0
    w1[:, 0], w2[NEVER_SAID, 0] = 1.0, 1e4
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@dataclass(frozen=True)
class Variant:
    """A bundle to prove, and the accepted length it must show (None: any)."""

    make: Callable[[Path, Path], BuildConfig]
    accepted_length: float | None = None


VARIANTS = {
    "dspark": Variant(lambda gguf, tmp: BuildConfig(target=gguf, draft=DRAFT, output=tmp / "dspark", max_seq_len=512)),
    "dspark-int8-8k": Variant(
        lambda gguf, tmp: BuildConfig(
            target=gguf, draft=DRAFT, output=tmp / "dspark8k", max_seq_len=512, draft_quantize="int8", draft_vocab=8192
        )
    ),
    "model-int8": Variant(
        lambda gguf, tmp: BuildConfig(
            target=gguf, draft=gguf, draft_kind="model", draft_quantize="int8", output=tmp / "model", max_seq_len=512
        )
    ),
    "always-wrong": Variant(
        lambda gguf, tmp: BuildConfig(
            target=gguf, draft=_always_wrong_draft(gguf, tmp / "wrong-draft"), output=tmp / "wrong", max_seq_len=512
        ),
        accepted_length=1.0,
    ),
    "target-as-draft": Variant(
        lambda gguf, tmp: BuildConfig(
            target=gguf, draft=gguf, draft_kind="model", block_size=4, output=tmp / "itself", max_seq_len=512
        ),
        accepted_length=5.0,
    ),
}


@pytest.fixture(scope="session", params=list(VARIANTS))
def proven(
    request: pytest.FixtureRequest, smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Variant, LLM]]:
    """An open bundle of each variant in turn; its folder is gone before the next one is built."""
    variant = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("proof")
    with LLM(build(variant.make(smollm2_gguf, folder))) as llm:
        yield request.param, variant, llm
    shutil.rmtree(folder)
