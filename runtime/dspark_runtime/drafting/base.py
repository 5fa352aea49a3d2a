"""What the executor asks of a draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dspark_runtime.plan import PrefillPlan, RoundPlan
from dspark_runtime.sessions.base import IntArray, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """A round's proposals for all R requests of the plan; rows of requests that do not draft mean nothing."""

    tokens: Tensor
    """[R, K] int32, target ids."""
    logits: Tensor | None
    """[R, K, Vd] float32, where a request of the round needs them for acceptance."""
    proposed: IntArray
    """[R], tokens that the draft made."""
    verify_lengths: IntArray
    """[R], how many of them the cutoff keeps: 0 .. max_verify."""
    confidences: Tensor
    """[R, K] float32 in [0, 1]: calibrated confidences of the proposals."""
    draft_lengths: tuple[int, ...]
    """[R], rows of the draft's own caches that are valid now (StepResult)."""


class Drafter(Protocol):
    @property
    def block_size(self) -> int:
        """K, most proposals of a round."""
        ...

    def prefill(self, plan: PrefillPlan) -> int:
        """Read a prompt's chunk, where the draft has caches of its own; returns its valid rows of the slot."""
        ...

    def protect(self, slot: int, rows: int) -> None:
        """Rows 0 .. rows-1 of a slot hold something from outside: steps without the slot must leave them alone."""
        ...

    def propose(self, plan: RoundPlan) -> Proposals:
        """Proposals for a plan in which at least one request has max_verify > 0."""
        ...
