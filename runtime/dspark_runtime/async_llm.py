"""`AsyncLLM`: a bundle as a service for asyncio. Requests arrive, stream and are cancelled while others run.

async with AsyncLLM("engines/smollm2") as llm:
    async for delta in await llm.add_request("Hello", SamplingParams(max_tokens=64)):
        print(delta.text, end="")
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from dspark_runtime.contract.errors import ConfigError, DsparkError, shown
from dspark_runtime.core import Core
from dspark_runtime.engine_loop import CLOSED, EngineLoop
from dspark_runtime.exposition import prometheus_text
from dspark_runtime.outputs import RequestOutput
from dspark_runtime.params import SamplingParams
from dspark_runtime.profile import Profile
from dspark_runtime.prompts import Prompt, RenderedPrompt, as_list, params_of, priorities_of
from dspark_runtime.scheduler import CHUNK_TOKENS
from dspark_runtime.stats import ServiceStats
from dspark_runtime.tickets import Delta, Ticket, merged
from dspark_runtime.tokenizer import Message

MAX_WAITING = 1024
LONG_PROMPT = 2000
"""Characters from which on a text is made tokens in another thread, so that it holds up no stream."""


class AsyncLLM:
    """The engines of a bundle behind coroutines. May be used from several event loops at once."""

    def __init__(
        self,
        bundle: str | Path,
        *,
        num_threads: int | None = None,
        prefill_chunk: int = CHUNK_TOKENS,
        enable_prefix_caching: bool = True,
        max_waiting: int | None = MAX_WAITING,
        trace: str | Path | None = None,
    ) -> None:
        """max_waiting: most requests beyond max_batch_size; further ones are refused at once with QueueFullError; None:
        any number. The others as for LLM."""
        self._core = Core(
            bundle, num_threads=num_threads, prefill_chunk=prefill_chunk, enable_prefix_caching=enable_prefix_caching,
            max_waiting=max_waiting, trace=trace,
        )  # fmt: skip
        self.manifest = self._core.manifest
        self.tokenizer = self._core.tokenizer
        self.default_sampling_params = self._core.default_sampling_params
        self._wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWaker] = weakref.WeakKeyDictionary()
        self._streams: weakref.WeakValueDictionary[str, AsyncStream] = weakref.WeakValueDictionary()
        self._finalizer = weakref.finalize(self, self._core.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncStream:
        """Queue one prompt; returns its stream at once.

        request_id: the caller's name for it, not in use now; None: a number. A smaller priority is served first.
        cache_salt: computed prefixes are shared with requests of the same salt only. Raises QueueFullError when the
        queue is full, CapacityError when the prompt can never fit, ConfigError for what is wrong otherwise.
        """
        listed = as_list(prompt)
        if len(listed) != 1:
            raise ConfigError(f"add_request takes one prompt, {len(listed)} were given")
        (chosen,) = params_of(params, 1, self.default_sampling_params)
        (rank,) = priorities_of(priority, 1)
        self._check_id(request_id)
        self._check_open()

        def make_job() -> Ticket:
            job = self._core.make_job(listed[0], chosen, streams=True, priority=rank, cache_salt=cache_salt)
            return Ticket(job, waker, streams=True)

        loop = asyncio.get_running_loop()
        waker = self._wakers.setdefault(loop, AsyncWaker(loop))
        is_long = isinstance(listed[0], str) and len(listed[0]) > LONG_PROMPT
        ticket = await loop.run_in_executor(None, make_job) if is_long else make_job()
        name = request_id if request_id is not None else str(ticket.job.requests[0].request_id)
        self._check_id(request_id)
        stream = AsyncStream(self._core.loop, ticket, name, self._core.output)
        ticket.reader = weakref.ref(stream)
        self._core.loop.submit([ticket])
        self._streams[name] = stream
        return stream

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Complete one prompt. A task that is cancelled meanwhile ends its request."""
        stream = await self.add_request(prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt)
        async for _ in stream:
            pass
        return stream.output

    async def render_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> RenderedPrompt:
        """The prompt that the bundle's chat template makes; `add_request` and `generate` take it as it is."""
        return await asyncio.to_thread(self._core.render_chat, messages, add_generation_prompt, variables)

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Answer one conversation."""
        prompt = await self.render_chat(
            messages, add_generation_prompt=add_generation_prompt, **(chat_template_kwargs or {})
        )
        return await self.generate(prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with the finish reason `abort`. Nothing happens when there is none."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.abort()

    def stats(self) -> ServiceStats:
        """Counts over all requests so far, and what runs now."""
        return self._core.stats()

    def metrics(self) -> str:
        """The same and more as text for Prometheus."""
        return prometheus_text(self._core.engine, self._core.name)

    @property
    def profile(self) -> Profile:
        """Where the time of all rounds so far went."""
        return self._core.profile

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait for those there are; False when `timeout` seconds were not enough."""
        return await asyncio.to_thread(self._core.loop.drain, timeout)

    async def close(self) -> None:
        """End what still runs and let go of the engines. The object is of no use afterwards; closing twice is fine."""
        await asyncio.to_thread(self._finalizer)

    def _check_id(self, request_id: str | None) -> None:
        if request_id is None:
            return
        if not isinstance(request_id, str) or not request_id:
            raise ConfigError(f"request_id is {shown(request_id)}, needs text")
        stream = self._streams.get(request_id)
        if stream is not None and not stream.is_done:
            raise ConfigError(f"request_id {shown(request_id)} is in use by a request that has not ended")

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ConfigError(CLOSED)


