"""32 clients at once on the real model: each is told what it is told alone, whatever it shares with the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dspark_runtime import LLM, AsyncLLM, RequestOutput, SamplingParams, SpeculativeParams
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.proof.prompts import ALL

pytestmark = pytest.mark.slow

CLIENTS = 32
SYSTEM = "You are a careful assistant who answers in one short sentence."
BASE = {"max_tokens": 16, "ignore_eos": True}
KINDS = (
    SamplingParams(temperature=0.0, **BASE),
    SamplingParams(temperature=0.8, top_p=0.95, seed=3, **BASE),
    SamplingParams(temperature=0.0, speculative=SpeculativeParams(cutoff="all"), **BASE),
    SamplingParams(temperature=0.0, speculative=SpeculativeParams(enabled=False), **BASE),
)


def test_concurrent_clients_equal_their_solo_runs(smollm2_gguf: Path, smollm2_dspark: Path, tmp_path: Path) -> None:
    config = BuildConfig(
        target=smollm2_gguf,
        draft=smollm2_dspark,
        output=tmp_path / "bundle",
        max_seq_len=256,
        draft_quantize="int8",
        draft_vocab=8192,
    )
    folder = build(config)
    with LLM(folder, enable_prefix_caching=False) as llm:
        prompts = [
            llm.render_chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": ALL[i % len(ALL)]}])
            for i in range(CLIENTS)
        ]
        alone = [llm.generate([prompt], KINDS[i % len(KINDS)])[0] for i, prompt in enumerate(prompts)]

    async def main() -> list[RequestOutput]:
        async with AsyncLLM(folder, prefill_chunk=48) as llm:
            # A higher priority for every seventh: they take slots of those that decode.
            outputs = await asyncio.gather(
                *(
                    llm.generate(prompt, KINDS[i % len(KINDS)], priority=-(i % 7 == 6))
                    for i, prompt in enumerate(prompts)
                )
            )
            stats = llm.stats()
            assert stats.requests == CLIENTS
            # The system prompt was computed once, the rest of them copied it.
            assert stats.prefix_hit_tokens > (CLIENTS - 1) * len(SYSTEM.split())
            return outputs

    outputs = asyncio.run(main())
    different = [i for i in range(CLIENTS) if outputs[i].token_ids != alone[i].token_ids]
    assert different == []
