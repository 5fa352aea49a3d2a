"""One step of the engine as plain data: what to run, and what came out.

A plan can be printed, recorded and replayed; it holds no tensor and no reference to a request. Requests of a
step are listed by slot, ascending; entry i of every tuple belongs to the same request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRules:
    """What the target's logits of a request become before they are filtered (contract/names.py, `ACCEPT_INPUTS`)."""

    repetition: float
    """> 0; 1: off."""
    presence: float
    frequency: float
    entries: tuple[tuple[int, int, int], ...]
    """Rows of `rules`: (RULE_KINDS, a, b)."""
    allowed: tuple[int, ...] | None
    """Ids of the tokens that are possible, ascending; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSampling:
    """Parameters of one request as the operators take them, the same in all its steps (contract/names.py)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    accept_mode: int
    relaxation: tuple[float, float]
    """What the modes relaxed and typical read."""
    seed: int
    """The Philox key as a signed 64-bit number with the same bits."""
    sample_index: int
    confidence_signal: int
    """CONFIDENCE_SIGNALS | k << 8."""
    prompt_length: int
    """Positions from here on are output."""
    num_logprobs: int
    """Most probable tokens to report beside each emitted one; -1: no log-probabilities."""
    rules: SlotRules | None
    """None: the logits are taken as they are."""
    needs_draft_logits: bool
    """Whether acceptance reads the draft's distributions (rejection above temperature 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCutoff:
    """How DSparkCutoff chooses the proposals of a request that are verified; may change from round to round."""

    policy: int
    """CUTOFF_POLICIES."""
    params: tuple[float, ...]
    """CUTOFF_COLUMNS numbers, meaning by policy."""
    inclusive: bool
    """Whether the first weak proposal is verified too."""
    min_verify: int
    """Proposals verified whatever their confidence, as far as there are so many."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position: those of the token itself, then of the most probable ones, descending."""

    ids: tuple[int, ...]
    values: tuple[float, ...]
    rank: int
    """Of the token itself, from 1."""


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
    scored: tuple[int, ...]
    """The tokens that follow each row of the chunk, where log-probabilities of the prompt are wanted: one fewer than
    rows at the end of the prompt; else none."""
    num_scored: int
    """Most probable tokens to report beside each of them."""
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
    cutoffs: tuple[RoundCutoff, ...]
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
    """The j kept proposals and the target's own token: j+1 each, j where the target's logits gave none."""
    ends: tuple[str, ...]
    """Why the round ended: ROUND_END_REASONS; `nan`, `infinite` and `impossible` gave no token."""
    draft_lengths: tuple[int, ...]
    """Rows of a draft's own caches that are valid after the step, before rollback; 0 where it has none."""
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    """For each of `tokens`; empty for requests that want none, and altogether where nobody does."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """For each of the plan's `scored`."""
