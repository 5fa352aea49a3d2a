"""DSparkCutoff: confidences to verify lengths (dspark.md 4.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALL, THRESHOLD, SURVIVAL = range(3)


def confidences(logits: ArrayLike, temperatures: ArrayLike | None) -> NDArray[np.float64]:
    """c_k = sigmoid(logit_k / t_k), 0 where the logit is NaN or infinite. logits [R, K], temperatures [K]."""
    logits = np.asarray(logits, dtype=np.float64)
    scale = np.ones(logits.shape[1]) if temperatures is None else np.asarray(temperatures, dtype=np.float64)
    usable = np.isfinite(logits)
    with np.errstate(over="ignore"):
        values = 1.0 / (1.0 + np.exp(-np.where(usable, logits, 0.0) / scale))
    return np.where(usable, values, 0.0).astype(np.float64)


def cutoff(
    logits: ArrayLike,
    policies: ArrayLike,
    thresholds: ArrayLike,
    max_verify: ArrayLike,
    temperatures: ArrayLike | None = None,
) -> tuple[list[int], NDArray[np.float64]]:
    """Verify lengths [R] and survivals a_k = c_1 ... c_k [R, K].

    all: K; threshold(tau): longest prefix with every c_i >= tau; survival(tau): with every a_i >= tau; then clamped.
    """
    values = confidences(logits, temperatures)
    survivals = np.cumprod(values, axis=1).astype(np.float64)
    lengths = []
    for row, products, policy, tau, limit in zip(
        values, survivals, np.asarray(policies), np.asarray(thresholds), np.asarray(max_verify), strict=True
    ):
        measure = {ALL: np.ones_like(row), THRESHOLD: row, SURVIVAL: products}[int(policy)]
        length = 0
        while length < len(row) and measure[length] >= float(tau):
            length += 1
        lengths.append(min(length, int(limit)))
    return lengths, survivals
