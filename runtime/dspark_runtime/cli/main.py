"""Entry point of `dspark`: the parser, exit codes and what a user sees of an error.

Exit codes: 0 done; 2 a mistake that the user can mend (one line on stderr); 130 interrupted; 141 the reader of
stdout went away. A traceback means our bug.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

import dspark_runtime
from dspark_runtime.cli import generate, inspect
from dspark_runtime.contract.errors import DsparkError

COMMANDS = (generate, inspect)


class Parser(argparse.ArgumentParser):
    """argparse, but a bad option costs one line on stderr instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"dspark: error: {message} (see {self.prog} --help)\n")


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
    _tolerate_any_text(sys.stdout)
    _tolerate_any_text(sys.stderr)
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except DsparkError as error:
        sys.stderr.write(f"dspark: error: {' '.join(str(error).split())}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out; give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _tolerate_any_text(stream: TextIO) -> None:
    """A model may write characters that the terminal's encoding lacks; that is no reason to stop."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
