"""Which request gets which slot: the lowest free one.

A slot is a row of every cache. Low slots first keeps busy slots together and runs reproducible.
"""

from __future__ import annotations

import heapq


class Slots:
    """Slots 0..num_slots-1, each free or owned by one request id."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots))
        self._owner: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def owner(self, slot: int) -> int | None:
        """Request id that owns `slot`, or None."""
        return self._owner.get(slot)

    def acquire(self, request_id: int) -> int | None:
        """The lowest free slot, now owned by `request_id`; None when all are taken."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self._owner[slot] = request_id
        return slot

    def release(self, slot: int) -> None:
        assert slot in self._owner, f"slot {slot} is free already"
        del self._owner[slot]
        heapq.heappush(self._free, slot)
