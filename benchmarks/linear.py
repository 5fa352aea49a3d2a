"""DSparkLinear over stored weights against ONNX Runtime's Gemm in float32 and MatMulNBits in int8, in one process.

Every variant is a chain of layers `up` [wide, narrow] and `down` [narrow, wide] with weights of their own, more than
the caches close to a core hold. All share one thread pool and alternate; medians. GB/s are bytes of weights per second.

    python benchmarks/linear.py
    python benchmarks/linear.py --rows 1,4 --layers 10 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from dspark_runtime.oplib import library_path
from dspark_trt.quantize import BLOCK_SIZE, quantize_int8
from dspark_trt.stored import KINDS, Stored, pack

Array = np.ndarray[Any, Any]
VARIANTS = ("gemm float32", "matmulnbits int8", *KINDS)


@dataclass(frozen=True, slots=True)
class Chain:
    """One variant as a session, and the bytes of its weights."""

    session: ort.InferenceSession
    num_bytes: int


def stored(kind: str, weight: Array) -> Stored:
    """The nearest weight of a form, rounded in the plain way."""
    if kind == "bf16":
        return Stored(kind=kind, values=(weight.view(np.uint32) >> 16).astype(np.uint16))
    blocks = weight.reshape(len(weight), -1, 32)
    if kind == "q8_0":
        d = (np.abs(blocks).max(axis=2) / 127).astype(np.float16)
        values = np.rint(blocks / d[:, :, None].astype(np.float32)).clip(-127, 127).astype(np.int8)
        return Stored(kind=kind, values=values.reshape(weight.shape), d=d)
    m = blocks.min(axis=2).astype(np.float16)
    d = (np.ptp(blocks, axis=2) / 15).astype(np.float16)
    steps = (blocks - m[:, :, None].astype(np.float32)) / d[:, :, None].astype(np.float32)
    return Stored(kind=kind, values=np.rint(steps).clip(0, 15).astype(np.uint8).reshape(weight.shape), d=d, m=m)


def layer(variant: str, name: str, x: str, weight: Array) -> tuple[onnx.NodeProto, list[TensorProto]]:
    """The node `name` = `x` weight^T and its initialisers."""
    num_out, num_in = weight.shape
    if variant == "gemm float32":
        arrays = {"w": weight}
        node = helper.make_node("Gemm", [x, f"{name}.w"], [name], transB=1)
    elif variant == "matmulnbits int8":
        quantized = quantize_int8(weight)
        arrays = {"w": quantized.packed, "s": quantized.scales}
        node = helper.make_node(
            "MatMulNBits", [x, f"{name}.w", f"{name}.s"], [name], domain="com.microsoft",
            K=num_in, N=num_out, bits=8, block_size=BLOCK_SIZE, accuracy_level=4,
        )  # fmt: skip
    else:
        arrays = {"w": pack(stored(variant, weight))}
        node = helper.make_node(
            "DSparkLinear", [x, f"{name}.w"], [name], domain="dspark", storage=variant, out_features=num_out
        )
    return node, [numpy_helper.from_array(array, f"{name}.{key}") for key, array in arrays.items()]


def chain(variant: str, narrow: int, wide: int, layers: int) -> Chain:
    rng = np.random.default_rng(3)
    nodes, tensors, x = [], [], "x"
    for i in range(2 * layers):
        shape = (wide, narrow) if i % 2 == 0 else (narrow, wide)
        weight = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[1]))
        node, made = layer(variant, f"y{i}", x, weight)
        nodes.append(node)
        tensors += made
        x = f"y{i}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", narrow])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["M", narrow])],
        initializer=tensors,
    )
    opsets = [
        helper.make_opsetid(domain, version) for domain, version in (("", 24), ("com.microsoft", 1), ("dspark", 1))
    ]
    content = helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.register_custom_ops_library(str(library_path()))
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return Chain(session, sum(len(tensor.raw_data) for tensor in tensors))


def measure(chains: dict[str, Chain], rows: int, narrow: int, repeats: int) -> list[dict[str, Any]]:
    x = np.random.default_rng(7).standard_normal((rows, narrow), dtype=np.float32)
    times: dict[str, list[float]] = {variant: [] for variant in chains}
    for _ in range(repeats + 1):
        for variant, made in chains.items():
            start = time.perf_counter()
            made.session.run(None, {"x": x})
            times[variant].append(time.perf_counter() - start)
    # The first run of each allocates.
    seconds = {variant: statistics.median(record[1:]) for variant, record in times.items()}
    base = seconds[VARIANTS[0]]
    return [
        {
            "rows": rows,
            "variant": variant,
            "ms": seconds[variant] * 1e3,
            "gb_per_s": chains[variant].num_bytes / seconds[variant] / 1e9,
            "times_gemm": base / seconds[variant],
        }
        for variant in chains
    ]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 64, 256], metavar="N,N")
    parser.add_argument("--narrow", type=int, default=576)
    parser.add_argument("--wide", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=60, help="pairs of up and down; 60 are about 106M weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ort.set_global_thread_pool_sizes(options.threads, 1)
    chains = {variant: chain(variant, options.narrow, options.wide, options.layers) for variant in VARIANTS}
    rows = [row for count in options.rows for row in measure(chains, count, options.narrow, options.repeats)]
    if options.json:
        print(json.dumps({"narrow": options.narrow, "wide": options.wide, "layers": options.layers, "rows": rows}))
        return
    print(
        f"{options.layers} x ({options.wide} x {options.narrow} + {options.narrow} x {options.wide}), "
        f"{options.threads} threads"
    )
    print("rows variant                 ms    GB/s  times Gemm")
    for row in rows:
        print(f"{row['rows']:4} {row['variant']:16} {row['ms']:9.2f} {row['gb_per_s']:7.1f} {row['times_gemm']:11.2f}")


if __name__ == "__main__":
    main()
