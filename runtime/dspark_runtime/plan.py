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
    """One chunk of the tokens that a request has before its first round in a slot: its prompt, or all but its anchor
    where it goes on after it lost its slot. Rows start .. start+len(tokens)-1 of the slot's caches."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    prompt_length: int
    draws: bool
    """Whether the chunk ends the prompt, so that the token after it is drawn; else the result's token means nothing."""
    drafts: bool
    """Whether a draft with caches of its own must read the chunk too."""
    copy_from: int | None
    """The slot whose rows 0 .. start-1 are copied here first; None: they are here, or start is 0."""
    clears: bool
    """Whether all rows of the slot become zeros before anything else: what it held may be NaN, which would show
    through masks."""
    sampling: SlotSampling


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
