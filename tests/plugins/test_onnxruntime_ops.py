"""The operators as nodes of ONNX Runtime graphs: same results as the Python binding, caches in place, clear errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from dspark_runtime.oplib import has_onnxruntime_ops, library_path
from dspark_runtime.sessions.onnxruntime import share_threads
from tests.reference.attention import LOWER_RIGHT

pytestmark = pytest.mark.skipif(not has_onnxruntime_ops(), reason="built without ONNX Runtime's headers")

REPOSITORY = Path(__file__).resolve().parents[2]
Arrays = Mapping[str, np.ndarray]


def make_model(nodes: list[onnx.NodeProto], inputs: Arrays, outputs: Mapping[str, tuple[type, int]]) -> bytes:
    """Every axis is left open, so that only the operators themselves check shapes."""

    def info(name: str, dtype: Any, rank: int) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, kind, [f"{name}_{axis}" for axis in range(rank)])

    graph = helper.make_graph(
        nodes,
        "test",
        [info(name, array.dtype, array.ndim) for name, array in inputs.items()],
        [info(name, dtype, rank) for name, (dtype, rank) in outputs.items()],
    )
    opsets = [
        helper.make_opsetid("", names.OPSET),
        helper.make_opsetid(names.ATTENTION_DOMAIN, 1),
        helper.make_opsetid(names.OPERATOR_DOMAIN, 1),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


def open_session(model: bytes) -> ort.InferenceSession:
    # On the pool of the product: once it exists, ONNX Runtime refuses sessions with threads of their own.
    share_threads()
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 4  # refusals are looked at here, not on the test's standard error
    options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def floats(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def update_node(form: str = "packed_nhd", **attributes: str) -> onnx.NodeProto:
    lengths = "update_lengths" if form == "packed_nhd" else ""
    return helper.make_node(
        "TRT_KVCacheUpdate",
        ["past", "update", "write_indices", lengths],
        ["present"],
        domain=names.ATTENTION_DOMAIN,
        **{"update_form": form, "mode": "linear", **attributes},
    )


def attention_node(form: str = "packed_nhd", **attributes: str) -> onnx.NodeProto:
    lengths = "query_lengths" if form == "packed_nhd" else ""
    return helper.make_node(
        "TRT_Attention",
        ["query", "key", "value", "", lengths, "kv_lengths"],
        ["output"],
        domain=names.ATTENTION_DOMAIN,
        **{
            "query_form": form,
            "kv_form": "padded_bhnd",
            "causal_kind": "lower_right",
            "TRT_decomposable": 1,
            **attributes,
        },
    )


def update_feeds() -> dict[str, np.ndarray]:
    return {
        "past": floats((2, 3, 16, 8), 1),
        "update": floats((5, 3, 8), 2),
        "write_indices": ints(0, 3),
        "update_lengths": ints(0, 2, 5),
    }


def attention_feeds(width: int = 64) -> dict[str, np.ndarray]:
    feeds = {
        "query": floats((9, 6, width), 3),
        "key": floats((2, 2, 700, width), 4),
        "value": floats((2, 2, 700, width), 5),
        "query_lengths": ints(0, 1, 8),
        "kv_lengths": ints(600, 40),
    }
    for name in ("key", "value"):
        feeds[name][1, :, 40:] = np.nan
    return feeds


def binding_attention(feeds: Arrays) -> np.ndarray:
    return dspark_ops.attention(**feeds, causal=LOWER_RIGHT)


def test_kv_update_node_separate_output_copies_the_cache() -> None:
    feeds = update_feeds()
    past = feeds["past"].copy()
    session = open_session(make_model([update_node()], feeds, {"present": (np.float32, 4)}))
    (present,) = session.run(None, feeds)
    np.testing.assert_array_equal(feeds["past"], past)
    dspark_ops.kv_update(cache=past, **{name: array for name, array in feeds.items() if name != "past"})
    np.testing.assert_array_equal(present, past)


def test_kv_update_node_output_bound_to_the_cache_writes_in_place() -> None:
    feeds = update_feeds()
    wanted = feeds["past"].copy()
    dspark_ops.kv_update(cache=wanted, **{name: array for name, array in feeds.items() if name != "past"})
    session = open_session(make_model([update_node()], feeds, {"present": (np.float32, 4)}))
    binding = session.io_binding()
    cache = ort.OrtValue.ortvalue_from_numpy(feeds["past"])
    for name in ("update", "write_indices", "update_lengths"):
        binding.bind_cpu_input(name, feeds[name])
    binding.bind_ortvalue_input("past", cache)
    binding.bind_ortvalue_output("present", cache)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(feeds["past"], wanted)


def test_kv_update_node_padded_form_writes_all_rows() -> None:
    feeds = {"past": floats((2, 3, 16, 8), 1), "update": floats((2, 3, 4, 8), 2), "write_indices": ints(0, 12)}
    session = open_session(make_model([update_node("padded_bhnd")], feeds, {"present": (np.float32, 4)}))
    (present,) = session.run(None, feeds)
    wanted = feeds["past"].copy()
    dspark_ops.kv_update(cache=wanted, update=feeds["update"], write_indices=feeds["write_indices"])
    np.testing.assert_array_equal(present, wanted)


@pytest.mark.parametrize("width", [8, 64])
def test_attention_node_packed_equals_binding(width: int) -> None:
    feeds = attention_feeds(width)
    session = open_session(make_model([attention_node()], feeds, {"output": (np.float32, 3)}))
    np.testing.assert_array_equal(session.run(None, feeds)[0], binding_attention(feeds))


def test_attention_node_padded_equals_binding() -> None:
    feeds = attention_feeds()
    del feeds["query_lengths"]
    feeds["query"] = floats((2, 6, 5, 64), 3)
    session = open_session(make_model([attention_node("padded_bhnd")], feeds, {"output": (np.float32, 4)}))
    np.testing.assert_array_equal(session.run(None, feeds)[0], binding_attention(feeds))


def test_two_sessions_on_one_global_thread_pool_agree_with_a_session_of_its_own(tmp_path: Path) -> None:
    # In a process of its own: the global pool's size can be set once, before the first session.
    feeds = attention_feeds()
    model = tmp_path / "attention.onnx"
    model.write_bytes(make_model([attention_node()], feeds, {"output": (np.float32, 3)}))
    np.savez(tmp_path / "feeds.npz", **feeds)
    code = """
