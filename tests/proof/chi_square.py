"""Pearson's chi-square test of counts against exact probabilities."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

SMALLEST = 1e-4
"""A p-value below this fails a test."""
RARE = 10.0
"""Outcomes expected less often than this are joined into one."""


def p_value(counts: ArrayLike, probabilities: ArrayLike) -> float:
    """P(chi^2 >= what was found); 0 where an impossible outcome was seen. Both: one number per outcome, any shape.

    Raises ValueError when fewer than three outcomes are left: such a test tells nothing.
    """
    observed = np.asarray(counts, dtype=np.float64).ravel()
    expected = np.asarray(probabilities, dtype=np.float64).ravel() * observed.sum()
    if observed[expected == 0.0].any():
        return 0.0
    rare = expected < RARE
    observed, expected = (np.append(x[~rare], x[rare].sum()) for x in (observed, expected))
    if expected[-1] < RARE and len(expected) > 1:
        # Too rare even together: they join the rarest of the others.
        smallest = int(np.argmin(expected[:-1]))
        for x in (observed, expected):
            x[smallest] += x[-1]
        observed, expected = observed[:-1], expected[:-1]
    if len(expected) < 3:
        raise ValueError(f"{len(expected)} outcomes, needs at least 3")
    statistic = float(((observed - expected) ** 2 / expected).sum())
    half = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
