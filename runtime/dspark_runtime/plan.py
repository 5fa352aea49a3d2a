"""One step of the engine as plain data: what to run, and what came out.

A plan can be printed, recorded and replayed; it holds no tensor and no reference to a request. Requests of a
step are listed by slot, ascending; entry i of every tuple belongs to the same request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSampling:
    """Parameters of one request as the operators take them (contract/names.py, `SAMPLING_INPUTS`)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    accept_mode: int
    seed: int
    """The Philox key as a signed 64-bit number with the same bits."""
    sample_index: int
    cutoff_policy: int
    cutoff_threshold: float
    needs_draft_logits: bool
    """Whether acceptance reads the draft's distributions (rejection above temperature 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """One chunk of one prompt: rows start .. start+len(tokens)-1 of a slot's caches."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    prompt_length: int
    drafts: bool
    """Whether a draft with caches of its own must read the chunk too."""
    sampling: SlotSampling

    @property
    def is_last(self) -> bool:
        """The chunk that ends the prompt: only its token counts."""
        return self.start + len(self.tokens) == self.prompt_length


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """One round over R requests: a draft pass for those with max_verify > 0, a target pass for all."""

    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    """n: committed rows of the target's cache, and the anchor's position."""
    anchors: tuple[int, ...]
    unseen: tuple[tuple[int, ...], ...]
    """Tokens that a draft with its own caches has not read yet; the last one is the anchor."""
    max_verify: tuple[int, ...]
    """Most proposals to verify, 0..K; 0: no draft rows."""
    sampling: tuple[SlotSampling, ...]


StepPlan = PrefillPlan | RoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step gave: per request of the plan, in its order (one entry for a prefill)."""

    proposed: tuple[int, ...]
    verified: tuple[int, ...]
    """l, proposals the target checked."""
    accepted: tuple[int, ...]
    """j <= l."""
    tokens: tuple[tuple[int, ...], ...]
    """The j kept proposals and the target's own token: j+1 each."""
    draft_lengths: tuple[int, ...]
    """Rows of a draft's own caches that are valid after the step, before rollback; 0 where it has none."""
