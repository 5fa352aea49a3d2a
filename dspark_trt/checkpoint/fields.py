"""Typed reading of JSON objects (and GGUF metadata) that somebody else wrote."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dspark_runtime.contract.errors import CheckpointError, shown

MAX_JSON_BYTES = 256 << 20
"""Larger than any tokenizer.json or shard index we know (30 MB)."""
MAX_INTEGER = 2**63
"""Integers of a checkpoint lie below it, their negatives too: what counts anything is far smaller."""


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """A whole small file. Raises CheckpointError when it is missing, unreadable or larger than `limit` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise CheckpointError(f"{path}: holds {size} bytes, wanted at most {limit}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


def parse_object(data: bytes, where: str, unique: bool = False) -> dict[str, Any]:
    """The JSON object in `data`. Raises CheckpointError naming `where` for anything else.

    unique: refuse an object that holds a key twice, of which readers take either; else the last one counts.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CheckpointError(f"{where}: holds the key {shown(twice)} twice")
        return found

    try:
        value = json.loads(data, object_pairs_hook=once if unique else None)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not valid JSON ({error})") from None
    except ValueError:  # of int(): Python reads no more than 4300 digits
        raise CheckpointError(f"{where}: holds a number of thousands of digits") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: found a JSON {type(value).__name__}, wanted an object")
    return value


def read_object(path: Path, unique: bool = False) -> dict[str, Any]:
    """The JSON object in a file, as `parse_object` reads it."""
    return parse_object(read_bytes(path), str(path), unique)


def is_integer(value: object) -> bool:
    """Whether a JSON value is an integer that counts can have; JSON's true is a Python int."""
    return isinstance(value, int) and not isinstance(value, bool) and -MAX_INTEGER < value < MAX_INTEGER


def is_text(value: object) -> bool:
    r"""Whether a JSON value is a text that UTF-8 can write; JSON's "\ud800" is none."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


@dataclass(frozen=True, slots=True)
class Fields:
    """Values by key, each read with its type; a key that is null counts as absent.

    Every reader takes a default; without one an absent key is an error.
    """

    where: str
    values: dict[str, Any]

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def wrong(self, key: str, wanted: str) -> CheckpointError:
        found = "nothing" if not self.has(key) else shown(self.values[key])
        return CheckpointError(f"{self.where}: {key} is {found}, wanted {wanted}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not is_integer(value):
            raise self.wrong(key, "an integer below 2**63")
        return cast(int, value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a finite number")
        try:
            number = float(value)
        except OverflowError:  # an integer beyond float64
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(key, "a finite number")
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not is_text(value):
            raise self.wrong(key, "a string")
        return cast(str, value)

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(map(is_integer, value)):
            raise self.wrong(key, "a list of integers below 2**63")
        return tuple(value)

    def section(self, key: str) -> Fields | None:
        """A nested object, or None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(f"{self.where}: {key}", cast(dict[str, Any], value))
