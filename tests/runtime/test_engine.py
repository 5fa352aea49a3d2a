"""Commit, stops and counts, against a scripted model: every offset of a stop inside and across rounds."""

from __future__ import annotations

import pytest

from dspark_runtime.detokenize import Detokenizer
from dspark_runtime.engine import Engine
from dspark_runtime.outputs import RequestStats
from dspark_runtime.plan import PrefillPlan, RoundPlan
from dspark_runtime.request import Request
from dspark_runtime.scheduler import Scheduler
from dspark_runtime.speculative import SpeculativeParams
from tests.runtime.fakes import ScriptedExecutor, make, make_manifest

PROMPT = (11, 12, 13)
SCRIPT = list(range(100, 160))
K = 4


def letters(ids: list[int]) -> str:
    """Token 100 + i is the i-th letter of an endless alphabet."""
    return "".join(chr(ord("a") + (token - 100) % 26) for token in ids)


def run(
    script: list[int], text: bool = False, accepts: int = K, stop: tuple[str, ...] = (), **params: object
) -> tuple[Request, Detokenizer | None, ScriptedExecutor]:
    manifest = make_manifest(block_size=K)
    executor = ScriptedExecutor({PROMPT: script}, K, lambda _, limit: min(accepts, limit))
    engine = Engine(executor, Scheduler(4))
    request = make(manifest, PROMPT, **{"max_tokens": 20, "temperature": 0.0, "stop": stop, **params})
    detokenizer = Detokenizer(letters, stop, bool(params.get("include_stop_str_in_output"))) if text or stop else None
    engine.add(request, detokenizer)
    while engine.num_unfinished:
        engine.step()
    return request, detokenizer, executor


@pytest.mark.parametrize("accepts", range(K + 1))
@pytest.mark.parametrize("offset", range(12))
def test_eos_anywhere_in_a_block_ends_the_output_there(offset: int, accepts: int) -> None:
    script = [*SCRIPT[:offset], 2, *SCRIPT[offset:]]
    request, _, _ = run(script, accepts=accepts)
    assert request.output_token_ids == script[: offset + 1]
    assert (request.finish_reason, request.stop_reason) == ("stop", None)
    # Emitted tokens are the prompt's one, accepted proposals, and one of the target's per round that reached it.
    assert request.accepted + request.rounds >= offset
    assert request.accepted <= request.verified <= request.proposed
    assert request.computed == len(request.tokens) - 1 or request.rounds == 0


@pytest.mark.parametrize("accepts", range(K + 1))
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 7, 11])
def test_max_tokens_anywhere_in_a_block_is_never_passed(max_tokens: int, accepts: int) -> None:
    request, _, _ = run(SCRIPT, accepts=accepts, max_tokens=max_tokens)
    assert request.output_token_ids == SCRIPT[:max_tokens]
    assert (request.finish_reason, request.stop_reason) == ("length", None)
    assert request.accepted + request.rounds == max_tokens - 1


def test_eos_as_the_last_allowed_token_is_a_stop_not_a_length() -> None:
    request, _, _ = run([100, 101, 2, 103], max_tokens=3)
    assert request.finish_reason == "stop"


def test_eos_right_after_the_last_allowed_token_is_a_length() -> None:
    request, _, _ = run([100, 101, 102, 2], max_tokens=3)
    assert (request.finish_reason, request.output_token_ids) == ("length", [100, 101, 102])


def test_ignored_eos_goes_on() -> None:
    request, _, _ = run([100, 2, *SCRIPT], ignore_eos=True, max_tokens=6)
    assert request.output_token_ids == [100, 2, *SCRIPT[:4]]


def test_stop_token_id_is_named_as_the_reason() -> None:
    request, _, _ = run(SCRIPT, stop_token_ids=[104])
    assert request.output_token_ids == SCRIPT[:5]
    assert (request.finish_reason, request.stop_reason) == ("stop", 104)


def test_stop_token_id_that_is_eos_has_no_reason_of_its_own() -> None:
    request, _, _ = run([100, 2], stop_token_ids=[2])
    assert (request.finish_reason, request.stop_reason) == ("stop", None)


@pytest.mark.parametrize("accepts", range(K + 1))
@pytest.mark.parametrize("start", range(9))
def test_stop_string_at_every_offset_cuts_text_and_tokens_alike(start: int, accepts: int) -> None:
    stop = letters(SCRIPT[start : start + 3])
    request, detokenizer, _ = run(SCRIPT, accepts=accepts, stop=("zzz", stop))
    assert detokenizer is not None
    assert detokenizer.text == letters(SCRIPT[:start])
    assert request.output_token_ids == SCRIPT[: start + 3]
    assert (request.finish_reason, request.stop_reason) == ("stop", stop)


