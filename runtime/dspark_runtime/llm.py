"""`LLM`: a bundle and prompts to text, in one object. The names follow vLLM.

with LLM("engines/smollm2") as llm:
    print(llm.generate(["Hello"], SamplingParams(max_tokens=64))[0].text)
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeGuard

import numpy as np

from dspark_runtime.bundle import CHAT_TEMPLATE, Bundle, open_bundle
from dspark_runtime.checks import as_integer
from dspark_runtime.contract.errors import ConfigError, DsparkError, shown
from dspark_runtime.contract.manifest import Manifest
from dspark_runtime.contract.names import GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG
from dspark_runtime.engine import Engine
from dspark_runtime.executor import AcceptanceOverride, open_executor
from dspark_runtime.jobs import Job, job_output, make_job
from dspark_runtime.outputs import RequestOutput
from dspark_runtime.params import SamplingParams
from dspark_runtime.profile import Profile
from dspark_runtime.request import Request
from dspark_runtime.scheduler import CHUNK_TOKENS, Scheduler
from dspark_runtime.tokenizer import Message, Tokenizer

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
_DEFAULT_FIELDS = {
    "temperature": float, "top_k": int, "top_p": float, "min_p": float, "repetition_penalty": float,
    "max_new_tokens": int,
}  # fmt: skip
"""Of generation_config.json, those that vLLM takes over as defaults."""


class RenderedPrompt(str):
    """A prompt made by a chat template: its special tokens are in the text, so none are added to it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMStats:
    """Counts over all requests that an LLM finished; the rates are defined as in RequestStats."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    verified: int = 0
    accepted: int = 0
    samples: int = 0
    """Outputs that have a token."""
    lossless: bool = True
    """Whether all outputs are the target's own."""

    def plus(self, output: RequestOutput) -> LLMStats:
        stats = output.stats
        return LLMStats(
            requests=self.requests + 1,
            prompt_tokens=self.prompt_tokens + len(output.prompt_token_ids),
            output_tokens=self.output_tokens + stats.output_tokens,
            rounds=self.rounds + stats.rounds,
            proposed=self.proposed + stats.proposed,
            verified=self.verified + stats.verified,
            accepted=self.accepted + stats.accepted,
            samples=self.samples + stats.samples,
            lossless=self.lossless and stats.lossless,
        )

    @property
    def accepted_length(self) -> float:
        """Tokens per round and output, the target's own included; 0 without a round."""
        return (self.output_tokens - self.samples) / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the verified proposals; 0 when none was verified."""
        return self.accepted / self.verified if self.verified else 0.0


class LLM:
    """The engines of a bundle, ready to generate. May be used from several threads; they share the engines."""

    def __init__(
        self,
        bundle: str | Path,
        *,
        num_threads: int | None = None,
        prefill_chunk: int = CHUNK_TOKENS,
        enable_prefix_caching: bool = True,
        acceptance_override: AcceptanceOverride | None = None,
    ) -> None:
        """num_threads: of the engines, one number per process; None: one per core. prefill_chunk: most prompt tokens
        between two rounds. enable_prefix_caching: a prompt that begins like what a slot holds starts from there; the
        output is the same. acceptance_override: for tests (executor.py). Raises BundleError or ConfigError."""
        if (as_integer(prefill_chunk) or 0) < 1:
            raise ConfigError(f"prefill_chunk is {shown(prefill_chunk)}, needs an integer >= 1")
        self._bundle: Bundle = open_bundle(bundle)
        self.manifest: Manifest = self._bundle.manifest
        self.tokenizer = _open_tokenizer(self._bundle)
        self.default_sampling_params = _default_params(self._bundle)
        """What `generate` uses without parameters: vLLM's defaults, changed by the checkpoint's generation_config."""
        self.executor, profiler = open_executor(self._bundle, num_threads, acceptance_override)
        draft = self.manifest.draft
        scheduler = Scheduler(
            self.manifest.limits.max_batch_size,
            prefill_chunk,
            reuse=enable_prefix_caching,
            draft_has_caches=draft is not None and draft.kind == "model",
        )
        self._engine: Engine | None = Engine(self.executor, scheduler, profiler)
        self._profiler = profiler
        self._lock = threading.RLock()
        self._dropped: deque[Request] = deque()
        """Requests of streams that were garbage before they ended."""
        self._said_cut = False
        self._next_id = 0
        self._stats = LLMStats()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the engines and their memory. The object is of no use afterwards; closing twice is fine."""
        with self._lock:
            self._engine = None
            if hasattr(self, "executor"):
                del self.executor

    @property
    def stats(self) -> LLMStats:
        """Counts over all requests finished so far."""
        return self._stats

    @property
    def profile(self) -> Profile:
        """Where the time of all rounds so far went."""
        return self._profiler.snapshot()

    def reset_profile(self) -> None:
        self._profiler.reset()

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's name for `default_sampling_params`."""
        return self.default_sampling_params

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt; outputs in the order of the prompts.

        prompts: texts, or lists of token ids; one alone may stand without a list. params: for all, or one per prompt.
        progress: called with (finished, total) as requests finish. Raises ConfigError or CapacityError before anything
        runs when a prompt or parameter does not fit; an interrupted call leaves no request behind.
        """
        listed = _as_list(prompts)
        each = self._params_of(params, len(listed))
        with self._lock:
            jobs = [self._prepare(prompt, chosen, False) for prompt, chosen in zip(listed, each, strict=True)]
        try:
            with self._lock:
                for job in jobs:
                    for sample in job.samples:
                        self._open_engine().add(sample.request, sample.detokenizer)
            finished = seen = 0
            while finished < len(jobs):
                with self._lock:
                    engine = self._open_engine()
                    engine.step()
                    ended, seen = engine.num_finished - seen, engine.num_finished
                if ended:  # counted only then: there may be thousands of prompts
                    now = sum(job.is_finished for job in jobs)
                    if now != finished and progress is not None:
                        progress(now, len(jobs))
                    finished = now
        finally:
            self._abort([request for job in jobs for request in job.requests])
        return [self._output(job) for job in jobs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several. messages: mappings with role and content."""
        several: list[Sequence[Message]] = [messages] if _is_conversation(messages) else list(messages)  # type: ignore[arg-type]
        prompts = [
            self.render_chat(one, add_generation_prompt=add_generation_prompt, **(chat_template_kwargs or {}))
            for one in several
        ]
        return self.generate(prompts, params, progress)

    def render_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> RenderedPrompt:
        """The prompt that the bundle's chat template makes; `generate` and `stream` take it as it is."""
        return RenderedPrompt(self.tokenizer.render_chat(messages, add_generation_prompt, **variables))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """Complete one prompt; iterate over the result for pieces of text as they are made."""
        (chosen,) = self._params_of(params, 1)
        with self._lock:
            if chosen.n > 1:
                raise ConfigError(f"n is {chosen.n}, but a stream is one text; use generate, or one stream per output")
            job = self._prepare(prompt, chosen, True)
            (sample,) = job.samples
            self._open_engine().add(sample.request, sample.detokenizer)
        return TextStream(self, job)

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise ConfigError("this LLM is closed; make another one")
        while self._dropped:
            self._engine.abort(self._dropped.popleft())
        return self._engine

    def _params_of(
        self, params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> list[SamplingParams]:
        if params is None:
            return [self.default_sampling_params] * num_prompts
        if isinstance(params, SamplingParams):
            return [params] * num_prompts
        if not isinstance(params, Sequence) or not all(isinstance(entry, SamplingParams) for entry in params):
            raise ConfigError(f"params is {shown(params)}, wanted SamplingParams or a list of them")
        if len(params) != num_prompts:
            raise ConfigError(
                f"params has {len(params)} entries for {num_prompts} prompts, wanted one for each or one for all"
            )
        return list(params)

    def _prepare(self, prompt: Prompt, params: SamplingParams, streams: bool) -> Job:
        engine = self._open_engine()
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=not isinstance(prompt, RenderedPrompt))
        else:
            ids = _token_ids(prompt)
        job = make_job(self._next_id, text, ids, params, self.manifest, self.tokenizer, engine.clock(), streams=streams)
        self._next_id += len(job.samples)
        limit = self.manifest.limits.max_seq_len
        if not self._said_cut and params.max_tokens is not None and len(ids) + params.max_tokens > limit:
            self._said_cut = True
            log.warning(
                "max_tokens is %s after a prompt of %d tokens, but this bundle holds %d in all (max_seq_len): such "
                "outputs end there (said once)",
                shown(params.max_tokens),
                len(ids),
                limit,
            )
        return job

    def _abort(self, requests: Sequence[Request]) -> None:
        with self._lock:
            if self._engine is not None:
                for request in requests:
                    self._engine.abort(request)

    def _output(self, job: Job) -> RequestOutput:
        """The result of a finished job, counted once."""
        output = job_output(job, self.tokenizer)
        with self._lock:
            self._stats = self._stats.plus(output)
        return output


