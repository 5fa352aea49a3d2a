"""DSparkDraft: the sequential head, its confidences and its draws (dspark.md 2.2), one request at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.reference import philox
from tests.reference.draws import PHILOX, Numbers, anchored, coupled
from tests.reference.filters import Sampling, filtered

NONE, VANILLA, GATED, RNN = range(4)
HEAD, TOP1, MARGIN, TOPK_MASS, ENTROPY, GINI, TOKEN = range(7)
LIMIT = 80.0
"""Confidence logits of every signal but HEAD lie in [-LIMIT, LIMIT]."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Weights in float64; shapes as in dspark_draft_params."""

    head_type: int = NONE
    markov_w1: Array | None = None
    markov_w2: Array | None = None
    head_weight: Array | None = None
    head_bias: Array | None = None
    confidence_weight: Array | None = None
    confidence_bias: Array | None = None
    confidence_with_markov: bool = False


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def bias_states(head: Head, hidden: Array, previous: list[int]) -> list[Array]:
    """What W2 multiplies at each position, given x_{k-1} (previous) and h_k (hidden [K, d]).

    vanilla: W1[x]; gated: sigmoid(G [h; W1[x]] + b) * W1[x]; rnn: z = [s; W1[x]; h], (g, c, o) = split3(J z + b),
    s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c), tanh(o).
    """
    states = []
    assert head.markov_w1 is not None
    memory = np.zeros(head.markov_w1.shape[1])
    for k, x in enumerate(previous):
        embedded = head.markov_w1[x]
        if head.head_type == VANILLA:
            states.append(embedded)
            continue
        assert head.head_weight is not None and head.head_bias is not None
        if head.head_type == GATED:
            gate = head.head_weight @ np.concatenate([hidden[k], embedded]) + head.head_bias
            states.append(sigmoid(gate) * embedded)
            continue
        g, c, o = np.split(head.head_weight @ np.concatenate([memory, embedded, hidden[k]]) + head.head_bias, 3)
        memory = sigmoid(g) * memory + (1.0 - sigmoid(g)) * np.tanh(c)
        states.append(np.tanh(o))
    return states


def head_logits(head: Head, base_logits: Array, hidden: Array, previous: list[int]) -> Array:
    """U_k + W2 f(state_k) for a whole block [K, Vd], each position given its true predecessor."""
    if head.head_type == NONE:
        return base_logits
    assert head.markov_w2 is not None
    return np.stack(
        [u + head.markov_w2 @ s for u, s in zip(base_logits, bias_states(head, hidden, previous), strict=True)]
    )


def head_confidences(head: Head, hidden: Array, previous: list[int]) -> Array:
    """w . [h_k ; W1[x_{k-1}]] + b, or w . h_k + b, [K]."""
    assert head.confidence_weight is not None
    rows = hidden
    if head.confidence_with_markov:
        assert head.markov_w1 is not None
        rows = np.concatenate([hidden, head.markov_w1[previous]], axis=1)
    bias = 0.0 if head.confidence_bias is None else float(head.confidence_bias[0])
    confidences: Array = rows @ head.confidence_weight + bias
    return confidences


def shares(row: Array, signal: int, k: int = 0, drawn: int = 0) -> tuple[float, float]:
    """s and 1 - s of a signal of p = softmax(row), both times the same factor, each without a difference.

    row: [Vd] unfiltered, at temperature 1. k: tokens of TOPK_MASS. drawn: draft id of x_k, for TOKEN.
    """
    best = int(np.argmax(row))
    weights = np.exp(row - row[best])
    others = np.delete(weights, best)
    if signal == TOP1:
        return 1.0, float(others.sum())
    if signal == MARGIN:
        second = float(np.delete(row, best).max(initial=-np.inf))
        return float(-np.expm1(second - row[best])), float(others.sum() + np.exp(second - row[best]))
    if signal == TOPK_MASS:
        ordered = np.sort(weights)[::-1]
        return float(ordered[:k].sum()), float(ordered[k:][::-1].sum())
    if signal == ENTROPY:
        spread = normalised_entropy(row)
        return 1.0 - spread, spread
    if signal == GINI:
        # Z^2 - sum e^2 = sum over ordered pairs of different tokens.
        rest = 2.0 * others.sum() + others.sum() ** 2 - (others**2).sum()
        return float(1.0 + (others**2).sum()), float(rest)
    assert signal == TOKEN
    return float(weights[drawn]), float(np.delete(weights, drawn).sum())


def normalised_entropy(row: Array) -> float:
    """H(softmax(row)) / ln Vd in [0, 1]; 0 for a vocabulary of one."""
    if len(row) < 2:
        return 0.0
    best = int(np.argmax(row))
    below = np.delete(row, best) - row[best]
    weights = np.exp(below)
    spread = np.sum(weights[weights > 0] * below[weights > 0])
    entropy = np.log1p(weights.sum()) - spread / (1.0 + weights.sum())
    return float(np.clip(entropy / np.log(len(row)), 0.0, 1.0))


def confidence_logit(row: Array, signal: int, k: int = 0, drawn: int = 0) -> float:
    """log(s / (1 - s)) of a signal but HEAD, clamped to +-LIMIT."""
    part, rest = shares(row, signal, k, drawn)
    with np.errstate(divide="ignore"):
        return float(np.clip(np.log(part) - np.log(rest), -LIMIT, LIMIT))


def choose(
    logits: ArrayLike,
    sampling: Sampling,
    block_position: int,
    d2t: ArrayLike | None,
    numbers: Numbers = PHILOX,
) -> tuple[int, float]:
    """x_k as a target id and the margin of the choice: argmax, or a draw from the filtered row (dspark.md 5.6)."""
    logits = np.asarray(logits, dtype=np.float64)
    ids = np.arange(len(logits)) if d2t is None else np.asarray(d2t)
    if sampling.mode == 0:
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise ValueError("unusable row")
        return int(ids[np.argmax(logits)]), np.inf
    row = filtered(logits, sampling)
    if sampling.mode == 2:
        counter = coupled(sampling, block_position)
    else:
        counter = anchored(sampling, philox.DRAFT, block_position)
    best, lead = numbers.pick(counter, ids, row.probabilities)
    return int(ids[best]), min(lead, row.margin)
