"""Is a parsed network the one that the manifest promises? Needs neither a GPU nor the library.

A parser may accept a graph and still drop what it means: an input that it does not understand becomes
"unused", a cache may lose its alias, a residual stream may be widened to float32. Nothing of that fails
a build, and all of it is wrong or slow on the GPU. So every engine is judged before it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

from dspark_runtime.contract import names
from dspark_runtime.contract.compiled import TensorInfo
from dspark_runtime.contract.graph_io import cache_names, expected_tensors
from dspark_runtime.contract.manifest import EngineInfo, Manifest
from dspark_trt.backends.tensorrt_network import Edge, Layer, Network

NORM_KINDS = frozenset({"ELEMENTWISE", "REDUCE", "UNARY", "CAST", "CONSTANT", "SHUFFLE", "NORMALIZATION"})
"""What a normalisation in float32 may be made of."""
PASSED_ON = frozenset({"PLUGIN_V3", "SHUFFLE"})
"""Plugins read float32 rows, as they are or as blocks."""
HEAVY_KINDS = frozenset(
    ("MATRIX_MULTIPLY", "ATTENTION_INPUT", "ATTENTION_OUTPUT", "KV_CACHE_UPDATE", "ROTARY_EMBEDDING")
)
"""Layers whose floating-point inputs must all be of the engine's type."""
FLOATS = ("float32", "float16", "bfloat16")


def judge(network: Network, manifest: Manifest, role: str) -> tuple[str, ...]:
    """Every fault of the network of the `target` or `draft`, a sentence part each; empty when it is right."""
    wires = _Wires(network)
    model = manifest.target if role == "target" or manifest.draft is None else manifest.draft.engine
    return (
        *_tensor_faults(network, expected_tensors(manifest, role)),
        *_unused_inputs(network, wires),
        *_cache_faults(network, wires, manifest, role),
        *_attention_faults(network, wires, manifest, role, model),
        *_rotary_faults(network, wires),
        *_type_faults(network, wires, model),
        *_residual_faults(network, wires, model),
    )


class _Wires:
    """Who makes and who reads every edge."""

    def __init__(self, network: Network) -> None:
        self.maker = {edge.name: layer for layer in network.layers for edge in layer.outputs}
        self.readers: dict[str, list[Layer]] = {}
        for layer in network.layers:
            for edge in layer.inputs:
                if edge is not None:
                    self.readers.setdefault(edge.name, []).append(layer)

    def origin(self, name: str, through: frozenset[str] = frozenset({"CAST", "SHUFFLE", "IDENTITY"})) -> str:
        """Where the data of an edge comes from when casts and reshapes are left out."""
        while (layer := self.maker.get(name)) is not None and layer.kind in through and layer.inputs[0] is not None:
            name = layer.inputs[0].name
        return name


def _tensor_faults(network: Network, expected: tuple[TensorInfo, ...]) -> Iterator[str]:
    for direction, edges in (("input", network.inputs), ("output", network.outputs)):
        found = {edge.name: edge for edge in edges}
        wanted = {tensor.name: tensor for tensor in expected if tensor.direction == direction}
        for name in sorted(wanted.keys() - found.keys()):
            yield f"{direction} {name} is missing"
        for name in sorted(found.keys() - wanted.keys()):
            yield f"{direction} {name} is not in the manifest"
        for name in sorted(wanted.keys() & found.keys()):
            yield from _difference(direction, found[name], wanted[name])


def _difference(direction: str, found: Edge, wanted: TensorInfo) -> Iterator[str]:
    if found.dtype != wanted.dtype:
        yield f"{direction} {found.name} is {found.dtype}, wanted {wanted.dtype}"
    if found.shape != wanted.shape:
        yield f"{direction} {found.name} has shape {list(found.shape)}, wanted {list(wanted.shape)}"
    elif direction == "input" and found.axes != wanted.axes:
        yield f"{direction} {found.name} has axes {list(found.axes)}, wanted {list(wanted.axes)}"


def _unused_inputs(network: Network, wires: _Wires) -> Iterator[str]:
    for edge in network.inputs:
        if edge.name not in wires.readers:
            yield f"input {edge.name} is used by no layer"


