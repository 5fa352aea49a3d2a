"""Cutoff policies of tests/reference/cutoff.py, per request, as a rule of an enumeration."""

from __future__ import annotations

import random
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tests.reference.cutoff import Cutoff, confidences, verify_length
from tests.reference.draft import HEAD, confidence_logit, normalised_entropy
from tests.reference.enumeration import Block


class Controller(Protocol):
    """Moves a request's cutoff by what it keeps of the completed rounds; `start` before the first."""

    start: int

    def cutoff(self, cutoff: Cutoff, memory: int) -> Cutoff: ...

    def after(self, memory: int, block: Block, length: int, accepted: int) -> int: ...


class Fixed:
    start = 0

    def cutoff(self, cutoff: Cutoff, memory: int) -> Cutoff:
        return cutoff

    def after(self, memory: int, block: Block, length: int, accepted: int) -> int:
        return 0


class WarmingUp(Fixed):
    """Nothing is verified in the first two rounds."""

    def cutoff(self, cutoff: Cutoff, memory: int) -> Cutoff:
        return replace(cutoff, min_verify=0, max_verify=cutoff.max_verify if memory == 2 else 0)

    def after(self, memory: int, block: Block, length: int, accepted: int) -> int:
        return min(memory + 1, 2)


class Wandering(Fixed):
    """Sets tau (the first number of a policy) and both bounds by dice, whose seed is a digest of completed rounds.

    Proposals are in the digest, discarded ones, too: whatever a controller may remember, it may follow from this one.
    """

    def cutoff(self, cutoff: Cutoff, memory: int) -> Cutoff:
        dice = random.Random(memory)
        longest = dice.choice([1, 2, 3, 3])
        params = (dice.uniform(0.2, 0.9), *cutoff.params[1:]) if cutoff.params else ()
        return replace(cutoff, params=params, min_verify=dice.choice([0, 0, 1]), max_verify=longest)

    def after(self, memory: int, block: Block, length: int, accepted: int) -> int:
        return zlib.crc32(repr((memory, block.history, block.tokens, length, accepted)).encode()) % 5


@dataclass(frozen=True)
class PerRequest:
    """One cutoff for every request of the batch, on one signal, under a controller."""

    cutoff: Cutoff
    signal: int
    k: int = 0
    """Of TOPK_MASS."""
    controller: Controller = field(default_factory=Fixed)
    start: Hashable = ()
    _seen: dict[Any, Any] = field(default_factory=dict)

    def lengths(self, memory: tuple[tuple[int, int], ...], blocks: Sequence[Block]) -> list[int]:
        return [self._length(self.controller.cutoff(self.cutoff, self._memory(memory, b)), b) for b in blocks]

    def after(
        self,
        memory: tuple[tuple[int, int], ...],
        blocks: Sequence[Block],
        lengths: Sequence[int],
        accepted: Sequence[int],
    ) -> Hashable:
        rounds = zip(blocks, lengths, accepted, strict=True)
        return tuple((b.request, self.controller.after(self._memory(memory, b), b, *counts)) for b, *counts in rounds)

    @property
    def used(self) -> set[int]:
        """Verify lengths that came out so far."""
        return set(self._seen.values())

    def _memory(self, memory: tuple[tuple[int, int], ...], block: Block) -> int:
        return dict(memory).get(block.request, self.controller.start)

    def _length(self, cutoff: Cutoff, block: Block) -> int:
        key = (cutoff, block.limit, block.request, block.history, block.tokens)
        if key not in self._seen:
            self._seen[key] = self._verify_length(cutoff, block)
        return self._seen[key]

    def _verify_length(self, cutoff: Cutoff, block: Block) -> int:
        if not block.limit:
            return 0
        c = self.confidences(block)
        entropies = np.array([normalised_entropy(row) for row in block.logits])
        most = min(cutoff.max_verify, block.limit)
        bounded = replace(cutoff, max_verify=most, min_verify=min(cutoff.min_verify, most))
        return verify_length(bounded, c, entropies, block.tokens)[0]

    def confidences(self, block: Block) -> NDArray[np.float64]:
        """c_1 .. c_K"""
        return confidences([[self._logit(block, k) for k in range(len(block.tokens))]])[0]

    def _logit(self, block: Block, k: int) -> float:
        if self.signal == HEAD:
            # A head reads h_k and x_{k-1}: any function of what precedes x_k.
            return random.Random(repr((block.history, block.tokens[:k]))).gauss(0.5, 1.0)
        return confidence_logit(block.logits[k], self.signal, self.k, block.tokens[k])
