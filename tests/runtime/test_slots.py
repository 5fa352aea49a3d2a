from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_runtime.slots import Kept, Placement, Slots, common_prefix

NOTHING = Kept((), 0, 0, None)


def holding(*tokens: int, salt: str | None = None, draft_rows: int | None = None) -> Kept:
    return Kept(tokens, len(tokens), len(tokens) if draft_rows is None else draft_rows, salt)


def take(slots: Slots, request_id: int, contents: Kept = NOTHING, drafts: bool = False) -> Placement:
    placement = slots.acquire(request_id, contents, len(contents.tokens), drafts)
    assert placement is not None
    return placement


def test_slots_without_contents_are_given_out_lowest_first() -> None:
    slots = Slots(3)
    assert [take(slots, i).slot for i in range(3)] == [0, 1, 2]
    slots.release(2)
    slots.release(0)
    assert take(slots, 7).slot == 0
    assert slots.owner(0) == 7


def test_slots_all_taken_gives_none() -> None:
    slots = Slots(1)
    take(slots, 1)
    assert slots.acquire(2, NOTHING, 0, False) is None
    assert slots.num_free == 0


def test_slots_released_twice_is_our_bug() -> None:
    slots = Slots(1)
    take(slots, 1)
    slots.release(0)
    with pytest.raises(AssertionError, match="free already"):
        slots.release(0)


def test_slots_without_a_match_give_the_one_used_longest_ago() -> None:
    slots = Slots(3)
    for i in range(3):
        take(slots, i, holding(10 * i, 1, 2))
    for slot in (1, 0, 2):
        slots.release(slot)
    assert [take(slots, 10 + i, holding(90 + i)).slot for i in range(3)] == [1, 0, 2]


def test_slots_that_lent_their_rows_count_as_used() -> None:
    slots = Slots(3)
    for i in range(2):
        take(slots, i, holding(*[10 * i] * 9))
        slots.release(i)
    assert take(slots, 5, holding(0, 0, 7)) == Placement(2, 2, 2, 0, False)
    assert take(slots, 6, holding(77)).slot == 1


def test_slots_longest_match_wins_busy_or_free() -> None:
    slots = Slots(4)
    take(slots, 0, holding(1, 2, 3))
    take(slots, 1, holding(1, 2, 3, 4, 5))
    slots.release(0)
    assert take(slots, 2, holding(1, 2, 3, 4, 9)) == Placement(2, 4, 4, 1, False)
    # Three rows match everywhere: the free slot needs no copy.
    assert take(slots, 3, holding(1, 2, 3)) == Placement(0, 3, 3, None, False)


def test_slots_released_contents_are_what_was_computed_then() -> None:
    slots = Slots(2)
    take(slots, 0, Kept((1, 2, 3, 4), 2, 1, None))
    slots.release(0)
    assert slots.contents(0) == Kept((1, 2), 2, 1, None)


def test_slots_without_reuse_hold_nothing() -> None:
    slots = Slots(2, reuse=False)
    take(slots, 0, holding(1, 2, 3))
    slots.release(0)
    assert slots.contents(0) is None
    assert take(slots, 1, holding(1, 2, 3)) == Placement(0, 0, 0, None, False)


def test_slots_spoilt_ones_are_cleared_once_and_match_nothing() -> None:
    slots = Slots(1)
    take(slots, 0, holding(1, 2, 3))
    slots.release(0, spoilt=True)
    assert take(slots, 1, holding(1, 2, 3)) == Placement(0, 0, 0, None, True)
    slots.release(0)
    assert take(slots, 2, holding(1, 2, 3)) == Placement(0, 3, 3, None, False)


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_common_prefix_is_that_of_a_walk(a: list[int], b: list[int], shared: int, limit: int) -> None:
    b = a[:shared] + b
    walked = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, tuple(b), limit) == min(walked, limit)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=6)), max_size=60),
       st.integers(1, 5))  # fmt: skip
def test_slots_in_any_order_have_one_owner_each_and_lend_only_true_prefixes(
    steps: list[tuple[bool, list[int]]], size: int
) -> None:
    slots, owned, held = Slots(size), {}, dict[int, tuple[int, ...]]()
    for request_id, (takes, tokens) in enumerate(steps):
        if takes:
            contents = holding(*tokens)
            placement = slots.acquire(request_id, contents, len(tokens) - 1, False)
            assert (placement is None) == (len(owned) == size)
            if placement is not None:
                source = placement.slot if placement.copy_from is None else placement.copy_from
                assert held.get(source, ())[: placement.rows] == tuple(tokens[: placement.rows])
                best = max((common_prefix(tokens, other, len(tokens) - 1) for other in held.values()), default=0)
                assert placement.rows == best
                assert placement.slot not in owned
                owned[placement.slot], held[placement.slot] = request_id, tuple(tokens)
        elif owned:
            slot = max(owned)
            del owned[slot]
            slots.release(slot)
        assert {s: slots.owner(s) for s in range(size) if slots.owner(s) is not None} == owned
