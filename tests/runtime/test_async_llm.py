"""A service over tiny engines: streams, cancels, disconnects, faults, and nobody notices the others."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspark_runtime import LLM, AsyncLLM, Delta, QueueFullError, SamplingParams, SpeculativeParams
from dspark_runtime.contract.errors import CapacityError, ConfigError, DsparkError
from dspark_runtime.plan import PrefillPlan, StepPlan, StepResult
from tests.runtime.conftest import THREADS

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, speculative=SpeculativeParams(cutoff="all"))
COUPLED = replace(GREEDY, temperature=0.8, seed=3)
PROMPTS = [[(5 * i + j * j) % 290 + 4 for j in range(2 + 3 * i)] for i in range(12)]
GetBundle = Callable[[str], Path]


class Guarded:
    """An executor that waits until it may go on, and raises where it is told to."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.gate = threading.Event()
        self.gate.set()
        self.fails: Callable[[StepPlan], bool] = lambda plan: False
        self.steps = self.stop_at = 0

    async def go_on(self, steps: int) -> None:
        """Let so many steps begin, the last of which waits."""
        self.stop_at = self.steps + steps
        self.gate.set()
        assert await within(lambda: self.steps == self.stop_at)

    @property
    def block_size(self) -> int:
        return self.inner.block_size

    def run(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        if self.steps == self.stop_at:
            self.gate.clear()
        assert self.gate.wait(60)
        if self.fails(plan):
            raise MemoryError("no room")
        return self.inner.run(plan)


@asynccontextmanager
async def service(folder: Path, **options: Any) -> AsyncIterator[tuple[AsyncLLM, Guarded]]:
    """A service whose steps are guarded; its counts must fit together at the end."""
    async with AsyncLLM(folder, num_threads=THREADS, prefill_chunk=16, **options) as llm:
        engine = llm._core.engine
        guard = Guarded(engine._executor)
        engine._executor = guard
        try:
            yield llm, guard
        finally:
            guard.gate.set()
        assert await within(lambda: engine.num_unfinished == 0)
        assert list(engine.metrics.broken_identities(0)) == []


async def within(done: Callable[[], bool], seconds: float = 30.0) -> bool:
    for _ in range(int(seconds / 0.005)):
        if done():
            return True
        await asyncio.sleep(0.005)
    return False


async def read(stream: Any) -> list[Delta]:
    return [delta async for delta in stream]


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 120))


def test_async_streams_at_once_equal_solo_runs(bundle: GetBundle, shared_llm: Callable[[str], LLM]) -> None:
    kinds = [GREEDY, COUPLED, replace(GREEDY, stop=["k"]), replace(COUPLED, max_tokens=7, logprobs=2)]
    params = [kinds[i % 4] for i in range(len(PROMPTS))]
    alone = [shared_llm("good").generate([p], chosen)[0] for p, chosen in zip(PROMPTS, params, strict=True)]

    async def main() -> None:
        async with service(bundle("good")) as (llm, _):
            streams = [await llm.add_request(p, chosen) for p, chosen in zip(PROMPTS, params, strict=True)]
            for stream, deltas, expected in zip(streams, await asyncio.gather(*map(read, streams)), alone, strict=True):
                assert "".join(delta.text for delta in deltas) == expected.text == stream.output.text
                assert tuple(t for delta in deltas for t in delta.token_ids) == expected.token_ids
                assert stream.output.request_id == stream.request_id
                assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
                assert deltas[-1].finish_reason == stream.output.finish_reason == expected.finish_reason
                wants = stream.output.outputs[0].logprobs is not None
                assert sum(len(d.logprobs) for d in deltas) == (len(expected.token_ids) if wants else 0)

    run(main)


def test_async_several_outputs_of_a_prompt_stream_side_by_side(
    bundle: GetBundle, shared_llm: Callable[[str], LLM]
) -> None:
    params = replace(COUPLED, n=3)
    (expected,) = shared_llm("good").generate([PROMPTS[5]], params)

    async def main() -> None:
        async with service(bundle("good")) as (llm, _):
            stream = await llm.add_request(PROMPTS[5], params)
            texts = ["", "", ""]
            async for delta in stream:
                texts[delta.index] += delta.text
            assert texts == [output.text for output in expected.outputs]
            assert len(set(texts)) == 3
            # The prompt was read once; the others copied it.
            assert llm.stats().prefix_hit_tokens == 2 * (len(PROMPTS[5]) - 1)

    run(main)


