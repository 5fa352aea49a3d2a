"""The schedulers of the reference against brute force over every vector of lengths."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.reference.schedule import CostTable, admit, best_budget, early_stop, in_order, retrospective, stale_budget


def theta(lengths: tuple[int, ...], survivals: list[list[float]], table: CostTable) -> float:
    gain = sum(sum(row[:length]) for row, length in zip(survivals, lengths, strict=True))
    return (len(survivals) + gain) / (table.draft[len(survivals)] + table.target[len(survivals) + sum(lengths)])


def random_batch(rng: np.random.Generator, staircase: bool) -> tuple[list[list[float]], CostTable]:
    survivals = [np.cumprod(rng.random(rng.integers(0, 4))).tolist() for _ in range(rng.integers(1, 4))]
    steps = rng.random(16) * (rng.random(16) < 0.4) if staircase else np.full(16, 0.2)
    target = (1.0 + np.cumsum(steps)).tolist()
    return survivals, CostTable(tuple(0.1 * i for i in range(16)), tuple(target))


def test_in_order_is_by_survival_then_position_then_row_and_admits_prefixes() -> None:
    survivals = [[0.5, 0.5], [0.9, 0.5], [0.5]]
    assert in_order(survivals) == [(1, 1), (0, 1), (2, 1), (0, 2), (1, 2)]
    assert [admit(survivals, n) for n in range(6)] == [
        [0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1],
    ]  # fmt: skip


@pytest.mark.parametrize("staircase", [False, True])
def test_retrospective_is_the_best_of_all_length_vectors(staircase: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        survivals, table = random_batch(rng, staircase)
        best = max(theta(each, survivals, table) for each in product(*(range(len(row) + 1) for row in survivals)))
        assert theta(tuple(retrospective(survivals, table)), survivals, table) == pytest.approx(best, abs=1e-12)
        assert stale_budget(survivals, survivals, table) == retrospective(survivals, table)
        assert sum(retrospective(survivals, table)) == best_budget(survivals, table)


def test_early_stop_finds_the_best_where_costs_grow_evenly() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        survivals, table = random_batch(rng, staircase=False)
        assert early_stop(survivals, table) == retrospective(survivals, table)


def test_early_stop_stays_below_a_step_that_a_budget_climbs() -> None:
    survivals = [[0.9, 0.8, 0.7]]
    # The second token costs a whole step, those behind it nothing.
    table = CostTable((0.0, 0.0), (0.0, 1.0, 2.0, 2.0, 2.0))
    assert early_stop(survivals, table) == [0]
    assert best_budget(survivals, table) == 3


def test_stale_budget_shares_an_old_budget_by_current_survivals() -> None:
    table = CostTable((0.0,) * 4, (0.0, 1.0, 1.0, 1.1, 1.2, 9.0, 9.0))
    assert best_budget([[0.9, 0.8], [0.9, 0.8]], table) == 2
    assert stale_budget([[0.9, 0.8], [0.9, 0.8]], [[0.5, 0.4], [0.9, 0.8]], table) == [0, 2]
