"""One step of the vanilla head (DSparkDraft): GB/s of its matrix in each storage, beside a plain read of memory, and
what each confidence signal costs (operators/head.py).

    python benchmarks/head.py
    python benchmarks/head.py --batches 1,8 --rank 64 --json head.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from operators.head import measure_head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936, help="draft vocabulary (default: that of Qwen)")
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4, 8])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a small matrix, few repeats: only to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args()
    if options.quick:
        options.vocab, options.rank, options.repeats = 4096, 32, 2
    rows = measure_head(options.vocab, options.rank, options.batches, options.repeats)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    print(f"vanilla head, V = {options.vocab}, rank {options.rank}, median of {options.repeats} alternating calls")
    print(f"{'what':24} batch        ms    GB/s  of a read")
    for row in rows:
        rate = "" if row.gb_per_s is None else f" {row.gb_per_s:7.1f} {row.share_of_read:9.0%}"
        print(f"{row.what:24} {row.batch:5} {row.ms:9.2f}{rate}")


if __name__ == "__main__":
    main()
