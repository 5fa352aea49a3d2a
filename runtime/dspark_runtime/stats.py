"""What a service has done so far, as one consistent picture: `stats()` of LLM and AsyncLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dspark_runtime.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats:
    """Counts since the engines were opened, and what runs now. Tokens and rounds of unfinished requests are in it. An
    output is a request here: n of a prompt count n times. Names as in metrics.py."""

    running: int
    """Requests that hold a slot."""
    waiting: int
    slots: int
    requests: int
    """Finished ones."""
    finished: Mapping[str, int]
    """The same by reason: stop, length, abort, error."""
    refused: int
    preemptions: int
    prompt_tokens: int
    prefix_hit_tokens: int
    """Of the prompt tokens, those that were in the caches already."""
    output_tokens: int
    rounds: int
    """Rounds times the requests in them."""
    proposed: int
    not_scheduled: int
    scheduled: int
    verified: int
    accepted: int
    rejected: int
    trimmed: int
    accepted_at: tuple[int, ...]
    """Accepted proposals by place in the block, [K]."""
    accepted_length: float
    """Tokens per round and request, the target's own included; 0 without a round."""
    acceptance_rate: float
    """Accepted share of the verified proposals; 0 when none was verified."""
    block_acceptance_rate: float
    """Share of the rounds with scheduled proposals in which all of them were accepted."""
    mean_ttft_s: float
    mean_inter_token_s: float
    mean_queue_s: float
    host_share: float
    """Share of a round's time that is neither engine nor operator."""
    lossless: bool
    """Whether all outputs so far are the target's own."""


def snapshot(engine: Engine) -> ServiceStats:
    """The engine's counts, all of one moment."""
    metrics = engine.metrics
    with metrics.lock:
        parts = list(metrics.speculation.values())
        rounds = sum(part.rounds for part in parts)
        accepted = sum(part.accepted for part in parts)
        verified = sum(part.verified for part in parts)
        blocks = sum(part.blocks for part in parts)
        return ServiceStats(
            running=engine.num_running,
            waiting=engine.num_waiting,
            slots=engine.num_slots,
            requests=sum(metrics.finished.values()),
            finished=dict(metrics.finished),
            refused=metrics.refused,
            preemptions=engine.num_preemptions,
            prompt_tokens=metrics.prompt_tokens,
            prefix_hit_tokens=metrics.prefix_hits,
            output_tokens=metrics.generation_tokens,
            rounds=rounds,
            proposed=sum(part.proposed for part in parts),
            not_scheduled=sum(part.not_scheduled for part in parts),
            scheduled=sum(part.scheduled for part in parts),
            verified=verified,
            accepted=accepted,
            rejected=sum(part.rejected for part in parts),
            trimmed=sum(part.trimmed for part in parts),
            accepted_at=tuple(map(sum, zip(*(part.accepted_at for part in parts), strict=True))),
            accepted_length=(accepted + sum(part.target_tokens for part in parts)) / rounds if rounds else 0.0,
            acceptance_rate=accepted / verified if verified else 0.0,
            block_acceptance_rate=sum(part.blocks_accepted for part in parts) / blocks if blocks else 0.0,
            mean_ttft_s=metrics.ttft.mean,
            mean_inter_token_s=metrics.inter_token.mean,
            mean_queue_s=metrics.queue_time.mean,
            host_share=engine.profiler.snapshot().host_share,
            lossless=not metrics.speculation[False].rounds,
        )
