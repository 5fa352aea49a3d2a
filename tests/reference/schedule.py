"""Verify lengths for a whole batch from what a step costs (dspark.md 4.4), in float64.

theta(l) = (R + sum_r sum_{j <= l_r} a_{r,j}) / (t_draft(R) + t_target(R + sum_r l_r)): expected tokens a second.
A candidate is a pair (r, j): proposal j (from 1) of the request in row r of the batch. Every scheduler admits
candidates in one order, survival descending, then j and row ascending, so lengths are always prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Survivals = Sequence[Sequence[float]]
"""[R][<= K] a_{r,j}, each row descending, as far as the request may verify."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a draft pass for R requests, draft[R], and of a target pass over B tokens, target[B]."""

    draft: tuple[float, ...]
    target: tuple[float, ...]

    def theta(self, num_requests: int, gain: float, admitted: int) -> float:
        """Expected tokens a second, with `gain` the sum of the `admitted` survivals."""
        return (num_requests + gain) / (self.draft[num_requests] + self.target[num_requests + admitted])


def in_order(survivals: Survivals) -> list[tuple[int, int]]:
    """All candidates (r, j), best first."""
    candidates = [(r, j) for r, row in enumerate(survivals) for j in range(1, len(row) + 1)]
    return sorted(candidates, key=lambda c: (-survivals[c[0]][c[1] - 1], c[1], c[0]))


def admit(survivals: Survivals, budget: int) -> list[int]:
    """Lengths [R] of the first `budget` candidates."""
    lengths = [0] * len(survivals)
    for r, j in in_order(survivals)[:budget]:
        lengths[r] = j
    return lengths


def early_stop(survivals: Survivals, table: CostTable) -> list[int]:
    """Admit in order until the first candidate that does not improve theta (DSpark paper, Algorithm 1)."""
    lengths, gain = [0] * len(survivals), 0.0
    best = table.theta(len(survivals), gain, 0)
    for admitted, (r, j) in enumerate(in_order(survivals), 1):
        gain += survivals[r][j - 1]
        theta = table.theta(len(survivals), gain, admitted)
        if theta <= best:
            break
        best, lengths[r] = theta, j
    return lengths


def best_budget(survivals: Survivals, table: CostTable) -> int:
    """How many candidates the unconstrained argmax of theta admits; the smallest where several are best."""
    best, budget, gain = table.theta(len(survivals), 0.0, 0), 0, 0.0
    for admitted, (r, j) in enumerate(in_order(survivals), 1):
        gain += survivals[r][j - 1]
        theta = table.theta(len(survivals), gain, admitted)
        if theta > best:
            best, budget = theta, admitted
    return budget


def stale_budget(old: Survivals, current: Survivals, table: CostTable) -> list[int]:
    """How many, from survivals at least one round old; which ones, from the current (DSpark paper, 5.2)."""
    return admit(current, best_budget(old, table))


def retrospective(survivals: Survivals, table: CostTable) -> list[int]:
    """The argmax of theta over current survivals. NOT lossless under rejection (paper, Appendix A): whether proposal j
    is verified depends on a_{j+1}, hence on x_j. Legal where no request of the batch uses rejection."""
    return admit(survivals, best_budget(survivals, table))
