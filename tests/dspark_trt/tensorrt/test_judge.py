"""Networks that TensorRT-RTX's parser makes of our graphs: right as they are, and caught when they are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from dspark_runtime.contract.errors import BuildError
from dspark_trt.backends import CompileJob
from dspark_trt.backends.tensorrt_judge import judge
from dspark_trt.backends.tensorrt_network import Edge, Layer, Network
from dspark_trt.backends.tensorrt_rtx import TensorRtRtxBackend
from dspark_trt.config import BuildConfig
from tests.dspark_trt.tensorrt.networks import Written, doctor, ignore, library, node, parse, write
from tests.tiny import make_dspark_draft, make_target

pytestmark = pytest.mark.tensorrt

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied, biased": {"family": "llama", "tie_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"family": "llama", "rope": "llama3"},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "head_dim": 24},
}
HEADS = ("vanilla", "gated", "rnn", "none")


@pytest.fixture(scope="module")
def rtx() -> Any:
    return library()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path, tiny_draft: Path) -> Written:
    """A tiny Llama with its DSpark draft in bfloat16; copy it before doctoring."""
    return write(tmp_path_factory.mktemp("written"), tiny_target, tiny_draft)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_network_of_every_family_is_what_the_manifest_says(rtx: Any, tmp_path: Path, name: str, dtype: str) -> None:
    options = dict(FAMILIES[name])
    target = make_target(tmp_path / "target", options.pop("family", "llama"), **options)
    made = write(tmp_path / "graphs", target, None, dtype=dtype)
    assert judge(parse(rtx, made.graph("target")), made.manifest, "target") == ()


@pytest.mark.parametrize("head", HEADS)
def test_networks_of_every_draft_head_are_what_the_manifest_says(
    rtx: Any, tmp_path: Path, tiny_target: Path, head: str
) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tiny_target, head)
    made = write(tmp_path / "graphs", tiny_target, draft)
    for role in ("target", "draft"):
        assert judge(parse(rtx, made.graph(role)), made.manifest, role) == ()


@pytest.mark.parametrize(
    "options",
    [{"own_embeddings": True}, {"confidence": False}, {"block_size": 6}],
    ids=["own embeddings", "no confidence head", "shortened block"],
)
def test_networks_of_draft_variants_are_what_the_manifest_says(
    rtx: Any, tmp_path: Path, tiny_target: Path, options: dict[str, Any]
) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tiny_target, **options)
    made = write(tmp_path / "graphs", tiny_target, draft, block_size=3)
    for role in ("target", "draft"):
        assert judge(parse(rtx, made.graph(role)), made.manifest, role) == ()


def test_networks_of_a_model_draft_are_what_the_manifest_says(rtx: Any, tmp_path: Path, tiny_target: Path) -> None:
    draft = make_target(tmp_path / "draft", "llama", num_layers=2, seed=7)
    made = write(tmp_path / "graphs", tiny_target, draft, draft_kind="model")
    for role in ("target", "draft"):
        assert judge(parse(rtx, made.graph(role)), made.manifest, role) == ()


def test_network_with_a_reduced_draft_vocabulary_is_what_the_manifest_says(
    rtx: Any, tmp_path: Path, tiny_target: Path, tiny_draft: Path
) -> None:
    made = write(tmp_path / "graphs", tiny_target, tiny_draft, draft_vocab=96)
    assert judge(parse(rtx, made.graph("draft")), made.manifest, "draft") == ()


# --- deliberate faults -----------------------------------------------------------------------

ATTENTION = "layers.1.self_attn.attended_padded"
KEY = "target_key.1.present"


def _lengths_not_wired(graph: onnx.GraphProto) -> None:
    attention = node(graph, ATTENTION)
    assert attention.input[5] == "kv_lengths"
    attention.input[5] = ""


def _lengths_of_another_kind(graph: onnx.GraphProto) -> None:
    node(graph, ATTENTION).input[5] = "write_indices"


def _indices_of_another_kind(graph: onnx.GraphProto) -> None:
    node(graph, KEY).input[2] = "kv_lengths"


def _attention_before_the_update(graph: onnx.GraphProto) -> None:
    node(graph, ATTENTION).input[1] = "target_key.1"


def _attention_over_a_neighbours_cache(graph: onnx.GraphProto) -> None:
    node(graph, ATTENTION).input[1] = "target_key.0.present"


def _block_attention_in_the_target(graph: onnx.GraphProto) -> None:
    for attribute in node(graph, ATTENTION).attribute:
        if attribute.name == "causal_kind":
            attribute.s = b"none"


def _missing_alias(graph: onnx.GraphProto) -> None:
    """The output is a copy of the updated cache: right numbers, and a whole cache moved every step."""
    update = node(graph, KEY)
    for reader in graph.node:
        for i, name in enumerate(reader.input):
            if name == KEY:
                reader.input[i] = "inner"
    update.output[0] = "inner"
    graph.node.append(helper.make_node("Identity", ["inner"], [KEY]))


def _exchanged_aliases(graph: onnx.GraphProto) -> None:
    first, second = node(graph, "target_key.0.present"), node(graph, "target_key.1.present")
    first.input[0], second.input[0] = second.input[0], first.input[0]


def _forgotten_output(graph: onnx.GraphProto) -> None:
    (index,) = [i for i, output in enumerate(graph.output) if output.name == KEY]
    del graph.output[index]


def _logits_in_the_engines_type(graph: onnx.GraphProto) -> None:
    cast = node(graph, "logits")
    cast.attribute[0].i = TensorProto.BFLOAT16
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.elem_type = TensorProto.BFLOAT16


def _cast(graph: onnx.GraphProto, edge: str, to: int) -> str:
    graph.node.append(helper.make_node("Cast", [edge], [f"{edge}.cast"], to=to))
    return f"{edge}.cast"


def _in_float32(graph: onnx.GraphProto, output: str) -> None:
    """A node computes in float32 between casts, as a careless mixed-precision export does."""
    wide = node(graph, output)
    for i, name in enumerate(wide.input):
        wide.input[i] = _cast(graph, name, TensorProto.FLOAT)
    wide.output[0] = f"{output}.wide"
    graph.node.append(helper.make_node("Cast", [f"{output}.wide"], [output], to=TensorProto.BFLOAT16))
    _sort(graph)


def _residual_in_float32(graph: onnx.GraphProto) -> None:
    _in_float32(graph, "layers.1.after_attention")


def _product_in_float32(graph: onnx.GraphProto) -> None:
    _in_float32(graph, "layers.1.mlp.down_proj")


def _activation_in_float32(graph: onnx.GraphProto) -> None:
    _in_float32(graph, "layers.1.mlp.product")


def _left_out_residual(graph: onnx.GraphProto) -> None:
    """The layer's own output only, without what came in."""
    add = node(graph, "layers.1.output")
    graph.node.append(helper.make_node("Identity", [add.input[1]], ["layers.1.output"]))
    graph.node.remove(add)
    _sort(graph)


