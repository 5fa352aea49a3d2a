"""Rejection through the whole runtime: what is emitted has the target's law, at every setting and in every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_runtime import SamplingParams, SpeculativeParams
from dspark_runtime.plan import RoundPlan
from dspark_runtime.sessions.base import IntArray
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.proof.chi_square import SMALLEST, p_value
from tests.reference.filters import Sampling
from tests.reference.rules import Rules
from tests.runtime.sampling_law import PROMPT, Law, TreeLogits, decode, joint_counts, round_counts
from tests.tiny import make_dspark_draft, make_target

VOCAB, TOKENS, DRAWS = 6, 6, 50_000
BATCH = 96
EOS = (0, 2)
"""End-of-sequence tokens of a tiny target."""
SHAPE = {"num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 16}

FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm": {"temperature": 1.4, "top_k": 5},
    "nucleus": {"temperature": 0.9, "top_p": 0.95},
    "floor": {"min_p": 0.05},
}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.4}
RULES: dict[str, tuple[dict[str, Any], Rules]] = {
    "none": ({}, Rules()),
    "penalties": (PENALTIES, Rules(repetition=1.3, presence=0.2, frequency=0.4)),
    "bias": (
        {"logit_bias": {1: 1.5, 3: -0.5}, "bad_token_ids": [0]},
        Rules(biases=((0, -np.inf), (1, 1.5), (3, -0.5))),
    ),
    # Tokens that end an output come late: the model's own, although they are ignored here, and one more.
    "late": (
        {"stop_token_ids": [4], "min_tokens": TOKENS} | PENALTIES,
        Rules(
            stops=tuple((token, len(PROMPT) + TOKENS) for token in (*EOS, 4)),
            repetition=1.3,
            presence=0.2,
            frequency=0.4,
        ),
    ),
}
COMBINATIONS: dict[str, list[tuple[dict[str, Any], str, str]]] = {
    # Of each list four settings share every batch.
    "dspark": [
        ({"cutoff": "all"}, "plain", "penalties"),
        ({"cutoff": "threshold:0.55", "signal": "head"}, "nucleus", "none"),
        ({"cutoff": "survival:0.15", "signal": "token"}, "warm", "late"),
        ({"cutoff": "utility:0.2,min_len=1,max_len=3", "signal": "margin"}, "floor", "bias"),
        ({"cutoff": "two_strikes:0.5", "signal": "entropy", "warmup_tokens": 2}, "floor", "penalties"),
        (
            {"cutoff": "threshold:0.4", "signal": "gini", "adaptive": "tau:0.6,window=2,low=0.1,high=0.8"},
            "warm",
            "none",
        ),
        (
            {"cutoff": "threshold:0.2", "signal": "token", "min_len": 1, "adaptive": "max_len:0.5,window=1,high=3"},
            "plain",
            "bias",
        ),
        ({"cutoff": "ramp:0.4,0.8", "signal": "topk_mass:2", "inclusive": True}, "nucleus", "late"),
    ],
    "model": [
        ({"cutoff": "dual:0.25,0.6,0.8", "signal": "top1"}, "warm", "penalties"),
        ({"cutoff": "threshold:0.3", "signal": "token"}, "floor", "none"),
        ({"cutoff": "survival:0.05", "signal": "margin", "max_len": 1}, "plain", "late"),
        ({"cutoff": "two_strikes:0.5", "signal": "token", "warmup_tokens": 1}, "nucleus", "bias"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target, and bundles with a draft of each kind."""
    tmp = tmp_path_factory.mktemp("law")
    target = make_target(tmp / "target", vocab_size=VOCAB, hidden_size=16, **SHAPE)
    config = {"target": target, "max_batch_size": BATCH, "max_seq_len": 16}
    dspark = make_dspark_draft(tmp / "draft", target, block_size=3, head_dim=8, rank=4, layer_ids=(-1,), **SHAPE)
    build(BuildConfig(draft=dspark, output=tmp / "dspark", **config))
    # Another model of the same vocabulary, which knows nothing of the target.
    other = make_target(tmp / "other", vocab_size=VOCAB, hidden_size=16, seed=9, **SHAPE)
    build(BuildConfig(draft=other, draft_kind="model", block_size=2, output=tmp / "model", **config))
    return tmp


@pytest.fixture(scope="module")
def logits(folder: Path) -> TreeLogits:
    return TreeLogits(folder / "target", TOKENS)


def params_of(filters: str, rules: str, speculative: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        max_tokens=TOKENS,
        ignore_eos=True,
        speculative=SpeculativeParams(accept="rejection", **speculative),
        **FILTERS[filters],
        **RULES[rules][0],
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), [("dspark", 0), ("dspark", 4), ("model", 0)])
def test_rejection_emits_the_targets_law_in_every_round(folder, logits, kind, first) -> None:
    chosen = COMBINATIONS[kind][first : first + 4]
    params = {str(i): params_of(filters, rules, speculative) for i, (speculative, filters, rules) in enumerate(chosen)}
    samples, requests = decode(folder / kind, params, DRAWS)
    assert 0 < sum(request.accepted for request in requests) < sum(request.verified for request in requests)
    for i, combination in enumerate(chosen):
        _, filters, rules = combination
        law = Law(logits, Sampling(**FILTERS[filters]), RULES[rules][1])
        assert p_value(joint_counts(samples[str(i)], VOCAB, 3), law.following((), 3)) > SMALLEST, combination
        for index in range(4):
            counts, expected = round_counts(samples[str(i)], law, index)
            assert counts.sum() > 1_000, (combination, index)
            assert p_value(counts, expected / counts.sum()) > SMALLEST, (combination, index)


@pytest.mark.slow
def test_controls_are_reported(folder, logits) -> None:
    params = {"all": params_of("plain", "none", {"cutoff": "all"})}
    law = Law(logits, Sampling())

    def one_more(plan: RoundPlan, verify: IntArray, accepted: IntArray) -> IntArray:
        return np.minimum(accepted + 1, verify)

    samples, _ = decode(folder / "dspark", params, 5_000, override=one_more)
    assert p_value(joint_counts(samples["all"], VOCAB, 3), law.following((), 3)) < 1e-12
    samples, _ = decode(folder / "dspark", params, 20_000)
    warmer = Law(logits, Sampling(temperature=1.1))
    assert p_value(joint_counts(samples["all"], VOCAB, 3), law.following((), 3)) > SMALLEST
    assert p_value(joint_counts(samples["all"], VOCAB, 3), warmer.following((), 3)) < 1e-12
    for index in range(3):
        counts, expected = round_counts(samples["all"], warmer, index)
        assert p_value(counts, expected / counts.sum()) < 1e-6
