"""Sampling parameters that change the target's logits, as the records that DSparkAccept reads: once per request.

Semantics are vLLM's. The order in which they act is the operator's (docs/lossless.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence

from dspark_runtime.contract.errors import ConfigError, shown
from dspark_runtime.contract.names import RULE_KINDS
from dspark_runtime.params import SamplingParams
from dspark_runtime.plan import SlotRules

MAX_RULES = 8192
"""Records of one request: all of them are looked at for each of its rows of logits."""

_BIAS, _STOP, _WORD = RULE_KINDS["bias"], RULE_KINDS["stop"], RULE_KINDS["word"]

Words = tuple[tuple[int, ...], ...]
"""Token sequences that must not appear."""


def split_words(words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> Words:
    """Bad words as tokens: at the beginning of a text and, where a leading space makes other tokens, inside one.

    encode: text to token ids, without special tokens. Raises ConfigError for a word that is no token at all. This is
    vLLM's rule: the form with a space counts only where it has as many tokens and begins with another one.
    """
    found: list[tuple[int, ...]] = []
    for word in words:
        bare, spaced = (tuple(encode(prefix + word.lstrip())) for prefix in ("", " "))
        if not bare:
            raise ConfigError(f"bad_words has {shown(word)}, which is no token in this vocabulary")
        found.append(bare)
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            found.append(spaced)
    return tuple(dict.fromkeys(found))


def make_rules(
    params: SamplingParams, words: Words, prompt_length: int, eos: Collection[int], vocab_size: int
) -> SlotRules | None:
    """The rules of a request; None where its logits are taken as they are.

    words: `params.bad_words` as tokens. eos: the model's end-of-sequence tokens, which min_tokens bans even where
    they are ignored. Raises ConfigError for ids that the vocabulary lacks, and where nothing is left to choose from.
    """
    _check_ids(params, words, vocab_size)
    entries = tuple(_entries(params, words, prompt_length, [token for token in eos if token < vocab_size]))
    if len(entries) > MAX_RULES:
        raise ConfigError(f"bad_words, logit_bias and the like make {len(entries)} rules, needs at most {MAX_RULES}")
    banned = {*(params.bad_token_ids or ()), *(word[0] for word in words if len(word) == 1)}
    possible = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    if len(banned) >= len(possible) and banned.issuperset(possible):
        raise ConfigError("allowed_token_ids, bad_words and bad_token_ids together leave no token to choose")
    penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    if not entries and params.allowed_token_ids is None and penalties == (1.0, 0.0, 0.0):
        return None
    repetition, presence, frequency = penalties
    return SlotRules(
        repetition=repetition,
        presence=presence,
        frequency=frequency,
        entries=entries,
        allowed=None if params.allowed_token_ids is None else tuple(sorted(params.allowed_token_ids)),
    )


def _entries(
    params: SamplingParams, words: Words, prompt_length: int, eos: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    for token in params.bad_token_ids or ():
        yield _BIAS, token, _bits(float("-inf"))
    for token, bias in (params.logit_bias or {}).items():
        yield _BIAS, token, _bits(bias)
    if params.min_tokens:
        for token in dict.fromkeys((*eos, *(params.stop_token_ids or ()))):
            yield _STOP, token, prompt_length + params.min_tokens
    for word in words:
        for place, token in enumerate(word):
            yield _WORD, token, len(word) - 1 - place


def _check_ids(params: SamplingParams, words: Words, vocab_size: int) -> None:
    given = {
        "logit_bias": params.logit_bias or {},
        "bad_words": [token for word in words for token in word],
        "bad_token_ids": params.bad_token_ids or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "stop_token_ids": params.stop_token_ids or (),
    }
    problems = [
        f"{name} has token id {shown(max(ids))}" for name, ids in given.items() if ids and max(ids) >= vocab_size
    ]
    if problems:
        raise ConfigError(f"{'; '.join(problems)}: this vocabulary has ids [0, {vocab_size})")


def _bits(value: float) -> int:
    """A float32's bits as a signed 32-bit integer."""
    (bits,) = struct.unpack("<i", struct.pack("<f", value))
    return int(bits)