class AsyncStream:
    """What one request says, piece by piece: an asynchronous iterator over `Delta`. One that is dropped, or whose task
    is cancelled, ends its request."""

    def __init__(
        self, loop: EngineLoop, ticket: Ticket, request_id: str, finish: Callable[[Ticket], RequestOutput]
    ) -> None:
        """finish: makes the output of a ticket that has ended."""
        self.request_id = request_id
        self._loop = loop
        self._ticket = ticket
        self._finish = finish
        self._waiting: asyncio.Future[None] | None = None
        self._output: RequestOutput | None = None
        self._finalizer = weakref.finalize(self, loop.abort, ticket)
        self._finalizer.atexit = False

    @property
    def is_done(self) -> bool:
        """Whether the request has ended, read or not."""
        return self._ticket.is_done

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        """What came since the last call, all of one output as one; waits for it. Raises StopAsyncIteration at the end,
        ConfigError or DsparkError where the engine was closed or broke before."""
        ticket = self._ticket
        while True:
            done = ticket.is_done
            if ticket.deltas:
                return merged(ticket.deltas)
            if done:
                self._finalizer.detach()
                ticket.check()
                raise StopAsyncIteration
            if self._waiting is not None:
                raise DsparkError(f"request {self.request_id} has a reader already")
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            except asyncio.CancelledError:
                self.abort()
                raise
            finally:
                self._waiting = None

    def abort(self) -> None:
        """End the request soon; what was said before can still be read."""
        self._loop.abort(self._ticket)

    @property
    def output(self) -> RequestOutput:
        """The finished request, statistics included. Raises DsparkError while it still runs, and where the engine was
        closed or broke before it ended."""
        if self._output is None:
            self._ticket.check()
            if not self._ticket.is_done:
                raise DsparkError("the stream has not ended; iterate over it first")
            self._output = replace(self._finish(self._ticket), request_id=self.request_id)
        return self._output

    def wake(self) -> None:
        """Something came. On the reader's event loop."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class AsyncWaker:
    """Wakes the readers of one event loop, with one call into it for all that changed until that call runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed: deque[Ticket] = deque()
        self._called = False

    def __call__(self, tickets: Sequence[Ticket]) -> None:
        if self._loop.is_closed():  # a call that was under way never runs
            raise RuntimeError("the readers' event loop is closed")
        self._changed.extend(tickets)
        # Set before the call, reset before the queue is read: whatever is added later finds it reset.
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._called = False
        while self._changed:
            ticket = self._changed.popleft()
            stream = ticket.reader() if ticket.reader is not None else None
            if stream is not None:
                stream.wake()
