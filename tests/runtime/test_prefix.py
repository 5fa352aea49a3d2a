"""Rows that are taken over, in place or as a copy, are those of a fresh prefill, and so are the tokens after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from tests.runtime.bench import Bench
from tests.runtime.conftest import THREADS

ALL = SpeculativeParams(cutoff="all")
PLAIN = SpeculativeParams(enabled=False)
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, speculative=ALL)
COUPLED = replace(GREEDY, temperature=0.9, seed=5)
SYSTEM = [(11 * i) % 290 + 5 for i in range(24)]


NAMES = ("good", "itself", "contrary", "good-padded", "good-standard", "itself-standard", "good-int8")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def solo(folder: Path, tokens: list[int], params: SamplingParams) -> list[int]:
    bench = Bench(folder, reuse=False)
    request = bench.add(tokens, params)
    bench.run()
    return request.output_token_ids


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_next_turn_of_a_conversation_equals_a_fresh_one(
    bundle: Callable[[str], Path], name: str, params: SamplingParams
) -> None:
    bench = Bench(bundle(name))
    tokens = list(SYSTEM)
    for turn in range(3):
        request = bench.add(tokens, params)
        bench.run()
        assert request.output_token_ids == solo(bundle(name), tokens, params)
        # All of the last turn but its last token (and what the draft had not read) is there.
        assert turn == 0 or request.cached_tokens >= len(SYSTEM) + 10 * turn + 3 * (turn - 1) - 2
        tokens = [*request.tokens, 40 + turn, 41, 42]
    assert {plan.slot for plan in bench.prefills()} == {0}


def test_rows_taken_over_or_copied_equal_those_of_a_fresh_prefill(bundle: Callable[[str], Path], name: str) -> None:
    bench = Bench(bundle(name))
    first = bench.add(SYSTEM, GREEDY)
    while len(first.output_token_ids) < 4:
        bench.engine.step()
    # Its own slot is busy: copied while it decodes.
    copied = bench.add([*SYSTEM, 7, 8], GREEDY)
    bench.run()
    again = bench.add([*first.tokens, 9], GREEDY)
    bench.run()
    assert [plan.copy_from for plan in bench.prefills() if plan.copy_from is not None] == [0]
    assert copied.cached_tokens == len(SYSTEM)
    for slot, request in ((1, copied), (0, again)):
        fresh = Bench(bundle(name), reuse=False, chunk=200)
        fresh.scheduler.slots._reuse = True  # keep what the only request leaves
        lone = fresh.add(request.tokens[:-1], replace(GREEDY, max_tokens=1))
        fresh.run()
        assert lone.cached_tokens == 0
        expected = fresh.rows(0)
        tolerance = 2e-3 if name == "good-int8" else 2e-5
        for cache, rows in bench.rows(slot).items():
            assert rows.shape[1] >= len(request.tokens) - 2
            np.testing.assert_allclose(
                rows, expected[cache][:, : rows.shape[1]], atol=tolerance, err_msg=f"{cache}, slot {slot}"
            )


def test_system_prompt_of_many_is_computed_once(bundle: Callable[[str], Path], name: str) -> None:
    bench = Bench(bundle(name), num_slots=4)
    prompts = [[*SYSTEM, 30 + i, 31, 32 + i] for i in range(9)]
    requests = [bench.add(prompt, params) for prompt, params in zip(prompts, [GREEDY, COUPLED] * 5, strict=False)]
    bench.run()
    for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        assert request.output_token_ids == solo(bundle(name), prompt, request.params)
        assert request.cached_tokens == (0 if i == 0 else len(SYSTEM))
    assert sum(len(plan.tokens) for plan in bench.prefills()) == len(SYSTEM) + 9 * 3


@pytest.mark.parametrize("params", [GREEDY, COUPLED, replace(GREEDY, temperature=0.8)],
                         ids=["greedy", "coupled", "rejection"])  # fmt: skip
def test_preempted_request_equals_the_uninterrupted_one(
    bundle: Callable[[str], Path], name: str, params: SamplingParams
) -> None:
    params = replace(params, max_tokens=30)
    alone = Bench(bundle(name), num_slots=1)
    expected = alone.add([3, 4, 5], params, priority=1)
    alone.run()
    bench = Bench(bundle(name), num_slots=1)
    request = bench.add([3, 4, 5], params, priority=1)
    request.sampling = expected.sampling  # the same key: rejection draws the same numbers again
    for tokens in (0, 1, 8, 17):
        while request.slot is None or len(request.output_token_ids) < tokens:
            bench.engine.step()
        urgent = bench.add([50 + tokens, 51], replace(GREEDY, max_tokens=2))
        while not urgent.is_finished:
            bench.engine.step()
    bench.run()
    assert request.preemptions == 4
    assert request.output_token_ids == expected.output_token_ids


def test_request_with_speculation_off_leaves_no_rows_of_a_draft(bundle: Callable[[str], Path]) -> None:
    bench = Bench(bundle("itself"), num_slots=1)
    bench.add(SYSTEM, replace(GREEDY, speculative=PLAIN))
    bench.run()
    drafting = bench.add([*SYSTEM, 9], GREEDY)
    bench.run()
    assert drafting.cached_tokens == 0
    # The target as its own draft: every proposal is right, or rows of the draft were wrong.
    assert drafting.accepted == drafting.verified > 0
    plain = bench.add([*SYSTEM, 9, 10], replace(GREEDY, speculative=PLAIN))
    bench.run()
    assert plain.cached_tokens == len(SYSTEM) + 1
    drafting = bench.add([*SYSTEM, 9, 10], replace(GREEDY, max_tokens=21))
    bench.run()
    assert drafting.cached_tokens == len(SYSTEM) + 1
    assert drafting.accepted == drafting.verified > 0


TRT_NAMES = ("good", "itself", "good-padded")


@pytest.mark.parametrize("name", TRT_NAMES)
def test_freed_rows_filled_with_nan_never_show(bundle: Callable[[str], Path], name: str) -> None:
    """What no request owns and none may take over is poisoned before every step."""
    bench = Bench(bundle(name))

    def poison() -> None:
        for slot in range(bench.scheduler.slots.num_slots):
            held = bench.scheduler.slots.contents(slot)
            for cache_name, cache in bench.executor.inner.caches.items():
                rows = 0
                if held is not None:
                    rows = held.draft_computed if cache_name.startswith("draft_") else held.computed
                cache[slot, :, rows:] = np.nan

    prompts = [[*SYSTEM[: 4 * i], 60 + i, 61] for i in range(6)]
    requests = [bench.add(prompt, GREEDY, priority=-(i == 5)) for i, prompt in enumerate(prompts)]
    while bench.engine.num_unfinished:
        poison()
        bench.engine.step()
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output_token_ids == solo(bundle(name), prompt, GREEDY)


def test_spoilt_slot_is_cleared_for_the_next_request(bundle: Callable[[str], Path]) -> None:
    """In the standard dialect NaN in a stale row would show through the mask."""
    for name in ("good-standard", "good"):
        bench = Bench(bundle(name), num_slots=1)
        request = bench.add(SYSTEM, GREEDY)
        bench.engine.step()
        for cache in bench.executor.inner.caches.values():
            cache[0] = np.nan
        bench.scheduler.finish(request, spoilt=True)
        following = bench.add(SYSTEM[:5], GREEDY)
        bench.run()
        assert following.output_token_ids == solo(bundle(name), SYSTEM[:5], GREEDY)


def test_llm_without_prefix_caching_says_the_same(bundle: Callable[[str], Path]) -> None:
    outputs = []
    for caching in (True, False):
        with LLM(bundle("good"), num_threads=THREADS, enable_prefix_caching=caching) as llm:
            outputs.append([llm.generate([SYSTEM], GREEDY)[0].token_ids for _ in range(2)])
    assert outputs[0] == outputs[1]
