"""Which GPUs an engine is built for ahead of time. Numbers only, no engine."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_runtime.contract.errors import BuildError

FIRST_WITH = {"bfloat16": (8, 0), "float16": (0, 0)}
"""Compute capability that brought the arithmetic of a type."""


def choose_targets(wanted: Sequence[str], known: Sequence[str], dtype: str) -> tuple[str, ...]:
    """`wanted`, or all of `known` that have the arithmetic of `dtype`; compute capabilities such as `8.6`.

    known: what the installed library builds for. Raises BuildError for one that cannot be built.
    """
    usable = [text for text in known if _number(text) >= FIRST_WITH[dtype]]
    for text in wanted:
        if text not in known:
            raise BuildError(f"compute capability {text} is none that the library builds for: {', '.join(known)}")
        if text not in usable:
            todo = f"build with --dtype float16, or for {', '.join(usable)}"
            raise BuildError(f"compute capability {text} has no {dtype}; {todo}")
    return tuple(wanted or usable)


def _number(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)
