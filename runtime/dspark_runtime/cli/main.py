"""Entry point of `dspark`: the parser, exit codes and what a user sees of an error.

Exit codes: 0 done; 1 a comparison that was asked for found differences; 2 what the user can mend, from a wrong option
to a full disk (one line on stderr); 130 interrupted; 141 the reader of stdout went away. A traceback means our bug.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import dspark_runtime
from dspark_runtime.cli import generate, inspect, trace
from dspark_runtime.contract.errors import DsparkError, one_line

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

COMMANDS = (generate, inspect, trace)


class Parser(argparse.ArgumentParser):
    """argparse, but a bad option costs one line on stderr instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"dspark: error: {message} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """As in argparse, which however takes no notice where the text cannot be written."""
        if message:
            (sys.stderr if file is None else file).write(message)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="dspark",
        description="Run engine bundles made by dspark-build: text generation with speculative decoding.",
    )
    parser.add_argument("--version", action="version", version=f"dspark {dspark_runtime.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. argv: without the program's name, None for that of the process."""
    if sys.stderr is None:  # closed by the caller: there is nobody to tell
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115, until the process ends
    if sys.stdout is None:
        return _failed("stdout is closed; give it somewhere to write, /dev/null at least")
    _tolerate_any_text(sys.stdout)
    _tolerate_any_text(sys.stderr)
    try:
        return _run(argv)
    except DsparkError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_output()
        return 141
    except OSError as error:  # what no command foresaw: a full disk behind stdout, a file that went away
        _forget_output()
        what = f"{error.filename}: " if error.filename is not None else ""
        return _failed(f"{what}{error.strerror or error}; check names, permissions and room")


def _run(argv: Sequence[str] | None) -> int:
    """Parse and run, output written through: what fails to be written fails here, not on the way out."""
    try:
        args = build_parser().parse_args(argv)
        code: int = args.run(args)
        return code
    finally:
        sys.stdout.flush()


def _failed(why: str) -> int:
    with contextlib.suppress(OSError):  # a stderr that takes nothing leaves the exit code
        sys.stderr.write(f"dspark: error: {one_line(why)}\n")
        sys.stderr.flush()
    return 2


def _forget_output() -> None:
    """The interpreter flushes stdout once more on its way out; give it somewhere to write."""
    with contextlib.suppress(OSError, ValueError):  # a stdout without a file has nothing to forget
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tolerate_any_text(stream: TextIO) -> None:
    """A model may write characters that the terminal's encoding lacks; that is no reason to stop."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