import sys
import numpy as np
import onnxruntime as ort
from dspark_runtime.oplib import library_path

ort.set_global_thread_pool_sizes(2, 1)
feeds = dict(np.load(sys.argv[2]))
sessions = []
for _ in range(2):
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.register_custom_ops_library(str(library_path()))
    sessions.append(ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"]))
outputs = [session.run(None, feeds)[0] for _ in range(3) for session in sessions]
assert all(np.array_equal(output, outputs[0]) for output in outputs)
np.save(sys.argv[3], outputs[0])
"""
    output = tmp_path / "output.npy"
    arguments = [str(model), str(tmp_path / "feeds.npz"), str(output)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "loading and running a graph prints no warning"
    np.testing.assert_array_equal(np.load(output), binding_attention(feeds))


def sampling(modes: list[str], temperature: list[float]) -> dict[str, np.ndarray]:
    count = len(modes)
    return {
        names.TEMPERATURE: np.array(temperature, np.float32),
        names.TOP_K: np.full(count, 5, np.int32),
        names.TOP_P: np.full(count, 0.9, np.float32),
        names.MIN_P: np.zeros(count, np.float32),
        names.ACCEPT_MODE: np.array([names.ACCEPT_MODES[mode] for mode in modes], np.int32),
        names.SEED: np.arange(count, dtype=np.int64) - 1,
        names.SAMPLE_INDEX: np.zeros(count, np.int32),
        names.ANCHOR_POSITION: np.arange(count, dtype=np.int32) + 10,
    }


DRAFT_OUTPUTS = {
    names.DRAFT_TOKENS: (np.int32, 2),
    names.CONFIDENCE_LOGITS: (np.float32, 2),
    names.DRAFT_LOGITS: (np.float32, 3),
    names.ENTROPIES: (np.float32, 2),
}


def draft_feeds(head: str, params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """R = 2, K = 3, Vd = 11 of V = 15, d = 6, r = 4."""
    weights = {
        "none": {},
        "vanilla": {},
        "gated": {"head_weight": floats((4, 10), 6), "head_bias": floats((4,), 7)},
        "rnn": {"head_weight": floats((12, 14), 6), "head_bias": floats((12,), 7)},
    }[head]
    markov = {} if head == "none" else {"markov_w1": floats((15, 4), 4), "markov_w2": floats((11, 4), 5)}
    return {
        "base_logits": floats((2, 3, 11), 1),
        "hidden": floats((2, 3, 6), 2),
        names.ANCHOR_TOKENS: ints(14, 0),
        names.BLOCK_OFFSET: ints(0),
        **params,
        names.CONFIDENCE_SIGNAL: ints(names.CONFIDENCE_SIGNALS["head"], names.CONFIDENCE_SIGNALS["token"]),
        names.CUTOFF_POLICY: ints(names.CUTOFF_POLICIES["all"], names.CUTOFF_POLICIES["dual"]),
        **markov,
        **weights,
        "confidence_weight": floats((6 if head == "none" else 10,), 8),
        "confidence_bias": floats((1,), 9),
        "d2t": np.arange(2, 13, dtype=np.int32),
    }


def draft_session(feeds: Arrays, head: str) -> ort.InferenceSession:
    inputs = [
        "base_logits", "hidden", names.ANCHOR_TOKENS, names.BLOCK_OFFSET, *names.SAMPLING_INPUTS,
        names.CONFIDENCE_SIGNAL, names.CUTOFF_POLICY, "markov_w1", "markov_w2", "markov_w2_scales",
        "head_weight", "head_bias", "confidence_weight", "confidence_bias", "d2t",
    ]  # fmt: skip
    node = helper.make_node(
        "DSparkDraft",
        [name if name in feeds else "" for name in inputs],
        list(DRAFT_OUTPUTS),
        domain=names.OPERATOR_DOMAIN,
        head_type=names.HEAD_TYPES[head],
        confidence_with_markov=int(head != "none"),
    )
    return open_session(make_model([node], feeds, DRAFT_OUTPUTS))


def binding_draft(feeds: Arrays, head: str) -> tuple[np.ndarray | None, ...]:
    arguments = {**feeds, names.BLOCK_OFFSET: int(feeds[names.BLOCK_OFFSET][0])}
    return dspark_ops.draft(
        **arguments,
        head_type=names.HEAD_TYPES[head],
        confidence_with_markov=head != "none",
        want_draft_logits=True,
    )


@pytest.mark.parametrize("head", ["none", "vanilla", "gated", "rnn"])
def test_draft_node_equals_binding_for_every_head(head: str) -> None:
    feeds = draft_feeds(head, sampling(["rejection", "greedy"], [0.8, 0.0]))
    outputs = draft_session(feeds, head).run(None, feeds)
    for output, wanted in zip(outputs, binding_draft(feeds, head), strict=True):
        np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize(
    ("modes", "temperature", "rows"),
    [
        (["greedy", "coupled"], [0.0, 0.9], 0),
        (["rejection", "greedy"], [0.0, 0.0], 0),
        (["greedy", "rejection"], [0.0, 0.9], 2),
    ],
    ids=["no rejection", "rejection at temperature 0", "rejection"],
)
def test_draft_node_writes_draft_logits_only_for_rejection(
    modes: list[str], temperature: list[float], rows: int
) -> None:
    feeds = draft_feeds("vanilla", sampling(modes, temperature))
    draft_logits = draft_session(feeds, "vanilla").run([names.DRAFT_LOGITS], feeds)[0]
    assert draft_logits.shape == (rows, 3, 11)


@pytest.mark.parametrize("whole", [False, True], ids=["required inputs", "all inputs"])
def test_cutoff_node_equals_binding(whole: bool) -> None:
    rows = (3, 4)
    feeds = {
        names.CONFIDENCE_LOGITS: floats(rows, 1) * 3,
        names.CUTOFF_POLICY: ints(*(names.CUTOFF_POLICIES[p] for p in ("all", "survival", "ramp"))),
        names.CUTOFF_PARAMS: np.array([[0] * 5, [0.4, 0, 0, 0, 0], [0.1, 0.6, 1, 0, 0]], np.float32),
        names.CUTOFF_INCLUSIVE: ints(0, 1, 0),
        names.MIN_VERIFY: ints(0, 1, 0),
        names.MAX_VERIFY: ints(4, 3, 2),
    }
    if whole:
        feeds[names.CUTOFF_POLICY][2] = names.CUTOFF_POLICIES["dual"]
        feeds[names.ENTROPIES] = np.abs(floats(rows, 2)).clip(0, 1)
        feeds[names.DRAFT_TOKENS] = np.where(floats(rows, 3) < -1, -1, 7).astype(np.int32)
        feeds[names.CALIBRATION_TEMPERATURES] = np.abs(floats(rows, 4)) + 0.5
    inputs = [
        names.CONFIDENCE_LOGITS, names.ENTROPIES, names.DRAFT_TOKENS, names.CALIBRATION_TEMPERATURES,
        names.CUTOFF_POLICY, names.CUTOFF_PARAMS, names.CUTOFF_INCLUSIVE, names.MIN_VERIFY, names.MAX_VERIFY,
    ]  # fmt: skip
    outputs = {
        names.VERIFY_LENGTHS: (np.int32, 1),
        names.SURVIVALS: (np.float32, 2),
        names.CONFIDENCES: (np.float32, 2),
    }
    node = helper.make_node(
        "DSparkCutoff", [name if name in feeds else "" for name in inputs], list(outputs), domain=names.OPERATOR_DOMAIN
    )
    got = open_session(make_model([node], feeds, outputs)).run(None, feeds)
    for output, wanted in zip(got, dspark_ops.cutoff(**feeds), strict=True):
        np.testing.assert_array_equal(output, wanted)


ACCEPT_OUTPUTS = {
    names.ACCEPTED: (np.int32, 1),
    names.TOKENS: (np.int32, 2),
    names.ROUND_ENDS: (np.int32, 1),
    names.LOGPROBS: (np.float32, 3),
    names.LOGPROB_IDS: (np.int32, 3),
    names.LOGPROB_RANKS: (np.int32, 2),
}


def accept_session(feeds: Arrays, block_size: int) -> ort.InferenceSession:
    inputs = [
        names.LOGITS, names.ROW_OFFSETS, names.DRAFT_TOKENS, names.DRAFT_LOGITS, *names.SAMPLING_INPUTS,
        *names.ACCEPT_INPUTS, names.CONFIDENCES, "d2t",
    ]  # fmt: skip
    node = helper.make_node(
        "DSparkAccept",
        [name if name in feeds else "" for name in inputs],
        list(ACCEPT_OUTPUTS),
        domain=names.OPERATOR_DOMAIN,
        block_size=block_size,
    )
    return open_session(make_model([node], feeds, ACCEPT_OUTPUTS))


@pytest.mark.parametrize("mode", names.ACCEPT_MODES)
def test_accept_node_equals_binding(mode: str) -> None:
    feeds = {
        names.LOGITS: floats((6, 9), 1),
        names.ROW_OFFSETS: ints(0, 4, 6),
        names.DRAFT_TOKENS: ints(1, 2, 3, 4, 5, 6).reshape(2, 3),
        names.DRAFT_LOGITS: floats((2 if mode == "rejection" else 0, 3, 9), 2),
        **sampling([mode, mode], [0.0 if mode == "greedy" else 1.1] * 2),
        names.PENALTIES: np.array([[1, 0, 0], [1.4, 0.2, 0.1]], np.float32),
        names.TOKEN_HISTORY: np.arange(60, dtype=np.int32).reshape(4, 15) % 9,
        names.SLOTS: ints(3, 1),
        names.PROMPT_LENGTHS: ints(2, 4),
        names.RULES: ints(0, 3, -8388608, 1, 4, 99).reshape(2, 3),
        names.RULE_OFFSETS: ints(0, 2, 2),
        names.TOKEN_MASKS: ints(0b101111111, 0b111111110).reshape(2, 1),
        names.MASK_ROWS: ints(-1, 0, -1, 1, 1, -1),
        names.RELAXATION: np.array([[0.05, 0.3], [0.1, 0.6]], np.float32),
        names.NUM_LOGPROBS: ints(-1, 5),
        names.CONFIDENCES: floats((2 if mode == "relaxed" else 0, 3), 3),
    }
    outputs = accept_session(feeds, 3).run(None, feeds)
    wanted = dspark_ops.accept(**{name: array for name, array in feeds.items() if array.size})
    for output, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(output, expected)
    assert [output.shape for output in outputs] == [(2,), (2, 4), (2,), (2, 4, 21), (2, 4, 21), (2, 4)]


def test_accept_node_without_a_draft_gives_one_token_per_request() -> None:
    feeds = {names.LOGITS: floats((2, 9), 1), names.ROW_OFFSETS: ints(0, 1, 2), **sampling(["greedy"] * 2, [0.0] * 2)}
    accepted, tokens, ends, logprobs, ids, ranks = accept_session(feeds, 0).run(None, feeds)
    np.testing.assert_array_equal(accepted, [0, 0])
    np.testing.assert_array_equal(tokens, feeds[names.LOGITS].argmax(1)[:, None])
    np.testing.assert_array_equal(ends, [names.ROUND_END_REASONS["bonus"]] * 2)
    assert not logprobs.any() and (ids == -1).all() and not ranks.any(), "nobody asked for log-probabilities"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"write_indices": ints(0, 14)}, "slot 1 writes 3 rows at 14, needs to stay in [0, 16)"),
        ({"write_indices": ints(0)}, "TRT_KVCacheUpdate: write_indices has shape [1], needs [2]"),
        ({"update": floats((5, 3, 7), 1)}, "TRT_KVCacheUpdate: update has shape [5, 3, 7], needs [5, 3, 8]"),
        ({"update_lengths": ints(0, 2)}, "TRT_KVCacheUpdate: update_lengths has shape [2], needs [3]"),
    ],
    ids=["past the end", "write_indices", "update", "update_lengths"],
)
def test_kv_update_node_bad_input_names_the_tensor(change: dict[str, np.ndarray], message: str) -> None:
    feeds = update_feeds()
    session = open_session(make_model([update_node()], feeds, {"present": (np.float32, 4)}))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=re.escape(message)):
        session.run(None, {**feeds, **change})


def test_attention_node_with_a_mask_is_refused() -> None:
    feeds = {**attention_feeds(), "mask": floats((1, 1, 1, 1), 1)}
    node = attention_node()
    node.input[3] = "mask"
    session = open_session(make_model([node], feeds, {"output": (np.float32, 3)}))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="attn_mask is given"):
        session.run(None, feeds)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"query_form": "ragged"}, "the attribute query_form is 'ragged', supported: packed_nhd, padded_bhnd"),
        ({"kv_form": "packed_nhd"}, "the attribute kv_form is 'packed_nhd', supported: padded_bhnd"),
        ({"causal_kind": "sliding"}, "the attribute causal_kind is 'sliding', supported: none, upper_left"),
    ],
    ids=str,
)
def test_attention_node_unknown_attribute_fails_when_the_session_opens(
    attributes: dict[str, str], message: str
) -> None:
    model = make_model([attention_node(**attributes)], attention_feeds(), {"output": (np.float32, 3)})
    with pytest.raises(Exception, match=re.escape(message)):
        open_session(model)


def test_node_without_a_required_attribute_fails_when_the_session_opens() -> None:
    node = attention_node()
    del node.attribute[[attribute.name for attribute in node.attribute].index("causal_kind")]
    with pytest.raises(Exception, match="the node lacks the attribute causal_kind"):
        open_session(make_model([node], attention_feeds(), {"output": (np.float32, 3)}))


def test_op_table_lists_the_inputs_that_the_architecture_page_lists() -> None:
    table = (REPOSITORY / "plugins/include/dspark/op_table.h").read_text()
    page = (REPOSITORY / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (?:trt::)?(DSpark\w+|TRT_\w+) \| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    stems = {"DSparkDraft": "Draft", "DSparkCutoff": "Cutoff", "DSparkAccept": "Accept"}
    stems |= {"TRT_KVCacheUpdate": "KvUpdate", "TRT_Attention": "Attention", "DSparkLinear": "Linear"}
    assert {node for node, _, _ in rows} == set(stems)
    for node, inputs, outputs in rows:
        for kind, listed in (("Inputs", inputs), ("Outputs", outputs)):
            body = re.search(rf"k{stems[node]}{kind}\[\] = \{{(.*?)\}};", table, re.DOTALL)
            assert body is not None
            wanted = [re.sub(r"[\[(].*", "", part).strip() for part in re.sub(r"\[[^]]*\]", "", listed).split(",")]
            assert re.findall(r'\{"(\w+)"', body[1]) == wanted, node
