"""A tiny bundle built once, copies of it to damage, and `dspark` as a function."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dspark_runtime.cli.main import main
from dspark_trt.build import build
from dspark_trt.config import BuildConfig

MAX_SEQ_LEN = 96


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `code` is the exit code of the process it would have been."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that a failed command prints; fails the test where it is not exactly one."""
        assert self.code == 2 and self.out == "", (self.code, self.out)
        assert self.err.startswith("dspark: error: ") and self.err.count("\n") == 1 and self.err.endswith("\n"), (
            self.err
        )
        return self.err.removeprefix("dspark: error: ").rstrip("\n")


@pytest.fixture
def dspark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs the command in this process; input is what stdin holds."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def dspark_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in a process of its own, with everything that an interpreter prints."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dspark_runtime.cli.main", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path, tiny_draft: Path) -> Path:
    """Target and draft with random weights, two slots, MAX_SEQ_LEN tokens. Read only."""
    output = tmp_path_factory.mktemp("cli") / "bundle"
    return build(
        BuildConfig(target=tiny_target, draft=tiny_draft, output=output, max_batch_size=2, max_seq_len=MAX_SEQ_LEN)
    )


@pytest.fixture
def damaged(tiny_bundle: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the bundle; keyword arguments replace keys of its manifest."""

    def copy(**changes: Any) -> Path:
        folder = tmp_path / "damaged"
        shutil.copytree(tiny_bundle, folder)
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return folder

    return copy
