"""Rejection sampling through the whole runtime: what is emitted has the target's distribution, in every round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
import pytest

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.runtime.conftest import THREADS
from tests.tiny import make_dspark_draft, make_target

VOCAB = 9
DRAWS = 3000
PROMPT = [5, 7, 4]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], LLM]:
    tmp: Path = tmp_path_factory.mktemp("distribution")
    target = make_target(tmp / "target", vocab_size=VOCAB, hidden_size=32, num_layers=2, intermediate_size=48)
    draft = make_dspark_draft(tmp / "draft", target, block_size=3, num_layers=1)
    output = build(BuildConfig(target=target, draft=draft, output=tmp / "bundle", max_batch_size=64, max_seq_len=256))
    return lambda: LLM(output, num_threads=THREADS)


def draws(llm: LLM, params: SamplingParams, number: int = DRAWS) -> list[tuple[int, ...]]:
    return [output.token_ids for output in llm.generate([PROMPT] * number, params)]


def disagreement(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Two-sample chi-square in standard deviations above its mean; outcomes expected fewer than 10 times are joined."""
    counts = Counter(one), Counter(other)
    keys = sorted(set(one) | set(other), key=repr)
    table = np.array([[count[key] for key in keys] for count in counts], float)
    rare = table.sum(axis=0) < 20
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    expected = table.sum(axis=0) * table.sum(axis=1, keepdims=True) / table.sum()
    freedom = table.shape[1] - 1
    assert freedom >= 3, "too few outcomes to tell anything"
    return float((((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.slow
def test_rejection_emits_the_targets_distribution_under_every_cutoff(llm: Callable[[], LLM]) -> None:
    base = {"temperature": 0.8, "top_k": 7, "top_p": 0.95, "max_tokens": 6, "ignore_eos": True}
    with llm() as engine:
        plain = draws(engine, SamplingParams(**base, speculative=SpeculativeParams(enabled=False)))
        for cutoff in ("all", "threshold:0.5", "survival:0.3"):
            found = draws(engine, SamplingParams(**base, speculative=SpeculativeParams(cutoff=cutoff)))
            for position in range(6):
                pairs = [tokens[position : position + 2] for tokens in found]
                wanted = [tokens[position : position + 2] for tokens in plain]
                assert disagreement(pairs, wanted) < 5.0, (cutoff, position)
        stats = engine.stats()
        assert 0 < stats.accepted < stats.verified
        # Control: the same measure sees a temperature that is slightly off.
        warmer = draws(engine, SamplingParams(**base | {"temperature": 1.0}))
        assert disagreement([t[:2] for t in warmer], [t[:2] for t in plain]) > 8.0
