"""The operators beside what else does their work: NumPy, PyTorch, ONNX Runtime, a plain read of memory.

One process on the first processors (--threads); what is compared takes turns, medians. Only ratios of one run mean
something on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import attention
import onnxruntime as ort
import torch
from operators.accept import Shape, measure_greedy, measure_rejection
from operators.head import READ, measure_head
from rich.console import Console
from rich.table import Table

EXAMPLES = """\
examples:
  python benchmarks/ops.py
  python benchmarks/ops.py --json ops.json
  python benchmarks/ops.py --requests 1 --block 4 --vocab 49152 --top-k 20
  python benchmarks/ops.py --quick                    small sizes: only to see that it runs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One comparison. `ratio`: how much faster than `other` the operator is, or its share of a plain read."""

    operator: str
    case: str
    ours: str
    other: str
    ratio: float


def accept_lines(options: argparse.Namespace) -> Iterator[Line]:
    shape = Shape(requests=options.requests, block=options.block, vocab=options.vocab)
    sizes = f"B = {shape.requests}, K = {shape.block}, V = {shape.vocab}"
    filters = f"temperature 1, top-k {options.top_k}, top-p {options.top_p}"
    for found in measure_rejection(shape, top_k=options.top_k, top_p=options.top_p, repeats=options.repeats):
        for name, ms in (("NumPy", found.numpy_ms), ("PyTorch", found.torch_ms)):
            yield Line(
                operator="accept",
                case=f"rejection, {sizes}, {filters}; {found.what} ({found.accepted:.1f} of {shape.block})",
                ours=f"{found.ours_ms:.2f} ms",
                other=f"{name} {ms:.2f} ms",
                ratio=ms / found.ours_ms,
            )
    greedy = measure_greedy(shape, options.repeats)
    yield Line(
        operator="accept",
        case=f"greedy, {sizes}",
        ours=f"{greedy.ms:.2f} ms, {greedy.gb_per_s:.1f} GB/s",
        other=f"read {greedy.read_gb_per_s:.1f} GB/s",
        ratio=greedy.gb_per_s / greedy.read_gb_per_s,
    )


def head_line(options: argparse.Namespace) -> Line:
    rows = {(row.what, row.batch): row for row in measure_head(options.vocab, options.rank, [1], options.repeats)}
    read, head = rows[READ, 1], rows["float32", 1]
    assert read.gb_per_s is not None and head.gb_per_s is not None
    return Line(
        operator="draft",
        case=f"one step of the vanilla head, rank {options.rank}, V = {options.vocab}, float32",
        ours=f"{head.ms:.2f} ms, {head.gb_per_s:.1f} GB/s",
        other=f"read {read.gb_per_s:.1f} GB/s",
        ratio=head.gb_per_s / read.gb_per_s,
    )


def attention_line(options: argparse.Namespace) -> Line:
    shape = attention.Shape(heads=9, kv_heads=3, width=64, capacity=options.capacity)
    case = attention.Case(slots=8, queries=8, length=options.capacity // 4)
    found = attention.measure(shape, case, options.repeats)
    return Line(
        operator="attention",
        case=f"B = 8, Q = 8, {case.length} cached, capacity {shape.capacity}, 9/3 heads of 64",
        ours=f"{found['ours_ms']:.2f} ms",
        other=f"ONNX Runtime {found['onnxruntime_ms']:.2f} ms",
        ratio=found["ratio"],
    )


def show(lines: list[Line], threads: int) -> None:
    table = Table(title=f"operators, {threads} threads", title_justify="left")
    for column in ("operator", "case", "ours", "beside"):
        table.add_column(column, overflow="fold")
    table.add_column("ratio", justify="right")
    for line in lines:
        table.add_row(line.operator, line.case, line.ours, line.other, f"{line.ratio:.2f}x")
    # Text for a file may be wider than a terminal.
    Console(width=shutil.get_terminal_size((150, 24)).columns).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=8, metavar="B")
    parser.add_argument("--block", type=int, default=7, metavar="K", help="proposals of a request, >= 1")
    parser.add_argument("--vocab", type=int, default=151936, metavar="V")
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--rank", type=int, default=256, help="of the sequential head")
    parser.add_argument("--capacity", type=int, default=2048, help="of the caches; a quarter of it is filled")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats: only to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args()
    if options.quick:
        options.vocab, options.rank, options.capacity, options.repeats = 2048, 32, 256, 2
    # Before the first operator runs: its pool is as large as the processors that it finds.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    torch.set_num_threads(options.threads)
    ort.set_global_thread_pool_sizes(options.threads, 1)
    lines = [*accept_lines(options), head_line(options), attention_line(options)]
    if options.json is not None:
        report = {"threads": options.threads, "repeats": options.repeats, "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    show(lines, options.threads)


if __name__ == "__main__":
    main()
