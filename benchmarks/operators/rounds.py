"""A round of rejection sampling over whole batches in NumPy and in PyTorch: what DSparkAccept is measured against.

Both do what the operator does, as well as their libraries allow: top-k by partial selection, the rest on the k tokens
that are left; residuals only of the rows that were refused. They look at every row, since a batch has no early end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: logits [R (K + 1), V], draft_logits [R, K, V] and draft_tokens [R, K]; filters of all requests."""

    logits: Array
    draft_logits: Array
    draft_tokens: Array
    top_k: int
    top_p: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """R, K, V."""
        requests, block, vocab = self.draft_logits.shape
        return requests, block, vocab


def numpy_round(step: Step, rng: np.random.Generator) -> tuple[Array, Array]:
    """Accepted counts [R] and the target's tokens [R]."""
    requests, block, vocab = step.shape
    ids, p = _numpy_filtered(step.logits, step)
    draft_ids, draft_p = _numpy_filtered(step.draft_logits.reshape(-1, vocab), step)
    proposals = step.draft_tokens[..., None]
    ids, p = ids.reshape(requests, block + 1, -1), p.reshape(requests, block + 1, -1)
    draft_ids, draft_p = draft_ids.reshape(requests, block, -1), draft_p.reshape(requests, block, -1)
    target_of = np.where(ids[:, :block] == proposals, p[:, :block], 0).sum(-1)
    draft_of = np.where(draft_ids == proposals, draft_p, 0).sum(-1)
    keeps = rng.random((requests, block)) * draft_of < target_of
    accepted = np.cumprod(keeps, axis=1).sum(1)
    request = np.arange(requests)
    last_ids, last_p = ids[request, accepted], p[request, accepted]
    row = np.minimum(accepted, block - 1)
    shared = last_ids[:, :, None] == draft_ids[request, row][:, None, :]
    subtracted = np.where(shared, draft_p[request, row][:, None, :], 0).sum(-1)
    residual = np.maximum(last_p - subtracted * (accepted < block)[:, None], 0)
    residual = np.where(residual.sum(1, keepdims=True) > 0, residual, last_p)
    with np.errstate(divide="ignore"):
        picks = (np.log(residual) + rng.gumbel(size=residual.shape)).argmax(1)
    return accepted, last_ids[request, picks]


def _numpy_filtered(logits: Array, step: Step) -> tuple[Array, Array]:
    """Ids and probabilities [rows, k] of what the filters keep, most probable first."""
    first = logits.shape[1] - step.top_k
    ids = np.argpartition(logits, first, axis=1)[:, first:]
    values = np.take_along_axis(logits, ids, axis=1)
    order = np.argsort(-values, axis=1)
    ids, values = np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
    weights = np.exp(values - values[:, :1])
    weights /= weights.sum(1, keepdims=True)
    weights[np.cumsum(weights, axis=1) - weights >= step.top_p] = 0
    return ids, weights / weights.sum(1, keepdims=True)


def torch_round(step: Step) -> tuple[Array, Array]:
    """Accepted counts [R] and the target's tokens [R]."""
    requests, block, vocab = step.shape
    ids, p = _torch_filtered(torch.from_numpy(step.logits), step)
    draft_ids, draft_p = _torch_filtered(torch.from_numpy(step.draft_logits).view(-1, vocab), step)
    proposals = torch.from_numpy(step.draft_tokens)[..., None]
    ids, p = ids.view(requests, block + 1, -1), p.view(requests, block + 1, -1)
    draft_ids, draft_p = draft_ids.view(requests, block, -1), draft_p.view(requests, block, -1)
    target_of = torch.where(ids[:, :block] == proposals, p[:, :block], 0).sum(-1)
    draft_of = torch.where(draft_ids == proposals, draft_p, 0).sum(-1)
    keeps = torch.rand(requests, block) * draft_of < target_of
    accepted = keeps.cumprod(1).sum(1)
    request = torch.arange(requests)
    last_ids, last_p = ids[request, accepted], p[request, accepted]
    row = accepted.clamp(max=block - 1)
    shared = last_ids[:, :, None] == draft_ids[request, row][:, None, :]
    subtracted = torch.where(shared, draft_p[request, row][:, None, :], 0).sum(-1)
    residual = (last_p - subtracted * (accepted < block)[:, None]).clamp(min=0)
    residual = torch.where(residual.sum(1, keepdim=True) > 0, residual, last_p)
    # p / exponential noise: the same draw as log p + Gumbel noise.
    picks = (residual / torch.empty_like(residual).exponential_()).argmax(1)
    return accepted.numpy(), last_ids[request, picks].numpy()


def _torch_filtered(logits: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids = torch.topk(logits, step.top_k, dim=1)
    weights = torch.softmax(values, dim=1)
    weights[weights.cumsum(1) - weights >= step.top_p] = 0
    return ids, weights / weights.sum(1, keepdim=True)
