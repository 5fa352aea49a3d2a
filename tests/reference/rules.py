"""What rules make of a row of target logits: masks, bans, biases, penalties, in vLLM's order (docs/architecture.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

BIAS, STOP, WORD = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one request, and what was written before its round."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    """Committed tokens after the prompt; the anchor is the last of prompt and output."""
    biases: tuple[tuple[int, float], ...] = ()
    """(id, number added); -inf is a ban."""
    stops: tuple[tuple[int, int], ...] = ()
    """(id, bound): impossible at positions below bound."""
    words: tuple[tuple[int, ...], ...] = ()
    allowed: tuple[frozenset[int] | None, ...] = ()
    """Per row of the round: ids of its token mask, None without one. Rows past the end have none."""

    def records(self) -> list[tuple[int, int, int]]:
        """The rows of `rules`."""
        found = [(BIAS, token, struct.unpack("<i", struct.pack("<f", value))[0]) for token, value in self.biases]
        found += [(STOP, token, bound) for token, bound in self.stops]
        for word in self.words:
            found += [(WORD, token, len(word) - 1 - i) for i, token in enumerate(word)]
        return found


def processed(logits: ArrayLike, rules: Rules, proposals: Sequence[int], k: int) -> NDArray[np.float32]:
    """Row k [V] of the round: proposals 1 .. k stand before it. float32, each step in float64 rounded once."""
    row = np.array(logits, dtype=np.float32)
    output = [*rules.output, *proposals[:k]]
    position = len(rules.prompt) + len(output)
    allowed = rules.allowed[k] if k < len(rules.allowed) else None
    if allowed is not None:
        row[[i for i in range(len(row)) if i not in allowed]] = -np.inf
    for word in rules.words:
        before = list(word[:-1])
        if len(before) <= len(output) and output[len(output) - len(before) :] == before:
            row[word[-1]] = -np.inf
    for token, bound in rules.stops:
        if position < bound:
            row[token] = -np.inf
    with np.errstate(over="ignore"):
        for token, value in rules.biases:
            row[token] += np.float32(value)
        if (rules.repetition, rules.presence, rules.frequency) == (1.0, 0.0, 0.0):
            return row
        repetition, presence, frequency = (
            float(np.float32(x)) for x in (rules.repetition, rules.presence, rules.frequency)
        )
        for token in {*rules.prompt, *output}:
            value = float(row[token])
            count = output.count(token)
            value = value / repetition if value > 0 else value * repetition
            value = value - frequency * count - (presence if count else 0.0)
            row[token] = np.float32(value)
    return row
