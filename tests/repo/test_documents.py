"""Documents stay true: links lead somewhere, commands parse with the parsers that run them."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_runtime.cli.main import build_parser as runtime_parser
from dspark_trt.cli import parser as builder_parser
from tests.repo.sources import ROOT, load_script, tracked

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


# option or command of a document -> why no parser of ours knows it
FOREIGN_OPTIONS = {
    "--editable": "pip",
    "--gpus": "docker",
    "--no-deps": "pip",
    "--strict": "mypy",
}


def our_parser(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]] | None:
    """The parser that runs a command, and the words for it; None for somebody else's program."""
    if words[0] == "dspark":
        return runtime_parser(), words[1:]
    if words[0] == "dspark-build":
        return builder_parser(), words[1:]
    if words[0] == "python" and len(words) > 1 and words[1] in ("build_engines.py", *BENCHMARKS):
        return (builder_parser() if words[1] == "build_engines.py" else benchmark_parser(words[1])), words[2:]
    return None


BENCHMARKS = ("benchmarks/decode.py", "benchmarks/serving.py")


def benchmark_parser(script: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = load_script(ROOT / script).build_parser()
    return parser


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every option string, sub-commands included."""
    found = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(options_of(inner) for inner in action.choices.values()))
    return found


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_document_parse_with_their_parsers(path: Path) -> None:
    for words in shell_commands(path.read_text(encoding="utf-8")):
        ours = our_parser(words)
        if ours is not None:
            parser, arguments = ours
            try:
                parser.parse_args(arguments)
            except SystemExit:
                pytest.fail(f"{path.name}: this is no valid command: {shlex.join(words)}")


def test_options_that_documents_name_exist() -> None:
    known = {*FOREIGN_OPTIONS}.union(
        *map(options_of, (runtime_parser(), builder_parser(), *map(benchmark_parser, BENCHMARKS)))
    )
    unknown = {
        f"{path.relative_to(ROOT)}: {option}"
        for path in documents()
        for code in re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8"))
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code)
        if option not in known
    }
    assert unknown == set()


def test_options_of_the_command_line_are_in_the_readme() -> None:
    words = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", (ROOT / "README.md").read_text(encoding="utf-8")))
    explain_themselves = {"-h", "--help", "--version"}
    assert (options_of(runtime_parser()) | options_of(builder_parser())) - words - explain_themselves == set()


@pytest.mark.slow
def test_readme_blocks_marked_to_run_do(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^<!-- run -->\n```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["bash", "bash", "python"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for language, body in blocks:
        body = body.replace("engines/smollm2", str(tmp_path / "smollm2"))
        program = ["bash", "-euo", "pipefail", "-c", body] if language == "bash" else [sys.executable, "-c", body]
        ended = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, f"{body}\n{ended.stdout}\n{ended.stderr}"
        assert ended.stdout.strip()
