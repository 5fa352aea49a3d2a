"""The command as a process: usage errors, versions, and no traceback for a mistake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_runtime import __version__
from dspark_runtime.cli.main import build_parser, main


def test_version_is_that_of_the_package(dspark: Callable) -> None:
    ended = dspark("--version")
    assert ended.code == 0 and ended.out == f"dspark {__version__}\n"


def test_commands_that_exist_are_the_only_ones_offered() -> None:
    (commands,) = (action for action in build_parser()._actions if action.dest == "command")
    assert commands.choices is not None and set(commands.choices) == {"generate", "inspect", "trace"}


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_help_shows_examples(dspark: Callable, command: str) -> None:
    ended = dspark(command, "--help")
    assert ended.code == 0 and f"dspark {command} engines/smollm2" in ended.out


def test_no_command_is_one_line(dspark: Callable) -> None:
    assert "COMMAND" in dspark().error


def test_unknown_command_is_one_line(dspark: Callable) -> None:
    assert "serve" in dspark("serve", "bundle").error


def test_unknown_option_is_one_line(dspark: Callable) -> None:
    assert "--fast" in dspark("inspect", "bundle", "--fast").error


def test_mistake_in_a_process_exits_2_without_traceback(dspark_process: Callable, tmp_path: Path) -> None:
    ended = dspark_process("generate", tmp_path / "absent", "--prompt", "x")
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("dspark: error: ") and ended.stderr.count("\n") == 1


def test_reader_that_goes_away_is_no_traceback(tiny_bundle: Path) -> None:
    command = [sys.executable, "-m", "dspark_runtime.cli.main", "inspect", str(tiny_bundle), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def in_shell(arguments: str, redirection: str) -> subprocess.CompletedProcess[str]:
    line = f'"$0" -m dspark_runtime.cli.main {arguments} {redirection}'
    return subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("arguments", ["inspect '{}' --json", "inspect '{}'", "--version"])
def test_stdout_that_is_full_is_one_line(tiny_bundle: Path, arguments: str) -> None:
    ended = in_shell(arguments.format(tiny_bundle), "> /dev/full")
    assert ended.returncode == 2
    assert ended.stderr.startswith("dspark: error: No space left on device") and ended.stderr.count("\n") == 1


def test_stdout_that_is_closed_is_one_line(tiny_bundle: Path) -> None:
    ended = in_shell(f"inspect '{tiny_bundle}'", ">&-")
    assert ended.returncode == 2
    assert ended.stderr.startswith("dspark: error: stdout is closed") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("inspect",), ("generate", "--prompt", "x")])
def test_bundle_name_that_is_too_long_is_one_line(dspark: Callable, command: tuple[str, ...]) -> None:
    error = dspark(*command, "x" * 5000).error
    assert "File name too long" in error or "no such folder" in error  # Python 3.14 takes it for absent


def test_error_of_the_system_that_no_command_foresaw_is_one_line(
    dspark: Callable, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error", "weights.bin")

    monkeypatch.setattr("dspark_runtime.cli.inspect.open_bundle", fail)
    assert dspark("inspect", tiny_bundle).error.startswith("weights.bin: Input/output error")


def test_interrupt_is_quiet_and_exits_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path
) -> None:
    class Interrupted:
        class buffer:  # noqa: N801, the name of the attribute
            @staticmethod
            def read(size: int) -> bytes:
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted)
    assert main(["generate", str(tiny_bundle), "--prompt-file", "-"]) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