def _rotation_by_constant_positions(graph: onnx.GraphProto) -> None:
    rotation = node(graph, "layers.1.self_attn.rope")
    graph.node.append(helper.make_node("Sub", [rotation.input[3], rotation.input[3]], ["zeros"]))
    rotation.input[3] = "zeros"
    _sort(graph)


def _queries_gathered_by_other_rows(graph: onnx.GraphProto) -> None:
    node(graph, "layers.1.self_attn.attended").input[1] = "token_ids"


def _unused_input(graph: onnx.GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("strange", TensorProto.INT32, ["T"]))


def _lengths_dropped_by_the_parser(graph: onnx.GraphProto) -> None:
    """ONNX's own Attention: the parser takes it, and drops nonpad_kv_seqlen without a word."""
    old = node(graph, ATTENTION)
    graph.node.append(helper.make_node("Cast", ["kv_lengths"], ["lengths"], to=TensorProto.INT64))
    inputs = [*old.input[:3], "", "", "", "lengths"]
    graph.node.append(helper.make_node("Attention", inputs, [ATTENTION], name=ATTENTION, is_causal=1))
    graph.node.remove(old)
    _sort(graph)


def _strange_input(graph: onnx.GraphProto) -> None:
    _unused_input(graph)
    add = helper.make_node("Add", ["token_ids", "strange"], ["shifted"])
    for reader in graph.node:
        for i, name in enumerate(reader.input):
            if name == "token_ids":
                reader.input[i] = "shifted"
    graph.node.insert(0, add)


def _axis_of_another_name(graph: onnx.GraphProto) -> None:
    for value in graph.input:
        if value.name == "logit_rows":
            value.type.tensor_type.shape.dim[0].dim_param = "T"


def _sort(graph: onnx.GraphProto) -> None:
    """Nodes in an order in which every edge is made before it is read."""
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    waiting = list(graph.node)
    done: list[onnx.NodeProto] = []
    while waiting:
        ready = [item for item in waiting if set(item.input) <= known]
        assert ready
        for item in ready:
            known.update(item.output)
            waiting.remove(item)
        done += ready
    del graph.node[:]
    graph.node.extend(done)


