"""What every part of a description needs at hand: the builder, the step's inputs, the dialect.

A *dialect* is how attention and caches are said: `trt` with TensorRT's operators over packed
or left-padded queries, `standard` with ONNX's own TensorScatter and Attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dspark_runtime.contract import names
from dspark_trt.graph.builder import BFLOAT16, BOOL, FLOAT, FLOAT16, INT32, INT64, GraphBuilder, Out, Value
from dspark_trt.stored import Stored

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: dict[str, int] = {"float32": FLOAT, "bfloat16": BFLOAT16, "float16": FLOAT16}


class Tensors(Protocol):
    """A checkpoint's weights by name; `load` makes a float32 array on demand and keeps nothing.

    `stored` gives a matrix as the file has it, where that is a form of `Stored`.
    """

    def names(self) -> tuple[str, ...]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def load(self, name: str) -> Array: ...
    def stored(self, name: str) -> Stored | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """How one graph is to be written."""

    folder: Path
    dialect: str
    """`trt` or `standard`."""
    query_form: str
    """`packed` or `padded`; the standard dialect pads whatever is said here."""
    operators: str
    """`graph`: DSpark operators are nodes; `host`: the graph ends at logits and hidden states."""
    cache_capacity: int
    """S."""
    max_step_tokens: int
    """Most packed tokens a round can have: B requests with a whole block each."""
    quantize: str
    """`none` or `int8`, of linear layers."""
    report: Callable[[str], None]
    """Called with the name of each part before it is written."""
    storage: str = "float32"
    """Weights of linear layers that are not quantised: `float32`, or `checkpoint` where DSparkLinear reads the form."""
    dtype: str = "float32"
    """Arithmetic, one of DTYPES; logits and hidden states leave the graph as float32 in any case."""

    @property
    def element_type(self) -> int:
        return DTYPES[self.dtype]

    @property
    def padded(self) -> bool:
        """Queries are gathered to [B, H, Q, D] around the attention."""
        return self.dialect == "standard" or self.query_form == "padded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The inputs that all graphs share; those that a dialect does not read are None."""

    token_ids: Value
    positions: Value
    """[1, T] int64, as RotaryEmbedding takes them."""
    write_indices: Value
    """[B]; int32 for TRT_KVCacheUpdate, int64 for TensorScatter."""
    update_lengths: Value | None
    kv_lengths: Value | None
    query_rows: Value | None
    output_rows: Value | None
    attention_mask: Value | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One graph in the making."""

    builder: GraphBuilder
    options: GraphOptions
    step: Step


def open_step(builder: GraphBuilder, options: GraphOptions) -> Context:
    """Declare the inputs of a step in the order of the contract."""
    token_ids = builder.input(names.TOKEN_IDS, ("T",), INT32)
    positions = builder.input(names.POSITIONS, ("T",), INT64)
    write_indices = builder.input(names.WRITE_INDICES, ("B",), INT32)
    update_lengths = kv_lengths = query_rows = output_rows = attention_mask = None
    if options.dialect == "standard":
        write_indices = builder.node("Cast", (write_indices,), Out("write_rows", ("B",), INT64), to=INT64)
    else:
        update_lengths = builder.input(names.UPDATE_LENGTHS, ("B+1",), INT32)
        kv_lengths = builder.input(names.KV_LENGTHS, ("B",), INT32)
    if options.padded:
        query_rows = builder.input(names.QUERY_ROWS, ("B", "Q"), INT32)
        output_rows = builder.input(names.OUTPUT_ROWS, ("T",), INT32)
    if options.dialect == "standard":
        attention_mask = builder.input(names.ATTENTION_MASK, ("B", 1, "Q", options.cache_capacity), BOOL)
    step = Step(
        token_ids=token_ids,
        positions=builder.reshape(positions, (1, "T"), "positions_row"),
        write_indices=write_indices,
        update_lengths=update_lengths,
        kv_lengths=kv_lengths,
        query_rows=query_rows,
        output_rows=output_rows,
        attention_mask=attention_mask,
    )
    return Context(builder=builder, options=options, step=step)
