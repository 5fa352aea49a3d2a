"""One slot of a graph's caches, for prefill: a chunk binds the slot's slice, so no other slot is padded to it."""

from __future__ import annotations

from collections.abc import Mapping

from dspark_runtime.sessions.base import Array, Binding, Session
from dspark_runtime.sessions.packing import Packer


class SlotSlices:
    """Bindings of one slot each (B = 1), made when first used, with the packer that goes with them."""

    def __init__(self, session: Session, caches: Mapping[str, Array], packer: Packer) -> None:
        """packer: for one slot; shared by all, since steps do not overlap."""
        self._session = session
        self._caches = caches
        self._packer = packer
        self._bindings: dict[int, Binding] = {}

    def of(self, slot: int) -> tuple[Binding, Packer]:
        binding = self._bindings.get(slot)
        if binding is None:
            binding = self._session.bind({name: cache[slot : slot + 1] for name, cache in self._caches.items()})
            self._bindings[slot] = binding
        return binding, self._packer
