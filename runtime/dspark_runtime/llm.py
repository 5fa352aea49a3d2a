"""`LLM`: a bundle and prompts to text, in one object. The names follow vLLM.

with LLM("engines/smollm2") as llm:
    print(llm.generate(["Hello"], SamplingParams(max_tokens=64))[0].text)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dspark_runtime.contract.errors import ConfigError, DsparkError
from dspark_runtime.core import Core
from dspark_runtime.engine_loop import CLOSED
from dspark_runtime.executor import AcceptanceOverride, BundleExecutor
from dspark_runtime.outputs import RequestOutput
from dspark_runtime.params import SamplingParams
from dspark_runtime.profile import Profile
from dspark_runtime.prompts import Prompt, RenderedPrompt, as_list, is_conversation, params_of, priorities_of
from dspark_runtime.scheduler import CHUNK_TOKENS
from dspark_runtime.stats import ServiceStats
from dspark_runtime.tickets import QueueWaker, Ticket
from dspark_runtime.tokenizer import Message


class LLM:
    """The engines of a bundle, ready to generate. May be used from several threads: their requests share the rounds."""

    def __init__(
        self,
        bundle: str | Path,
        *,
        num_threads: int | None = None,
        prefill_chunk: int = CHUNK_TOKENS,
        enable_prefix_caching: bool = True,
        trace: str | Path | None = None,
        acceptance_override: AcceptanceOverride | None = None,
    ) -> None:
        """num_threads: of the engines, one number per process; None: one per core. prefill_chunk: most prompt tokens
        between two rounds. enable_prefix_caching: a prompt that begins like what a slot holds starts from there; the
        output is the same. trace: file for all steps, made anew (`dspark trace`). acceptance_override: for tests
        (executor.py). Raises BundleError or ConfigError."""
        self._core = Core(
            bundle, num_threads=num_threads, prefill_chunk=prefill_chunk, enable_prefix_caching=enable_prefix_caching,
            trace=trace, acceptance_override=acceptance_override,
        )  # fmt: skip
        self.manifest = self._core.manifest
        self.tokenizer = self._core.tokenizer
        self.default_sampling_params = self._core.default_sampling_params
        """What `generate` uses without parameters: vLLM's defaults, changed by the checkpoint's generation_config."""
        # The thread knows the core, not this object: an LLM that nobody holds any more is closed.
        self._finalizer = weakref.finalize(self, self._core.close)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the engines and their memory. The object is of no use afterwards; closing twice is fine."""
        self._finalizer()

    @property
    def executor(self) -> BundleExecutor:
        """The engines. Raises ConfigError once the LLM is closed."""
        if self._core.executor is None:
            raise ConfigError(CLOSED)
        return self._core.executor

    def stats(self) -> ServiceStats:
        """Counts over all requests so far, and what runs now."""
        return self._core.stats()

    @property
    def profile(self) -> Profile:
        """Where the time of all rounds so far went."""
        return self._core.profile

    def reset_profile(self) -> None:
        self._core.reset_profile()

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's name for `default_sampling_params`."""
        return self.default_sampling_params

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: Callable[[int, int], None] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt; outputs in the order of the prompts.

        prompts: texts, or lists of token ids; one alone may stand without a list. params, priority: for all, or one per
        prompt; a smaller priority is served first. progress: called with (finished, total) as prompts finish.
        cache_salt: computed prefixes are shared with requests of the same salt only. Raises ConfigError or
        CapacityError before anything runs when a prompt or parameter does not fit; an interrupted call leaves no
        request behind.
        """
        listed = as_list(prompts)
        each = params_of(params, len(listed), self.default_sampling_params)
        ranks = priorities_of(priority, len(listed))
        self._check_open()
        waker = QueueWaker()
        tickets = [
            Ticket(
                self._core.make_job(prompt, chosen, streams=False, priority=rank, cache_salt=cache_salt),
                waker,
                streams=False,
            )
            for prompt, chosen, rank in zip(listed, each, ranks, strict=True)
        ]
        try:
            self._core.loop.submit(tickets)
            for finished in range(1, len(tickets) + 1):
                waker.wait().check()
                if progress is not None:
                    progress(finished, len(tickets))
        except BaseException:
            for ticket in tickets:
                self._core.loop.abort(ticket)
            raise
        return [self._core.output(ticket) for ticket in tickets]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several. messages: mappings with role and content."""
        several: list[Sequence[Message]] = [messages] if is_conversation(messages) else list(messages)  # type: ignore[arg-type]
        prompts = [
            self.render_chat(one, add_generation_prompt=add_generation_prompt, **(chat_template_kwargs or {}))
            for one in several
        ]
        return self.generate(prompts, params, progress, priority=priority, cache_salt=cache_salt)

    def render_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> RenderedPrompt:
        """The prompt that the bundle's chat template makes; `generate` and `stream` take it as it is."""
        return self._core.render_chat(messages, add_generation_prompt, variables)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> TextStream:
        """Complete one prompt; iterate over the result for pieces of text as they are made. It runs whether or not
        anybody reads."""
        (chosen,) = params_of(params, 1, self.default_sampling_params)
        (rank,) = priorities_of(priority, 1)
        if chosen.n > 1:
            raise ConfigError(f"n is {chosen.n}, but a stream is one text; use generate, or one stream per output")
        self._check_open()
        waker = QueueWaker()
        job = self._core.make_job(prompt, chosen, streams=True, priority=rank, cache_salt=cache_salt)
        ticket = Ticket(job, waker, streams=True)
        self._core.loop.submit([ticket])
        return TextStream(self, ticket, waker)

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ConfigError(CLOSED)


class TextStream:
    """Pieces of one request's text, in order; together they are `output.text`."""

    def __init__(self, llm: LLM, ticket: Ticket, waker: QueueWaker) -> None:
        self._llm = llm  # an LLM that nobody else holds lives as long as its streams
        self._ticket = ticket
        self._waker = waker
        self._output: RequestOutput | None = None
        self._finalizer = weakref.finalize(self, llm._core.loop.abort, ticket)
        self._finalizer.atexit = False

    def __iter__(self) -> Iterator[str]:
        ticket = self._ticket
        try:
            while True:
                # What was written before the end is read first.
                done = ticket.is_done
                while ticket.deltas:
                    text = ticket.deltas.popleft().text
                    if text:
                        yield text
                if done:
                    ticket.check()
                    return
                self._waker.wait()
        finally:
            self.close()

    def close(self) -> None:
        """End the request if it still runs. Called when the iteration ends, however it ends."""
        self._finalizer.detach()
        if not self._ticket.is_done:
            self._llm._core.loop.abort(self._ticket)
            while not self._ticket.is_done:
                self._waker.wait()

    @property
    def output(self) -> RequestOutput:
        """The finished request, statistics included. Raises DsparkError while it still runs, and where the LLM was
        closed before it ended."""
        if self._output is None:
            if self._ticket.failure is not None:
                raise DsparkError("the LLM was closed before the stream ended, so there is no output")
            if not self._ticket.is_done:
                raise DsparkError("the stream has not ended; iterate over it first")
            self._output = self._llm._core.output(self._ticket)
        return self._output
