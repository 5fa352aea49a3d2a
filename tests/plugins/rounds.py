"""Rounds of many requests at once through the operators, the way the runtime drives them, and their exact law.

Target and draft are small tables: logits by position and last token. Every request starts from the same prompt with
its own seed, so that one call draws as many samples as it has requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from tests.reference.cutoff import Cutoff
from tests.reference.filters import Sampling, filtered
from tests.reference.rules import Rules, processed

VOCAB, BLOCK, RANK, POSITIONS = 5, 3, 4, 16
PROMPT = (4, 1, 2)
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How all requests of a run are decoded."""

    mode: int = names.ACCEPT_MODES["rejection"]
    cutoff: Cutoff = field(default_factory=Cutoff)
    signal: int = names.CONFIDENCE_SIGNALS["top1"]
    filters: dict[str, float] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    """prompt and output are those of the request; `allowed` has one entry, for every row."""

    @property
    def sampling(self) -> Sampling:
        return Sampling(accept_mode=self.mode, **self.filters)  # type: ignore[arg-type]


class World:
    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.target = (rng.normal(size=(POSITIONS, VOCAB, VOCAB)) * 1.2).astype(np.float32)
        """[position of the last token, last token]: logits of the next one."""
        w1 = rng.normal(size=(VOCAB, RANK)).astype(np.float32)
        w2 = rng.normal(size=(VOCAB, RANK)).astype(np.float32)
        self.base = (self.target.mean(axis=1) + rng.normal(size=(POSITIONS, VOCAB)) * 0.4).astype(np.float32)
        """[position of the last token]: the draft's logits before its head adds W2 W1[last token]."""
        self.hidden = rng.normal(size=(POSITIONS, 3)).astype(np.float32)
        self.head = {
            "markov_w1": w1 * 0.6,
            "markov_w2": w2,
            "confidence_weight": rng.normal(size=3 + RANK).astype(np.float32),
            "confidence_bias": np.array([0.3], np.float32),
            "head_type": names.HEAD_TYPES["vanilla"],
            "confidence_with_markov": True,
        }

    def law(self, setting: Setting, num_tokens: int) -> NDArray[np.float64]:
        """Probability of every output of `num_tokens`, [V] * num_tokens, from float64 references alone."""
        law = np.ones((VOCAB,) * num_tokens)
        for length in range(num_tokens):
            for output in product(range(VOCAB), repeat=length):
                history = PROMPT + output
                row = self.target[len(history) - 1, history[-1]]
                rules = replace(setting.rules, prompt=PROMPT, output=output)
                p = filtered(processed(row, rules, (), 0), setting.sampling).probabilities
                law[output] *= p.reshape(-1, *(1,) * (num_tokens - length - 1))
        return law

    def decode(self, setting: Setting, seeds: NDArray[np.int64], num_tokens: int, speculate: bool = True) -> Ints:
        """The first `num_tokens` of every request, [R, num_tokens]. seeds: [R]. speculate: with a draft, or without."""
        count = len(seeds)
        history = np.full((count, POSITIONS), -1, np.int32)
        history[:, : len(PROMPT)] = PROMPT
        lengths = np.full(count, len(PROMPT))
        # A request with all it should say stays as it is; others overshoot by less than a block.
        while len(active := np.flatnonzero(lengths < len(PROMPT) + num_tokens)):
            batch = _Batch(self, setting, seeds[active], history[active], lengths[active].astype(np.int32) - 1)
            kept, tokens = batch.round(speculate)
            for j in range(tokens.shape[1]):
                going = active[j <= kept]
                history[going, lengths[active][j <= kept] + j] = tokens[j <= kept, j]
            lengths[active] += kept + 1
        return np.ascontiguousarray(history[:, len(PROMPT) : len(PROMPT) + num_tokens])

    def counts(self, setting: Setting, num_requests: int, num_tokens: int, speculate: bool = True) -> NDArray[np.int64]:
        """How often every output came, [V] * num_tokens, for seeds 0, 1, ..."""
        said = self.decode(setting, np.arange(num_requests, dtype=np.int64), num_tokens, speculate)
        shape = (VOCAB,) * num_tokens
        return np.bincount(np.ravel_multi_index(tuple(said.T), shape), minlength=VOCAB**num_tokens).reshape(shape)


