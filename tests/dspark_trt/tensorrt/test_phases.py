"""Nested phases of a library as one share that only grows."""

from __future__ import annotations

from dspark_trt.backends.tensorrt_phases import PhaseTree


def test_share_counts_steps_of_nested_phases_as_parts_of_their_parents_step() -> None:
    tree = PhaseTree()
    tree.start("build", None, 4)
    assert tree.step("build", 0) and tree.share == 0.25
    tree.start("tactics", "build", 2)
    tree.step("tactics", 0)
    assert tree.share == 0.375
    tree.start("reformats", "tactics", 2)
    tree.step("reformats", 0)
    assert tree.share == 0.4375
    assert tree.current == "tactics"


def test_share_never_falls_when_a_phase_begins_or_ends() -> None:
    tree = PhaseTree()
    shares = []
    tree.start("build", None, 2)
    for name in ("first", "second"):
        tree.start(name, "build", 3)
        for step in range(3):
            tree.step(name, step)
            shares.append(tree.share)
        tree.finish(name)
        tree.step("build", 0 if name == "first" else 1)
        shares.append(tree.share)
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_phase_that_was_never_finished_ends_with_its_parents_next_one() -> None:
    tree = PhaseTree()
    tree.start("build", None, 2)
    tree.start("lost", "build", 10)
    tree.start("next", "build", 10)
    tree.step("next", 4)
    assert tree.share == 0.25


def test_small_steps_are_not_reported() -> None:
    tree = PhaseTree()
    tree.start("build", None, 1000)
    reported = [tree.step("build", step) for step in range(1000)]
    assert 90 <= sum(reported) <= 100


def test_steps_and_ends_of_unknown_phases_change_nothing() -> None:
    tree = PhaseTree()
    tree.finish("never started")
    assert not tree.step("never started", 3)
    tree.start("build", None, 0)
    tree.step("build", 0)
    assert tree.share == 1.0
