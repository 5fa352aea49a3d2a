"""What a service counts: plain numbers, changed by the engine's thread in each step and read by any other.

Counting costs a few additions per request and step; names, labels and text for Prometheus are exposition.py's.
A proposal is in exactly one of `not_scheduled` (the cutoff did not send it to the target), `accepted` (became output),
`rejected` (the target said something else there or before) and `trimmed` (it was behind the end of its request, so
nothing was decided about it). Identities, all tested:

    proposed         = not_scheduled + scheduled          scheduled = accepted + rejected + trimmed
    accepted         = sum of accepted_at                 generation_tokens = first_tokens + accepted + target_tokens
    prompt_tokens    = prefix_hits + prefilled            requests added    = unfinished + sum of finished
    inter-token observations = generation_tokens - first_tokens
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dspark_runtime.plan import PrefillPlan
from dspark_runtime.request import Request

SECONDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
FINISH_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts of values by upper bound, the last bucket being everything above."""

    __slots__ = ("bounds", "buckets", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    @property
    def mean(self) -> float:
        """0 without a value."""
        return self.sum / self.count if self.count else 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.buckets[bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(slots=True)
class Speculation:
    """Counts over the rounds of requests of one kind: lossless, or relaxed."""

    rounds: int = 0
    """Rounds times the requests in them."""
    drafts: int = 0
    """Of these, those in which something was proposed."""
    proposed: int = 0
    not_scheduled: int = 0
    scheduled: int = 0
    """Proposals that the target checked."""
    accepted: int = 0
    rejected: int = 0
    trimmed: int = 0
    target_tokens: int = 0
    """Tokens of the target's own, at most one a round; the rest of a round's output are accepted proposals."""
    blocks: int = 0
    """Rounds with at least one scheduled proposal."""
    blocks_accepted: int = 0
    """Of these, those whose scheduled proposals were all accepted."""
    scheduled_at: list[int] = field(default_factory=list)
    """By place in the block, [K]."""
    accepted_at: list[int] = field(default_factory=list)

    @property
    def verified(self) -> int:
        """Proposals about which something was decided."""
        return self.accepted + self.rejected

    @property
    def block_acceptance_rate(self) -> float:
        """Share of the rounds with scheduled proposals in which all of them were accepted; 0 without one."""
        return self.blocks_accepted / self.blocks if self.blocks else 0.0

    @property
    def accepted_length(self) -> float:
        """Tokens of output per round and request, the target's own included; 0 without a round."""
        return (self.accepted + self.target_tokens) / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the verified proposals; 0 when none was verified."""
        return self.accepted / self.verified if self.verified else 0.0


class Metrics:
    """All counts of one engine since it was opened. Change and read them under `lock`: they then fit together."""

    def __init__(self, block_size: int = 0) -> None:
        """block_size: K."""
        self.lock = threading.Lock()
        self.added = 0
        self.refused = 0
        """Requests that the full queue did not take; not among those added."""
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.preemptions = 0
        self.steps_failed = 0
        self.prompt_tokens = 0
        """Tokens of prompts that are in the caches, each counted once however often its request loses its slot."""
        self.prefilled = 0
        self.prefix_queries = 0
        """Tokens of all prompts that got a slot: those that could have been hits."""
        self.prefix_hits = 0
        self.recomputed = 0
        """Tokens read again after their request lost its slot."""
        self.generation_tokens = 0
        self.first_tokens = 0
        self.rounds = 0
        self.speculation = {
            lossless: Speculation(scheduled_at=[0] * block_size, accepted_at=[0] * block_size)
            for lossless in (True, False)
        }
        self.queue_time = Histogram(SECONDS)
        self.prefill_time = Histogram(SECONDS)
        self.decode_time = Histogram(SECONDS)
        self.ttft = Histogram(SECONDS)
        self.inter_token = Histogram(SECONDS)
        self.latency = Histogram(SECONDS)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.accepted_length = Histogram(range(1, block_size + 2))
        """Tokens of output of a request in a round."""

    def prompt_read(self, request: Request, plan: PrefillPlan) -> None:
        """A chunk of a request is in the caches."""
        length, counted = request.prompt_length, request.prompt_counted
        if not counted and request.start_time is not None:
            self.prefix_queries += length
            self.queue_time.observe(request.start_time - request.arrival)
        hits = max(0, min(plan.start, length) - counted)
        end = min(plan.start + len(plan.tokens), length)
        read = max(0, end - max(counted, plan.start))
        request.prompt_counted = max(counted, end)
        self.prefix_hits += hits
        self.prefilled += read
        self.recomputed += len(plan.tokens) - read
        self.prompt_tokens += hits + read

    def emitted(self, request: Request, tokens: int, now: float) -> None:
        """A request has `tokens` more tokens, all of one step."""
        if not tokens:
            return
        self.generation_tokens += tokens
        if request.last_token_time is None:
            # The step of the prompt's last chunk: one token.
            self.first_tokens += 1
            self.ttft.observe(now - request.arrival)
            if request.start_time is not None:
                self.prefill_time.observe(now - request.start_time)
        else:
            # They come together: each is given its share of the wait.
            self.inter_token.observe((now - request.last_token_time) / tokens, tokens)
        request.last_token_time = now

    def round(self, request: Request, proposed: int, scheduled: int, kept: int, emitted: int) -> None:
        """What a round was for one request. kept: proposals that acceptance kept; emitted: tokens that became
        output."""
        counts = self.speculation[request.lossless]
        accepted = min(kept, emitted)
        # What lies behind a token that ended the request was decided by nobody.
        trimmed = scheduled - emitted if emitted <= kept else 0
        counts.rounds += 1
        counts.target_tokens += emitted > kept
        self.accepted_length.observe(emitted)
        if not proposed:
            return
        counts.drafts += 1
        counts.proposed += proposed
        counts.not_scheduled += proposed - scheduled
        counts.scheduled += scheduled
        counts.accepted += accepted
        counts.trimmed += trimmed
        counts.rejected += scheduled - accepted - trimmed
        if scheduled:
            counts.blocks += 1
            counts.blocks_accepted += accepted == scheduled
            for place in range(scheduled):
                counts.scheduled_at[place] += 1
            for place in range(accepted):
                counts.accepted_at[place] += 1

    def ended(self, request: Request, reason: str, now: float) -> None:
        self.finished[reason] += 1
        self.latency.observe(now - request.arrival)
        self.request_prompt_tokens.observe(request.prompt_length)
        self.request_generation_tokens.observe(len(request.tokens) - request.prompt_length)
        if request.first_token_time is not None:
            self.decode_time.observe(now - request.first_token_time)

    def broken_identities(self, unfinished: int) -> Iterator[str]:
        """The identities of this module that do not hold; unfinished: requests in the engine now. None, unless we have
        a bug."""
        sums = {
            "prompt_tokens = prefix_hits + prefilled": (self.prompt_tokens, self.prefix_hits + self.prefilled),
            "added = unfinished + finished": (self.added, unfinished + sum(self.finished.values())),
            "inter_token = generation_tokens - first_tokens": (
                self.inter_token.count,
                self.generation_tokens - self.first_tokens,
            ),
            "generation_tokens = first_tokens + accepted + target_tokens": (
                self.generation_tokens,
                self.first_tokens + sum(s.accepted + s.target_tokens for s in self.speculation.values()),
            ),
            "latency = finished": (self.latency.count, sum(self.finished.values())),
            "ttft = first_tokens": (self.ttft.count, self.first_tokens),
            "accepted_length = rounds": (
                self.accepted_length.count,
                sum(s.rounds for s in self.speculation.values()),
            ),
        }
        for lossless, s in self.speculation.items():
            sums |= {
                f"proposed = not_scheduled + scheduled ({lossless})": (s.proposed, s.not_scheduled + s.scheduled),
                f"scheduled = accepted + rejected + trimmed ({lossless})": (
                    s.scheduled,
                    s.accepted + s.rejected + s.trimmed,
                ),
                f"accepted = sum of accepted_at ({lossless})": (s.accepted, sum(s.accepted_at)),
                f"scheduled = sum of scheduled_at ({lossless})": (s.scheduled, sum(s.scheduled_at)),
            }
        for identity, (left, right) in sums.items():
            if left != right:
                yield f"{identity}: {left} != {right}"
        if self.prefix_hits > self.prefix_queries:
            yield f"prefix_hits {self.prefix_hits} > prefix_queries {self.prefix_queries}"
