"""What DSparkAccept reads beside logits and draws, and what it gives: rules, token history, log-probabilities.

The token history is a cache like those of keys and values: a row of token ids per slot, of which the positions up to a
request's length mean something. Rolling back is a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark_runtime.contract import names
from dspark_runtime.plan import SlotRules, SlotSampling, TokenLogprobs
from dspark_runtime.sessions.base import Array, FloatArray, IntArray, Session, Tensor
from dspark_runtime.sessions.buffers import Buffer

_RELAXED = names.ACCEPT_MODES["relaxed"]
_COLUMNS = names.MAX_LOGPROBS + 1
_ENDS = {number: name for name, number in names.ROUND_END_REASONS.items()}


class TokenHistory:
    """The committed tokens of every slot, and a block of proposals behind them: [B, S] int32."""

    def __init__(self, session: Session, num_slots: int, capacity: int) -> None:
        self.tensor = session.tensor(np.zeros((num_slots, capacity), np.int32))

    def write(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Tokens of one slot from position `start` on."""
        self.tensor.array[slot, start : start + len(tokens)] = tokens

    def write_blocks(self, slots: IntArray, starts: IntArray, blocks: IntArray) -> None:
        """blocks [R, K+1]: tokens of R slots from `starts` [R] on. Where all K proposals are kept they are committed
        without being said again; those that are refused lie behind the length."""
        self.tensor.array[slots[:, None], starts[:, None] + np.arange(blocks.shape[1])] = blocks

    def copy(self, source: int, slot: int, rows: int) -> None:
        self.tensor.array[slot, :rows] = self.tensor.array[source, :rows]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What DSparkAccept gave for R requests."""

    accepted: IntArray
    """[R]"""
    tokens: IntArray
    """[R, K+1]: kept proposals, the target's token, then -1; -1 in its place where its logits were faulty."""
    ends: IntArray
    """[R], ROUND_END_REASONS."""
    logprobs: FloatArray
    """[R, K+1, MAX_LOGPROBS+1]"""
    logprob_ids: IntArray
    """The same shape."""
    logprob_ranks: IntArray
    """[R, K+1]"""

    def reasons(self) -> tuple[str, ...]:
        return tuple(_ENDS[number] for number in self.ends.tolist())

    def kept(self) -> tuple[tuple[int, ...], ...]:
        """The tokens that each request got, no -1 among them."""
        lengths = self.accepted.tolist()
        return tuple(tuple(row[: j + (row[j] >= 0)]) for row, j in zip(self.tokens.tolist(), lengths, strict=True))

    def reported(self, sampling: Sequence[SlotSampling]) -> tuple[tuple[TokenLogprobs, ...], ...]:
        """Log-probabilities of each request's tokens, as many as it wants; () where nobody wants any."""
        if all(entry.num_logprobs < 0 for entry in sampling):
            return ()
        counts = (self.accepted + (self.ends <= names.ROUND_END_REASONS["rejected"])).tolist()
        return tuple(
            logprob_entries(self.logprobs[i], self.logprob_ids[i], self.logprob_ranks[i], counts[i], entry.num_logprobs)
            if entry.num_logprobs >= 0
            else ()
            for i, entry in enumerate(sampling)
        )


def logprob_entries(
    values: FloatArray, ids: IntArray, ranks: IntArray, count: int, most: int
) -> tuple[TokenLogprobs, ...]:
    """The first `count` rows of what DSparkAccept and dspark_ops.logprobs report, each with `most` tokens beside its
    own, fewer where the vocabulary ends."""
    entries = []
    for row in range(count):
        row_ids = ids[row, : most + 1]
        width = int((row_ids >= 0).sum())
        entries.append(
            TokenLogprobs(tuple(row_ids[:width].tolist()), tuple(values[row, :width].tolist()), int(ranks[row]))
        )
    return tuple(entries)


class AcceptOutputs:
    """Persistent outputs of DSparkAccept as a graph node."""

    def __init__(self, session: Session) -> None:
        make = session.tensor
        self._ints = {
            name: Buffer(np.int32, make)
            for name in (names.ACCEPTED, names.TOKENS, names.ROUND_ENDS, names.LOGPROB_IDS, names.LOGPROB_RANKS)
        }
        self._logprobs = Buffer(np.float32, make)

    def bind(self, num_requests: int, block_size: int) -> dict[str, Tensor]:
        places = (num_requests, block_size + 1)
        shapes: dict[str, tuple[int, ...]] = {
            names.ACCEPTED: (num_requests,),
            names.TOKENS: places,
            names.ROUND_ENDS: (num_requests,),
            names.LOGPROB_IDS: (*places, _COLUMNS),
            names.LOGPROB_RANKS: places,
        }
        tensors = {name: self._ints[name].view(*shape) for name, shape in shapes.items()}
        tensors[names.LOGPROBS] = self._logprobs.view(*places, _COLUMNS)
        return tensors


def outcome(outputs: dict[str, Tensor]) -> Outcome:
    """The outputs of a run that were bound with AcceptOutputs."""
    return Outcome(
        accepted=outputs[names.ACCEPTED].array,
        tokens=outputs[names.TOKENS].array,
        ends=outputs[names.ROUND_ENDS].array,
        logprobs=outputs[names.LOGPROBS].array,
        logprob_ids=outputs[names.LOGPROB_IDS].array,
        logprob_ranks=outputs[names.LOGPROB_RANKS].array,
    )


