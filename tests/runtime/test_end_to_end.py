"""The whole runtime over tiny engines: speculation changes the speed and nothing else."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dspark_runtime import LLM, RequestOutput, SamplingParams, SpeculativeParams
from dspark_runtime.contract.errors import CapacityError, ConfigError, DsparkError
from dspark_runtime.plan import RoundPlan
from dspark_runtime.sessions.base import IntArray
from tests.runtime.conftest import THREADS

GetLLM = Callable[[str], LLM]
PROMPTS = [
    [(7 * i + j * j) % 300 + 4 for j in range(length)] for i, length in enumerate((3, 20, 1, 37, 9, 16, 5, 30, 2, 12))
]
PLAIN = SpeculativeParams(enabled=False)
ALL = SpeculativeParams(cutoff="all")
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)

TRT_DRAFTS = ("good", "good-short", "good-one", "good-reduced", "poor", "poor-rnn", "no-head", "itself", "contrary")
PADDED = ("good-padded", "itself-padded")
STANDARD = ("good-standard", "reduced-standard", "poor-standard", "itself-standard")


def ids(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def plain_greedy(shared_llm: GetLLM) -> list[tuple[int, ...]]:
    """What the target alone says, one request at a time, from a bundle without a draft."""
    llm = shared_llm("none")
    return [llm.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("batch", [1, 3, 8, len(PROMPTS)])
@pytest.mark.parametrize("name", [*TRT_DRAFTS, *PADDED, *STANDARD, "none", "none-standard"])
def test_greedy_speculative_equals_plain_token_for_token(
    shared_llm: GetLLM, plain_greedy: list[tuple[int, ...]], name: str, batch: int
) -> None:
    llm = shared_llm(name)
    for cutoff in ("all", "auto", "survival:0.5"):
        params = replace(GREEDY, speculative=SpeculativeParams(cutoff=cutoff))
        assert ids(llm.generate(PROMPTS[:batch], params)) == plain_greedy[:batch]


def test_round_with_more_tokens_than_cache_rows_equals_plain(shared_llm: GetLLM) -> None:
    llm = shared_llm("good-wide")
    assert llm.manifest.limits.max_batch_size * (llm.manifest.draft.block_size + 1) > llm.manifest.limits.cache_capacity
    prompts = [prompt[:6] for prompt in [*PROMPTS, *PROMPTS[:2]]]
    params = replace(GREEDY, max_tokens=20)
    plain = ids(llm.generate(prompts, replace(params, speculative=PLAIN)))
    assert ids(llm.generate(prompts, replace(params, speculative=ALL))) == plain


def test_int8_speculative_equals_int8_plain_in_any_batch(shared_llm: GetLLM) -> None:
    llm = shared_llm("good-int8")
    plain = [llm.generate([prompt], replace(GREEDY, speculative=PLAIN))[0].token_ids for prompt in PROMPTS]
    for batch in (1, 3, 8):
        assert ids(llm.generate(PROMPTS[:batch], replace(GREEDY, speculative=ALL))) == plain[:batch]


def test_target_as_its_own_draft_has_every_proposal_accepted(shared_llm: GetLLM) -> None:
    params = replace(GREEDY, max_tokens=1 + 4 * 5, speculative=ALL)
    for output in shared_llm("itself").generate(PROMPTS[:8], params):
        assert output.stats.accepted_length == 5.0
        assert output.stats.acceptance_rate == 1.0
        assert output.stats.rounds == 4


def test_contrary_draft_has_accepted_length_of_exactly_one(shared_llm: GetLLM) -> None:
    for output in shared_llm("contrary").generate(PROMPTS[:8], replace(GREEDY, speculative=ALL)):
        assert output.stats.accepted_length == 1.0
        assert output.stats.accepted == 0
        assert output.stats.verified > 0


def test_good_draft_is_accepted_more_than_a_poor_one(shared_llm: GetLLM) -> None:
    lengths = {}
    for name in ("good", "poor"):
        outputs = shared_llm(name).generate(PROMPTS, replace(GREEDY, speculative=ALL))
        rounds = sum(output.stats.rounds for output in outputs)
        lengths[name] = sum(output.stats.output_tokens - 1 for output in outputs) / rounds
    assert lengths["good"] > 1.5
    assert lengths["good"] > lengths["poor"] >= 1.0


@pytest.mark.parametrize("name", ["good", "good-short", "poor", "itself", "good-standard"])
@pytest.mark.parametrize("batch", [1, 8])
def test_seeded_coupled_output_equals_plain_output_with_that_seed(shared_llm: GetLLM, name: str, batch: int) -> None:
    params = [
        SamplingParams(temperature=0.9, top_k=20, top_p=0.95, min_p=0.01, seed=1000 + i, max_tokens=20, ignore_eos=True)
        for i in range(batch)
    ]
    plain = [
        shared_llm("none").generate([prompt], chosen)[0].token_ids
        for prompt, chosen in zip(PROMPTS, params, strict=False)
    ]
    for speculative in (ALL, SpeculativeParams(), PLAIN):
        mixed = [replace(chosen, speculative=speculative) for chosen in params]
        assert ids(shared_llm(name).generate(PROMPTS[:batch], mixed)) == plain


def test_seeds_that_differ_give_texts_that_differ(shared_llm: GetLLM) -> None:
    params = [SamplingParams(temperature=1.5, seed=seed, max_tokens=24, ignore_eos=True) for seed in range(4)]
    assert len(set(ids(shared_llm("good").generate([PROMPTS[1]] * 4, params)))) == 4


def test_requests_of_one_seed_in_one_batch_do_not_influence_each_other(shared_llm: GetLLM) -> None:
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=16, ignore_eos=True)
    together = ids(shared_llm("good").generate([PROMPTS[1], PROMPTS[1], PROMPTS[3]], params))
    alone = ids([shared_llm("good").generate([prompt], params)[0] for prompt in (PROMPTS[1], PROMPTS[3])])
    assert together == [alone[0], alone[0], alone[1]]


@pytest.mark.parametrize("name", ["good", "good-reduced", "itself", "good-standard", "itself-standard", "good-padded"])
def test_batch_of_mixed_requests_leaves_the_deterministic_ones_as_they_are_alone(
    shared_llm: GetLLM, plain_greedy: list[tuple[int, ...]], name: str
) -> None:
    kinds = [
        replace(GREEDY, speculative=ALL),
        replace(GREEDY, speculative=PLAIN),
        SamplingParams(temperature=1.0, max_tokens=15, ignore_eos=True, speculative=ALL),
        SamplingParams(temperature=0.8, seed=9, max_tokens=18, ignore_eos=True),
        SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True, speculative=PLAIN),
        replace(GREEDY, max_tokens=5, speculative=SpeculativeParams(max_len=1)),
        replace(GREEDY, speculative=SpeculativeParams(cutoff="survival:0.9")),
        SamplingParams(temperature=1.2, top_k=7, max_tokens=20, ignore_eos=True),
        replace(GREEDY, speculative=PLAIN),
        SamplingParams(temperature=0.8, seed=10, max_tokens=18, ignore_eos=True, speculative=PLAIN),
    ]
    llm = shared_llm(name)
    outputs = llm.generate(PROMPTS, kinds)
    for i, (output, params) in enumerate(zip(outputs, kinds, strict=True)):
        assert len(output.token_ids) == params.max_tokens
        if params.temperature == 0.0:
            assert output.token_ids == plain_greedy[i][: params.max_tokens]
        if not params.speculative.enabled:
            assert output.stats.proposed == 0
        if params.speculative.max_len == 1:
            assert output.stats.verified <= output.stats.rounds
    for i in (3, 9):
        assert outputs[i].token_ids == llm.generate([PROMPTS[i]], kinds[i])[0].token_ids


@pytest.mark.parametrize("name", ["good", "itself"])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_max_tokens_is_met_exactly(shared_llm: GetLLM, name: str, max_tokens: int) -> None:
    for output in shared_llm(name).generate(PROMPTS[:3], replace(GREEDY, max_tokens=max_tokens, speculative=ALL)):
        assert len(output.token_ids) == max_tokens
        assert output.finish_reason == "length"


@pytest.mark.parametrize("name", ["good", "itself", "good-standard", "itself-standard"])
def test_request_may_fill_the_whole_sequence(shared_llm: GetLLM, name: str) -> None:
    prompt = [5 + i % 200 for i in range(90)]
    plain = shared_llm("none").generate([prompt], replace(GREEDY, max_tokens=None))[0]
    output = shared_llm(name).generate([prompt, prompt], replace(GREEDY, max_tokens=None, speculative=ALL))[1]
    assert len(output.token_ids) == 96 - 90
    assert output.token_ids == plain.token_ids


def test_prompt_longer_than_the_limit_is_refused_and_nothing_stays_behind(shared_llm: GetLLM) -> None:
    llm = shared_llm("good")
    with pytest.raises(CapacityError, match="prompt has 96 tokens, this bundle takes at most 95"):
        llm.generate([[5] * 4, [5] * 96], GREEDY)
    assert len(llm.generate([[5] * 95], GREEDY)[0].token_ids) == 1


def test_stop_string_and_eos_cut_text_and_tokens_alike_with_and_without_speculation(shared_llm: GetLLM) -> None:
    text = shared_llm("none").generate([PROMPTS[1]], GREEDY)[0].text
    for begin in range(len(text) - 2):
        params = replace(GREEDY, stop=[text[begin : begin + 2]])
        plain = shared_llm("none").generate([PROMPTS[1]], params)[0]
        output = shared_llm("good").generate([PROMPTS[1]], replace(params, speculative=ALL))[0]
        assert (output.text, output.token_ids) == (plain.text, plain.token_ids)
        assert output.text == text[: text.index(text[begin : begin + 2])]
        assert output.finish_reason == "stop"


def test_stop_token_inside_a_block_is_in_the_ids_and_not_in_the_text(shared_llm: GetLLM) -> None:
    tokens = shared_llm("none").generate([PROMPTS[1]], GREEDY)[0].token_ids
    llm = shared_llm("itself")
    for token in set(tokens):
        output = llm.generate([PROMPTS[1]], replace(GREEDY, stop_token_ids=[token], speculative=ALL))[0]
        end = tokens.index(token) + 1
        assert output.token_ids == tokens[:end]
        assert output.text == llm.tokenizer.decode(tokens[: end - 1])
        assert (output.finish_reason, output.stop_reason) == ("stop", token)


def test_stream_pieces_are_the_text_of_generate(shared_llm: GetLLM) -> None:
    llm = shared_llm("good")
    stream = llm.stream(PROMPTS[1], GREEDY)
    pieces = list(stream)
    expected = llm.generate([PROMPTS[1]], GREEDY)[0]
    assert "".join(pieces) == expected.text == stream.output.text
    assert stream.output.token_ids == expected.token_ids
    assert len(pieces) > 1


def test_stream_left_early_frees_its_slot(shared_llm: GetLLM, plain_greedy: list[tuple[int, ...]]) -> None:
    llm = shared_llm("good")
    reasons = []
    for _ in range(10):
        stream = llm.stream(PROMPTS[0], replace(GREEDY, max_tokens=90, speculative=PLAIN))
        next(iter(stream))
        stream.close()
        reasons.append(stream.output.finish_reason)
        assert llm.stats().running == 0
    # The engine does not wait for us: one may have ended by itself.
    assert "abort" in reasons and set(reasons) <= {"abort", "length"}
    assert ids(llm.generate(PROMPTS, GREEDY)) == plain_greedy


def test_chat_uses_the_template_and_adds_no_further_tokens(shared_llm: GetLLM) -> None:
    llm = shared_llm("none")
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids == tuple(llm.tokenizer.encode(output.prompt, add_special_tokens=False))
    assert ids(llm.chat([messages, messages], GREEDY)) == [output.token_ids] * 2


def test_prompts_may_be_text_or_tokens_one_or_many(shared_llm: GetLLM) -> None:
    llm = shared_llm("none")
    (one,) = llm.generate("The quick", GREEDY)
    assert one.prompt == "The quick"
    assert ids(llm.generate(list(one.prompt_token_ids), GREEDY)) == [one.token_ids]
    assert ids(llm.generate(["The quick", one.prompt_token_ids], GREEDY)) == [one.token_ids] * 2
    assert ids(llm.generate([list(np.array(one.prompt_token_ids))], GREEDY)) == [one.token_ids]
    assert llm.generate([], GREEDY) == []
    with pytest.raises(ConfigError, match="params has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])
    assert ids(llm.generate([np.array(one.prompt_token_ids)], GREEDY)) == [one.token_ids]
    assert "".join(llm.stream(np.array(one.prompt_token_ids), GREEDY)) == one.text


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (b"text", "bytes b'text'"),
        ({"prompt": "x"}, "dict {'prompt': 'x'}"),
        (True, "bool True"),
        (None, "NoneType None"),
        (1.5, "float 1.5"),
        ([[1.5, 2.5]], r"list \[1.5, 2.5\]"),
        ([1, True], r"list \[1, True\]"),
        ([[[1, 2]]], r"list \[\[1, 2\]\]"),
        ([np.array([1.5])], r"ndarray array\(\[1.5\]\)"),
    ],
)
def test_prompt_of_a_wrong_type_is_refused_before_anything_runs(shared_llm: GetLLM, prompt: object, found: str) -> None:
    llm = shared_llm("none")
    for call in (lambda: llm.generate(["a", prompt]), lambda: llm.stream(prompt), lambda: llm.generate(prompt)):
        with pytest.raises(ConfigError, match=r"prompt is \w+ .*, wanted text or a list of token ids"):
            call()
    one = prompt[0] if isinstance(prompt, list) and isinstance(prompt[0], list | np.ndarray) else prompt
    with pytest.raises(ConfigError, match=f"prompt is {found}, wanted"):
        llm.stream(one)
    assert llm.stats().running + llm.stats().waiting == 0


def test_token_id_of_thousands_of_digits_is_refused_in_words(shared_llm: GetLLM) -> None:
    with pytest.raises(ConfigError, match="prompt has token ids 1 to a value of type int"):
        shared_llm("none").generate([1, 10**5000])


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [None], "x", 3])
def test_params_that_are_none_are_refused(shared_llm: GetLLM, params: object) -> None:
    for call in (shared_llm("none").generate, shared_llm("none").stream):
        with pytest.raises(ConfigError, match=r"params is .*, wanted SamplingParams or a list of them"):
            call("The", params)


def test_closed_llm_says_so(bundle: Callable[[str], Path]) -> None:
    llm = LLM(bundle("none"), num_threads=THREADS)
    llm.close()
    llm.close()
    with pytest.raises(ConfigError, match="closed"):
        llm.generate(["x"])


def test_stream_of_an_llm_closed_meanwhile_says_so(bundle: Callable[[str], Path]) -> None:
    gate = threading.Event()

    def hold(plan: RoundPlan, verify: IntArray, accepted: IntArray) -> IntArray:
        assert plan.lengths[0] < 10 or gate.wait(60)
        return accepted

    llm = LLM(bundle("none"), num_threads=THREADS, acceptance_override=hold)
    stream = llm.stream(PROMPTS[0], GREEDY)
    pieces = iter(stream)
    next(pieces)
    with pytest.raises(DsparkError, match="not ended"):
        _ = stream.output
    threading.Timer(0.2, gate.set).start()
    llm.close()
    with pytest.raises(ConfigError, match="this LLM is closed"):
        list(pieces)
    stream.close()
    with pytest.raises(DsparkError, match="the LLM was closed before the stream ended"):
        _ = stream.output


def test_stream_dropped_without_iterating_leaves_the_engine(shared_llm: GetLLM) -> None:
    llm = shared_llm("none")
    before = llm.stats().finished["abort"]
    for _ in range(50):  # one may have ended by itself meanwhile
        stream = llm.stream(PROMPTS[0], replace(GREEDY, max_tokens=90))
        del stream
        gc.collect()
        while llm.stats().running + llm.stats().waiting:
            time.sleep(0.001)
        if llm.stats().finished["abort"] > before:
            return
    pytest.fail("no dropped stream was aborted")


def test_stream_held_only_by_its_iteration_goes_on(shared_llm: GetLLM) -> None:
    llm = shared_llm("none")
    pieces = iter(llm.stream(PROMPTS[1], GREEDY))
    gc.collect()
    assert "".join(pieces) == llm.generate([PROMPTS[1]], GREEDY)[0].text


def test_max_tokens_that_max_seq_len_cuts_is_said_once(
    bundle: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(bundle("none"), num_threads=THREADS) as llm:
        llm.generate([PROMPTS[0]], replace(GREEDY, max_tokens=96 - len(PROMPTS[0])))
        llm.generate([PROMPTS[0]], replace(GREEDY, max_tokens=None))
        assert "max_seq_len" not in caplog.text
        outputs = llm.generate(PROMPTS[:2], replace(GREEDY, max_tokens=10**5))
    assert [len(p) + len(output.token_ids) for p, output in zip(PROMPTS, outputs, strict=False)] == [96, 96]
    assert caplog.text.count("this bundle holds 96 in all (max_seq_len)") == 1
    assert "max_tokens is 100000 after a prompt of 3 tokens" in caplog.text


def test_second_llm_with_another_number_of_threads_is_refused(
    shared_llm: GetLLM, bundle: Callable[[str], Path]
) -> None:
    shared_llm("none")
    with pytest.raises(ConfigError, match="num_threads is 3, but this process runs its engines on 2"):
        LLM(bundle("none"), num_threads=3)


def test_statistics_add_up(bundle: Callable[[str], Path]) -> None:
    with LLM(bundle("good"), num_threads=THREADS) as llm:
        seen: list[tuple[int, int]] = []
        outputs = llm.generate(PROMPTS, replace(GREEDY, speculative=ALL), progress=lambda *done: seen.append(done))
        for output in outputs:
            stats = output.stats
            assert stats.output_tokens == 1 + stats.accepted + stats.rounds == len(output.token_ids)
            assert 0 <= stats.accepted <= stats.verified <= stats.proposed
            assert 0 < stats.ttft_s <= stats.total_s
        assert llm.stats().requests == len(PROMPTS)
        assert llm.stats().accepted == sum(output.stats.accepted for output in outputs)
        assert seen[-1] == (len(PROMPTS), len(PROMPTS))
        profile = llm.profile
        assert profile.rounds > 0
        assert all(seconds > 0 for seconds in profile.parts().values())
        assert sum(profile.parts().values()) == pytest.approx(profile.round_s)


@pytest.mark.parametrize("name", ["good", "good-short", "itself", "good-standard", "itself-standard", "good-padded"])
def test_every_forced_accepted_count_leaves_the_caches_of_a_fresh_prefill(
    bundle: Callable[[str], Path], name: str
) -> None:
    forced: list[int] = []

    def force(plan: RoundPlan, verify: IntArray, accepted: IntArray) -> IntArray:
        counts = np.array(
            [(len(forced) + slot) % (length + 1) for slot, length in zip(plan.slots, verify, strict=True)]
        )
        forced.append(int(counts[0]))
        return counts.astype(np.int32)

    prompts = PROMPTS[:3]
    with LLM(bundle(name), num_threads=THREADS, acceptance_override=force) as llm:
        outputs = llm.generate(prompts, replace(GREEDY, max_tokens=40, speculative=ALL))
        found = {cache: array.copy() for cache, array in llm.executor.caches.items()}
        block = llm.executor.block_size
    assert set(forced) == set(range(block + 1))
    with LLM(bundle(name), num_threads=THREADS, prefill_chunk=200) as llm:
        whole = [[*prompt, *output.token_ids] for prompt, output in zip(prompts, outputs, strict=True)]
        llm.generate([tokens[:-1] for tokens in whole], replace(GREEDY, max_tokens=1))
        for cache, array in llm.executor.caches.items():
            for slot, tokens in enumerate(whole):
                # A draft with caches of its own has not read the last proposal where all were kept.
                rows = len(tokens) - (2 if cache.startswith("draft_") else 1)
                np.testing.assert_allclose(
                    found[cache][slot, :, :rows], array[slot, :, :rows], atol=2e-5, err_msg=f"{cache}, slot {slot}"
                )


def test_caches_compared_one_row_too_far_differ(bundle: Callable[[str], Path]) -> None:
    """Control: the comparison above sees a stale row."""
    with LLM(bundle("contrary"), num_threads=THREADS) as llm:
        (output,) = llm.generate([PROMPTS[1]], replace(GREEDY, max_tokens=12, speculative=ALL))
        found = llm.executor.caches["target_key.0"][0].copy()
    with LLM(bundle("contrary"), num_threads=THREADS) as llm:
        llm.generate([[*PROMPTS[1], *output.token_ids]], replace(GREEDY, max_tokens=1))
        fresh = llm.executor.caches["target_key.0"][0]
    rows = len(PROMPTS[1]) + len(output.token_ids) - 1
    np.testing.assert_allclose(found[:, :rows], fresh[:, :rows], atol=2e-5)
    assert not np.allclose(found[:, rows], fresh[:, rows], atol=1e-2)
