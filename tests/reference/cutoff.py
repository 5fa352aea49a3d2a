"""DSparkCutoff: confidences to verify lengths (dspark.md 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALL, THRESHOLD, SURVIVAL, UTILITY, TWO_STRIKES, DUAL, RAMP = range(7)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoff:
    """How one request is cut. `params` by policy, as float32: the columns of dspark_cutoff_params."""

    policy: int = ALL
    params: tuple[float, ...] = ()
    inclusive: bool = False
    min_verify: int = 0
    max_verify: int = 1 << 20

    @property
    def columns(self) -> list[float]:
        """What the operator reads: float32 numbers, unused columns 0."""
        return [float(np.float32(value)) for value in (*self.params, *[0.0] * (5 - len(self.params)))]


def confidences(
    logits: ArrayLike, temperatures: ArrayLike | None = None, tokens: ArrayLike | None = None
) -> NDArray[np.float64]:
    """c_k = sigmoid(logit_k / t_k); 0 where the logit is NaN or infinite, and from the first token of -1 on.

    logits, temperatures, tokens: [R, K].
    """
    logits = np.asarray(logits, dtype=np.float64)
    scale = np.ones(logits.shape) if temperatures is None else np.asarray(temperatures, dtype=np.float64)
    usable = np.isfinite(logits)
    if tokens is not None:
        usable &= np.logical_and.accumulate(np.asarray(tokens) >= 0, axis=1)
    with np.errstate(over="ignore"):
        values = 1.0 / (1.0 + np.exp(-np.where(usable, logits, 0.0) / scale))
    return np.where(usable, values, 0.0).astype(np.float64)


def measures(cutoff: Cutoff, c: Array, entropies: Array | None) -> list[tuple[float, float]]:
    """What the policy compares for proposal i = 1..K, (measure, bar): it stands where the measure reaches the bar.

    Comparisons that a proposal passes whatever it is worth are (0, 0). Entropies enter with their sign turned.
    """
    p = cutoff.columns
    compared: list[tuple[float, float]] = []
    strikes = 0
    for i, value in enumerate(c.tolist(), 1):
        pair = (0.0, 0.0)
        if cutoff.policy == THRESHOLD:
            pair = (value, p[0])
        elif cutoff.policy == SURVIVAL:
            pair = (float(np.prod(c[:i])), p[0])
        elif cutoff.policy == UTILITY and i > p[3]:
            pair = (p[1] * value - p[2] * i / p[4], p[0])
        elif cutoff.policy == TWO_STRIKES and i > p[1]:
            # The first strike is forgiven; from then on a second one ends the block.
            if value < 0.7 * p[0]:
                strikes += 1
            pair = (value, 0.7 * p[0]) if strikes != 1 else (0.0, 0.0)
        elif cutoff.policy == DUAL and value < p[1]:
            assert entropies is not None
            pair = (value, p[0]) if value < p[0] else (-float(entropies[i - 1]), -p[2])
        elif cutoff.policy == RAMP:
            share = min((i - 1) / (p[2] - 1), 1.0) if p[2] > 1 else 0.0
            pair = (value, p[0] + (p[1] - p[0]) * share)
        compared.append(pair)
    return compared


def verify_length(
    cutoff: Cutoff, c: Array, entropies: Array | None = None, tokens: Sequence[int] | None = None
) -> tuple[int, float]:
    """l of one request with confidences c [K], and how near a decision was to the other side (absolute).

    entropies: [K], H(p) / ln V, for DUAL. tokens: [K], -1 for a proposal that does not exist.
    """
    length, margin = 0, np.inf
    for measure, bar in measures(cutoff, c, entropies):
        if (measure, bar) != (0.0, 0.0):
            margin = min(margin, abs(measure - bar))
        if not measure >= bar:
            length += cutoff.inclusive
            break
        length += 1
    if cutoff.policy == TWO_STRIKES:
        margin = min(margin, float(np.abs(c - 0.7 * cutoff.columns[0]).min(initial=np.inf)))
    if cutoff.policy == DUAL:
        margin = min(margin, float(np.abs(c[:, None] - cutoff.columns[:2]).min(initial=np.inf)))
    existing = next((k for k, token in enumerate(tokens) if token < 0), len(c)) if tokens is not None else len(c)
    return min(max(length, cutoff.min_verify), cutoff.max_verify, existing), margin


def survivals(c: Array) -> Array:
    """a_k = c_1 ... c_k along the last axis."""
    return np.cumprod(c, axis=-1).astype(np.float64)
