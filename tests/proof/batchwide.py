"""Schedulers of tests/reference/schedule.py as rules of an enumeration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.reference.enumeration import Block
from tests.reference.schedule import CostTable, Survivals, early_stop, retrospective, stale_budget

Confidence = Callable[[Block], Sequence[float]]
"""c_1 .. c_K of a block, in [0, 1]."""


def survivals(confidence: Confidence, block: Block) -> tuple[float, ...]:
    """a_1 .. a_limit"""
    if not block.limit:
        return ()
    return tuple(float(a) for a in np.cumprod(confidence(block))[: block.limit])


@dataclass(frozen=True)
class Current:
    """Lengths from the survivals of this round alone."""

    confidence: Confidence
    table: CostTable
    schedule: Callable[[Survivals, CostTable], list[int]] = early_stop
    start: Hashable = ()

    def lengths(self, memory: object, blocks: Sequence[Block]) -> list[int]:
        return self.schedule([survivals(self.confidence, block) for block in blocks], self.table)

    def after(self, memory: object, blocks: object, lengths: object, accepted: object) -> Hashable:
        return ()


def argmax_over_current(confidence: Confidence, table: CostTable) -> Current:
    return Current(confidence, table, retrospective)


@dataclass(frozen=True)
class Stale:
    """The budget from the survivals of the round before; a request's first round counts with `prior`."""

    confidence: Confidence
    table: CostTable
    prior: tuple[float, ...]
    start: Hashable = ()

    def lengths(self, memory: tuple[tuple[int, tuple[float, ...]], ...], blocks: Sequence[Block]) -> list[int]:
        known = dict(memory)
        old = [known.get(block.request, self.prior)[: block.limit] for block in blocks]
        return stale_budget(old, [survivals(self.confidence, block) for block in blocks], self.table)

    def after(self, memory: object, blocks: Sequence[Block], lengths: object, accepted: object) -> Hashable:
        return tuple((block.request, survivals(self.confidence, block)) for block in blocks)