FAULTS: dict[Callable[[onnx.GraphProto], None], tuple[str, ...]] = {
    _lengths_not_wired: (f"attention {ATTENTION}/TRT_Attention_AttentionInput reads nothing, wanted kv_lengths",),
    _lengths_of_another_kind: ("reads write_indices, wanted kv_lengths",),
    _indices_of_another_kind: ("cache target_key.1 reads kv_lengths, wanted write_indices",),
    _attention_before_the_update: (
        "reads target_key.1 (bfloat16 [-1, 2, 69, 16]), which is no updated cache",
        "attention layers do not read every cache exactly once",
    ),
    _attention_over_a_neighbours_cache: ("attention layers do not read every cache exactly once",),
    _block_attention_in_the_target: ("has causal kind NONE, wanted LOWER_RIGHT",),
    _missing_alias: ("cache target_key.1 is updated into inner, which is not its alias target_key.1.present",),
    _exchanged_aliases: (
        "cache target_key.0 is updated into target_key.1.present, which is not its alias target_key.0.present",
    ),
    _forgotten_output: ("output target_key.1.present is missing",),
    _logits_in_the_engines_type: ("output logits is bfloat16, wanted float32",),
    _residual_in_float32: ("residual addition", "becomes float32"),
    _product_in_float32: ("MATRIX_MULTIPLY layers.1.mlp.down_proj", "and reaches MATRIX_MULTIPLY"),
    _activation_in_float32: ("becomes float32",),
    _left_out_residual: ("7 residual additions, wanted 8",),
    _rotation_by_constant_positions: ("rotation layers.1.self_attn.rope", "reads zeros, wanted positions"),
    _queries_gathered_by_other_rows: ("3 layers gather by output_rows, wanted 4",),
    _unused_input: ("input strange is used by no layer", "input strange is not in the manifest"),
    _lengths_dropped_by_the_parser: (f"attention {ATTENTION}_AttentionInput reads nothing, wanted kv_lengths",),
    _strange_input: ("input strange is not in the manifest",),
    _axis_of_another_name: ("input logit_rows has axes ['T'], wanted ['N']",),
}


@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change.__name__.strip("_"))
def test_judge_names_a_deliberate_fault(
    rtx: Any, tmp_path: Path, written: Written, change: Callable[[onnx.GraphProto], None]
) -> None:
    folder = shutil.copytree(written.folder, tmp_path / "graphs")
    graph = doctor(folder / "target.onnx", change)
    faults = judge(parse(rtx, graph), written.manifest, "target")
    for wanted in FAULTS[change]:
        assert any(wanted in fault for fault in faults), faults


def test_judge_names_a_target_compiled_for_another_manifest(rtx: Any, written: Written, tmp_path: Path) -> None:
    other = write(tmp_path / "graphs", make_target(tmp_path / "t", "qwen2", num_layers=3, head_dim=32), None)
    faults = judge(parse(rtx, written.graph("target")), other.manifest, "target")
    assert any("input target_key.0 has shape [-1, 2, 69, 16]" in fault for fault in faults)
    assert any(fault == "input context_key.0 is not in the manifest" for fault in faults)
    assert any("4 attention layers, wanted 3" in fault for fault in faults)


def test_judge_names_block_rows_that_see_a_causal_mask(rtx: Any, tmp_path: Path, written: Written) -> None:
    def causal(graph: onnx.GraphProto) -> None:
        for item in graph.node:
            for attribute in item.attribute:
                if attribute.name == "causal_kind":
                    attribute.s = b"lower_right"

    folder = shutil.copytree(written.folder, tmp_path / "graphs")
    faults = judge(parse(rtx, doctor(folder / "draft.onnx", causal)), written.manifest, "draft")
    assert len(faults) == 2 and all("has causal kind LOWER_RIGHT, wanted NONE" in fault for fault in faults)


def test_backend_refuses_a_faulty_graph_before_it_compiles(
    rtx: Any, tmp_path: Path, written: Written, tiny_target: Path
) -> None:
    folder = shutil.copytree(written.folder, tmp_path / "graphs")
    graph = doctor(folder / "target.onnx", _missing_alias)
    config = BuildConfig(target=tiny_target, output=tmp_path / "unused", backend="tensorrt-rtx")
    backend = TensorRtRtxBackend(config)
    backend.choose_dialect("auto")
    with pytest.raises(BuildError) as caught:
        backend.compile(CompileJob(graph=graph, role="target", manifest=written.manifest), ignore)
    assert str(caught.value) == (
        "target.onnx did not become what the manifest says: cache target_key.1 is updated into inner, "
        "which is not its alias target_key.1.present; this is a bug"
    )
    assert not (folder / "target.engine").exists()