@dataclass(frozen=True)
class _Batch:
    """R requests before a round: history [R, S] of token ids, anchors [R] the positions of their last tokens."""

    world: World
    setting: Setting
    seeds: NDArray[np.int64]
    history: Ints
    anchors: Ints

    def round(self, speculate: bool) -> tuple[Ints, Ints]:
        """accepted [R] and tokens [R, K + 1]."""
        sampling = self._sampling()
        count, last = len(self.seeds), self.history[np.arange(len(self.seeds)), self.anchors]
        if not speculate:
            rows = self.world.target[self.anchors, last]
            return self._accept(rows, np.zeros(count, np.int32), None, None, sampling)
        positions = self.anchors[:, None] + np.arange(BLOCK)
        proposals, logits, draft_logits, entropies = dspark_ops.draft(
            base_logits=self.world.base[positions],
            hidden=self.world.hidden[positions],
            anchor_tokens=last,
            confidence_signal=np.full(count, self.setting.signal, np.int32),
            cutoff_policy=np.full(count, self.setting.cutoff.policy, np.int32),
            want_draft_logits=True,
            **sampling,
            **self.world.head,
        )
        cutoff = self.setting.cutoff
        verify, _, _ = dspark_ops.cutoff(
            confidence_logits=logits,
            entropies=entropies,
            draft_tokens=proposals,
            cutoff_policy=np.full(count, cutoff.policy, np.int32),
            cutoff_params=np.tile(np.array(cutoff.columns, np.float32), (count, 1)),
            cutoff_inclusive=np.full(count, cutoff.inclusive, np.int32),
            min_verify=np.full(count, cutoff.min_verify, np.int32),
            max_verify=np.full(count, min(cutoff.max_verify, BLOCK), np.int32),
        )
        before = np.concatenate([last[:, None], proposals], axis=1)
        verified = np.arange(BLOCK + 1) <= verify[:, None]
        rows = self.world.target[(self.anchors[:, None] + np.arange(BLOCK + 1))[verified], before[verified]]
        return self._accept(rows, verify, proposals, draft_logits, sampling)

    def _sampling(self) -> dict[str, np.ndarray]:
        count, s = len(self.seeds), self.setting.sampling
        return {
            "temperature": np.full(count, s.temperature, np.float32),
            "top_k": np.full(count, s.top_k, np.int32),
            "top_p": np.full(count, s.top_p, np.float32),
            "min_p": np.full(count, s.min_p, np.float32),
            "accept_mode": np.full(count, s.accept_mode, np.int32),
            "seed": self.seeds,
            "sample_index": np.zeros(count, np.int32),
            "anchor_position": self.anchors,
        }

    def _accept(
        self,
        rows: Floats,
        verify: Ints,
        proposals: Ints | None,
        draft_logits: Floats | None,
        sampling: dict[str, np.ndarray],
    ) -> tuple[Ints, Ints]:
        count, rules = len(self.seeds), self.setting.rules
        records = np.array(rules.records(), np.int32).reshape(-1, 3)
        allowed = rules.allowed[0] if rules.allowed else range(VOCAB)
        accepted, tokens, *_ = dspark_ops.accept(
            logits=np.ascontiguousarray(rows),
            row_offsets=np.concatenate([[0], np.cumsum(verify + 1)]).astype(np.int32),
            draft_tokens=proposals,
            draft_logits=draft_logits,
            penalties=np.tile(np.array([rules.repetition, rules.presence, rules.frequency], np.float32), (count, 1)),
            token_history=self.history,
            slots=np.arange(count, dtype=np.int32),
            prompt_lengths=np.full(count, len(PROMPT), np.int32),
            rules=np.tile(records, (count, 1)),
            rule_offsets=(np.arange(count + 1) * len(records)).astype(np.int32),
            token_masks=np.array([[sum(1 << token for token in allowed)]], np.int32),
            mask_rows=np.full(len(rows), 0 if rules.allowed else -1, np.int32),
            **sampling,
        )
        return accepted, tokens
