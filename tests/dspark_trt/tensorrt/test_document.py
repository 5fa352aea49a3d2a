"""docs/tensorrt.md explains every message that a build or a bundle of engines can end with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.repo.sources import ROOT

BUILDER = sorted((ROOT / "dspark_trt" / "backends").glob("tensorrt*.py"))
RUNTIME = ROOT / "runtime" / "dspark_runtime"
MACHINE = RUNTIME / "sessions" / "machine.py"
OTHERS = (
    ROOT / "dspark_trt" / "config.py",
    ROOT / "dspark_trt" / "graph" / "builder.py",
    RUNTIME / "bundle.py",
    RUNTIME / "contract" / "manifest.py",
)
HEADING = "## Errors and remedies"
BLANK = "…"


def template(message: ast.expr | None) -> str:
    """A text of the source with BLANK for everything that is put into it; empty for what is no text."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return message.value
    if isinstance(message, ast.JoinedStr):
        parts = [value.value if isinstance(value, ast.Constant) else BLANK for value in message.values]
        return "".join(map(str, parts))
    return ""


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def messages(path: Path) -> Iterator[str]:
    """Texts that are raised as an error, or returned as a reason."""
    for node in nodes(path):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield template(node.exc.args[0])
        elif path == MACHINE and isinstance(node, ast.Return):
            yield template(node.value)


def explained() -> list[str]:
    """What the first column of the table quotes, BLANK where a value stands."""
    text = (ROOT / "docs" / "tensorrt.md").read_text(encoding="utf-8")
    rows = [line for line in text[text.index(HEADING) :].splitlines() if line.startswith("| ")]
    return [row.split("|")[1].strip() for row in rows[1:]]


def test_every_message_has_a_remedy() -> None:
    # Without letters of its own, a text only passes on one that was made elsewhere.
    found = [text for path in (*BUILDER, MACHINE) for text in messages(path) if sum(map(str.isalpha, text)) > 4]
    assert len(found) > 18
    assert [text for text in found if not any(words in text for words in explained())] == []


def test_every_row_explains_a_message_that_exists() -> None:
    texts = [
        template(node) for path in (*BUILDER, MACHINE, *OTHERS) for node in nodes(path) if isinstance(node, ast.expr)
    ]
    assert len(set(explained())) == len(explained())
    assert [words for words in explained() if not any(words in text for text in texts)] == []
