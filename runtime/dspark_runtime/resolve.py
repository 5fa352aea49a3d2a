"""What a request's parameters mean on a bundle: `auto`, defaults that depend on the draft, what is refused there."""

from __future__ import annotations

import secrets

from dspark_runtime.contract.errors import ConfigError
from dspark_runtime.contract.manifest import DraftInfo
from dspark_runtime.contract.names import ACCEPT_MODES, CONFIDENCE_SIGNALS, CUTOFF_POLICIES
from dspark_runtime.controllers import CutoffControl
from dspark_runtime.cutoff import Adaptive, Cutoff, parse_adaptive, parse_cutoff, parse_signal
from dspark_runtime.params import SamplingParams
from dspark_runtime.plan import RoundCutoff, SlotRules, SlotSampling
from dspark_runtime.speculative import RELAXATIONS, Acceptance, SpeculativeParams, parse_accept

HEAD_CUTOFF = Cutoff("threshold", (0.4,))
OTHER_CUTOFF = Cutoff("threshold", (0.6,))
"""What cutoff `auto` is, by signal: best without a measured cost table."""

_HEAD, _TOKEN = CONFIDENCE_SIGNALS["head"], CONFIDENCE_SIGNALS["token"]


def resolve_sampling(
    params: SamplingParams, draft: DraftInfo | None, prompt_length: int, rules: SlotRules | None
) -> SlotSampling:
    """The parameters of a request as the operators take them, its random key included: the seed, or 64 bits from the
    operating system. draft: None where the request never drafts. Raises ConfigError for a signal that it lacks."""
    acceptance = resolve_acceptance(params)
    key = params.seed if params.seed is not None else secrets.randbits(64)
    return SlotSampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        accept_mode=ACCEPT_MODES[acceptance.mode],
        relaxation=acceptance.numbers,
        seed=key - 2**64 if key >= 2**63 else key,
        sample_index=0,
        confidence_signal=_signal(params.speculative, draft) if draft is not None else _HEAD,
        prompt_length=prompt_length,
        num_logprobs=-1 if params.logprobs is None else params.logprobs,
        rules=rules,
        needs_draft_logits=draft is not None and _rejects(params),
    )


def resolve_acceptance(params: SamplingParams) -> Acceptance:
    """`auto`: greedy at temperature 0, coupled with a seed, else rejection."""
    acceptance = parse_accept(params.speculative.accept)
    if acceptance is not None:
        return acceptance
    return Acceptance("greedy" if params.is_greedy else "rejection" if params.seed is None else "coupled")


def is_lossless(params: SamplingParams, drafts: bool) -> bool:
    """Whether the output is the target's own: always but for relaxed acceptance of proposals."""
    return not drafts or resolve_acceptance(params).mode not in RELAXATIONS


def resolve_control(params: SamplingParams, draft: DraftInfo | None) -> CutoffControl:
    """The cutoff of a request and what moves it. draft: None where the request never drafts.

    Raises ConfigError for signal `token` with an exclusive stop under rejection.
    """
    if draft is None:
        return CutoffControl(cutoff=_round_cutoff(Cutoff("all"), 0, False, 0), max_len=0)
    speculative, block_size = params.speculative, draft.block_size
    signal = _signal(speculative, draft)
    cutoff = parse_cutoff(speculative.cutoff) or (HEAD_CUTOFF if signal == _HEAD else OTHER_CUTOFF)
    # A policy that reads no confidence has no use for a signal.
    binds = signal == _TOKEN and _rejects(params) and cutoff.policy != "all"
    if binds and speculative.inclusive is False:
        raise ConfigError(
            "speculative parameters: signal is 'token' with inclusive False under rejection: leaving out the very "
            "tokens that were improbable skews the output; set inclusive to True, give a seed, or use another signal"
        )
    inclusive = binds if speculative.inclusive is None else speculative.inclusive
    most = block_size if speculative.max_len is None else min(block_size, speculative.max_len)
    return CutoffControl(
        cutoff=_round_cutoff(cutoff, block_size, inclusive, speculative.min_len),
        max_len=most,
        warmup_tokens=speculative.warmup_tokens,
        adaptive=_bounded(speculative.adaptive, most),
    )


def _signal(speculative: SpeculativeParams, draft: DraftInfo) -> int:
    signal = parse_signal(speculative.signal)
    if signal is None:
        return CONFIDENCE_SIGNALS[draft.signal]
    if signal == _HEAD and draft.signal != "head":
        raise ConfigError(
            "speculative parameters: signal is 'head', but this bundle's draft has no confidence head; use auto, top1 "
            "or another signal"
        )
    return signal


def _rejects(params: SamplingParams) -> bool:
    return resolve_acceptance(params).mode == "rejection" and not params.is_greedy


def _round_cutoff(cutoff: Cutoff, block_size: int, inclusive: bool, min_len: int) -> RoundCutoff:
    return RoundCutoff(
        policy=CUTOFF_POLICIES[cutoff.policy],
        params=cutoff.columns(block_size),
        inclusive=inclusive,
        min_verify=min(min_len, block_size),
    )


def _bounded(text: str | None, most: int) -> Adaptive | None:
    """The controller that `text` names; lengths at most `most`."""
    if text is None:
        return None
    adaptive = parse_adaptive(text)
    if adaptive.moves == "tau":
        return adaptive
    low, high = min(adaptive.low, most), min(adaptive.high, most)
    return Adaptive(adaptive.moves, adaptive.target, adaptive.window, low, high)
