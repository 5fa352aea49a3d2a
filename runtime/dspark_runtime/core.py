"""A bundle opened, its engines in a thread: what LLM and AsyncLLM have in common."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspark_runtime.bundle import CHAT_TEMPLATE, Bundle, open_bundle
from dspark_runtime.checks import as_integer
from dspark_runtime.contract.errors import ConfigError, shown
from dspark_runtime.contract.manifest import Manifest
from dspark_runtime.contract.names import GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG
from dspark_runtime.engine import Engine
from dspark_runtime.engine_loop import EngineLoop
from dspark_runtime.executor import AcceptanceOverride, BundleExecutor, open_executor
from dspark_runtime.jobs import Job, job_output, make_job
from dspark_runtime.outputs import RequestOutput
from dspark_runtime.params import SamplingParams
from dspark_runtime.profile import Profile
from dspark_runtime.prompts import Prompt, RenderedPrompt, check_salt, token_ids
from dspark_runtime.scheduler import CHUNK_TOKENS, Scheduler
from dspark_runtime.stats import ServiceStats, snapshot
from dspark_runtime.tickets import Ticket
from dspark_runtime.tokenizer import Message, Tokenizer
from dspark_runtime.trace import TraceWriter

log = logging.getLogger(__name__)

_DEFAULT_FIELDS = {
    "temperature": float, "top_k": int, "top_p": float, "min_p": float, "repetition_penalty": float,
    "max_new_tokens": int,
}  # fmt: skip
"""Of generation_config.json, those that vLLM takes over as defaults."""


class Core:
    """Engines, tokenizer and engine thread of one bundle. All methods may be called from any thread."""

    def __init__(
        self,
        bundle: str | Path,
        *,
        num_threads: int | None = None,
        prefill_chunk: int = CHUNK_TOKENS,
        enable_prefix_caching: bool = True,
        max_waiting: int | None = None,
        trace: str | Path | None = None,
        acceptance_override: AcceptanceOverride | None = None,
    ) -> None:
        if (as_integer(prefill_chunk) or 0) < 1:
            raise ConfigError(f"prefill_chunk is {shown(prefill_chunk)}, needs an integer >= 1")
        if max_waiting is not None and (as_integer(max_waiting) is None or max_waiting < 0):
            raise ConfigError(f"max_waiting is {shown(max_waiting)}, needs an integer >= 0, or None")
        opened: Bundle = open_bundle(bundle)
        self.name = opened.folder.resolve().name
        self.manifest: Manifest = opened.manifest
        self.tokenizer = _open_tokenizer(opened)
        self.default_sampling_params = _default_params(opened)
        executor, self._profiler = open_executor(opened, num_threads, acceptance_override)
        self.executor: BundleExecutor | None = executor
        draft = self.manifest.draft
        scheduler = Scheduler(
            self.manifest.limits.max_batch_size,
            prefill_chunk,
            reuse=enable_prefix_caching,
            draft_has_caches=draft is not None and draft.kind == "model",
        )
        self._trace = None if trace is None else TraceWriter(Path(trace), executor, self.manifest)
        self.engine = Engine(executor if self._trace is None else self._trace, scheduler, self._profiler)
        self.loop = EngineLoop(self.engine, max_waiting)
        self._ids = itertools.count()
        self._ids_lock = threading.Lock()
        self._said_cut = False

    def close(self) -> None:
        """End what runs and let go of the engines and their memory. Closing twice is fine."""
        self.loop.close()
        if self._trace is not None:
            self._trace.close()
        self.engine.forget_executor()
        self.executor = None

    @property
    def profile(self) -> Profile:
        return self._profiler.snapshot()

    def reset_profile(self) -> None:
        self._profiler.reset()

    def stats(self) -> ServiceStats:
        return snapshot(self.engine)

    def render_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool, variables: dict[str, Any]
    ) -> RenderedPrompt:
        return RenderedPrompt(self.tokenizer.render_chat(messages, add_generation_prompt, **variables))

    def make_job(
        self, prompt: Prompt, params: SamplingParams, *, streams: bool, priority: int, cache_salt: str | None
    ) -> Job:
        """A prompt ready for the engine. Raises ConfigError or CapacityError where it does not fit."""
        arrival = self.engine.clock()
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=not isinstance(prompt, RenderedPrompt))
        else:
            ids = token_ids(prompt)
        with self._ids_lock:
            first = next(self._ids)
            for _ in range(params.n - 1):
                next(self._ids)
        job = make_job(
            first, text, ids, params, self.manifest, self.tokenizer, arrival,
            streams=streams, priority=priority, cache_salt=check_salt(cache_salt),
        )  # fmt: skip
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

    def output(self, ticket: Ticket) -> RequestOutput:
        """The result of a ticket whose job has ended by itself."""
        return job_output(ticket.job, self.tokenizer)


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
