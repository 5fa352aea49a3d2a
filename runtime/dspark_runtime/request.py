"""A request on its way through the engine: what was asked, its tokens, how far it got, and what it counts.

Plain state, changed by the scheduler (slot) and the engine (tokens, counts). Knows no tensor.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dspark_runtime.contract.errors import CapacityError, ConfigError, shown
from dspark_runtime.contract.manifest import Manifest
from dspark_runtime.controllers import CutoffControl
from dspark_runtime.params import SamplingParams
from dspark_runtime.plan import SlotSampling, TokenLogprobs
from dspark_runtime.resolve import is_lossless, resolve_control, resolve_sampling
from dspark_runtime.rules import Words, make_rules


class Phase(enum.Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    request_id: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    sampling: SlotSampling
    stop_tokens: frozenset[int]
    """End-of-sequence tokens (unless ignored) and stop_token_ids."""
    eos_tokens: frozenset[int]
    """The model's end-of-sequence tokens: they end the output without a stop_reason."""
    max_length: int
    """Most tokens, prompt included: min(prompt + max_tokens, max_seq_len)."""
    drafts: bool
    """Whether rounds propose for this request."""
    lossless: bool
    """Whether its output is the target's own: False only for relaxed acceptance."""
    control: CutoffControl
    """How many proposals its rounds verify."""
    arrival: float
    """Seconds on the engine's clock."""
    priority: int = 0
    """Smaller is served first."""
    cache_salt: str | None = None
    """Only requests of the same salt share computed prefixes."""
    reuses_prefix: bool = True
    """False: all of the prompt is computed, whatever the caches hold."""

    phase: Phase = Phase.WAITING
    slot: int | None = None
    tokens: list[int] = field(default_factory=list)
    """Prompt and output. While decoding, the last one is the anchor and all others have rows in the caches."""
    computed: int = 0
    """Committed rows of the target's cache in its slot: len(tokens) - 1 while decoding."""
    draft_computed: int = 0
    """Committed rows of a draft's own caches."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the output tokens, where the parameters want them."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt tokens but the first, where the parameters want them."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    """Why it ended, where finish_reason is `error`."""
    order: int = 0
    """Place in the order of arrival; kept when it loses its slot."""
    overtaken: int = 0
    """Later requests that were served before it while it was the first of its priority."""
    protected: bool = False
    """Overtaken too often: it keeps its slot now."""
    preemptions: int = 0
    """Times that it lost its slot to a higher priority."""
    cached_tokens: int = 0
    """Tokens of the prompt that were in the caches when it first got a slot."""
    prompt_counted: int = 0
    """Tokens of its prompt that the metrics have counted as read or found."""
    start_time: float | None = None
    """When its first chunk ran."""
    first_token_time: float | None = None
    last_token_time: float | None = None
    finish_time: float | None = None
    rounds: int = 0
    proposed: int = 0
    verified: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.prompt_token_ids)

    @property
    def prompt_length(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def prefill_end(self) -> int:
        """Rows it needs before it decodes: the prompt's, whose last one gives the first token, or, where it has output
        already, all but the anchor's."""
        return max(len(self.prompt_token_ids), len(self.tokens) - 1)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.prompt_token_ids)

    @property
    def most_proposals(self) -> int:
        """Proposals that its next round may verify: all but the last of the tokens that may still come."""
        return max(0, min(self.control.limit(self.num_output), self.remaining - 1)) if self.drafts else 0

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of its prompt are still to be computed."""
        wanted = self.params.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < len(self.prompt_token_ids) - 1

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[len(self.prompt_token_ids) :]

    @property
    def is_finished(self) -> bool:
        return self.phase is Phase.FINISHED

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_length - len(self.tokens)


def make_request(
    request_id: int,
    prompt: str | None,
    token_ids: Sequence[int],
    params: SamplingParams,
    manifest: Manifest,
    arrival: float,
    priority: int = 0,
    cache_salt: str | None = None,
    words: Words = (),
) -> Request:
    """A request that fits the bundle: the first output of its prompt (`another_sample` makes the others).

    words: the parameters' bad_words as tokens (rules.split_words). Raises CapacityError when the prompt is too long,
    ConfigError when it is empty, where prompt or parameters hold ids that the target lacks, and for speculative
    parameters that this draft cannot serve.
    """
    limit, vocab = manifest.limits.max_seq_len, manifest.target.vocab_size
    if not token_ids:
        raise ConfigError("prompt has no tokens, needs at least one")
    if len(token_ids) >= limit:
        raise CapacityError(
            f"prompt has {len(token_ids)} tokens, this bundle takes at most {limit - 1} (max_seq_len {limit} less one "
            "token of output); shorten it or build with a larger --max-seq-len"
        )
    if not (min(token_ids) >= 0 and max(token_ids) < vocab):
        lowest, highest = shown(min(token_ids)), shown(max(token_ids))
        raise ConfigError(f"prompt has token ids {lowest} to {highest}, needs [0, {vocab})")
    drafts = manifest.draft is not None and params.speculative.drafts
    draft = manifest.draft if drafts else None
    eos = frozenset() if params.ignore_eos else frozenset(manifest.eos_token_ids)
    rules = make_rules(params, words, len(token_ids), manifest.eos_token_ids, vocab)
    return Request(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=tuple(token_ids),
        params=params,
        sampling=resolve_sampling(params, draft, len(token_ids), rules),
        stop_tokens=eos | frozenset(params.stop_token_ids or ()),
        eos_tokens=eos,
        max_length=limit if params.max_tokens is None else min(limit, len(token_ids) + params.max_tokens),
        drafts=drafts,
        lossless=is_lossless(params, drafts),
        control=resolve_control(params, draft),
        arrival=arrival,
        priority=priority,
        cache_salt=cache_salt,
        # What is in the caches already has no logits any more.
        reuses_prefix=params.prompt_logprobs is None,
    )


def another_sample(request: Request, request_id: int, index: int) -> Request:
    """The same request once more, not started: its output number `index`, drawn with numbers of its own. The prompt's
    log-probabilities are left to the first."""
    return replace(
        request,
        request_id=request_id,
        params=replace(request.params, prompt_logprobs=None),
        reuses_prefix=True,
        sampling=replace(request.sampling, sample_index=index),
        control=replace(request.control),
        tokens=list(request.prompt_token_ids),
        logprobs=[],
        prompt_logprobs=[],
    )
