"""The loop: plan a step, run it, commit what came out. Commit and rollback are here and nowhere else.

After a round that accepted j proposals a request has j+1 more tokens, fewer when a stop lies among them. Its caches are
committed up to the token before the last; what lies behind is stale, and rolling back is nothing but that length.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from dspark_runtime.detokenize import Detokenizer
from dspark_runtime.executor import Executor
from dspark_runtime.metrics import Metrics
from dspark_runtime.plan import PrefillPlan, RoundPlan, StepPlan, StepResult
from dspark_runtime.profile import Profiler
from dspark_runtime.request import Request
from dspark_runtime.scheduler import Scheduler

log = logging.getLogger(__name__)

FAULTS = {
    "nan": "the model's logits are not numbers (NaN) at this position; check the checkpoint's weights",
    "infinite": "the model's logits are infinite at this position; check the checkpoint's weights",
    "impossible": "no token is possible at this position: allowed_token_ids, bad_words, logit_bias and min_tokens "
    "together leave none, or all of the model's logits are -inf",
}
"""Ends of a round (ROUND_END_REASONS) that gave no token, in words. They end their request and no other."""


class Engine:
    """Requests in, finished requests out, one step at a time. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        profiler: Profiler | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._executor = executor
        self._block_size = executor.block_size
        self._scheduler = scheduler
        self._detokenizers: dict[int, Detokenizer] = {}
        self.profiler = profiler if profiler is not None else Profiler()
        self.metrics = Metrics(executor.block_size)
        self.clock = clock

    @property
    def block_size(self) -> int:
        """K; 0 without a draft."""
        return self._block_size

    def forget_executor(self) -> None:
        """Let go of the engines; only counts can be read afterwards."""
        del self._executor

    @property
    def num_unfinished(self) -> int:
        return len(self._scheduler)

    @property
    def num_slots(self) -> int:
        return self._scheduler.slots.num_slots

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.num_preemptions

    def add(self, request: Request, detokenizer: Detokenizer | None = None) -> None:
        """Queue a request. detokenizer: where text is wanted while it arrives, or stop strings are set."""
        if detokenizer is not None:
            self._detokenizers[request.request_id] = detokenizer
        with self.metrics.lock:
            self.metrics.added += 1
            self._scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End a request now, wherever it is; nothing happens when it is finished."""
        with self.metrics.lock:
            if not request.is_finished:
                self._finish(request, "abort", None)

    def fail(self, request: Request, message: str) -> None:
        """End a request, finished or not, with an error; nobody takes over its rows."""
        with self.metrics.lock:
            request.error = message
            if request.is_finished:
                request.finish_reason = "error"
            else:
                self._finish(request, "error", None)

    def step(self) -> list[Request]:
        """Run one step; the requests that got tokens or ended: none where nothing is to do, or a chunk was not the
        last. Where the executor raises, the requests of the step end with that error, and no others."""
        with self.metrics.lock:
            plan = self._scheduler.next_step()
        if plan is None:
            return []
        if isinstance(plan, PrefillPlan):
            request = self._scheduler.in_slot(plan.slot)
            if request.start_time is None:
                request.start_time = self.clock()
            with self.profiler.prefill():
                result = self._run(plan)
                return self._failed([plan.slot], result) if isinstance(result, str) else self._commit(plan, result)
        with self.profiler.round():
            result = self._run(plan)
            return self._failed(plan.slots, result) if isinstance(result, str) else self._commit(plan, result)

    def _run(self, plan: StepPlan) -> StepResult | str:
        """The result, or why there is none."""
        try:
            return self._executor.run(plan)
        except Exception as error:
            log.exception("a step failed")
            return f"a step of the engine failed: {type(error).__name__}: {error}"

    def _failed(self, slots: Sequence[int], message: str) -> list[Request]:
        requests = [self._scheduler.in_slot(slot) for slot in slots]
        for request in requests:
            self.fail(request, message)
        with self.metrics.lock:
            self.metrics.steps_failed += 1
        return requests

    def _commit(self, plan: StepPlan, result: StepResult) -> list[Request]:
        with self.metrics.lock:
            if isinstance(plan, PrefillPlan):
                return self._commit_prefill(plan, result)
            return self._commit_round(plan, result)

    def _commit_prefill(self, plan: PrefillPlan, result: StepResult) -> list[Request]:
        request = self._scheduler.in_slot(plan.slot)
        request.computed = plan.start + len(plan.tokens)
        if plan.drafts:
            request.draft_computed = min(result.draft_lengths[0], request.computed)
        if plan.scored:
            # A request that lost its slot half-way begins again.
            request.prompt_logprobs[plan.start :] = result.prompt_logprobs
        self.metrics.prompt_read(request, plan)
        if request.computed < request.prefill_end:
            return []
        self._scheduler.prefilled(request)
        if not plan.draws:
            return []
        now = self.clock()
        emitted, end = self._emit(request, result, 0, request.draft_computed)
        self.metrics.emitted(request, emitted, now)
        if end is not None:
            self._finish(request, *end)
        return [request]

    def _commit_round(self, plan: RoundPlan, result: StepResult) -> list[Request]:
        requests = [self._scheduler.in_slot(slot) for slot in plan.slots]
        now, metrics = self.clock(), self.metrics
        metrics.rounds += 1
        for i, request in enumerate(requests):
            proposed, verified, accepted = result.proposed[i], result.verified[i], result.accepted[i]
            emitted, end = self._emit(request, result, i, result.draft_lengths[i])
            request.rounds += 1
            request.proposed += proposed
            # A stop inside the kept proposals decides nothing about those behind it, and a fault nothing about its own.
            request.verified += verified if emitted > accepted else emitted
            request.accepted += min(accepted, emitted)
            request.control.completed(verified, accepted)
            metrics.round(request, proposed, verified, accepted, emitted)
            metrics.emitted(request, emitted, now)
            if end is not None:
                self._finish(request, *end)
        return requests

    def _emit(
        self, request: Request, result: StepResult, index: int, draft_length: int
    ) -> tuple[int, tuple[str, str | int | None] | None]:
        """Append the tokens of entry `index` up to the first stop; returns how many, and (finish reason, stop reason)
        where they end the request. The stop that comes first wins, a stop before the length limit at the same token,
        and both before a fault behind them.

        draft_length: rows that a draft's own caches have now.
        """
        before = len(request.tokens)
        try:
            end = self._append(request, result.tokens[index])
        except Exception as error:  # whatever text was made of: it is this request's, and ends no other
            log.exception("request %d: its text cannot be made", request.request_id)
            request.error = f"its text cannot be made: {type(error).__name__}: {error}"
            end = "error", None
        emitted = len(request.tokens) - before
        if emitted and request.first_token_time is None:
            request.first_token_time = self.clock()
        if request.params.logprobs is not None:
            request.logprobs.extend(result.logprobs[index][:emitted])
        fault = FAULTS.get(result.ends[index]) if end is None else None
        if fault is not None:
            request.error = fault
            end = "error", None
        # Before the request leaves its slot, whose rows others may take over.
        request.computed = len(request.tokens) - 1
        if request.drafts:
            request.draft_computed = min(draft_length, request.computed)
        return emitted, end

    def _append(self, request: Request, tokens: Sequence[int]) -> tuple[str, str | int | None] | None:
        """Tokens to the request and to its text, up to the first that ends it; returns why, or None."""
        params, detokenizer = request.params, self._detokenizers.get(request.request_id)
        for token in tokens:
            request.tokens.append(token)
            is_stop = token in request.stop_tokens
            if detokenizer is not None and (not is_stop or params.include_stop_str_in_output):
                detokenizer.append(token)
            if is_stop:
                named = token in (params.stop_token_ids or ()) and token not in request.eos_tokens
                return "stop", token if named else None
            if detokenizer is not None and detokenizer.stopped_by is not None:
                return "stop", detokenizer.stopped_by
            if request.remaining == 0:
                return "length", None
        return None

    def _finish(self, request: Request, reason: str, stop_reason: str | int | None) -> None:
        detokenizer = self._detokenizers.pop(request.request_id, None)
        if detokenizer is not None:
            try:
                detokenizer.finish()
            except Exception as error:
                log.exception("request %d: its text cannot be made", request.request_id)
                reason, stop_reason = "error", None
                request.error = request.error or f"its text cannot be made: {type(error).__name__}: {error}"
        request.finish_reason, request.stop_reason = reason, stop_reason
        request.finish_time = self.clock()
        self.metrics.ended(request, reason, request.finish_time)
        self._scheduler.finish(request, spoilt=reason == "error")