def test_async_cancelled_task_ends_its_request_alone(bundle: GetBundle, shared_llm: Callable[[str], LLM]) -> None:
    expected = shared_llm("good").generate([PROMPTS[2]], GREEDY)[0]

    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            tasks = [asyncio.create_task(llm.generate(PROMPTS[i], GREEDY)) for i in (1, 2, 3)]
            await asyncio.sleep(0.05)
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.wait([tasks[0], tasks[2]])
            guard.gate.set()
            assert (await tasks[1]).token_ids == expected.token_ids
            assert await within(lambda: llm.stats().finished["abort"] == 2)

    run(main)


def test_async_stream_dropped_unread_ends_its_request(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            stream = await llm.add_request(PROMPTS[1], GREEDY)
            del stream
            gc.collect()
            guard.gate.set()
            assert await within(lambda: llm.stats().finished["abort"] == 1)

    run(main)


def test_async_abort_by_name_ends_the_stream_and_frees_the_name(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            stream = await llm.add_request(PROMPTS[1], GREEDY, request_id="mine")
            with pytest.raises(ConfigError, match="'mine' is in use"):
                await llm.add_request(PROMPTS[1], GREEDY, request_id="mine")
            await llm.abort("mine")
            await llm.abort("nobody's")
            guard.gate.set()
            deltas = await read(stream)
            assert deltas[-1].finish_reason == "abort" == stream.output.finish_reason
            again = await llm.generate(PROMPTS[1], GREEDY, request_id="mine")
            assert (again.request_id, len(again.token_ids)) == ("mine", 20)

    run(main)


def test_async_full_queue_refuses_at_once_and_takes_again_later(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good"), max_waiting=3) as (llm, guard):
            guard.gate.clear()
            streams = [await llm.add_request(PROMPTS[i % 12], GREEDY) for i in range(8 + 2)]
            with pytest.raises(QueueFullError, match=r"2 requests wait already and 2 more came, the queue holds 3"):
                await llm.add_request(PROMPTS[0], replace(COUPLED, n=2))
            streams.append(await llm.add_request(PROMPTS[0], GREEDY))
            with pytest.raises(QueueFullError, match="3 requests wait already"):
                await llm.generate(PROMPTS[0], GREEDY)
            guard.gate.set()
            await asyncio.gather(*map(read, streams))
            assert len((await llm.generate(PROMPTS[0], GREEDY)).token_ids) == 20
            assert (llm.stats().refused, llm.stats().requests) == (3, 12)

    run(main)


def test_async_request_that_can_never_fit_is_refused_with_the_number(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, _):
            with pytest.raises(CapacityError, match="prompt has 96 tokens, this bundle takes at most 95") as caught:
                await llm.add_request([5] * 96, GREEDY)
            assert not isinstance(caught.value, QueueFullError)
            for wrong, message in (
                ({"priority": "high"}, "priority is 'high', needs an integer"),
                ({"cache_salt": ""}, "cache_salt is '', needs text"),
                ({"request_id": 3}, "request_id is 3, needs text"),
            ):
                with pytest.raises(ConfigError, match=message):
                    await llm.add_request("x", GREEDY, **wrong)
            with pytest.raises(ConfigError, match="takes one prompt, 2 were given"):
                await llm.add_request(["a", "b"], GREEDY)
            assert llm.stats().requests == llm.stats().running == 0

    run(main)


def test_async_slow_reader_stalls_nobody_and_misses_nothing(
    bundle: GetBundle, shared_llm: Callable[[str], LLM]
) -> None:
    expected = shared_llm("good").generate([PROMPTS[4]], GREEDY)[0]

    async def main() -> None:
        async with service(bundle("good")) as (llm, _):
            slow = await llm.add_request(PROMPTS[4], GREEDY)
            for i in range(5):
                assert len((await llm.generate(PROMPTS[i], GREEDY)).token_ids) == 20
            deltas = await read(slow)
            # All that nobody read meanwhile comes as one.
            assert [(d.text, d.token_ids) for d in deltas] == [(expected.text, expected.token_ids)]

    run(main)


def test_async_drain_finishes_what_is_there_and_takes_nothing_new(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            streams = [await llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
            assert not await llm.drain(0.05)
            with pytest.raises(ConfigError, match="takes no more requests"):
                await llm.add_request(PROMPTS[0], GREEDY)
            guard.gate.set()
            assert await llm.drain(60)
            for stream in streams:
                assert "".join([d.text async for d in stream]) == stream.output.text
                assert stream.output.finish_reason == "length"

    run(main)


def test_async_closed_service_says_so_to_every_reader(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            streams = [await llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
            readers = [asyncio.create_task(read(stream)) for stream in streams]
            await asyncio.sleep(0.02)
            threading.Timer(0.05, guard.gate.set).start()
            await llm.close()
            for reader in readers:
                with pytest.raises(ConfigError, match="this LLM is closed"):
                    await reader
            with pytest.raises(ConfigError, match="this LLM is closed"):
                _ = streams[0].output
            with pytest.raises(ConfigError, match="this LLM is closed"):
                await llm.generate(PROMPTS[0], GREEDY)
            await llm.close()

    run(main)


def test_async_event_loop_that_ended_leaves_no_request_behind(bundle: GetBundle) -> None:
    llm = AsyncLLM(bundle("good"), num_threads=THREADS)
    guard = Guarded(llm._core.engine._executor)
    llm._core.engine._executor = guard
    guard.gate.clear()
    kept = []

    async def leave() -> None:
        kept.extend([await llm.add_request(prompt, replace(GREEDY, max_tokens=80)) for prompt in PROMPTS[:4]])

    asyncio.run(leave())
    guard.gate.set()

    async def main() -> None:
        assert await within(lambda: llm.stats().finished["abort"] == 4)
        assert len((await llm.generate(PROMPTS[0], GREEDY)).token_ids) == 20
        await llm.close()

    run(main)


def test_async_failed_step_ends_its_requests_and_no_others(bundle: GetBundle, shared_llm: Callable[[str], LLM]) -> None:
    expected = {i: shared_llm("good").generate([PROMPTS[i]], GREEDY)[0].token_ids for i in range(12)}

    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            # The chunk of one prompt fails: its request ends, those that decode go on.
            guard.fails = lambda plan: isinstance(plan, PrefillPlan) and plan.tokens[0] == PROMPTS[3][0]
            outputs = await asyncio.gather(*(llm.generate(prompt, GREEDY) for prompt in PROMPTS))
            for i, output in enumerate(outputs):
                if i == 3:
                    assert output.finish_reason == "error"
                    assert output.outputs[0].error == "a step of the engine failed: MemoryError: no room"
                else:
                    assert output.token_ids == expected[i]
            assert llm.stats().finished == {"stop": 0, "length": 11, "abort": 0, "error": 1}
            # A round fails: all that are in it end, and the engine lives on.
            guard.fails = lambda plan: not isinstance(plan, PrefillPlan)
            outputs = await asyncio.gather(*(llm.generate(prompt, GREEDY) for prompt in PROMPTS[:8]))
            assert {output.finish_reason for output in outputs} == {"error"}
            guard.fails = lambda plan: False
            outputs = await asyncio.gather(*(llm.generate(prompt, GREEDY) for prompt in PROMPTS))
            assert [output.token_ids for output in outputs] == list(expected.values())

    run(main)


def test_async_text_that_cannot_be_made_ends_its_request_alone(
    bundle: GetBundle, shared_llm: Callable[[str], LLM]
) -> None:
    expected = shared_llm("good").generate([PROMPTS[2]], GREEDY)[0].token_ids

    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            broken, sound = [await llm.add_request(PROMPTS[i], GREEDY) for i in (1, 2)]

            def decode(ids: object) -> str:
                raise ZeroDivisionError("no text")

            broken._ticket.job.samples[0].detokenizer._decode = decode
            guard.gate.set()
            deltas = await read(broken)
            assert deltas[-1].finish_reason == "error"
            assert deltas[-1].error == "its text cannot be made: ZeroDivisionError: no text"
            await read(sound)
            assert sound.output.token_ids == expected

    run(main)


def test_async_step_that_breaks_outside_the_model_fails_all_and_the_loop_lives(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            streams = [await llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
            await guard.go_on(4)
            commit = llm._core.engine._commit

            def broken(plan: object, result: object) -> list[Any]:
                llm._core.engine._commit = commit
                raise KeyError("a bug")

            llm._core.engine._commit = broken
            guard.gate.set()
            for stream in streams:
                deltas = await read(stream)
                assert deltas[-1].error == "the step failed: KeyError: 'a bug'"
            assert len((await llm.generate(PROMPTS[0], GREEDY)).token_ids) == 20

    run(main)


def test_async_thread_that_ends_tells_everybody(bundle: GetBundle) -> None:
    async def main() -> None:
        llm = AsyncLLM(bundle("good"), num_threads=THREADS)

        def exits() -> list[Any]:
            raise SystemExit("out")

        llm._core.engine.step = exits
        stream = await llm.add_request(PROMPTS[0], GREEDY)
        with pytest.raises(DsparkError, match="the engine's thread ended: SystemExit: out"):
            await read(stream)
        with pytest.raises(DsparkError, match="the engine's thread ended"):
            await llm.add_request(PROMPTS[0], GREEDY)
        await llm.close()

    run(main)


def test_async_two_readers_of_a_stream_are_refused(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            stream = await llm.add_request(PROMPTS[0], GREEDY)
            first = asyncio.create_task(read(stream))
            await asyncio.sleep(0.01)
            with pytest.raises(DsparkError, match="has a reader already"):
                await read(stream)
            with pytest.raises(DsparkError, match="not ended"):
                _ = stream.output
            guard.gate.set()
            assert (await first)[-1].finish_reason == "length"

    run(main)


def test_async_priority_is_served_first_and_preempts(bundle: GetBundle, shared_llm: Callable[[str], LLM]) -> None:
    params = replace(GREEDY, max_tokens=50)
    expected = [shared_llm("good").generate([prompt], params)[0].token_ids for prompt in PROMPTS]

    async def main() -> None:
        async with service(bundle("good")) as (llm, guard):
            guard.gate.clear()
            low = [await llm.add_request(prompt, params, priority=5) for prompt in PROMPTS]
            await guard.go_on(20)
            assert llm.stats().running == 8
            urgent = await llm.add_request(PROMPTS[0], params, priority=1)
            guard.gate.set()
            await read(urgent)
            assert urgent.output.token_ids == expected[0]
            assert urgent.output.stats.preemptions == 0
            await asyncio.gather(*map(read, low))
            assert [stream.output.token_ids for stream in low] == expected
            assert llm.stats().preemptions == sum(stream.output.stats.preemptions for stream in low) >= 1

    run(main)


def test_async_salts_keep_prefixes_apart(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, _):
            hits = []
            for salt in ("a", "b", "a", None, None, "b"):
                output = await llm.generate(PROMPTS[9], GREEDY, cache_salt=salt)
                hits.append(output.stats.cached_tokens)
            assert hits == [0, 0, 28, 0, 28, 28]
            assert llm.stats().prefix_hit_tokens == 3 * 28

    run(main)


def test_async_prefix_caching_may_be_off(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good"), enable_prefix_caching=False) as (llm, _):
            outputs = [await llm.generate(PROMPTS[9], GREEDY) for _ in range(3)]
            assert [output.stats.cached_tokens for output in outputs] == [0, 0, 0]

    run(main)


def test_async_chat_of_a_long_message_is_rendered_and_read_apart(bundle: GetBundle) -> None:
    async def main() -> None:
        async with AsyncLLM(bundle("none"), num_threads=THREADS) as llm:
            output = await llm.chat([{"role": "user", "content": "hi"}], GREEDY)
            assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
            with pytest.raises(CapacityError, match="prompt has"):
                await llm.chat([{"role": "user", "content": "hello " * 1000}], GREEDY)

    run(main)


def test_async_metrics_are_text_for_prometheus_and_agree_with_stats(bundle: GetBundle) -> None:
    async def main() -> None:
        async with service(bundle("good")) as (llm, _):
            await asyncio.gather(*(llm.generate(prompt, GREEDY) for prompt in PROMPTS))
            await llm.generate(PROMPTS[11], replace(GREEDY, stop=["k"]))
            stats = llm.stats()
            samples = {}
            for family in text_string_to_metric_families(llm.metrics()):
                assert family.documentation
                for sample in family.samples:
                    labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
                    assert sample.labels["model_name"] == "bundle-good"
                    samples[(sample.name.removeprefix("dspark:"), *labels.values())] = sample.value
            assert samples["num_requests_running",] == samples["num_requests_waiting",] == 0
            assert samples["request_success_total", "length"] == stats.finished["length"]
            assert samples["requests_total",] == stats.requests == 13
            assert samples["generation_tokens_total",] == stats.output_tokens
            assert samples["prompt_tokens_total",] == stats.prompt_tokens
            assert samples["prefix_cache_hits_total",] == stats.prefix_hit_tokens > 0
            assert samples["time_to_first_token_seconds_count",] == 13
            assert samples["time_to_first_token_seconds_bucket", "+Inf"] == 13
            assert samples["inter_token_latency_seconds_count",] == stats.output_tokens - 13
            proposed = samples["spec_decode_num_draft_tokens_total", "true"]
            assert proposed == stats.proposed > 0
            assert proposed == (
                samples["spec_decode_num_not_scheduled_tokens_total", "true"]
                + samples["spec_decode_num_accepted_tokens_total", "true"]
                + samples["spec_decode_num_rejected_tokens_total", "true"]
                + samples["spec_decode_num_trimmed_tokens_total", "true"]
            )
            per_place = [samples["spec_decode_num_accepted_tokens_per_pos_total", "true", str(k)] for k in range(5)]
            assert tuple(per_place) == stats.accepted_at and sum(per_place) == stats.accepted
            assert samples["spec_decode_num_draft_tokens_total", "false"] == 0
            for rate in ("acceptance_rate", "block_acceptance_rate"):
                assert 0 < samples[f"spec_decode_{rate}", "true"] <= 1
            assert 0 < samples["round_host_share",] < 1

    run(main)