class TextStream:
    """Pieces of one request's text, in order; together they are `output.text`. Runs the engine while iterated."""

    def __init__(self, llm: LLM, job: Job) -> None:
        self._llm = llm
        self._job = job
        (sample,) = job.samples
        assert sample.detokenizer is not None
        self._request = request = sample.request
        self._detokenizer = sample.detokenizer
        self._output: RequestOutput | None = None
        # Not aborted at once: garbage may be collected in the middle of a step. The next use of the LLM does it.
        self._finalizer = weakref.finalize(self, llm._dropped.append, request)
        self._finalizer.atexit = False

    def __iter__(self) -> Iterator[str]:
        request, llm = self._request, self._llm
        try:
            while not request.is_finished:
                with llm._lock:
                    if not request.is_finished:
                        llm._open_engine().step()
                delta = self._detokenizer.stream(request.is_finished)
                if delta:
                    yield delta
        finally:
            self.close()

    def close(self) -> None:
        """End the request if it still runs. Called when the iteration ends, however it ends."""
        self._finalizer.detach()
        self._llm._abort([self._request])

    @property
    def output(self) -> RequestOutput:
        """The finished request, statistics included. Raises DsparkError while it still runs, and where the LLM was
        closed before it ended."""
        if self._output is None:
            if not self._request.is_finished:
                if self._llm._engine is None:
                    raise DsparkError("the LLM was closed before the stream ended, so there is no output")
                raise DsparkError("the stream has not ended; iterate over it first")
            self._output = self._llm._output(self._job)
        return self._output


