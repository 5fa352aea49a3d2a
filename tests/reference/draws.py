"""The random decisions of a round: which number serves which (dspark.md 5.6), and where the numbers come from.

A reference names the counter of a decision and leaves the rest to `Numbers`: Philox, as in the operators, or an
enumeration of every outcome with its probability (tests/reference/enumeration.py).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tests.reference import philox
from tests.reference.filters import Sampling, draw


class Counter(NamedTuple):
    """Key and counter words but the token group. Equal counters give equal numbers, wherever they are used."""

    seed: int
    position: int
    """Of the token drawn (coupled) or of the round's anchor (all other purposes)."""
    purpose: int
    k: int
    sample_index: int


def anchored(sampling: Sampling, purpose: int, k: int) -> Counter:
    """Of a rejection round: purposes DRAFT, ACCEPT, RESIDUAL and BONUS at 0-based block position k."""
    return Counter(sampling.seed, sampling.anchor_position, purpose, k, sampling.sample_index)


def coupled(sampling: Sampling, k: int) -> Counter:
    """Of the token at block position k, in whichever round and by whomever it is drawn."""
    return Counter(sampling.seed, sampling.anchor_position + 1 + k, philox.COUPLED, 0, sampling.sample_index)


class Numbers(Protocol):
    def keeps(self, counter: Counter, p_draft: float, p_target: float) -> tuple[bool, float]:
        """Whether u * p_draft < p_target, and the relative margin of that."""
        ...

    def pick(self, counter: Counter, ids: NDArray[np.int64], probabilities: NDArray[np.float64]) -> tuple[int, float]:
        """Index of the token drawn from `probabilities`, those of the target ids `ids`, and its lead."""
        ...


class Philox:
    """The numbers of the operators; a categorical draw is argmax(log p + g)."""

    def keeps(self, counter: Counter, p_draft: float, p_target: float) -> tuple[bool, float]:
        u = philox.uniform(*counter)
        scale = max(u * p_draft, p_target)
        return u * p_draft < p_target, abs(u * p_draft - p_target) / scale if scale > 0 else np.inf

    def pick(self, counter: Counter, ids: NDArray[np.int64], probabilities: NDArray[np.float64]) -> tuple[int, float]:
        return draw(probabilities, philox.gumbel(*counter, ids))


PHILOX = Philox()
