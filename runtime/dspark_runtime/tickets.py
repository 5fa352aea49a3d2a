"""What stands between the engine's thread and a reader: a job, and what it has said that nobody has read yet.

The engine's thread writes, one reader reads. A reader that is slow or gone costs the others nothing: what it has not
read is kept here, and never more than its own output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from dspark_runtime.contract.errors import DsparkError
from dspark_runtime.jobs import Job
from dspark_runtime.plan import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Delta:
    """What an output got since the last one. Of one output, texts and tokens joined are the whole."""

    index: int
    """Of the output, 0 .. n-1."""
    text: str
    """Text that no stop string can take back any more."""
    token_ids: tuple[int, ...]
    """Tokens; their text may still be held back, or lack the rest of a character."""
    logprobs: tuple[TokenLogprobs, ...]
    """Of these tokens, where asked for."""
    finish_reason: str | None
    """None while the output goes on."""
    stop_reason: str | int | None
    error: str | None


class Reader(Protocol):
    def wake(self) -> None: ...


Waker = Callable[[Sequence["Ticket"]], None]
"""Tells readers that their tickets changed; called on the engine's thread, so it must neither wait nor run their code.
Equal wakers are called once for all their tickets. Raises RuntimeError where the reader is gone for good."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A job in the engine's hands."""

    job: Job
    waker: Waker
    streams: bool
    """Whether the reader wants every step's text; else only the end."""
    deltas: deque[Delta] = field(default_factory=deque)
    unfinished: int = 0
    """Outputs that go on."""
    reader: Callable[[], Reader | None] | None = None
    """Finds who reads, where the waker needs to know; the reader may be gone."""
    failure: DsparkError | None = None
    """Why it ended with the engine instead of by itself."""
    read: list[int] = field(default_factory=list)
    """Tokens of each output that deltas were made of."""

    def __post_init__(self) -> None:
        self.unfinished = len(self.job.samples)
        self.read = [0] * len(self.job.samples)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.failure is not None or self.unfinished == 0

    def write(self, index: int) -> None:
        """Add what output `index` got since the last time. On the engine's thread."""
        sample = self.job.samples[index]
        request, detokenizer = sample.request, sample.detokenizer
        finished = request.is_finished
        text = detokenizer.stream(finished) if detokenizer is not None else ""
        start, end = self.read[index], len(request.tokens) - request.prompt_length
        if not (text or end > start or finished):
            return
        self.read[index] = end
        self.deltas.append(
            Delta(
                index,
                text,
                tuple(request.tokens[request.prompt_length + start :]),
                tuple(request.logprobs[start:end]),
                request.finish_reason,
                request.stop_reason,
                request.error,
            )
        )

    def check(self) -> None:
        """Raises the failure where there is one: ConfigError for an engine that was closed."""
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))


class QueueWaker:
    """For a reader that waits in a thread of its own: tickets that changed, in order."""

    def __init__(self) -> None:
        self._changed: SimpleQueue[Ticket] = SimpleQueue()

    def __call__(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._changed.put(ticket)

    def wait(self) -> Ticket:
        """The next ticket that changed."""
        return self._changed.get()


def merged(deltas: deque[Delta]) -> Delta:
    """The first delta and those that follow of the same output, taken out of the queue, as one."""
    first = deltas.popleft()
    rest = []
    while deltas and deltas[0].index == first.index:
        rest.append(deltas.popleft())
    if not rest:
        return first
    parts = [first, *rest]
    return Delta(
        first.index,
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.token_ids),
        tuple(entry for part in parts for entry in part.logprobs),
        rest[-1].finish_reason,
        rest[-1].stop_reason,
        rest[-1].error,
    )
