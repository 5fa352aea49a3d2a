"""Greedy output on the real model, plain and speculative, is what transformers says in float32.

Each bundle runs all 24 prompts at batch 1, 3 and 8. Between plain and speculative decoding of our own
engine no token may differ at all on this model: the same rows give the same logits in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dspark_runtime import LLM, RequestOutput, SamplingParams, SpeculativeParams
from tests.proof.conftest import MAX_TOKENS, Reference, Variant
from tests.proof.equality import Comparison

pytestmark = pytest.mark.slow

BATCHES = (1, 3, 8)
PLAIN = SpeculativeParams(enabled=False)
FIXED = SpeculativeParams(cutoff="all")
SCHEDULED = SpeculativeParams(cutoff="threshold:0.4")


def run(llm: LLM, prompts: Sequence[Sequence[int]], batch: int, speculative: SpeculativeParams) -> list[RequestOutput]:
    """All prompts, `batch` of them at a time."""
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, speculative=speculative)
    outputs: list[RequestOutput] = []
    for start in range(0, len(prompts), batch):
        outputs += llm.generate([list(ids) for ids in prompts[start : start + batch]], params)
    return outputs


def check(what: str, outputs: Sequence[RequestOutput], reference: Reference) -> None:
    comparison = Comparison()
    for index, output in enumerate(outputs):
        comparison.add(index, output.token_ids, reference.outputs[index], reference.gaps[index])
    comparison.check(what)


@pytest.fixture(scope="session")
def plain_outputs() -> dict[int, list[RequestOutput]]:
    """Plain outputs by batch size, made by the first bundle: the target is the same in all of them."""
    return {}


def test_greedy_plain_and_speculative_output_equals_transformers(
    proven: tuple[str, Variant, LLM], reference: Reference, plain_outputs: dict[int, list[RequestOutput]]
) -> None:
    name, variant, llm = proven
    assert len(reference.prompt_ids) >= 24
    if not plain_outputs:
        for batch in BATCHES:
            plain_outputs[batch] = run(llm, reference.prompt_ids, batch, PLAIN)
            check(f"{name}, plain, batch {batch}", plain_outputs[batch], reference)
    for batch in BATCHES:
        # A fixed and a scheduled pass for every batch size would double the time: batch 3 is scheduled.
        speculative = run(llm, reference.prompt_ids, batch, SCHEDULED if batch == 3 else FIXED)
        check(f"{name}, speculative, batch {batch}", speculative, reference)
        pairs = zip(plain_outputs[batch], speculative, strict=True)
        assert [i for i, (a, b) in enumerate(pairs) if a.token_ids != b.token_ids] == []
        assert sum(output.stats.verified for output in speculative) > 0
        if variant.accepted_length == 1.0:
            assert sum(output.stats.accepted for output in speculative) == 0


def test_accepted_length_of_extreme_drafts_is_exact(proven: tuple[str, Variant, LLM], reference: Reference) -> None:
    _, variant, llm = proven
    if variant.accepted_length is None:
        # An ordinary draft lies strictly between the extremes.
        (output,) = llm.generate(
            reference.prompt_ids[8], SamplingParams(temperature=0.0, max_tokens=48, speculative=FIXED)
        )
        assert llm.manifest.draft is not None
        assert 1.0 < output.stats.accepted_length < llm.manifest.draft.block_size + 1
        return
    rounds = 8
    length = 1 + rounds * int(variant.accepted_length)
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, speculative=FIXED)
    for output in llm.generate([list(ids) for ids in reference.prompt_ids[:6]], params):
        assert output.stats.rounds == rounds
        assert output.stats.accepted_length == variant.accepted_length
