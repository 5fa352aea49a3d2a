"""Typed values, scopes and initialisers over ONNX: the vocabulary in which models are described.

Knows ONNX and nothing of models, dialects or engines. A value carries its element type and its
shape (numbers or axis letters of `names.py`), so a finished graph shows both on every edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import GraphError
from dspark_trt.graph.weights import WeightFile, WeightRef

FLOAT = TensorProto.FLOAT
FLOAT16 = TensorProto.FLOAT16
BFLOAT16 = TensorProto.BFLOAT16
INT32 = TensorProto.INT32
INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL

IR_VERSION = 11
"""Oldest one that carries opset 24 attributes as we use them; ONNX Runtime 1.20 and newer read it."""
INLINE_BYTES = 1024
"""Tensors below this size live in the graph file itself."""

Shape = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """An edge of the graph."""

    name: str
    dtype: int
    """onnx.TensorProto data type."""
    shape: Shape


@dataclass(frozen=True, slots=True)
class Out:
    """What a node yields at one output."""

    name: str
    shape: Shape
    dtype: int | None = None
    """None: the arithmetic of the graph."""


class GraphBuilder:
    """Collects nodes in order and writes `folder / graph_name`, weights beside it."""

    def __init__(self, folder: Path, graph_name: str, weights: WeightFile, dtype: int = FLOAT) -> None:
        """dtype: the arithmetic, FLOAT, FLOAT16 or BFLOAT16; float32 arrays become weights of that type."""
        self.dtype = dtype
        self._numpy_dtype = helper.tensor_dtype_to_np_dtype(dtype)
        self._folder = folder
        self._graph_name = graph_name
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, Value] = {}
        self._outputs: dict[str, Value] = {}
        self._values: dict[str, Value] = {}
        self._initializers: list[TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._refs: dict[str, WeightRef] = {}
        self._scopes: list[str] = []
        self._domains: set[str] = {""}
        self._metadata: dict[str, str] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Everything made inside is called `name.…`, nested scopes joined by dots."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def scoped(self, name: str) -> str:
        return ".".join((*self._scopes, name))

    def input(self, name: str, shape: Shape, dtype: int | None = None) -> Value:
        """A graph input under its own, unscoped name; the same one again when it exists."""
        if name in self._inputs:
            return self._inputs[name]
        value = self._add(Value(name, self.dtype if dtype is None else dtype, shape))
        self._inputs[name] = value
        return value

    def output(self, value: Value, name: str) -> None:
        """Make `value` a graph output called `name` (its edge is renamed, nothing is copied)."""
        assert name not in self._outputs, name
        self._outputs[name] = value

    def remark(self, key: str, value: object) -> None:
        """A fact for readers of the file alone, kept in the model's metadata."""
        self._metadata[key] = str(value)

    def weight(self, name: str, array: np.ndarray[Any, Any], *, keep: bool = False) -> Value:
        """A learned tensor under its scoped name, written at once; drop `array` afterwards.

        float32 becomes the arithmetic of the graph unless `keep` (an operator that reads float32).
        """
        scoped = self.scoped(name)
        array = array if keep else self._cast(scoped, array)
        value = self._add(Value(scoped, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
        if array.nbytes < INLINE_BYTES:
            self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), scoped))
        else:
            ref = self._weights.append(array)
            self._refs[scoped] = ref
            self._initializers.append(ref.initializer(scoped))
        return value

    def shared_weight(self, name: str, ref: WeightRef) -> Value:
        """A tensor that another graph of the same folder has written already."""
        scoped = self.scoped(name)
        self._refs[scoped] = ref
        self._initializers.append(ref.initializer(scoped))
        return self._add(Value(scoped, ref.dtype, ref.shape))

    def ref(self, name: str) -> WeightRef | None:
        """Where the weight of that full name lies; None for those inside the graph file."""
        return self._refs.get(name)

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """A small tensor of the description itself, such as a shape; equal ones are stored once."""
        array = self._cast("constant", array)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant.{len(self._constants)}"
            self._initializers.append(numpy_helper.from_array(array, name))
            value = Value(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            self._constants[key] = self._add(value)
        return self._constants[key]

    def node(
        self, op_type: str, inputs: Sequence[Value | None], out: Out, *, domain: str = "", **attributes: Any
    ) -> Value:
        """A node with one output."""
        return self.nodes(op_type, inputs, (out,), domain=domain, **attributes)[0]

    def nodes(
        self, op_type: str, inputs: Sequence[Value | None], outs: Sequence[Out], *, domain: str = "", **attributes: Any
    ) -> tuple[Value, ...]:
        """A node with several outputs; None stands for an input that is left out."""
        dtypes = (self.dtype if out.dtype is None else out.dtype for out in outs)
        values = tuple(
            self._add(Value(self.scoped(out.name), dtype, out.shape)) for out, dtype in zip(outs, dtypes, strict=True)
        )
        input_names = [value.name if value is not None else "" for value in inputs]
        while input_names and not input_names[-1]:
            input_names.pop()
        self._nodes.append(
            helper.make_node(
                op_type,
                input_names,
                [value.name for value in values],
                name=f"{values[0].name}/{op_type}",
                domain=domain,
                **attributes,
            )
        )
        self._domains.add(domain)
        return values

    def reshape(self, value: Value, shape: Shape, name: str) -> Value:
        """The same elements in another shape; at most one letter, which becomes the free axis."""
        sizes = [-1 if isinstance(size, str) else size for size in shape]
        if sizes.count(-1) > 1:
            raise GraphError(f"{self.scoped(name)}: a reshape to {shape} has more than one free axis")
        target = self.constant(np.array(sizes, np.int64))
        return self.node("Reshape", (value, target), Out(name, shape, value.dtype))

    def cast(self, value: Value, dtype: int, name: str) -> Value:
        """The same numbers as another element type; the value itself where it has that type already."""
        if value.dtype == dtype:
            return value
        return self.node("Cast", (value,), Out(name, value.shape, dtype), to=dtype)

    def save(self) -> Path:
        """Write the graph file and return its path."""
        renamed = {value.name: name for name, value in self._outputs.items()}
        for node in self._nodes:
            for edges in (node.input, node.output):
                for i, edge in enumerate(edges):
                    if edge in renamed:
                        edges[i] = renamed[edge]
        inner = set(self._values) - set(self._inputs) - set(renamed) - {t.name for t in self._initializers}
        graph = helper.make_graph(
            self._nodes,
            self._graph_name.removesuffix(".onnx"),
            [_info(name, value) for name, value in self._inputs.items()],
            [_info(name, value) for name, value in self._outputs.items()],
            initializer=self._initializers,
            value_info=[_info(name, self._values[name]) for name in self._values if name in inner],
        )
        opsets = [helper.make_opsetid(d, names.OPSET if d == "" else 1) for d in sorted(self._domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="dspark-trt")
        helper.set_model_props(model, self._metadata)
        path = self._folder / self._graph_name
        path.write_bytes(model.SerializeToString())
        return path

    def _cast(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if array.dtype != np.float32 or self.dtype == FLOAT:
            return array
        with np.errstate(over="ignore"):
            cast = array.astype(self._numpy_dtype)
        if self.dtype == FLOAT16 and not np.isfinite(cast).all() and np.isfinite(array).all():
            raise GraphError(f"{name}: holds {np.abs(array).max():.4g}, beyond float16's 65504; build with bfloat16")
        return cast

    def _add(self, value: Value) -> Value:
        assert value.name not in self._values, f"two values are called {value.name}"
        self._values[value.name] = value
        return value


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, value.dtype, value.shape)
