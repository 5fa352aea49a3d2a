"""Documents stay true: links lead somewhere, commands parse with the parsers that run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.repo.sources import ROOT, tracked

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    return tracked(".md")


def shell_commands(text: str) -> Iterator[list[str]]:
    """Words of every command in the ```bash blocks of a document; comments and continued lines resolved."""
    for language, body in FENCE.findall(text):
        if language == "bash":
            for line in body.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield words


def test_links_between_documents_resolve() -> None:
    broken = []
    for path in documents():
        for link in LINK.findall(path.read_text(encoding="utf-8")):
            if "://" in link or link.startswith(("#", "mailto:")):
                continue
            if not (path.parent / link.split("#")[0]).exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        words[1]
        for path in documents()
        for words in shell_commands(path.read_text(encoding="utf-8"))
        if words[0] == "make" and len(words) > 1
    }
    assert named and named <= targets