def test_stop_string_included_stays_in_the_text() -> None:
    _, detokenizer, _ = run(SCRIPT, stop=("de",), include_stop_str_in_output=True)
    assert detokenizer is not None
    assert detokenizer.text == "abcde"


def test_eos_before_a_stop_string_wins() -> None:
    request, detokenizer, _ = run([100, 101, 2, 103, 104], stop=("de",))
    assert detokenizer is not None
    assert (request.finish_reason, request.stop_reason, detokenizer.text) == ("stop", None, "ab")


def test_stop_string_before_eos_in_the_same_block_wins() -> None:
    request, _, _ = run([100, 101, 102, 2, 104], stop=("bc",))
    assert (request.stop_reason, request.output_token_ids) == ("bc", [100, 101, 102])


def test_stop_string_at_the_length_limit_is_a_stop() -> None:
    request, _, _ = run(SCRIPT, stop=("c",), max_tokens=3)
    assert request.finish_reason == "stop"


def test_always_accepted_proposals_give_accepted_length_of_a_whole_block() -> None:
    request, _, _ = run(SCRIPT, max_tokens=1 + 3 * (K + 1))
    assert (request.rounds, request.accepted, request.verified) == (3, 3 * K, 3 * K)
    assert stats_of(request).accepted_length == K + 1
    assert stats_of(request).acceptance_rate == 1.0


def test_never_accepted_proposals_give_accepted_length_of_exactly_one() -> None:
    request, _, _ = run(SCRIPT, accepts=0, max_tokens=10)
    assert (request.rounds, request.accepted) == (9, 0)
    assert stats_of(request).accepted_length == 1.0
    assert stats_of(request).acceptance_rate == 0.0


def test_proposals_behind_an_accepted_stop_are_counted_nowhere() -> None:
    request, _, _ = run([100, 101, 2, 103, 104, 105])
    assert (request.rounds, request.proposed, request.verified, request.accepted) == (1, K, 2, 2)


def stats_of(request: Request) -> RequestStats:
    return RequestStats(
        rounds=request.rounds,
        proposed=request.proposed,
        verified=request.verified,
        accepted=request.accepted,
        ttft_s=0.0,
        total_s=1.0,
        output_tokens=len(request.output_token_ids),
    )


def test_requests_of_mixed_kinds_share_rounds_and_keep_their_own_outputs() -> None:
    manifest = make_manifest(block_size=K, max_batch_size=3)
    scripts = {(50 + i, *range(10, 10 + i)): list(range(200 + 40 * i, 240 + 40 * i)) for i in range(5)}
    executor = ScriptedExecutor(scripts, K, lambda position, limit: position % (limit + 1))
    engine = Engine(executor, Scheduler(3, chunk_tokens=4))
    requests = [
        make(
            manifest,
            prompt,
            i,
            max_tokens=7 + 3 * i,
            temperature=0.5 * i,
            speculative=SpeculativeParams(enabled=i != 2),
        )
        for i, prompt in enumerate(scripts)
    ]
    for request in requests:
        engine.add(request)
    while engine.num_unfinished:
        engine.step()
    for i, (request, script) in enumerate(zip(requests, scripts.values(), strict=True)):
        assert request.output_token_ids == script[: 7 + 3 * i]
    assert requests[2].proposed == 0
    assert max(len(plan.slots) for plan in executor.plans if isinstance(plan, RoundPlan)) == 3


def test_long_prompt_emits_nothing_before_its_last_chunk() -> None:
    prompt = tuple(range(20, 40))
    executor = ScriptedExecutor({prompt: SCRIPT}, K)
    engine = Engine(executor, Scheduler(2, chunk_tokens=8))
    request = make(make_manifest(), prompt, max_tokens=3)
    engine.add(request)
    assert [engine.step(), engine.step(), engine.step()] == [[], [], [request]]
    assert [plan.draws for plan in executor.plans if isinstance(plan, PrefillPlan)] == [False, False, True]
    assert request.output_token_ids == SCRIPT[:1]


def test_aborted_request_frees_its_slot_and_keeps_what_it_has() -> None:
    executor = ScriptedExecutor({PROMPT: SCRIPT}, K)
    engine = Engine(executor, Scheduler(1))
    first, second = make(make_manifest(), PROMPT, 0), make(make_manifest(), PROMPT, 1)
    engine.add(first)
    engine.add(second)
    engine.step()
    engine.abort(first)
    engine.abort(first)
    assert (first.finish_reason, first.output_token_ids) == ("abort", SCRIPT[:1])
    while engine.num_unfinished:
        engine.step()
    assert second.output_token_ids == SCRIPT[:16]