class AcceptInputs:
    """Fills ACCEPT_INPUTS and the confidences; again only where the requests of the step are others."""

    def __init__(self, session: Session, history: TokenHistory, vocab_size: int, block_size: int) -> None:
        make = session.tensor
        self._history = history
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._slots = Buffer(np.int32, make)
        self._prompt_lengths = Buffer(np.int32, make)
        self._num_logprobs = Buffer(np.int32, make)
        self._penalties = Buffer(np.float32, make)
        self._relaxation = Buffer(np.float32, make)
        self._rules = Buffer(np.int32, make)
        self._rule_offsets = Buffer(np.int32, make)
        self._masks = Buffer(np.int32, make)
        self._mask_rows = Buffer(np.int32, make)
        self._no_mask_rows = Buffer(np.int32, make, fill=-1)
        self._no_confidences = Buffer(np.float32, make)
        self._last: tuple[tuple[int, ...], tuple[SlotSampling, ...]] = ((), ())
        self._tensors: dict[str, Tensor] = {}
        self._mask_of: list[int] = []
        self._any_relaxed = False

    def fill(
        self,
        slots: tuple[int, ...],
        sampling: tuple[SlotSampling, ...],
        row_offsets: IntArray,
        num_rows: int,
        confidences: Tensor | None,
    ) -> dict[str, Tensor]:
        """Inputs by name. row_offsets [R+1]: rows of logits of each request, of num_rows in all. confidences [R, K]: of
        the round's proposals, None without any."""
        if (slots, sampling) != self._last:
            self._last = ((), ())
            self._fill_requests(slots, sampling)
            self._last = (slots, sampling)
        tensors = dict(self._tensors)
        if any(mask >= 0 for mask in self._mask_of):
            rows = self._mask_rows.view(num_rows)
            rows.array[:] = -1
            rows.array[: row_offsets[-1]] = np.repeat(self._mask_of, np.diff(row_offsets))
            tensors[names.MASK_ROWS] = rows
        else:
            tensors[names.MASK_ROWS] = self._no_mask_rows.view(num_rows)
        if self._block_size:
            is_read = self._any_relaxed and confidences is not None
            tensors[names.CONFIDENCES] = (
                confidences if is_read and confidences is not None else self._no_confidences.view(0, self._block_size)
            )
        return tensors

    def _fill_requests(self, slots: tuple[int, ...], sampling: tuple[SlotSampling, ...]) -> None:
        count = len(slots)
        rules = [entry.rules for entry in sampling]
        self._any_relaxed = any(entry.accept_mode == _RELAXED for entry in sampling)
        tensors = self._tensors = {
            names.TOKEN_HISTORY: self._history.tensor,
            names.SLOTS: self._slots.view(count),
            names.PROMPT_LENGTHS: self._prompt_lengths.view(count),
            names.NUM_LOGPROBS: self._num_logprobs.view(count),
            names.PENALTIES: self._penalties.view(count, 3),
            names.RELAXATION: self._relaxation.view(count, 2),
            names.RULE_OFFSETS: self._rule_offsets.view(count + 1),
        }
        tensors[names.SLOTS].array[:] = slots
        tensors[names.PROMPT_LENGTHS].array[:] = [entry.prompt_length for entry in sampling]
        tensors[names.NUM_LOGPROBS].array[:] = [entry.num_logprobs for entry in sampling]
        tensors[names.RELAXATION].array[:] = [entry.relaxation for entry in sampling]
        tensors[names.PENALTIES].array[:] = [
            (1.0, 0.0, 0.0) if one is None else (one.repetition, one.presence, one.frequency) for one in rules
        ]
        entries = [entry for one in rules if one is not None for entry in one.entries]
        tensors[names.RULES] = self._rules.view(len(entries), 3)
        if entries:
            tensors[names.RULES].array[:] = entries
        offsets = tensors[names.RULE_OFFSETS].array
        offsets[0] = 0
        np.cumsum([0 if one is None else len(one.entries) for one in rules], out=offsets[1:])
        self._fill_masks(rules)

    def _fill_masks(self, rules: Sequence[SlotRules | None]) -> None:
        allowed = [one.allowed for one in rules if one is not None and one.allowed is not None]
        masks = self._tensors[names.TOKEN_MASKS] = self._masks.view(len(allowed), (self._vocab_size + 31) // 32)
        for row, ids in enumerate(allowed):
            masks.array[row] = mask_words(ids, self._vocab_size)
        number = iter(range(len(allowed)))
        self._mask_of = [next(number) if one is not None and one.allowed is not None else -1 for one in rules]


def mask_words(ids: Sequence[int], vocab_size: int) -> Array:
    """Bit i of word w is token 32 * w + i: [ceil(V / 32)] int32."""
    possible = np.zeros((vocab_size + 31) // 32 * 32, np.bool_)
    possible[list(ids)] = True
    return np.packbits(possible, bitorder="little").view("<i4")
