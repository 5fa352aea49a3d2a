"""What a caller gets back: text, tokens, why the output ended, and how the speculation went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """The log-probability of one token at one position, under the model's own logits."""

    logprob: float
    rank: int
    """1: the most probable."""
    decoded_token: str
    """The token's text by itself."""


PositionLogprobs = Mapping[int, Logprob]
"""By token id: the token that stands there first, then the most probable ones, descending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Counts of tokens and seconds of one request, all its samples together.

    output_tokens = samples (from the prompt) + accepted + rounds, less 1 for each output that ended in an accepted
    proposal, or in a round that gave no token (error). Nothing after a stop is counted.
    """

    rounds: int
    """Target passes that gave this request tokens, after the prompt's."""
    proposed: int
    """Tokens that the draft proposed."""
    verified: int
    """Proposals that the cutoff sent to the target (scheduled); the rest is counted nowhere as rejected.
    Proposals behind a stop token that was accepted are left out, since nothing was decided about them."""
    accepted: int
    """Verified proposals that became output."""
    ttft_s: float
    """Seconds from the request's arrival to its first token."""
    total_s: float
    """Seconds from the request's arrival to its end."""
    output_tokens: int
    samples: int = 1
    """Outputs that have a token: the first one of each is of no round."""
    lossless: bool = True
    """Whether the output is the target's own; False where proposals were accepted by a relaxed rule."""
    cached_tokens: int = 0
    """Tokens of the prompt that did not have to be computed, because a slot held them already."""
    queue_s: float = 0.0
    """Seconds until the prompt's first chunk ran."""
    preemptions: int = 0
    """Times that the request lost its slot to a higher priority."""

    @property
    def accepted_length(self) -> float:
        """Tokens emitted per round, the target's own token INCLUDED: 1 to K+1; 0 without a round."""
        return (self.output_tokens - self.samples) / self.rounds if self.rounds else 0.0

    @property
    def verify_length(self) -> float:
        """Proposals sent to the target per round, 0 to K; 0 without a round."""
        return self.verified / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the verified proposals, in [0, 1]; 0 when none was verified."""
        return self.accepted / self.verified if self.verified else 0.0

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the end."""
        return self.total_s - self.ttft_s

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed: tokens after the first of each sample over the seconds after it; 0 where there are none."""
        decoded = self.output_tokens - self.samples
        return decoded / self.decode_s if decoded > 0 and self.decode_s > 0 else 0.0

    def as_dict(self) -> dict[str, int | float | bool]:
        """Every count and rate by name, for JSON."""
        return {
            "rounds": self.rounds,
            "proposed": self.proposed,
            "verified": self.verified,
            "accepted": self.accepted,
            "accepted_length": self.accepted_length,
            "verify_length": self.verify_length,
            "acceptance_rate": self.acceptance_rate,
            "output_tokens": self.output_tokens,
            "ttft_s": self.ttft_s,
            "total_s": self.total_s,
            "tokens_per_s": self.tokens_per_s,
            "samples": self.samples,
            "lossless": self.lossless,
            "cached_tokens": self.cached_tokens,
            "queue_s": self.queue_s,
            "preemptions": self.preemptions,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One sample of a request."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    """The stop token included, as in vLLM; up to the token that completed a stop string."""
    finish_reason: str
    """`stop`, `length`, `abort`, or `error`."""
    stop_reason: str | int | None
    """The stop string or stop token id that ended the output; None for end of sequence and length."""
    error: str | None = None
    """Why the model could not go on, where finish_reason is `error`; what was said before stands."""
    cumulative_logprob: float | None = None
    """Sum over the output's tokens, where logprobs were asked for."""
    logprobs: tuple[PositionLogprobs, ...] | None = None
    """Of every token of the output, where asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A finished request. `outputs` has one entry per sample; the properties read the first."""

    request_id: int | str
    """A number, or the name that the caller gave."""
    prompt: str | None
    """None where the caller gave token ids."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    stats: RequestStats
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    """Of every token of the prompt, where asked for; None for the first, which nothing stands before."""

    @property
    def lossless(self) -> bool:
        """Whether the output is the target's own; False where proposals were accepted by a relaxed rule."""
        return self.stats.lossless

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.outputs[0].stop_reason
