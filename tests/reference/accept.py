"""DSparkAccept: the acceptance of one request, in every mode (dspark.md 5.1 to 5.4, 5.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.reference import philox
from tests.reference.draws import PHILOX, Numbers, anchored, coupled
from tests.reference.filters import Sampling, filtered
from tests.reference.rules import Rules, processed

GREEDY, REJECTION, COUPLED, RELAXED, TYPICAL = range(5)
BONUS, REJECTED, NAN, INFINITE, IMPOSSIBLE = range(5)
"""Why a round ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    accepted: int
    tokens: list[int]
    """Kept proposals, then the target's token; -1 as that where its row is faulty."""
    margin: float
    """Smallest relative lead of any decision on the way; below 1e-6 rounding may decide otherwise."""
    end: int


def fault(logits: ArrayLike) -> int:
    """NAN, INFINITE or IMPOSSIBLE for a row that is no distribution, else BONUS."""
    row = np.asarray(logits)
    if np.isnan(row).any():
        return NAN
    if (row == np.inf).any():
        return INFINITE
    return BONUS if np.isfinite(row).any() else IMPOSSIBLE


def to_target(p_draft: NDArray[np.float64], d2t: ArrayLike | None, vocab: int) -> NDArray[np.float64]:
    """Draft probabilities [Vd] as probabilities of target ids [V]."""
    p = np.zeros(vocab)
    ids = np.arange(len(p_draft)) if d2t is None else np.asarray(d2t)
    p[ids] = p_draft
    return p


def lossy_bar(mode: int, relaxation: tuple[float, float], confidence: float, p: NDArray[np.float64]) -> float:
    """What p_t(x_k) must exceed. relaxed: from max_bar at confidence 0 to min_bar at 1; typical: min(epsilon,
    delta exp(-H))."""
    low, high = (float(np.float32(value)) for value in relaxation)
    if mode == RELAXED:
        sure = float(np.float32(confidence))
        return high + (low - high) * (sure if sure > 0 else 0.0)
    possible = p[p > 0]
    return min(low, high * float(np.exp((possible * np.log(possible)).sum())))


def accept(
    logits: ArrayLike,
    draft_tokens: ArrayLike,
    draft_logits: ArrayLike | None,
    sampling: Sampling,
    d2t: ArrayLike | None = None,
    numbers: Numbers = PHILOX,
    *,
    rules: Rules | None = None,
    relaxation: tuple[float, float] = (0.0, 0.0),
    confidences: ArrayLike | None = None,
) -> Outcome:
    """One request: logits [l + 1, V], draft_tokens [>= l], draft_logits [>= l, Vd] (rejection only), confidences
    [>= l] (relaxed only).

    greedy and coupled: keep x_k while it is what the target picks. rejection: keep x_k while u_k p_d(x_k) < p_t(x_k);
    else y ~ normalise(max(p_t - p_d, 0)), from p_t if that is 0. relaxed and typical: keep x_k while p_t(x_k) exceeds
    a bar; else y ~ p_t, or below the greedy temperature the most probable token, p_t being that of temperature 1.
    After l kept proposals y ~ p_t of row l. Every draw is argmax(log p + g).
    """
    rows = np.asarray(logits)
    proposals = [int(x) for x in np.asarray(draft_tokens)]
    length, vocab = len(rows) - 1, rows.shape[1]
    ids = np.arange(vocab)
    mode, emits_best = sampling.mode, False
    if sampling.accept_mode in (RELAXED, TYPICAL) and mode == GREEDY:
        mode, emits_best = sampling.accept_mode, True
        sampling = replace(sampling, temperature=1.0)
    margin = np.inf
    for k in range(length + 1):
        last, kept = k == length, proposals[:k]
        row = rows[k] if rules is None else processed(rows[k], rules, proposals, k)
        problem = fault(rows[k]) or fault(row)
        if problem == BONUS and mode == REJECTION and not last:
            assert draft_logits is not None
            problem = fault(np.asarray(draft_logits)[k])
        if problem != BONUS:
            return Outcome(k, [*kept, -1], margin, problem)
        end = BONUS if last else REJECTED
        if mode == GREEDY:
            token = int(np.argmax(row))
            if not last and token == proposals[k]:
                continue
            return Outcome(k, [*kept, token], margin, end)
        target = filtered(row, sampling)
        margin = min(margin, target.margin)
        if mode == COUPLED:
            token, lead = numbers.pick(coupled(sampling, k), ids, target.probabilities)
            margin = min(margin, lead)
            if not last and token == proposals[k]:
                continue
            return Outcome(k, [*kept, token], margin, end)
        p, purpose = target.probabilities, philox.BONUS
        if not last:
            purpose = philox.RESIDUAL
            x = proposals[k]
            if mode == REJECTION:
                draft = filtered(np.asarray(draft_logits)[k], sampling)
                margin = min(margin, draft.margin)
                p_draft = to_target(draft.probabilities, d2t, vocab)
                keeps, lead = numbers.keeps(anchored(sampling, philox.ACCEPT, k), p_draft[x], p[x])
                residual = np.maximum(p - p_draft, 0.0)
                p = residual / residual.sum() if residual.sum() > 0 else p
            else:
                bar = lossy_bar(mode, relaxation, 0.0 if confidences is None else np.asarray(confidences)[k], p)
                keeps = p[x] > bar
                lead = abs(p[x] - bar) / max(p[x], bar) if max(p[x], bar) > 0 else np.inf
            margin = min(margin, lead)
            if keeps:
                continue
        if emits_best:
            return Outcome(k, [*kept, int(np.argmax(row))], margin, end)
        token, lead = numbers.pick(anchored(sampling, purpose, k), ids, p)
        return Outcome(k, [*kept, token], min(margin, lead), end)
    raise AssertionError("the row after the last proposal always ends the loop")
