from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_runtime.slots import Slots


def test_slots_given_out_are_the_lowest_free_ones() -> None:
    slots = Slots(3)
    assert [slots.acquire(i) for i in range(3)] == [0, 1, 2]
    slots.release(2)
    slots.release(0)
    assert slots.acquire(7) == 0
    assert slots.owner(0) == 7


def test_slots_all_taken_gives_none() -> None:
    slots = Slots(1)
    slots.acquire(1)
    assert slots.acquire(2) is None
    assert slots.num_free == 0


def test_slots_released_twice_is_our_bug() -> None:
    slots = Slots(1)
    slots.acquire(1)
    slots.release(0)
    with pytest.raises(AssertionError, match="free already"):
        slots.release(0)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_slots_in_any_order_have_one_owner_each(takes: list[bool], size: int) -> None:
    slots, owned = Slots(size), {}
    for request_id, take in enumerate(takes):
        if take:
            slot = slots.acquire(request_id)
            assert (slot is None) == (len(owned) == size)
            if slot is not None:
                assert slot == min(set(range(size)) - owned.keys())
                owned[slot] = request_id
        elif owned:
            slot = max(owned)
            del owned[slot]
            slots.release(slot)
        assert {s: slots.owner(s) for s in range(size) if slots.owner(s) is not None} == owned
