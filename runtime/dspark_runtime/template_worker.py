"""Renders a chat template, which is a program from somebody else's checkpoint, apart from the process that needs it.

Run as a script it answers one JSON line per JSON line, under limits of memory and processor time that the operating
system holds. Imports nothing of this package, so that it starts fast and small. The same functions render in the
caller's process where the system has no such limits.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import resource
except ImportError:  # not a POSIX system
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

MAX_RENDERED_CHARS = 1 << 24
MAX_EXTRA_BYTES = 1 << 30
"""Address space of a rendering process beyond what the interpreter needs."""
MAX_CPU_SECONDS = 10
"""Of one rendering. The caller's clock ends it sooner; this holds where the caller is gone or stopped."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant said; it changes no text."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, plus what it lacks: a deadline in loops and calls, and a limit on the size of values."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.seconds = self.deadline = float("inf")
        self.filters["tojson"] = _to_json
        self.filters["dspark_watched"] = self.watched
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def start_clock(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.monotonic() + seconds

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise jinja2.TemplateError(f"took more than {self.seconds:g} s")

    def watched(self, items: Iterable[Any]) -> Iterable[Any]:
        self.check_time()
        return _Watched(self, items) if isinstance(items, list | tuple | range) else self._each(items)

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.check_time()
            yield item

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, "dspark_watched", [], [], None, None, lineno=loop.lineno)
        return tree

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self.check_time()
        return super().call(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        size = sum(len(value) for value in (left, right) if isinstance(value, str | list | tuple))
        if operator == "*":
            size *= max((value for value in (left, right) if isinstance(value, int)), default=1)
        too_large = operator == "**" and (abs(left) > 1e6 or abs(right) > 64)
        if operator == "%" and isinstance(left, str):
            raise jinja2.TemplateError("formats text with %, which is not allowed")
        if size > MAX_RENDERED_CHARS or too_large:
            raise jinja2.TemplateError(f"makes a value of more than {MAX_RENDERED_CHARS} characters")
        return super().call_binop(context, operator, left, right)


class _Watched(Sequence[Any]):
    """A list whose iteration looks at the clock; still a sequence, so that `loop.length` and slices work."""

    def __init__(self, sandbox: Sandbox, items: Sequence[Any]) -> None:
        self._sandbox = sandbox
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._sandbox.check_time()
            yield item


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def answer(request: dict[str, Any], compiled: dict[str, jinja2.Template]) -> dict[str, str]:
    """One rendering: `template`, `variables` and `seconds` in; `text` out, or one of the faults.

    Faults are sentences: `uncompiled` where the template is no program, `failed` where it fails on the variables.
    compiled: the last template, kept from call to call.
    """
    source = request["template"]
    if source not in compiled:
        compiled.clear()
        try:
            compiled[source] = Sandbox().from_string(source)
        except Exception as error:  # a hostile program can make a compiler raise anything
            return {"uncompiled": _sentence(error)}
    try:
        return {"text": _render(compiled[source], request["variables"], request["seconds"])}
    except jinja2.TemplateError as error:
        return {"failed": f"refused the messages: {_sentence(error)}"}
    except Exception as error:  # and here: it calls methods of text, lists and numbers with any argument
        return {"failed": f"failed on the messages: {type(error).__name__}: {_sentence(error)}"}


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "needs too much memory"
    return " ".join(str(error).split())[:1000]


def _render(template: jinja2.Template, variables: dict[str, Any], seconds: float) -> str:
    sandbox = template.environment
    assert isinstance(sandbox, Sandbox)
    sandbox.start_clock(seconds)
    pieces, length = [], 0
    for piece in template.generate(variables):
        sandbox.check_time()
        pieces.append(piece)
        length += len(piece)
        if length > MAX_RENDERED_CHARS:
            raise jinja2.TemplateError(f"writes more than {MAX_RENDERED_CHARS} characters")
    return "".join(pieces)


def _limit(kind: int, wanted: int) -> None:
    hard = resource.getrlimit(kind)[1]
    with contextlib.suppress(ValueError):  # macOS refuses some limits; the others and the caller's clock still hold
        resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _used_bytes() -> int:
    """Address space of this process; a guess where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return MAX_EXTRA_BYTES


def main() -> None:
    """Answers until stdin ends, which it does at the latest with the process that started this one."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _used_bytes() + MAX_EXTRA_BYTES)
    compiled: dict[str, jinja2.Template] = {}
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + MAX_CPU_SECONDS)
        reply = answer(json.loads(line), compiled)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
