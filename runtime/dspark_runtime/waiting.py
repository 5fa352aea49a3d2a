"""Who is next: first come, first served within a priority, and no priority waits for ever.

A smaller number is a higher priority, as in vLLM. A request that came earlier but has a lower priority is
overtaken by later ones at most `max_overtakes` times; then it is served first, and keeps its slot to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dspark_runtime.request import Request

MAX_OVERTAKES = 64


class WaitingQueue:
    """Requests without a slot. `Request.order` says who came first; it stays when a request comes back."""

    def __init__(self, max_overtakes: int = MAX_OVERTAKES) -> None:
        self._max_overtakes = max_overtakes
        self._classes: dict[int, deque[Request]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        for priority in sorted(self._classes):
            yield from self._classes[priority]

    def push(self, request: Request) -> None:
        """Queue a request by its order: behind all others, or in front again after it lost its slot."""
        queue = self._classes.setdefault(request.priority, deque())
        if not queue or queue[-1].order < request.order:
            queue.append(request)
        else:
            queue.insert(next(i for i, other in enumerate(queue) if other.order > request.order), request)
        self._size += 1

    def first(self) -> Request | None:
        """The one to be served next; None when nobody waits."""
        overdue = [queue[0] for queue in self._classes.values() if self._is_overdue(queue[0])]
        if overdue:
            return min(overdue, key=lambda request: request.order)
        return self._classes[min(self._classes)][0] if self._classes else None

    def take(self, request: Request) -> None:
        """Take out a request that is served now. One that was overtaken too often is protected from now on."""
        request.protected = self._is_overdue(request)
        self.remove(request)
        # Behind the first of its priority nobody is overtaken more often than the first itself.
        for priority, queue in self._classes.items():
            if priority != request.priority and queue[0].order < request.order:
                queue[0].overtaken += 1

    def remove(self, request: Request) -> None:
        """Take out a request that ends without being served."""
        queue = self._classes[request.priority]
        queue.remove(request)
        self._size -= 1
        if not queue:
            del self._classes[request.priority]

    def _is_overdue(self, request: Request) -> bool:
        return request.overtaken >= self._max_overtakes
