"""The loop: plan a step, run it, commit what came out. Commit and rollback are here and nowhere else.

After a round that accepted j proposals a request has j+1 more tokens, fewer when a stop lies among them. Its caches are
committed up to the token before the last; what lies behind is stale, and rolling back is nothing but that length.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dspark_runtime.detokenize import Detokenizer
from dspark_runtime.executor import Executor
from dspark_runtime.plan import PrefillPlan, RoundPlan, StepResult
from dspark_runtime.profile import Profiler
from dspark_runtime.request import Request
from dspark_runtime.scheduler import Scheduler

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
        self._scheduler = scheduler
        self._detokenizers: dict[int, Detokenizer] = {}
        self.profiler = profiler if profiler is not None else Profiler()
        self.clock = clock
        self.num_finished = 0
        """Requests ended so far, aborted ones included."""

    @property
    def block_size(self) -> int:
        """K; 0 without a draft."""
        return self._executor.block_size

    @property
    def num_unfinished(self) -> int:
        return len(self._scheduler)

    def add(self, request: Request, detokenizer: Detokenizer | None = None) -> None:
        """Queue a request. detokenizer: where text is wanted while it arrives, or stop strings are set."""
        if detokenizer is not None:
            self._detokenizers[request.request_id] = detokenizer
        self._scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End a request now, wherever it is; nothing happens when it is finished."""
        if not request.is_finished:
            self._finish(request, "abort", None)

    def step(self) -> list[Request]:
        """Run one step; the requests that got tokens: none where nothing is to do, or a chunk was not the last."""
        plan = self._scheduler.next_step()
        if plan is None:
            return []
        if isinstance(plan, PrefillPlan):
            request = self._scheduler.in_slot(plan.slot)
            if request.start_time is None:
                request.start_time = self.clock()
            with self.profiler.prefill():
                return self._commit_prefill(plan, self._executor.run(plan))
        with self.profiler.round():
            return self._commit_round(plan, self._executor.run(plan))

    def _commit_prefill(self, plan: PrefillPlan, result: StepResult) -> list[Request]:
        request = self._scheduler.in_slot(plan.slot)
        request.computed = plan.start + len(plan.tokens)
        if plan.drafts:
            request.draft_computed = min(result.draft_lengths[0], request.computed)
        if plan.scored:
            # A request that lost its slot half-way begins again.
            request.prompt_logprobs[plan.start :] = result.prompt_logprobs
        if request.computed < request.prefill_end:
            return []
        self._scheduler.prefilled(request)
        if not plan.draws:
            return []
        self._emit(request, result, 0, request.draft_computed)
        return [request]

    def _commit_round(self, plan: RoundPlan, result: StepResult) -> list[Request]:
        requests = [self._scheduler.in_slot(slot) for slot in plan.slots]
        for i, request in enumerate(requests):
            accepted = result.accepted[i]
            emitted = self._emit(request, result, i, result.draft_lengths[i])
            request.rounds += 1
            request.proposed += result.proposed[i]
            # A stop inside the kept proposals decides nothing about those behind it, and a fault nothing about its own.
            request.verified += result.verified[i] if emitted > accepted else emitted
            request.accepted += min(accepted, emitted)
            request.control.completed(result.verified[i], accepted)
        return requests

    def _emit(self, request: Request, result: StepResult, index: int, draft_length: int) -> int:
        """Append the tokens of entry `index` up to the first stop; returns how many. The stop that comes first wins, a
        stop before the length limit at the same token, and both before a fault behind them.

        draft_length: rows that a draft's own caches have now.
        """
        tokens = result.tokens[index]
        detokenizer = self._detokenizers.get(request.request_id)
        params = request.params
        if request.first_token_time is None and tokens:
            request.first_token_time = self.clock()
        end: tuple[str, str | int | None] | None = None
        before = len(request.tokens)
        for token in tokens:
            request.tokens.append(token)
            is_stop = token in request.stop_tokens
            if detokenizer is not None and (not is_stop or params.include_stop_str_in_output):
                detokenizer.append(token)
            if is_stop:
                named = token in (params.stop_token_ids or ()) and token not in request.eos_tokens
                end = "stop", token if named else None
            elif detokenizer is not None and detokenizer.stopped_by is not None:
                end = "stop", detokenizer.stopped_by
            elif request.remaining == 0:
                end = "length", None
            if end is not None:
                break
        emitted = len(request.tokens) - before
        if params.logprobs is not None:
            request.logprobs.extend(result.logprobs[index][:emitted])
        fault = FAULTS.get(result.ends[index]) if end is None else None
        if fault is not None:
            request.error = fault
            end = "error", None
        # Before the request leaves its slot, whose rows others may take over.
        request.computed = len(request.tokens) - 1
        if request.drafts:
            request.draft_computed = min(draft_length, request.computed)
        if end is not None:
            self._finish(request, *end)
        return emitted

    def _finish(self, request: Request, reason: str, stop_reason: str | int | None) -> None:
        request.finish_reason, request.stop_reason = reason, stop_reason
        request.finish_time = self.clock()
        self.num_finished += 1
        detokenizer = self._detokenizers.pop(request.request_id, None)
        if detokenizer is not None:
            detokenizer.finish()
        self._scheduler.finish(request, spoilt=reason == "error")
