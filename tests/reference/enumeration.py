"""Speculative decoding of a batch, enumerated: the exact law of what it emits, round after round.

Decisions are those of this package (choose, accept, and cutoff or schedule inside a `Rule`); here is the loop around
them. What is random, and what reuse of a number does, is chances.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tests.reference.accept import accept
from tests.reference.chances import Enumerator, Known, Outcome, outcomes
from tests.reference.draft import choose
from tests.reference.draws import Numbers
from tests.reference.filters import Sampling, filtered

Tokens = tuple[int, ...]
Row = Callable[[Tokens], NDArray[np.float64]]
"""Logits [V] of the token that follows a history: the anchor of the first round, then what was emitted since."""


@dataclass(frozen=True, eq=False)
class Speaker:
    """One request: its models and its parameters."""

    target: Row
    draft: Row
    sampling: Sampling
    """anchor_position: that of the first round's anchor."""
    block_size: int
    anchor: int = 0
    enumerate: Enumerator = field(default_factory=Enumerator)

    def at(self, history: Tokens) -> Sampling:
        """Parameters of the round whose anchor ends `history`."""
        return replace(self.sampling, anchor_position=self.sampling.anchor_position + len(history) - 1)

    def alone(self, num_tokens: int) -> dict[Tokens, float]:
        """The law of the first tokens that the target says without a draft."""
        law = {(self.anchor,): 1.0}
        for _ in range(num_tokens):
            law = {
                (*history, token): weight * float(p)
                for history, weight in law.items()
                for token, p in enumerate(filtered(self.target(history), self.at(history)).probabilities)
                if p > 0.0
            }
        return {history[1:]: weight for history, weight in law.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What a draft pass made for one request, as cutoffs and schedulers may read it."""

    request: int
    history: Tokens
    tokens: Tokens
    """x_1 .. x_K; none where nothing could be verified."""
    logits: NDArray[np.float64]
    """[K, V] of the draft, unfiltered."""
    limit: int
    """Most proposals that may be verified."""


class Rule(Protocol):
    """A cutoff policy with its controllers, or a scheduler. `memory` is what it keeps of completed rounds."""

    start: Hashable

    def lengths(self, memory: Any, blocks: Sequence[Block]) -> list[int]:
        """Verify lengths of the batch, each in [0, limit]."""
        ...

    def after(self, memory: Any, blocks: Sequence[Block], lengths: Sequence[int], accepted: Sequence[int]) -> Hashable:
        """The memory with this round in it."""
        ...


Wrong = Callable[[Numbers, Speaker, Block | None], Numbers]
"""A deliberate mistake: other numbers than those asked for. The block is None while it is being drafted."""


def _right(numbers: Numbers, speaker: Speaker, block: Block | None) -> Numbers:
    return numbers


def _draft(speaker: Speaker, request: int, history: Tokens, limit: int, numbers: Numbers) -> Block:
    tokens: Tokens = ()
    rows = []
    for k in range(speaker.block_size if limit > 0 else 0):
        rows.append(speaker.draft(history + tokens))
        tokens += (choose(rows[-1], speaker.at(history), k, None, numbers)[0],)
    return Block(request, history, tokens, np.array(rows), limit)


def _verify(speaker: Speaker, block: Block, length: int, numbers: Numbers) -> Tokens:
    rows = [speaker.target(block.history + block.tokens[:k]) for k in range(length + 1)]
    return tuple(accept(rows, block.tokens, block.logits, speaker.at(block.history), numbers=numbers).tokens)


def _check_pathwise(speaker: Speaker, history: Tokens, emitted: Tokens, known: Known) -> None:
    """Whatever the numbers are that led here, with them the target alone says `emitted`."""
    for k, token in enumerate(emitted):
        context = history + emitted[:k]
        nothing = Block(0, context, (), np.zeros((0, 0)), 0)
        alone = {outcome.value for outcome in outcomes(lambda n, b=nothing: _verify(speaker, b, 0, n), known)}
        assert alone == {(token,)}, f"after {context} came {token}, where the target alone says {sorted(alone)}"


@dataclass(frozen=True, slots=True)
class Batch:
    """What is decoded together, and by which rule."""

    speakers: Sequence[Speaker]
    rule: Rule
    num_tokens: int
    """Tokens after which a request leaves the batch."""
    wrong: Wrong = _right
    pathwise: bool = False
    """Check on every path that the target alone, with the same numbers, says the same (coupled mode)."""

    def law(self) -> dict[tuple[Tokens, ...], float]:
        """The joint law of the first `num_tokens` of every request.

        Between rounds counters of positions before every anchor are forgotten, so that paths with the same
        past merge; a counter that is asked after it was forgotten is an AssertionError.
        """
        states: dict[Any, float] = {(tuple((s.anchor,) for s in self.speakers), self.rule.start, ()): 1.0}
        ended: dict[tuple[Tokens, ...], float] = defaultdict(float)
        while states:
            following: dict[Any, float] = defaultdict(float)
            for (histories, memory, known), weight in states.items():
                for share, state in self._round(histories, memory, dict(known)):
                    if all(len(history) > self.num_tokens for history in state[0]):
                        ended[tuple(history[1:] for history in state[0])] += weight * share
                    else:
                        following[state] += weight * share
            states = following
        return dict(ended)

    def _round(self, histories: tuple[Tokens, ...], memory: Any, known: Known) -> Iterator[tuple[float, Any]]:
        """Every outcome of one round: its probability, and the state (histories, memory, known) after it."""
        oldest = self._oldest(histories)
        drafted: list[tuple[float, Known, tuple[Block, ...]]] = [(1.0, known, ())]
        for request, history in enumerate(histories):
            if len(history) <= self.num_tokens:
                drafted = [
                    (weight * outcome.weight, outcome.known, (*blocks, outcome.value))
                    for weight, facts, blocks in drafted
                    for outcome in self._drafts(request, history, facts, oldest)
                ]
        for weight, facts, blocks in drafted:
            lengths = self.rule.lengths(memory, blocks)
            assert all(0 <= length <= block.limit for length, block in zip(lengths, blocks, strict=True))
            verified: list[tuple[float, Known, tuple[Tokens, ...]]] = [(weight, facts, ())]
            for block, length in zip(blocks, lengths, strict=True):
                verified = [
                    (share * outcome.weight, outcome.known, (*said, outcome.value))
                    for share, learned, said in verified
                    for outcome in self._verifications(block, length, learned, oldest)
                ]
            for share, learned, said in verified:
                after = list(histories)
                for block, tokens in zip(blocks, said, strict=True):
                    if self.pathwise:
                        _check_pathwise(self.speakers[block.request], block.history, tokens, learned)
                    after[block.request] = block.history + tokens
                remembered = self.rule.after(memory, blocks, lengths, [len(tokens) - 1 for tokens in said])
                kept = self._oldest(after)
                ahead = tuple(sorted((c, x) for c, x in learned.items() if c.position >= kept.get(c.seed, np.inf)))
                yield share, (tuple(after), remembered, ahead)

    def _oldest(self, histories: Sequence[Tokens]) -> dict[int, int]:
        """By seed, the first anchor's position among the requests that go on."""
        oldest: dict[int, int] = {}
        for speaker, history in zip(self.speakers, histories, strict=True):
            if len(history) <= self.num_tokens:
                at = speaker.at(history)
                oldest[at.seed] = min(oldest.get(at.seed, at.anchor_position), at.anchor_position)
        return oldest

    def _drafts(self, request: int, history: Tokens, known: Known, oldest: dict[int, int]) -> list[Outcome[Block]]:
        speaker = self.speakers[request]
        limit = min(speaker.block_size, self.num_tokens - len(history))
        found = speaker.enumerate(
            (self.wrong, request, history, limit),
            lambda numbers: _draft(speaker, request, history, limit, self.wrong(numbers, speaker, None)),
            known,
        )
        return _fresh(found, oldest)

    def _verifications(self, block: Block, length: int, known: Known, oldest: dict[int, int]) -> list[Outcome[Tokens]]:
        speaker = self.speakers[block.request]
        found = speaker.enumerate(
            (self.wrong, block.request, block.history, block.tokens, length),
            lambda numbers: _verify(speaker, block, length, self.wrong(numbers, speaker, block)),
            known,
        )
        return _fresh(found, oldest)


def _fresh(found: list[Any], oldest: dict[int, int]) -> list[Any]:
    for outcome in found:
        late = [counter for counter in outcome.asked if counter.position < oldest[counter.seed]]
        assert not late, f"asked after they were forgotten: {late}"
    return found


def solo(speakers: Sequence[Speaker], num_tokens: int) -> dict[tuple[Tokens, ...], float]:
    """The joint law of requests that each decode without a draft, independently."""
    law: dict[tuple[Tokens, ...], float] = {(): 1.0}
    for speaker in speakers:
        own = speaker.alone(num_tokens)
        law = {(*said, tokens): weight * p for said, weight in law.items() for tokens, p in own.items()}
    return law


def bias(found: dict[Any, float], wanted: dict[Any, float]) -> float:
    """The largest difference of a probability."""
    return max(abs(found.get(outcome, 0.0) - wanted.get(outcome, 0.0)) for outcome in found.keys() | wanted.keys())
