"""A request on its way through the engine: what was asked, its tokens, how far it got, and what it counts.

Plain state, changed by the scheduler (slot) and the engine (tokens, counts). Knows no tensor.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from dspark_runtime.contract.errors import CapacityError, ConfigError, shown
from dspark_runtime.contract.manifest import Manifest
from dspark_runtime.contract.names import ACCEPT_MODES, CUTOFF_POLICIES
from dspark_runtime.params import Cutoff, SamplingParams, parse_cutoff
from dspark_runtime.plan import SlotSampling

DEFAULT_CUTOFF = {"head": Cutoff("threshold", 0.4), "top1": Cutoff("threshold", 0.6)}
"""By the draft's confidence signal (design: best without a measured cost table)."""


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
    max_proposals: int
    """min(K, max_len); 0 when drafts is False."""
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
    finish_reason: str | None = None
    stop_reason: str | int | None = None
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
    start_time: float | None = None
    """When its first chunk ran."""
    first_token_time: float | None = None
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
) -> Request:
    """A request that fits the bundle. Raises CapacityError when the prompt is too long, ConfigError when it is empty or
    holds ids that the target lacks."""
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
    block_size = manifest.draft.block_size if manifest.draft is not None else 0
    drafts = block_size > 0 and params.speculative.drafts
    most = block_size if params.speculative.max_len is None else min(block_size, params.speculative.max_len)
    eos = frozenset() if params.ignore_eos else frozenset(manifest.eos_token_ids)
    return Request(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=tuple(token_ids),
        params=params,
        sampling=resolve_sampling(params, manifest, drafts),
        stop_tokens=eos | frozenset(params.stop_token_ids or ()),
        eos_tokens=eos,
        max_length=limit if params.max_tokens is None else min(limit, len(token_ids) + params.max_tokens),
        drafts=drafts,
        max_proposals=most if drafts else 0,
        arrival=arrival,
        priority=priority,
        cache_salt=cache_salt,
    )


def resolve_sampling(params: SamplingParams, manifest: Manifest, drafts: bool) -> SlotSampling:
    """What `auto` means for this request, and its random key: the seed, or 64 bits from the operating system."""
    accept = params.speculative.accept
    if accept == "auto":
        accept = "greedy" if params.is_greedy else "rejection" if params.seed is None else "coupled"
    signal = manifest.draft.signal if manifest.draft is not None else "head"
    cutoff = parse_cutoff(params.speculative.cutoff) if params.speculative.cutoff != "off" else Cutoff("all", 0.0)
    cutoff = cutoff if cutoff is not None else DEFAULT_CUTOFF[signal]
    key = params.seed if params.seed is not None else secrets.randbits(64)
    return SlotSampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        accept_mode=ACCEPT_MODES[accept],
        seed=key - 2**64 if key >= 2**63 else key,
        sample_index=0,
        cutoff_policy=CUTOFF_POLICIES[cutoff.policy],
        cutoff_threshold=cutoff.threshold,
        needs_draft_logits=drafts and accept == "rejection" and not params.is_greedy,
    )
