"""Log-probabilities of one row of logits, as the model gave them (dspark_logprobs)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Logprobs:
    token: float
    """Of the token asked for."""
    rank: int
    """1 + the number of tokens with a larger logit."""
    best: list[tuple[int, float]]
    """(id, log-probability), descending, ties by lower id; tokens of probability 0 are left out."""


def logprobs(logits: ArrayLike, token: int, num: int) -> Logprobs:
    """log_softmax of logits [V] at `token` and its `num` largest entries."""
    row = np.asarray(logits, dtype=np.float64)
    largest = row.max()
    values = row - (largest + np.log(np.exp(row - largest).sum()))
    order = [i for i in np.argsort(-row, kind="stable")[:num].tolist() if np.isfinite(row[i])]
    return Logprobs(float(values[token]), 1 + int((row > row[token]).sum()), [(i, float(values[i])) for i in order])