def _cache_faults(network: Network, wires: _Wires, manifest: Manifest, role: str) -> Iterator[str]:
    """One packed update per cache, fed by the step's indices and lengths, whose output is the cache's alias."""
    layers = [layer for layer in network.layers if _is_update(layer)]
    updates = {layer.inputs[0].name: layer for layer in layers if layer.inputs[0] is not None}
    expected = dict(cache_names(manifest, role))
    if len(layers) != len(expected):
        yield f"{len(layers)} KV_CACHE_UPDATE layers, wanted {len(expected)}"
    for name, model in expected.items():
        layer = updates.get(name)
        if layer is None:
            yield f"cache {name} has no KV_CACHE_UPDATE layer of its own"
            continue
        if [edge.name for edge in layer.outputs] != [name + names.PRESENT]:
            yield f"cache {name} is updated into {layer.outputs[0].name}, which is not its alias {name + names.PRESENT}"
        if (layer.facts["update_form"], layer.facts["mode"]) != ("PACKED_NHD", "LINEAR"):
            yield f"cache {name} is updated in form {layer.facts['update_form']} and mode {layer.facts['mode']}"
        rows = layer.inputs[1]
        if rows is None or rows.shape != (-1, model.num_kv_heads, model.head_dim):
            yield f"cache {name} is updated with {_text(rows)}, wanted [T, {model.num_kv_heads}, {model.head_dim}]"
        yield from _wired(wires, f"cache {name}", layer.inputs[2], names.WRITE_INDICES)
        yield from _wired_name(wires, f"cache {name}", layer.facts["update_lengths"], names.UPDATE_LENGTHS)


def _is_update(layer: Layer) -> bool:
    return layer.kind == "KV_CACHE_UPDATE"


def _attention_faults(
    network: Network, wires: _Wires, manifest: Manifest, role: str, model: EngineInfo
) -> Iterator[str]:
    """One attention per layer over the updated caches, masked by kv_lengths, queries gathered and gathered back."""
    attentions = [layer for layer in network.layers if layer.kind == "ATTENTION_INPUT"]
    if len(attentions) != model.num_layers:
        yield f"{len(attentions)} attention layers, wanted {model.num_layers}"
    is_block = role == "draft" and manifest.draft is not None and manifest.draft.kind == "dspark"
    causal = "NONE" if is_block else "LOWER_RIGHT"
    own = {name for name, owner in cache_names(manifest, role) if owner is model}
    seen: list[str] = []
    for layer in attentions:
        facts = layer.facts
        if facts["causal_kind"] != causal:
            yield f"attention {layer.name} has causal kind {facts['causal_kind']}, wanted {causal}"
        if (facts["query_form"], facts["key_value_form"]) != ("PADDED_BHND", "PADDED_BHND"):
            yield f"attention {layer.name} reads {facts['query_form']}, {facts['key_value_form']}, wanted PADDED_BHND"
        yield from _wired_name(wires, f"attention {layer.name}", facts["kv_lengths"], names.KV_LENGTHS)
        for edge in layer.inputs[1:3]:
            maker = wires.maker.get(edge.name) if edge is not None else None
            if maker is None or not _is_update(maker) or maker.inputs[0] is None:
                yield f"attention {layer.name} reads {_text(edge)}, which is no updated cache"
            else:
                seen.append(maker.inputs[0].name)
    if sorted(seen) != sorted(own) and len(attentions) == model.num_layers:
        yield "attention layers do not read every cache exactly once"
    for index, number in ((names.QUERY_ROWS, model.num_layers), (names.OUTPUT_ROWS, model.num_layers)):
        gathers = sum(
            layer.kind == "GATHER" and layer.inputs[1] is not None and wires.origin(layer.inputs[1].name) == index
            for layer in network.layers
        )
        if gathers != number:
            yield f"{gathers} layers gather by {index}, wanted {number}"


def _rotary_faults(network: Network, wires: _Wires) -> Iterator[str]:
    """Every rotation reads the positions of the step."""
    for layer in network.layers:
        if layer.kind == "ROTARY_EMBEDDING":
            yield from _wired(wires, f"rotation {layer.name}", layer.inputs[3], names.POSITIONS)


