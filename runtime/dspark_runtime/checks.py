"""Checks of single values that callers give: what is wrong with one, in words. Knows no parameter by name.

The `*_problem` functions take an object and the name of its field, put the plain Python value in the field's place
and return what is wrong with it, so that a frozen dataclass can report all problems in one message.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Real

from dspark_runtime.contract.errors import shown


def as_integer(value: object) -> int | None:
    """`value` as a Python integer where it is one, NumPy's included; None for everything else, bool included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def as_number(value: object) -> float | None:
    """`value` as a Python float where it is a real number; None for everything else, bool included."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def integer_problem(
    params: object, name: str, low: int, high: int | None, wanted: str, optional: bool = False
) -> list[str]:
    """What is wrong with a field that must be an integer in [low, high); the field becomes a Python int."""
    value = getattr(params, name)
    if value is None and optional:
        return []
    number = as_integer(value)
    if number is None:
        return [f"{name} is {shown(value)}, needs an integer {wanted}"]
    if number < low or (high is not None and number >= high):
        return [f"{name} is {shown(number)}, needs {wanted}"]
    object.__setattr__(params, name, number)
    return []


def float_problem(params: object, name: str, low: float, high: float, wanted: str) -> list[str]:
    """What is wrong with a field that must be a number in [low, high]; the field becomes a Python float."""
    number = as_number(getattr(params, name))
    if number is None:
        return [f"{name} is {shown(getattr(params, name))}, needs a number {wanted}"]
    if not low <= number <= high:
        return [f"{name} is {shown(number)}, needs {wanted}"]
    object.__setattr__(params, name, number)
    return []


def bool_problems(params: object, *fields: str) -> list[str]:
    return [
        f"{name} is {shown(getattr(params, name))}, needs True or False"
        for name in fields
        if not isinstance(getattr(params, name), bool)
    ]


def token_ids_problem(params: object, name: str, most: int) -> list[str]:
    """What is wrong with a field that must list at most `most` token ids; the field becomes a tuple, () for None.
    Ids that the vocabulary lacks are found at admission."""
    value = getattr(params, name)
    given = () if value is None else value
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        return [f"{name} is {shown(value)}, needs a list of token ids >= 0"]
    entries = tuple(given)
    ids = tuple(as_integer(entry) for entry in entries)
    if any(token is None or token < 0 for token in ids):
        return [f"{name} is {shown(entries)}, needs token ids >= 0"]
    if len(ids) > most:
        return [f"{name} has {len(ids)} entries, needs at most {most}"]
    object.__setattr__(params, name, tuple(dict.fromkeys(ids)))
    return []


def strings_problem(params: object, name: str, most: int, longest: int) -> list[str]:
    """What is wrong with a field that must be a string or list of strings; the field becomes a tuple, () for None."""
    value = getattr(params, name)
    given = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(given, list | tuple):
        return [f"{name} is {shown(value)}, needs a string or a list of strings"]
    if len(given) > most:
        return [f"{name} has {len(given)} strings, needs at most {most}"]
    if any(not isinstance(text, str) or not 0 < len(text) <= longest for text in given):
        return [f"{name} needs strings of 1 to {longest} characters"]
    object.__setattr__(params, name, tuple(dict.fromkeys(given)))
    return []
