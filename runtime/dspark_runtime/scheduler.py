"""Who runs next, and how many tokens. Touches no tensor.

Prefill chunks and rounds are separate steps, because a prompt's chunk would pad every decoding slot. Between
two rounds at most `chunk_tokens` prompt tokens are read: a long prompt cannot hold up those who are decoding, and
several short prompts start together. A waiting request takes a slot as soon as one is free; both queues are
first come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dspark_runtime.plan import PrefillPlan, RoundPlan, StepPlan
from dspark_runtime.request import Phase, Request
from dspark_runtime.slots import Slots

CHUNK_TOKENS = 256


class Scheduler:
    """Decides step by step; the engine reports what became of each request through `finish`."""

    def __init__(self, num_slots: int, chunk_tokens: int = CHUNK_TOKENS) -> None:
        self.slots = Slots(num_slots)
        self.chunk_tokens = chunk_tokens
        self._waiting: deque[Request] = deque()
        self._by_slot: dict[int, Request] = {}
        self._prefills: deque[Request] = deque()
        self._budget = chunk_tokens

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
        self._waiting.append(request)

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is; its slot is free for the next step."""
        if request.slot is None:
            self._waiting.remove(request)
        else:
            if request.phase is Phase.PREFILL:
                self._prefills.remove(request)
            del self._by_slot[request.slot]
            self.slots.release(request.slot)
            request.slot = None
        request.phase = Phase.FINISHED

    def prefilled(self, request: Request) -> None:
        """The whole prompt is in the caches: the request decodes from now on."""
        self._prefills.remove(request)
        request.phase = Phase.DECODE

    def next_step(self) -> StepPlan | None:
        """The next step, or None when nothing is left to do."""
        self._admit()
        decoding = sorted((slot, request) for slot, request in self._by_slot.items() if request.phase is Phase.DECODE)
        if self._prefills and (self._budget > 0 or not decoding):
            return self._prefill(self._prefills[0])
        if not decoding:
            return None
        self._budget = self.chunk_tokens
        return _round([request for _, request in decoding])

    def _admit(self) -> None:
        while self._waiting and self.slots.num_free:
            request = self._waiting.popleft()
            slot = self.slots.acquire(request.request_id)
            assert slot is not None
            request.slot = slot
            request.phase = Phase.PREFILL
            self._by_slot[slot] = request
            self._prefills.append(request)

    def _prefill(self, request: Request) -> PrefillPlan:
        # With nobody decoding the budget has nobody to protect.
        if self._budget <= 0:
            self._budget = self.chunk_tokens
        start = request.computed
        tokens = request.prompt_token_ids[start : start + self.chunk_tokens]
        self._budget -= len(tokens)
        assert request.slot is not None
        return PrefillPlan(
            slot=request.slot,
            start=start,
            tokens=tokens,
            prompt_length=request.prompt_length,
            drafts=request.drafts,
            sampling=request.sampling,
        )


def _round(requests: list[Request]) -> RoundPlan:
    """A round over `requests`, ascending by slot. A request emits at most max_verify + 1 tokens, so that
    remaining - 1 proposals are all it can use; its rows then end before max_length."""
    slots, lengths, anchors, unseen, max_verify, sampling = [], [], [], [], [], []
    for request in requests:
        assert request.slot is not None
        assert request.computed == len(request.tokens) - 1
        slots.append(request.slot)
        lengths.append(request.computed)
        anchors.append(request.tokens[-1])
        unseen.append(tuple(request.tokens[request.draft_computed :]) if request.drafts else ())
        max_verify.append(max(0, min(request.max_proposals, request.remaining - 1)))
        sampling.append(request.sampling)
    return RoundPlan(
        slots=tuple(slots),
        lengths=tuple(lengths),
        anchors=tuple(anchors),
        unseen=tuple(unseen),
        max_verify=tuple(max_verify),
        sampling=tuple(sampling),
    )
