"""The process that holds the library: what it says, and how it may die."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dspark_runtime.contract.errors import BuildError
from dspark_trt.backends.tensorrt_process import run_job


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `fake_tensorrt` that the worker can import; the test writes it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path / "fake_tensorrt.py"


def describe(seen: list[tuple[str, float]] | None = None) -> dict[str, object]:
    progress = [] if seen is None else seen
    answer: dict[str, object] = run_job(
        {"task": "describe", "module": "fake_tensorrt"}, lambda phase, share: progress.append((phase, share))
    )
    return answer


HEAD = "import enum\n__version__ = '9.9.9'\nComputeCapability = enum.Enum('C', ['NONE', 'SM89', 'SM120'])\n"


def test_worker_describes_the_library(fake: Path) -> None:
    fake.write_text(HEAD)
    assert describe() == {"version": "9.9.9", "compute_capabilities": ["8.9", "12.0"]}


def test_lines_of_the_library_on_stdout_mean_nothing(fake: Path) -> None:
    fake.write_text(HEAD + "print('{\"result\"'); print('[1]'); print('\"progress\"'); print('x' * 100000)\n")
    assert describe()["version"] == "9.9.9"


def test_progress_is_passed_on(fake: Path) -> None:
    fake.write_text(HEAD + 'print(\'{"progress": ["tactics", 0.5]}\')\n')
    seen: list[tuple[str, float]] = []
    describe(seen)
    assert seen == [("tactics", 0.5)]


def test_crash_is_one_sentence_that_names_the_signal(fake: Path) -> None:
    fake.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    with pytest.raises(BuildError, match=r"^the process that runs fake_tensorrt failed: killed by SIGSEGV$"):
        describe()


def test_kill_suggests_that_memory_ran_out(fake: Path) -> None:
    fake.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(BuildError, match=r"killed by SIGKILL \(out of memory\?\)$"):
        describe()


def test_module_that_cannot_be_loaded_says_why(fake: Path) -> None:
    fake.write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    with pytest.raises(BuildError, match=r"failed: ImportError: libcudart\.so\.13: cannot open shared object file$"):
        describe()


def test_worker_that_ends_without_an_answer_is_an_error(fake: Path) -> None:
    fake.write_text("import os\nos._exit(0)\n")
    with pytest.raises(BuildError, match=r"failed: exit status 0$"):
        describe()


def test_interrupt_ends_the_worker(fake: Path, tmp_path: Path) -> None:
    """What the parent raises while it listens must not leave the worker behind."""
    note = tmp_path / "pid"
    fake.write_text(
        HEAD + f"import os, time, pathlib\npathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n"
        'print(\'{"progress": ["slow", 0.1]}\', flush=True)\ntime.sleep(60)\n'
    )

    def interrupt(phase: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job({"task": "describe", "module": "fake_tensorrt"}, interrupt)
    assert not Path(f"/proc/{note.read_text()}").exists()
