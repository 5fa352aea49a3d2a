"""Who runs next, and how many tokens. Touches no tensor.

Prefill chunks and rounds are separate steps, because a prompt's chunk would pad every decoding slot. Between
two rounds at most `chunk_tokens` prompt tokens are read: a long prompt cannot hold up those who are decoding, and
several short prompts start together. A request gets its slot when its prompt's turn comes, so that it finds the rows
that those before it have computed. Where all slots are taken, a request of a higher priority takes the place of the
lowest one, which later computes its rows again and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from dspark_runtime.plan import PrefillPlan, RoundPlan, StepPlan
from dspark_runtime.request import Phase, Request
from dspark_runtime.slots import Placement, Slots
from dspark_runtime.waiting import MAX_OVERTAKES, WaitingQueue

CHUNK_TOKENS = 256
SCORED_ROWS = 64
"""Most tokens of a chunk whose log-probabilities are wanted: every one of them then has a row of logits."""
STEPS_PER_CHUNK = 16
"""A step reads all weights, however few tokens it has: each counts as at least chunk_tokens / STEPS_PER_CHUNK."""


class Scheduler:
    """Decides step by step; the engine reports what became of each request."""

    def __init__(
        self,
        num_slots: int,
        chunk_tokens: int = CHUNK_TOKENS,
        *,
        reuse: bool = True,
        draft_has_caches: bool = False,
        max_overtakes: int = MAX_OVERTAKES,
    ) -> None:
        """reuse: prefixes that are in the caches are not computed again. draft_has_caches: the draft is a model of its
        own, whose rows must be there too."""
        self.slots = Slots(num_slots, reuse, draft_has_caches)
        self.chunk_tokens = chunk_tokens
        self.num_preemptions = 0
        self._least_cost = max(1, chunk_tokens // STEPS_PER_CHUNK)
        self._waiting = WaitingQueue(max_overtakes)
        self._by_slot: dict[int, Request] = {}
        self._prefills: list[Request] = []
        self._budget = chunk_tokens
        self._arrivals = 0

    def __len__(self) -> int:
        """Requests that are not finished."""
        return len(self._waiting) + len(self._by_slot)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._by_slot)

    def requests(self) -> Iterator[Request]:
        """Every unfinished request, slots first."""
        yield from self._by_slot.values()
        yield from self._waiting

    def in_slot(self, slot: int) -> Request:
        return self._by_slot[slot]

    def add(self, request: Request) -> None:
        request.order = self._arrivals
        self._arrivals += 1
        self._waiting.push(request)

    def finish(self, request: Request, spoilt: bool = False) -> None:
        """Take a request out, wherever it is; its slot is free for the next step. spoilt: its rows are of no use."""
        if request.slot is None:
            self._waiting.remove(request)
        else:
            self._leave_slot(request, spoilt)
        request.phase = Phase.FINISHED

    def prefilled(self, request: Request) -> None:
        """All rows before the anchor are in the caches: the request decodes from now on."""
        self._prefills.remove(request)
        request.phase = Phase.DECODE

    def next_step(self) -> StepPlan | None:
        """The next step, or None when nothing is left to do."""
        if self._prefills or self._waiting:
            is_decoding = len(self._by_slot) > len(self._prefills)
            if not is_decoding or self._budget >= self._least_cost:
                request, placement = self._next_prefill()
                if request is not None:
                    return self._prefill(request, placement)
        decoding = [request for _, request in sorted(self._by_slot.items()) if request.phase is Phase.DECODE]
        if not decoding:
            return None
        self._budget = self.chunk_tokens
        return _round(decoding)

    def _next_prefill(self) -> tuple[Request | None, Placement | None]:
        """The request whose prompt is read next, and where it was placed if that happened now."""
        waiting = self._waiting.first()
        going = min(self._prefills, key=_rank, default=None)
        if waiting is not None and (going is None or waiting.priority < going.priority):
            placement = self._place(waiting)
            if placement is not None:
                return waiting, placement
        return going, None

    def _place(self, request: Request) -> Placement | None:
        """Give a waiting request a slot, if need be that of a lower priority; None when there is none."""
        if not self.slots.num_free:
            lowest = max(self._by_slot.values(), key=_rank)
            if lowest.protected or lowest.priority <= request.priority:
                return None
            self._preempt(lowest)
        limit = request.prefill_end - 1 if request.reuses_prefix else 0
        placement = self.slots.acquire(request.request_id, request, limit, request.drafts)
        assert placement is not None
        self._waiting.take(request)
        request.slot, request.phase = placement.slot, Phase.PREFILL
        request.computed, request.draft_computed = placement.rows, placement.draft_rows
        if not request.preemptions:
            request.cached_tokens = placement.rows
        self._by_slot[placement.slot] = request
        self._prefills.append(request)
        return placement

    def _preempt(self, request: Request) -> None:
        """Take the slot of a request between two steps. Its tokens stay; its rows are computed again later."""
        self._leave_slot(request, spoilt=False)
        request.phase = Phase.WAITING
        request.computed = request.draft_computed = 0
        request.preemptions += 1
        self.num_preemptions += 1
        self._waiting.push(request)

    def _leave_slot(self, request: Request, spoilt: bool) -> None:
        assert request.slot is not None
        if request.phase is Phase.PREFILL:
            self._prefills.remove(request)
        del self._by_slot[request.slot]
        self.slots.release(request.slot, spoilt)
        request.slot = None

    def _prefill(self, request: Request, placement: Placement | None) -> PrefillPlan:
        # With nobody decoding the budget has nobody to protect.
        is_decoding = len(self._by_slot) > len(self._prefills)
        start, end = request.computed, request.prefill_end
        most = min(self.chunk_tokens, self._budget) if is_decoding else self.chunk_tokens
        scores = request.scores_prompt
        if scores:
            most = min(most, SCORED_ROWS)
        tokens = tuple(request.tokens[start : min(end, start + most)])
        self._budget -= max(len(tokens), self._least_cost)
        assert request.slot is not None
        is_last = start + len(tokens) == end
        return PrefillPlan(
            slot=request.slot,
            start=start,
            tokens=tokens,
            prompt_length=request.prompt_length,
            draws=is_last and end == len(request.tokens),
            drafts=request.drafts,
            copy_from=None if placement is None else placement.copy_from,
            clears=placement is not None and placement.clears,
            scored=request.prompt_token_ids[start + 1 : start + len(tokens) + 1] if scores else (),
            num_scored=request.params.prompt_logprobs or 0,
            sampling=request.sampling,
        )


def _rank(request: Request) -> tuple[bool, int, int]:
    """Smaller is served first and loses its slot last."""
    return not request.protected, request.priority, request.order


def _round(requests: list[Request]) -> RoundPlan:
    """A round over `requests`, ascending by slot. A request emits at most max_verify + 1 tokens, so that
    remaining - 1 proposals are all it can use; its rows then end before max_length."""
    slots, lengths, anchors, unseen, max_verify, cutoffs, sampling = [], [], [], [], [], [], []
    for request in requests:
        assert request.slot is not None
        assert request.computed == len(request.tokens) - 1
        slots.append(request.slot)
        lengths.append(request.computed)
        anchors.append(request.tokens[-1])
        unseen.append(tuple(request.tokens[request.draft_computed :]) if request.drafts else ())
        max_verify.append(request.most_proposals)
        cutoffs.append(request.control.cutoff)
        sampling.append(request.sampling)
    return RoundPlan(
        slots=tuple(slots),
        lengths=tuple(lengths),
        anchors=tuple(anchors),
        unseen=tuple(unseen),
        max_verify=tuple(max_verify),
        cutoffs=tuple(cutoffs),
        sampling=tuple(sampling),
    )
