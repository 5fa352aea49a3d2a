"""A network as TensorRT's parser made it, read into plain data. The library's module is a parameter.

What the judge reasons about has no handle to the library, so it can be printed, compared and doctored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
"""TensorRT's names of element types to ours."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor of the network."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """-1 where the size varies."""
    axes: tuple[str, ...] = ()
    """Names that the graph gave to varying axes; network inputs only."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the network."""

    name: str
    kind: str
    """TensorRT's LayerType, such as KV_CACHE_UPDATE."""
    inputs: tuple[Edge | None, ...]
    outputs: tuple[Edge, ...]
    facts: dict[str, str] = field(default_factory=dict)
    """Attributes that the judge asks for; for ATTENTION_INPUT and KV_CACHE_UPDATE also which edge holds lengths."""


@dataclass(frozen=True, slots=True)
class Network:
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    layers: tuple[Layer, ...]


def read_network(trt: Any, network: Any) -> Network:
    """trt: the library's module; network: its INetworkDefinition, after parsing."""
    return Network(
        inputs=tuple(_input(network.get_input(i)) for i in range(network.num_inputs)),
        outputs=tuple(_edge(network.get_output(i)) for i in range(network.num_outputs)),
        layers=tuple(_layer(trt, network.get_layer(i)) for i in range(network.num_layers)),
    )


def as_json(network: Network) -> list[dict[str, object]]:
    """The layers for people and tools: name, kind, and every tensor as `name dtype[shape]`."""
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "inputs": _texts(layer.inputs),
            "outputs": _texts(layer.outputs),
            **({"facts": layer.facts} if layer.facts else {}),
        }
        for layer in network.layers
    ]


def _texts(edges: Iterable[Edge | None]) -> list[str]:
    return [f"{edge.name} {edge.dtype}{list(edge.shape)}" if edge is not None else "" for edge in edges]


def _edge(tensor: Any) -> Edge:
    return Edge(tensor.name, DTYPES.get(tensor.dtype.name, tensor.dtype.name), tuple(tensor.shape))


def _input(tensor: Any) -> Edge:
    axes = tuple(tensor.get_dimension_name(i) or "" for i in range(len(tensor.shape)))
    return Edge(tensor.name, DTYPES.get(tensor.dtype.name, tensor.dtype.name), tuple(tensor.shape), axes)


def _layer(trt: Any, layer: Any) -> Layer:
    inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
    kind = layer.type.name
    return Layer(
        name=layer.name,
        kind=kind,
        inputs=tuple(_edge(tensor) if tensor is not None else None for tensor in inputs),
        outputs=tuple(_edge(layer.get_output(i)) for i in range(layer.num_outputs)),
        facts=_facts(trt, layer, kind),
    )


def _facts(trt: Any, layer: Any, kind: str) -> dict[str, str]:
    # The library returns every layer as its base class; the class of the kind shows its attributes.
    if kind == "KV_CACHE_UPDATE":
        layer.__class__ = trt.IKVCacheUpdateLayer
        lengths = layer.update_lengths
        return {
            "mode": layer.cache_mode.name,
            "update_form": layer.update_form.name,
            "update_lengths": lengths.name if lengths is not None else "",
        }
    if kind == "ATTENTION_INPUT":
        layer.__class__ = trt.IAttentionInputLayer
        attention = layer.attention
        lengths = attention.key_value_lengths
        return {
            "causal_kind": attention.causal_kind.name,
            "query_form": attention.query_form.name,
            "key_value_form": attention.key_value_form.name,
            "kv_lengths": lengths.name if lengths is not None else "",
        }
    if kind == "ELEMENTWISE":
        layer.__class__ = trt.IElementWiseLayer
        return {"op": layer.op.name}
    return {}
