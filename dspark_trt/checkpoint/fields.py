"""Typed reading of JSON objects (and GGUF metadata) that somebody else wrote."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dspark_runtime.contract.errors import CheckpointError

MAX_JSON_BYTES = 256 << 20
"""Larger than any tokenizer.json or shard index we know (30 MB)."""


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """A whole small file. Raises CheckpointError when it is missing, unreadable or larger than `limit` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise CheckpointError(f"{path}: holds {size} bytes, wanted at most {limit}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`. Raises CheckpointError naming `where` for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: found a JSON {type(value).__name__}, wanted an object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    return parse_object(read_bytes(path), str(path))


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
        found = "nothing" if not self.has(key) else repr(self.values[key])[:80]
        return CheckpointError(f"{self.where}: {key} is {found}, wanted {wanted}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        # JSON true is a Python int.
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

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
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
            raise self.wrong(key, "a list of integers")
        return tuple(value)

    def section(self, key: str) -> Fields | None:
        """A nested object, or None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(f"{self.where}: {key}", cast(dict[str, Any], value))
