"""`dspark trace`: the engine's steps on file: record them, look at them, run them again and compare."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dspark_runtime.bundle import open_bundle
from dspark_runtime.cli import generate
from dspark_runtime.executor import open_executor
from dspark_runtime.trace import Trace, describe, replay

MAX_SHOWN = 10
"""Steps that came out otherwise, of which the differences are printed."""

EXAMPLES = """\
examples:
  dspark trace record steps.jsonl engines/smollm2 --prompt "One, two," --temperature 0
  dspark trace print steps.jsonl
  dspark trace replay steps.jsonl engines/smollm2
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "trace",
        help="record, print and replay the engine's steps",
        description="The engine's steps on file, one JSON object a line: what was planned, what came of it, how long "
        "it took.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    record = actions.add_parser("record", help="generate text as `dspark generate` does, and write down every step")
    record.add_argument("trace", type=Path, metavar="FILE", help="made anew")
    generate.add_arguments(record)
    record.set_defaults(run=generate.run)
    shown = actions.add_parser("print", help="one line a step")
    shown.add_argument("trace", type=Path, metavar="FILE")
    shown.add_argument("--json", action="store_true", help="one JSON object with counts and seconds")
    shown.set_defaults(run=run_print)
    again = actions.add_parser("replay", help="run the steps again; exit code 1 where a result differs")
    again.add_argument("trace", type=Path, metavar="FILE")
    again.add_argument("bundle", type=Path, metavar="BUNDLE", help="the one that the trace came from")
    again.add_argument("--threads", type=int, metavar="N", help="of the engines; default: one per core")
    again.add_argument("--json", action="store_true", help="one JSON object with counts and seconds")
    again.set_defaults(run=run_replay)


def run_print(args: argparse.Namespace) -> int:
    """Raises ConfigError where the file is no trace."""
    trace = Trace(args.trace)
    counts = {"prefill": 0, "round": 0}
    seconds = dict.fromkeys(counts, 0.0)
    tokens = failed = 0
    for step in trace.steps():
        kind = "round" if hasattr(step.plan, "anchors") else "prefill"
        counts[kind] += 1
        seconds[kind] += step.seconds
        failed += step.result is None
        if step.result is not None and (kind == "round" or getattr(step.plan, "draws", False)):
            tokens += sum(map(len, step.result.tokens))
        if not args.json:
            sys.stdout.write(describe(step) + "\n")
    summary = {**trace.header, "steps": counts, "seconds": seconds, "tokens": tokens, "failed": failed}
    if args.json:
        json.dump(summary, sys.stdout)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(
            f"{counts['prefill']} prefill steps in {seconds['prefill']:.3f} s, {counts['round']} rounds in "
            f"{seconds['round']:.3f} s, {tokens} tokens, {failed} failed\n"
        )
    return 0


def run_replay(args: argparse.Namespace) -> int:
    """Raises ConfigError for a trace of another bundle."""
    trace = Trace(args.trace)
    bundle = open_bundle(args.bundle)
    executor, _ = open_executor(bundle, args.threads)
    steps = unequal = 0
    recorded = replayed = 0.0
    for found in replay(trace, executor, bundle.manifest):
        steps += 1
        recorded += found.step.seconds
        replayed += found.seconds
        if found.differences:
            unequal += 1
            if unequal <= MAX_SHOWN and not args.json:
                sys.stdout.write(describe(found.step) + "\n")
                for difference in found.differences:
                    sys.stdout.write(f"       {difference}\n")
    if args.json:
        json.dump({"steps": steps, "different": unequal, "recorded_s": recorded, "replayed_s": replayed}, sys.stdout)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(
            f"{steps} steps replayed in {replayed:.3f} s (recorded in {recorded:.3f} s), {unequal} came out otherwise\n"
        )
    return 1 if unequal else 0
