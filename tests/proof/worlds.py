"""Tiny worlds for enumerations: random models over a few tokens, and the example of the DSpark paper's Appendix A."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tests.reference.enumeration import Block, Row, Speaker, Tokens
from tests.reference.filters import Sampling
from tests.reference.schedule import CostTable

A, B = 0, 1


def random_rows(seed: int, vocab: int) -> Row:
    """Logits that depend on the whole history and on nothing else."""

    @cache
    def row(history: Tokens) -> NDArray[np.float64]:
        return np.random.default_rng([seed, vocab, *history]).normal(size=vocab) * 1.5

    return row


def random_speaker(seed: int, vocab: int, block_size: int, **sampling: object) -> Speaker:
    """Target and draft know nothing of each other; `seed` is the key too."""
    return Speaker(
        random_rows(2 * seed, vocab),
        random_rows(2 * seed + 1, vocab),
        Sampling(seed=seed, anchor_position=3, **sampling),  # type: ignore[arg-type]
        block_size,
        anchor=vocab - 1,
    )


def random_confidence(block: Block) -> list[float]:
    """A confidence head: c_k is a function of what precedes x_k. Few values, so that survivals tie now and then."""
    return [
        float(np.random.default_rng([7, *block.history, *block.tokens[:k]]).choice([0.3, 0.6, 0.9, 1.0]))
        for k in range(len(block.tokens))
    ]


def appendix_a(block_size: int = 2, seed: int = 1) -> Speaker:
    """Target (0.7, 0.3) and draft (0.5, 0.5), whatever came before."""
    return Speaker(
        lambda history: np.log([0.7, 0.3]), lambda history: np.log([0.5, 0.5]), Sampling(seed=seed), block_size
    )


def appendix_a_confidence(block: Block) -> tuple[float, float]:
    """c_1 = 0.8; c_2 = 0.9 after A, 0 after B."""
    return 0.8, 0.9 if block.tokens[0] == A else 0.0


def steps_per_second(*speeds: float) -> CostTable:
    """A table with SPS(1), SPS(2), ... of the target and a draft that costs nothing."""
    return CostTable((0.0,) * 9, (np.inf, *(1.0 / speed for speed in speeds)))