def _type_faults(network: Network, wires: _Wires, model: EngineInfo) -> Iterator[str]:
    """Matrix products, attention, caches and rotations run in the engine's type; float32 stays inside norms.

    A normalisation may widen its input: one cast up, arithmetic with a REDUCE, one cast down. Anything else
    that becomes float32 doubles memory traffic, so it must be an output of the network, or feed a plugin.
    """
    if model.dtype == "float32":
        return
    for layer in network.layers:
        if layer.kind in HEAVY_KINDS:
            for edge in layer.inputs:
                if edge is not None and edge.dtype in FLOATS and edge.dtype != model.dtype:
                    yield f"{layer.kind} {layer.name} reads {_text(edge)}, wanted {model.dtype}"
    outputs = {edge.name for edge in network.outputs}
    for layer in network.layers:
        source = layer.inputs[0] if layer.kind == "CAST" else None
        if source is None or source.dtype != model.dtype or layer.outputs[0].dtype != "float32":
            continue
        widened = layer.outputs[0].name
        readers = wires.readers.get(widened, [])
        if widened in outputs or (readers and all(reader.kind in PASSED_ON for reader in readers)):
            continue
        if problem := _island_problem(network, wires, layer):
            yield f"{_text(source)} becomes float32 in {layer.name} {problem}"


def _island_problem(network: Network, wires: _Wires, entry: Layer) -> str | None:
    """Follow float32 from a cast up: what it is besides the inside of one normalisation."""
    outputs = {edge.name for edge in network.outputs}
    todo, seen = [entry.outputs[0].name], set[str]()
    exits = 0
    reduced = False
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in outputs:
            return f"and reaches output {name}"
        for reader in wires.readers.get(name, []):
            if reader.kind not in NORM_KINDS:
                return f"and reaches {reader.kind} {reader.name}"
            reduced = reduced or reader.kind in ("REDUCE", "NORMALIZATION")
            narrow = [edge for edge in reader.outputs if edge.dtype != "float32"]
            exits += len(narrow)
            todo += [edge.name for edge in reader.outputs if edge.dtype == "float32"]
            for other in reader.inputs:
                if other is not None and other.name not in seen and _second_entry(wires, other, entry):
                    return f"and meets {_text(other)} there"
    if not reduced:
        return "outside of a normalisation"
    return None if exits == 1 else f"and leaves the normalisation {exits} times"


def _second_entry(wires: _Wires, edge: Edge, entry: Layer) -> bool:
    """Whether a float32 edge comes from another cast up of activations."""
    maker = wires.maker.get(edge.name)
    if maker is None or maker is entry or maker.kind != "CAST" or maker.inputs[0] is None:
        return False
    source = wires.maker.get(maker.inputs[0].name)
    return maker.inputs[0].dtype != "float32" and (source is None or source.kind != "CONSTANT")


def _residual_faults(network: Network, wires: _Wires, model: EngineInfo) -> Iterator[str]:
    """The residual stream: two additions per decoder layer, [T, hidden], in the engine's type."""
    sums = [
        layer
        for layer in network.layers
        if layer.kind == "ELEMENTWISE"
        and layer.facts.get("op") == "SUM"
        and layer.outputs[0].shape == (-1, model.hidden_size)
        and all(edge is not None and not _is_constant(wires, edge) for edge in layer.inputs)
    ]
    if len(sums) != 2 * model.num_layers:
        yield f"{len(sums)} residual additions, wanted {2 * model.num_layers}"
    for layer in sums:
        for edge in (*layer.inputs, *layer.outputs):
            if edge is not None and edge.dtype != model.dtype:
                yield f"residual addition {layer.name} has {_text(edge)}, wanted {model.dtype}"


def _is_constant(wires: _Wires, edge: Edge) -> bool:
    maker = wires.maker.get(wires.origin(edge.name))
    return maker is not None and maker.kind == "CONSTANT"


def _wired(wires: _Wires, where: str, edge: Edge | None, wanted: str) -> Iterator[str]:
    yield from _wired_name(wires, where, edge.name if edge is not None else "", wanted)


def _wired_name(wires: _Wires, where: str, name: str, wanted: str) -> Iterator[str]:
    origin = wires.origin(name) if name else "nothing"
    if origin != wanted:
        yield f"{where} reads {origin}, wanted {wanted}"


def _text(edge: Edge | None) -> str:
    return f"{edge.name} ({edge.dtype} {list(edge.shape)})" if edge is not None else "nothing"
