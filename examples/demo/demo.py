"""The whole way on real weights: two checkpoints in, engines out, text back, and what speculation gains.

Runs the commands that a user would type, and shows them. Takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from target import target_path

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = "engines/smollm2"
PROMPT = "Write a Python function that returns the sum of the even numbers in a list."


def run(title: str, *command: str) -> None:
    """One command from the root of the repository; the demo ends with its exit code when it fails."""
    print(f"\n== {title}\n$ {shlex.join(command)}", flush=True)
    # `python` and `dspark` of the environment that runs the demo, whether or not it is activated.
    program = sys.executable if command[0] == "python" else str(Path(sys.executable).with_name(command[0]))
    code = subprocess.run([program, *command[1:]], cwd=ROOT, check=False).returncode
    if code != 0:
        sys.exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=BUNDLE, help=f"bundle to make (default {BUNDLE})")
    parser.add_argument("--rebuild", action="store_true", help="build even if the bundle exists")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    args = parser.parse_args()
    if args.rebuild or not (ROOT / args.output / "manifest.json").is_file():
        run(
            "build both engines",
            *("python", "build_engines.py", "--target", str(target_path()), "--draft", "examples/smollm2-dspark"),
            *("--output", args.output, "--draft-quantize", "int8", "--draft-vocab", "8192"),
        )
    run("what the bundle holds", "dspark", "inspect", args.output)
    run(
        "generate",
        *("dspark", "generate", args.output, "--chat", "--prompt", PROMPT),
        *("--temperature", "0", "--max-tokens", "96", "--stream", "--profile"),
    )
    quick = ("--quick",) if args.quick else ()
    decode = ("python", "benchmarks/decode.py", "--part", "demo", *quick)
    run(
        "plain against speculative, weights as the checkpoint has them (4 and 8 bits)", *decode, "--bundle", args.output
    )
    # With four times the bytes to read a step is bound by memory, as on a GPU: checking proposals is almost free there.
    run("the same with the weights as float32", *decode)


if __name__ == "__main__":
    main()
