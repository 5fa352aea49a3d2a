"""Which request gets which slot, and which of its rows are there already.

A slot is a row of every cache. What a slot holds stays valid after its request ended, until another one is placed
there, so a request whose tokens begin like those of any slot, busy or free, need not compute that beginning again:
it goes on in the free slot that it continues, or the rows are copied to the slot it gets. Without a match, slots that
hold nothing are given first, the lowest of them, then the one that was used longest ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Contents(Protocol):
    """What the rows of a slot are: a request while it runs, `Kept` after it."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def computed(self) -> int:
        """Rows of the target's caches that belong to the first tokens."""
        ...

    @property
    def draft_computed(self) -> int:
        """The same of a draft's own caches."""
        ...

    @property
    def cache_salt(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows that a finished request left behind."""

    tokens: tuple[int, ...]
    computed: int
    draft_computed: int
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes. Its first `rows` rows need no computing; they are there, or are copied from a slot."""

    slot: int
    rows: int
    draft_rows: int
    """Rows that a draft's own caches have, at most `rows`."""
    copy_from: int | None
    clears: bool
    """Whether the slot must be emptied first: what is in it may not even be stale numbers."""


class Slots:
    """Slots 0..num_slots-1, each free or owned by one request."""

    def __init__(self, num_slots: int, reuse: bool = True, draft_has_caches: bool = False) -> None:
        """reuse: keep rows for later requests. draft_has_caches: a request that drafts needs the draft's rows too."""
        self.num_slots = num_slots
        self._reuse = reuse
        self._draft_has_caches = draft_has_caches
        self._owner: dict[int, int] = {}
        self._contents: dict[int, Contents] = {}
        self._last_used = [0] * num_slots
        self._clock = 0
        self._spoilt: set[int] = set()

    @property
    def num_free(self) -> int:
        return self.num_slots - len(self._owner)

    def owner(self, slot: int) -> int | None:
        """Request id that owns `slot`, or None."""
        return self._owner.get(slot)

    def contents(self, slot: int) -> Contents | None:
        """What the rows of `slot` hold, or None where they mean nothing."""
        return self._contents.get(slot)

    def acquire(self, request_id: int, contents: Contents, limit: int, drafts: bool) -> Placement | None:
        """A slot for a request, now owned by it; None when all are taken.

        contents: the request itself: its tokens and salt. limit: most rows to take over; 0: none. drafts: whether a
        draft reads along.
        """
        if not self.num_free:
            return None
        free = [slot for slot in range(self.num_slots) if slot not in self._owner]
        oldest = min(free, key=lambda slot: (self._last_used[slot] if slot in self._contents else -1, slot))
        rows, source = self._longest(contents, limit, drafts)
        slot = source if rows and self._continues(source, rows, oldest) else oldest
        draft_rows = min(rows, self._contents[source].draft_computed) if rows else 0
        placement = Placement(
            slot=slot,
            rows=rows,
            draft_rows=draft_rows,
            copy_from=source if rows and source != slot else None,
            clears=slot in self._spoilt,
        )
        if rows:
            self._touch(source)
        self._spoilt.discard(slot)
        self._owner[slot] = request_id
        self._contents.pop(slot, None)
        if self._reuse:
            self._contents[slot] = contents
        return placement

    def release(self, slot: int, spoilt: bool = False) -> None:
        """Free a slot; what it holds may be taken over. spoilt: nothing in it is of use (its request failed)."""
        assert slot in self._owner, f"slot {slot} is free already"
        del self._owner[slot]
        held = self._contents.pop(slot, None)
        if spoilt:
            self._spoilt.add(slot)
        elif held is not None and held.computed:
            # A copy: the request goes on growing when it is placed elsewhere, or is its caller's.
            self._contents[slot] = Kept(
                tuple(held.tokens[: held.computed]), held.computed, held.draft_computed, held.cache_salt
            )
            self._touch(slot)

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._last_used[slot] = self._clock

    def _longest(self, wanted: Contents, limit: int, drafts: bool) -> tuple[int, int]:
        """(rows, slot) of the longest common beginning with any slot; free slots first where equal."""
        best, source = 0, 0
        for slot, held in self._contents.items():
            if held.cache_salt != wanted.cache_salt:
                continue
            most = min(held.computed, limit)
            if drafts and self._draft_has_caches:
                most = min(most, held.draft_computed)
            if most < best:
                continue
            rows = common_prefix(wanted.tokens, held.tokens, most)
            if rows > best or (rows == best and source in self._owner and slot not in self._owner):
                best, source = rows, slot
        return best, source

    def _continues(self, source: int, rows: int, oldest: int) -> bool:
        """Whether to go on in the source itself. Where most of what a free slot holds would be lost for a short common
        beginning, a copy in the slot that is due anyway serves both."""
        if source in self._owner:
            return False
        return source == oldest or 2 * rows >= self._contents[source].computed


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Length of the common beginning of two sequences of the same type or not, at most `limit`."""
    most = min(limit, len(a), len(b))
    known = 0
    # Slices compare in C: halve the unknown rest instead of walking it.
    while known < most:
        half = (known + most + 1) // 2
        if list(a[known:half]) == list(b[known:half]):
            known = half
        else:
            most = half - 1
    return known
