"""What callers may give as prompts and parameters, checked and put in order before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from dspark_runtime.checks import as_integer
from dspark_runtime.contract.errors import ConfigError, shown
from dspark_runtime.params import SamplingParams
from dspark_runtime.tokenizer import Message

Prompt = str | Sequence[int]
MAX_SALT_LENGTH = 1024


class RenderedPrompt(str):
    """A prompt made by a chat template: its special tokens are in the text, so none are added to it."""

    __slots__ = ()


def as_list(prompts: Any) -> list[Prompt]:
    """Prompts as a list, one alone included. Raises ConfigError for what is neither text nor token ids."""
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts) if isinstance(prompts, Iterator) else _entries(prompts)
    if any(as_integer(entry) is not None for entry in listed):
        return [token_ids(listed)]
    return [entry if isinstance(entry, str) else token_ids(entry) for entry in listed]


def token_ids(prompt: object) -> list[int]:
    """A prompt of token ids as Python integers. Raises ConfigError for anything else."""
    ids = [as_integer(entry) for entry in _entries(prompt)]
    if None in ids:
        raise _wrong_prompt(prompt)
    return ids  # type: ignore[return-value]


def params_of(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int, default: SamplingParams
) -> list[SamplingParams]:
    """One for each prompt. Raises ConfigError unless `params` is one for all, one for each, or None."""
    if params is None:
        return [default] * num_prompts
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(entry, SamplingParams) for entry in params):
        raise ConfigError(f"params is {shown(params)}, wanted SamplingParams or a list of them")
    _check_number("params", len(params), num_prompts)
    return list(params)


def priorities_of(priority: int | Sequence[int], num_prompts: int) -> list[int]:
    """One for each prompt. Raises ConfigError for what is no integer."""
    is_list = isinstance(priority, Sequence) and not isinstance(priority, str)
    given: Any = priority if is_list else [priority] * num_prompts
    _check_number("priority", len(given), num_prompts)
    numbers = [as_integer(entry) for entry in given]
    if None in numbers:
        raise ConfigError(f"priority is {shown(priority)}, needs an integer; a smaller one is served first")
    return numbers  # type: ignore[return-value]


def check_salt(salt: object) -> str | None:
    """`salt` as it is: None, or text that keeps prefixes apart. Raises ConfigError otherwise."""
    if salt is not None and not (isinstance(salt, str) and 0 < len(salt) <= MAX_SALT_LENGTH):
        raise ConfigError(f"cache_salt is {shown(salt)}, needs text of 1 to {MAX_SALT_LENGTH} characters, or None")
    return salt


def is_conversation(messages: object) -> TypeGuard[Sequence[Message]]:
    """Whether `messages` is one conversation rather than several."""
    return isinstance(messages, Sequence) and (not messages or isinstance(messages[0], Mapping))


def _check_number(name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ConfigError(f"{name} has {found} entries for {wanted} prompts, wanted one for each or one for all")


def _entries(prompt: Any) -> list[Any]:
    """Of a list, a tuple or an array in one of these places; bytes and mappings are none, whatever they hold."""
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray | memoryview)
    if not is_list and not (isinstance(prompt, np.ndarray) and prompt.ndim > 0):
        raise _wrong_prompt(prompt)
    return list(prompt)


def _wrong_prompt(prompt: object) -> ConfigError:
    return ConfigError(f"prompt is {type(prompt).__name__} {shown(prompt)}, wanted text or a list of token ids")
