"""Sampling filters in the order temperature, top-k, top-p, min-p, and the draw from what they leave (dspark.md 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of one request, as in dspark_sampling."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    accept_mode: int = 1
    seed: int = 0
    sample_index: int = 0
    anchor_position: int = 0

    @property
    def mode(self) -> int:
        """0 greedy, 1 rejection, 2 coupled."""
        return 0 if np.float32(self.temperature) < np.float32(GREEDY_BELOW) else self.accept_mode


@dataclass(frozen=True, slots=True)
class Filtered:
    probabilities: NDArray[np.float64]
    """[V], 0 for the tokens that were filtered out; sums to 1."""
    margin: float
    """How near, relative, a filter was to keeping one token more or less."""


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(logits - logits.max())
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


def filtered(logits: ArrayLike, sampling: Sampling) -> Filtered:
    """p after the filters, from logits [V] (-inf: impossible).

    top-k: the k largest; top-p: the smallest prefix in descending order whose mass reaches p, i.e. tokens before which
    less than p was gathered; min-p: tokens with p_i >= min_p * max p. Ties: the lowest id comes first.
    Raises ValueError for a row with NaN, +inf or nothing finite.
    """
    scaled = np.asarray(logits, dtype=np.float64)
    if np.isnan(scaled).any() or not np.isfinite(scaled.max()):
        raise ValueError("unusable row")
    # Parameters are float32 in the operators: compare the same numbers.
    temperature, top_p, min_p = (float(np.float32(x)) for x in (sampling.temperature, sampling.top_p, sampling.min_p))
    scaled = scaled / temperature
    order = np.argsort(-np.asarray(logits, dtype=np.float64), kind="stable")
    keep = np.isfinite(scaled)
    margin = np.inf
    if 0 < sampling.top_k < len(scaled):
        keep[order[sampling.top_k :]] = False
    if top_p < 1.0:
        mass = softmax(np.where(keep, scaled, -np.inf))[order]
        before = np.concatenate([[0.0], np.cumsum(mass)[:-1]])
        keep[order[before >= top_p]] = False
        # The first token stays whatever p is.
        margin = min(margin, float(np.abs(before - top_p)[1:][mass[1:] > 0].min(initial=np.inf)))
    if min_p > 0.0:
        mass = softmax(np.where(keep, scaled, -np.inf))
        bar = min_p * mass.max()
        margin = min(margin, float(np.abs(mass[keep] / bar - 1.0)[mass[keep] < mass.max()].min(initial=np.inf)))
        keep &= mass >= bar
    return Filtered(softmax(np.where(keep, scaled, -np.inf)), margin)


def draw(probabilities: NDArray[np.float64], noise: NDArray[np.float64]) -> tuple[int, float]:
    """argmax(log p + g), ties to the lowest index, and its lead over the second best score."""
    with np.errstate(divide="ignore"):
        scores = np.log(probabilities) + noise
    best = int(np.argmax(scores))
    others = np.delete(scores, best)
    return best, float(scores[best] - others.max()) if len(others) else np.inf
