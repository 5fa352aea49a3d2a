"""Our attention operator against ONNX Runtime's own opset-24 `Attention`, on the same caches, in one process.

Both run as one-node sessions on one thread pool, alternating A B A B; medians. ONNX Runtime's operator gets the lengths
as a boolean mask, since it reads the whole capacity either way; masks and padding are made outside the timed part.

    python benchmarks/attention.py
    python benchmarks/attention.py --lengths 256,1900 --capacity 2048 --json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from dspark_runtime.oplib import library_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """B slots with `length` cached tokens each, the last Q of which are queries."""

    slots: int
    queries: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    heads: int
    kv_heads: int
    width: int
    capacity: int


def model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[int]]], output: list[int]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, output)],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("trt", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


def session(content: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def ours(shape: Shape, case: Case) -> bytes:
    tokens = case.slots * case.queries
    cache = [case.slots, shape.kv_heads, shape.capacity, shape.width]
    node = helper.make_node(
        "TRT_Attention",
        ["query", "key", "value", "", "query_lengths", "kv_lengths"],
        ["output"],
        domain="trt",
        query_form="packed_nhd",
        kv_form="padded_bhnd",
        causal_kind="lower_right",
    )
    inputs = {
        "query": (TensorProto.FLOAT, [tokens, shape.heads, shape.width]),
        "key": (TensorProto.FLOAT, cache),
        "value": (TensorProto.FLOAT, cache),
        "query_lengths": (TensorProto.INT32, [case.slots + 1]),
        "kv_lengths": (TensorProto.INT32, [case.slots]),
    }
    return model([node], inputs, [tokens, shape.heads, shape.width])


def theirs(shape: Shape, case: Case) -> bytes:
    cache = [case.slots, shape.kv_heads, shape.capacity, shape.width]
    query = [case.slots, shape.heads, case.queries, shape.width]
    node = helper.make_node("Attention", ["query", "key", "value", "mask"], ["output"], scale=1.0)
    inputs = {
        "query": (TensorProto.FLOAT, query),
        "key": (TensorProto.FLOAT, cache),
        "value": (TensorProto.FLOAT, cache),
        "mask": (TensorProto.BOOL, [case.slots, 1, case.queries, shape.capacity]),
    }
    return model([node], inputs, query)


def bind(run: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> ort.IOBinding:
    binding = run.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("output")
    return binding


def measure(shape: Shape, case: Case, repeats: int) -> dict[str, Any]:
    """Milliseconds of both operators and their ratio; checks that they agree."""
    rng = np.random.default_rng(7)
    cache = (case.slots, shape.kv_heads, shape.capacity, shape.width)
    key, value = (rng.standard_normal(cache, dtype=np.float32) for _ in range(2))
    query = rng.standard_normal((case.slots, case.queries, shape.heads, shape.width), dtype=np.float32)
    query *= np.float32(shape.width**-0.5)
    limit = case.length - case.queries + 1 + np.arange(case.queries)
    mask = np.arange(shape.capacity)[None, :] < limit[:, None]
    feeds = (
        {
            "query": query.reshape(-1, shape.heads, shape.width),
            "key": key,
            "value": value,
            "query_lengths": (np.arange(case.slots + 1) * case.queries).astype(np.int32),
            "kv_lengths": np.full(case.slots, case.length, np.int32),
        },
        {
            "query": np.ascontiguousarray(query.transpose(0, 2, 1, 3)),
            "key": key,
            "value": value,
            "mask": np.ascontiguousarray(np.broadcast_to(mask, (case.slots, 1, *mask.shape))),
        },
    )
    runs = (session(ours(shape, case)), session(theirs(shape, case)))
    bindings = tuple(bind(run, feed) for run, feed in zip(runs, feeds, strict=True))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for run, binding, record in zip(runs, bindings, times, strict=True):
            start = time.perf_counter()
            run.run_with_iobinding(binding)
            record.append((time.perf_counter() - start) * 1e3)
    mine, other = (binding.copy_outputs_to_cpu()[0] for binding in bindings)
    difference = float(np.abs(mine.reshape(query.shape) - other.transpose(0, 2, 1, 3)).max())
    # The first run of each allocates.
    mine_ms, other_ms = (statistics.median(record[1:]) for record in times)
    return {
        **asdict(case),
        "ours_ms": mine_ms,
        "onnxruntime_ms": other_ms,
        "ratio": other_ms / mine_ms,
        "max_difference": difference,
    }


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=numbers, default=[1, 8], metavar="N,N")
    parser.add_argument("--queries", type=numbers, default=[1, 8], metavar="N,N")
    parser.add_argument("--lengths", type=numbers, default=[128, 512, 2000], metavar="N,N", help="tokens per slot")
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--prefill", type=int, default=256, help="also one slot with this many queries; 0 for none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ort.set_global_thread_pool_sizes(options.threads, 1)
    shape = Shape(heads=options.heads, kv_heads=options.kv_heads, width=options.width, capacity=options.capacity)
    grid = itertools.product(options.slots, options.queries, options.lengths)
    cases = [Case(slots=b, queries=q, length=n) for b, q, n in grid]
    if options.prefill:
        cases += [Case(slots=1, queries=options.prefill, length=n) for n in options.lengths if n >= options.prefill]
    rows = []
    if not options.json:
        heads = f"heads {shape.heads}/{shape.kv_heads} x {shape.width}"
        print(f"capacity {shape.capacity}, {heads}, {options.threads} threads")
        print("slots queries cached   ours ms onnxruntime ms  ratio difference")
    for case in cases:
        row = measure(shape, case, options.repeats)
        rows.append(row)
        if not options.json:
            print(
                f"{case.slots:5} {case.queries:7} {case.length:6} {row['ours_ms']:9.3f} {row['onnxruntime_ms']:14.3f} "
                f"{row['ratio']:6.1f} {row['max_difference']:10.1e}"
            )
    if options.json:
        print(json.dumps({"shape": asdict(shape), "threads": options.threads, "rows": rows}))


if __name__ == "__main__":
    main()
