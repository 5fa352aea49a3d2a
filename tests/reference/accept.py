"""DSparkAccept: greedy, rejection and coupled acceptance of one request (dspark.md 5.1 to 5.3, 5.6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.reference import philox
from tests.reference.draws import PHILOX, Numbers, anchored, coupled
from tests.reference.filters import Sampling, filtered

GREEDY, REJECTION, COUPLED = range(3)


@dataclass(frozen=True, slots=True)
class Outcome:
    accepted: int
    tokens: list[int]
    """Kept proposals, then the target's token."""
    margin: float
    """Smallest relative lead of any decision on the way; below 1e-6 rounding may decide otherwise."""


def to_target(p_draft: NDArray[np.float64], d2t: ArrayLike | None, vocab: int) -> NDArray[np.float64]:
    """Draft probabilities [Vd] as probabilities of target ids [V]."""
    p = np.zeros(vocab)
    ids = np.arange(len(p_draft)) if d2t is None else np.asarray(d2t)
    p[ids] = p_draft
    return p


def accept(
    logits: ArrayLike,
    draft_tokens: ArrayLike,
    draft_logits: ArrayLike | None,
    sampling: Sampling,
    d2t: ArrayLike | None = None,
    numbers: Numbers = PHILOX,
) -> Outcome:
    """One request: logits [l + 1, V], draft_tokens [>= l], draft_logits [>= l, Vd] (rejection only).

    rejection: keep x_k while u_k p_d(x_k) < p_t(x_k); else y ~ normalise(max(p_t - p_d, 0)), from p_t if that is 0;
    after l kept proposals y ~ p_t of row l. Every draw is argmax(log p + g).
    """
    logits = np.asarray(logits, dtype=np.float64)
    proposals = [int(x) for x in np.asarray(draft_tokens)]
    length, vocab = len(logits) - 1, logits.shape[1]
    ids = np.arange(vocab)
    margin = np.inf
    kept: list[int] = []
    for k in range(length + 1):
        last = k == length
        if sampling.mode == GREEDY:
            if np.isnan(logits[k]).any() or not np.isfinite(logits[k].max()):
                raise ValueError("unusable row")
            token = int(np.argmax(logits[k]))
            if not last and token == proposals[k]:
                kept.append(token)
                continue
            return Outcome(k, [*kept, token], margin)
        target = filtered(logits[k], sampling)
        margin = min(margin, target.margin)
        if sampling.mode == COUPLED:
            token, lead = numbers.pick(coupled(sampling, k), ids, target.probabilities)
            margin = min(margin, lead)
            if not last and token == proposals[k]:
                kept.append(token)
                continue
            return Outcome(k, [*kept, token], margin)
        p, purpose = target.probabilities, philox.BONUS
        if not last:
            assert draft_logits is not None
            draft = filtered(np.asarray(draft_logits)[k], sampling)
            margin = min(margin, draft.margin)
            p_draft = to_target(draft.probabilities, d2t, vocab)
            x = proposals[k]
            keeps, lead = numbers.keeps(anchored(sampling, philox.ACCEPT, k), p_draft[x], target.probabilities[x])
            margin = min(margin, lead)
            if keeps:
                kept.append(x)
                continue
            residual = np.maximum(target.probabilities - p_draft, 0.0)
            purpose = philox.RESIDUAL
            p = residual / residual.sum() if residual.sum() > 0 else target.probabilities
        token, lead = numbers.pick(anchored(sampling, purpose, k), ids, p)
        return Outcome(k, [*kept, token], min(margin, lead))
    raise AssertionError("the row after the last proposal always ends the loop")