def _as_list(prompts: Any) -> list[Prompt]:
    """Prompts as a list, one alone included. Raises ConfigError for what is neither text nor token ids."""
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts) if isinstance(prompts, Iterator) else _entries(prompts)
    if any(as_integer(entry) is not None for entry in listed):
        return [_token_ids(listed)]
    return [entry if isinstance(entry, str) else _token_ids(entry) for entry in listed]


def _token_ids(prompt: object) -> list[int]:
    ids = [as_integer(entry) for entry in _entries(prompt)]
    if None in ids:
        raise _wrong_prompt(prompt)
    return ids  # type: ignore[return-value]


def _entries(prompt: Any) -> list[Any]:
    """Of a list, a tuple or an array in one of these places; bytes and mappings are none, whatever they hold."""
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray | memoryview)
    if not is_list and not (isinstance(prompt, np.ndarray) and prompt.ndim > 0):
        raise _wrong_prompt(prompt)
    return list(prompt)


def _wrong_prompt(prompt: object) -> ConfigError:
    return ConfigError(f"prompt is {type(prompt).__name__} {shown(prompt)}, wanted text or a list of token ids")


def _is_conversation(messages: object) -> TypeGuard[Sequence[Message]]:
    return isinstance(messages, Sequence) and (not messages or isinstance(messages[0], Mapping))


def _open_tokenizer(bundle: Bundle) -> Tokenizer:
    template = None
    if bundle.has(CHAT_TEMPLATE):
        template = bundle.asset(CHAT_TEMPLATE).decode("utf-8", errors="replace")
    return Tokenizer(bundle.asset(TOKENIZER), bundle.json_asset(TOKENIZER_CONFIG), template)


def _default_params(bundle: Bundle) -> SamplingParams:
    """vLLM's rule: what generation_config.json says about sampling, `max_new_tokens` included; its own otherwise.
    A value that cannot be is left out with a warning: the bundle is good without it."""
    config = bundle.json_asset(GENERATION_CONFIG)
    chosen = SamplingParams()
    for name, kind in _DEFAULT_FIELDS.items():
        value: Any = config.get(name)
        if value is None:
            continue
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        change: dict[str, Any] = {"max_tokens" if name == "max_new_tokens" else name: value}
        try:
            chosen = replace(chosen, **change)
        except ConfigError as error:
            log.warning("%s: %s is left out of the defaults: %s", bundle.folder / GENERATION_CONFIG, name, error)
    return chosen