# --- faults that no graph of ours can have, doctored into the description ---------------------


@pytest.fixture(scope="module")
def network(rtx: Any, written: Written) -> Network:
    return parse(rtx, written.graph("target"))


def changed(network: Network, name: str, change: Callable[[Layer], Layer]) -> Network:
    """The network with the layers whose name begins with `name` replaced."""
    layers = tuple(change(layer) if layer.name.startswith(name) else layer for layer in network.layers)
    assert layers != network.layers
    return replace(network, layers=layers)


def with_facts(**facts: str) -> Callable[[Layer], Layer]:
    return lambda layer: replace(layer, facts={**layer.facts, **facts})


def as_kind(kind: str) -> Callable[[Layer], Layer]:
    return lambda layer: replace(layer, kind=kind)


UPDATE = "layers.1.self_attn.target_key_present/"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (UPDATE, with_facts(update_form="PADDED_BHND"), "cache target_key.1 is updated in form PADDED_BHND and mode"),
        (UPDATE, with_facts(mode="RING"), "cache target_key.1 is updated in form PACKED_NHD and mode RING"),
        (UPDATE, with_facts(update_lengths=""), "cache target_key.1 reads nothing, wanted update_lengths"),
        (UPDATE, with_facts(update_lengths="kv_lengths"), "cache target_key.1 reads kv_lengths, wanted update_lengths"),
        (
            UPDATE,
            lambda layer: replace(layer, inputs=(layer.inputs[0], None, *layer.inputs[2:])),
            "cache target_key.1 is updated with nothing, wanted [T, 2, 16]",
        ),
        (UPDATE, as_kind("IDENTITY"), "cache target_key.1 has no KV_CACHE_UPDATE layer of its own"),
        (UPDATE, as_kind("IDENTITY"), "11 KV_CACHE_UPDATE layers, wanted 12"),
        (ATTENTION, with_facts(query_form="PACKED_NHD"), "reads PACKED_NHD, PADDED_BHND, wanted PADDED_BHND"),
        (ATTENTION, as_kind("IDENTITY"), "3 attention layers, wanted 4"),
    ],
)  # fmt: skip
def test_judge_names_a_fault_of_a_layers_attributes(
    network: Network, written: Written, name: str, change: Callable[[Layer], Layer], message: str
) -> None:
    faults = judge(changed(network, name, change), written.manifest, "target")
    assert any(message in fault for fault in faults), faults


def test_judge_names_float32_that_leaves_a_norm_by_two_ways(network: Network, written: Written) -> None:
    """The widened stream also feeds another layer, which narrows it again."""
    norm = next(layer for layer in network.layers if layer.kind == "REDUCE")
    edge = norm.inputs[0]
    assert edge is not None and edge.dtype == "float32"
    second = Layer("second", "CAST", (edge,), (Edge("narrow", "bfloat16", edge.shape),))
    faults = judge(replace(network, layers=(*network.layers, second)), written.manifest, "target")
    assert any("and leaves the normalisation 2 times" in fault for fault in faults), faults


def test_judge_names_float32_that_reaches_an_output(network: Network, written: Written) -> None:
    norm = next(layer for layer in network.layers if layer.kind == "REDUCE")
    (edge,) = norm.outputs
    faults = judge(replace(network, outputs=(*network.outputs, edge)), written.manifest, "target")
    assert any(f"and reaches output {edge.name}" in fault for fault in faults), faults


def test_judge_names_two_streams_that_meet_in_float32(network: Network, written: Written) -> None:
    norm = next(layer for layer in network.layers if layer.kind == "REDUCE")
    wide = norm.inputs[0]
    assert wide is not None
    other = Edge("other", "bfloat16", wide.shape)
    maker = Layer("maker", "SELECT", (), (other,))
    cast = Layer("cast", "CAST", (other,), (Edge("other.wide", "float32", wide.shape),))
    meeting = Layer(
        "meeting", "ELEMENTWISE", (wide, cast.outputs[0]), (Edge("sum", "float32", wide.shape),), {"op": "PROD"}
    )
    faults = judge(replace(network, layers=(*network.layers, maker, cast, meeting)), written.manifest, "target")
    assert any("and meets other.wide" in fault for fault in faults), faults
