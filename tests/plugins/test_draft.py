"""DSparkDraft: all heads, signals and modes against the float64 reference, and every complaint.

Logits are compared with the reference given the operator's own tokens; tokens with the reference's choice from the
operator's own logits: so float32 rounding in one position cannot hide a fault in the next.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from dspark_trt.head_storage import load_markov_w2, store_markov_w2
from tests.plugins.sampling import CLOSE, arrays
from tests.reference import draft as reference
from tests.reference.filters import Sampling

HEADS = {"none": 0, "vanilla": 1, "gated": 2, "rnn": 3}
SHAPES = {
    # R, K, V, Vd, d, r
    "tiny": (1, 1, 3, 3, 1, 1),
    "odd": (2, 3, 67, 67, 5, 3),
    "reduced": (3, 4, 1031, 517, 20, 33),
    "wide_rank": (1, 2, 300, 257, 70, 130),
    "one_position": (2, 1, 40, 40, 7, 16),
    "sixteen": (1, 16, 30, 30, 4, 19),
    "many": (11, 2, 530, 530, 3, 48),
    "demo": (2, 7, 49152, 8192, 96, 64),
}


COUNTED = 3
"""k of topk_mass."""


def signals(kinds: list[str]) -> np.ndarray:
    return np.array(
        [
            names.CONFIDENCE_SIGNALS[kind] | (COUNTED << names.SIGNAL_BITS if kind == "topk_mass" else 0)
            for kind in kinds
        ],
        np.int32,
    )


TOP1 = signals(["top1"])


class Block:
    """Random weights and rows for one call; d2t where the draft's vocabulary is smaller than the target's."""

    def __init__(self, shape: str, head: str, *, markov: bool = True, seed: int = 0) -> None:
        self.R, self.K, self.V, self.Vd, self.d, self.r = SHAPES[shape]
        self.head_type = HEADS[head]
        rng = np.random.default_rng([seed, self.Vd, self.head_type])

        def normal(*sizes: int, scale: float = 1.0) -> np.ndarray:
            return (rng.normal(size=sizes) * scale).astype(np.float32)

        self.base_logits = normal(self.R, self.K, self.Vd, scale=2.0)
        self.hidden = normal(self.R, self.K, self.d)
        self.anchor_tokens = rng.integers(0, self.V, self.R).astype(np.int32)
        self.w1 = normal(self.V, self.r)
        self.w2 = normal(self.Vd, self.r, scale=2.0 / np.sqrt(self.r))
        gates = {2: (self.r, self.d + self.r), 3: (3 * self.r, 2 * self.r + self.d)}.get(self.head_type)
        self.head_weight = None if gates is None else normal(*gates, scale=1.0 / np.sqrt(gates[1]))
        self.head_bias = None if gates is None else normal(gates[0])
        self.markov = markov
        width = self.d + (self.r if markov else 0)
        self.confidence_weight = normal(width, scale=1.0 / np.sqrt(width))
        self.confidence_bias = normal(1)
        chosen = np.sort(rng.choice(self.V, self.Vd, replace=False)).astype(np.int32)
        self.d2t = chosen if self.Vd < self.V else None

    def arguments(self, signal: str | list[str], requests: list[Sampling]) -> dict:
        """signal: of all requests, or one each."""
        each = [signal] * len(requests) if isinstance(signal, str) else signal
        return {
            "base_logits": self.base_logits,
            "hidden": self.hidden,
            "anchor_tokens": self.anchor_tokens,
            "markov_w1": self.w1,
            "markov_w2": self.w2,
            "head_weight": self.head_weight,
            "head_bias": self.head_bias,
            "confidence_weight": self.confidence_weight,
            "confidence_bias": self.confidence_bias,
            "confidence_with_markov": self.markov,
            "d2t": self.d2t,
            "head_type": self.head_type,
            "confidence_signal": signals(each),
            **arrays(requests),
        }

    def reference(self) -> reference.Head:
        def wide(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array.astype(np.float64)

        return reference.Head(
            head_type=self.head_type,
            markov_w1=wide(self.w1),
            markov_w2=wide(self.w2),
            head_weight=wide(self.head_weight),
            head_bias=wide(self.head_bias),
            confidence_weight=wide(self.confidence_weight),
            confidence_bias=wide(self.confidence_bias),
            confidence_with_markov=self.markov,
        )

    def draft_id(self, token: int) -> int:
        return int(token) if self.d2t is None else int(np.searchsorted(self.d2t, token))

    def previous(self, tokens: np.ndarray, request: int) -> list[int]:
        return [int(self.anchor_tokens[request]), *tokens[request, :-1].tolist()]


def mixed(count: int, *, seed: int = 11, **options: object) -> list[Sampling]:
    """Requests of all modes: greedy, rejection, coupled, cycling."""
    return [
        Sampling(accept_mode=i % 3, seed=seed + i, sample_index=i % 2, anchor_position=17 * i, **options)  # type: ignore[arg-type]
        for i in range(count)
    ]


MODES = {
    "greedy": {"accept_mode": 0},
    "cold": {"accept_mode": 2, "temperature": 0.0},
    "rejection": {"accept_mode": 1},
    "coupled": {"accept_mode": 2},
    "coupled_filtered": {"accept_mode": 2, "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
    "rejection_top_p": {"accept_mode": 1, "temperature": 1.2, "top_p": 0.8},
    "relaxed": {"accept_mode": 3},
    "typical": {"accept_mode": 4, "temperature": 0.8, "top_k": 30},
    "typical_cold": {"accept_mode": 4, "temperature": 0.0},
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("signal", names.CONFIDENCE_SIGNALS)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "demo"])
def test_draft_logits_tokens_and_confidences_equal_reference(shape, head, signal, mode):
    block = Block(shape, head)
    requests = [Sampling(seed=5 + i, anchor_position=9 + i, sample_index=i, **mode) for i in range(block.R)]
    check_against_reference(block, requests, [signal] * block.R)


@pytest.mark.parametrize("head", HEADS)
def test_draft_of_the_demo_shape_in_mixed_modes_and_signals_equals_reference(head):
    block = Block("demo", head)
    requests = mixed(block.R, temperature=0.9)
    kinds = list(names.CONFIDENCE_SIGNALS)
    for first in range(0, len(kinds), block.R):
        check_against_reference(block, requests, (kinds + kinds)[first : first + block.R])


def check_against_reference(block, requests, kinds, **stored):
    """Every output of a call in which all requests are cut by policy `dual`, which asks for entropies.

    stored: arguments for block.w2 in another storage.
    """
    dual = np.full(block.R, names.CUTOFF_POLICIES["dual"], np.int32)
    arguments = block.arguments(kinds, requests) | stored
    tokens, confidences, logits, entropies = dspark_ops.draft(**arguments, cutoff_policy=dual, want_draft_logits=True)
    head = block.reference()
    for r, sampling in enumerate(requests):
        base, hidden = block.base_logits[r].astype(np.float64), block.hidden[r].astype(np.float64)
        previous = block.previous(tokens, r)
        np.testing.assert_allclose(logits[r], reference.head_logits(head, base, hidden, previous), rtol=2e-5, atol=2e-5)
        for k in range(block.K):
            row = logits[r, k].astype(np.float64)
            token, margin = reference.choose(row, sampling, k, block.d2t)
            assert tokens[r, k] == token or margin < CLOSE
            assert entropies[r, k] == pytest.approx(reference.normalised_entropy(row), rel=1e-6, abs=1e-12)
            if kinds[r] != "head":
                drawn = block.draft_id(tokens[r, k])
                want = reference.confidence_logit(row, names.CONFIDENCE_SIGNALS[kinds[r]], COUNTED, drawn)
                # A float32 holds seven digits; entropies near ln V leave a difference of its last ones.
                assert confidences[r, k] == pytest.approx(want, rel=1e-6, abs=1e-6)
        if kinds[r] == "head":
            want = reference.head_confidences(head, hidden, previous)
            np.testing.assert_allclose(confidences[r], want, rtol=2e-5, atol=2e-6)


STORED = ("bfloat16", "int8")


@pytest.mark.parametrize("storage", STORED)
@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "demo"])
def test_draft_over_a_stored_w2_equals_the_reference_of_what_it_stands_for(shape, head, storage):
    block = Block(shape, head)
    stored = store_markov_w2(block.w2, storage)
    block.w2 = load_markov_w2(stored)
    check_against_reference(block, mixed(block.R), ["token"] * block.R, **as_numpy(stored))


def as_numpy(stored: dict) -> dict:
    """bfloat16 as its bits, which is how the operator takes it."""
    return {name: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for name, a in stored.items()}


@pytest.mark.parametrize("storage", STORED)
def test_draft_over_a_stored_w2_does_not_depend_on_neighbours_or_threads(storage):
    """Requests share the reading and unpacking of a tile in groups of any size."""
    block = Block("many", "vanilla")
    requests = mixed(block.R)
    arguments = block.arguments("top1", requests) | as_numpy(store_markov_w2(block.w2, storage))
    together = dspark_ops.draft(**arguments, want_draft_logits=True)
    for r in range(block.R):
        alone = dspark_ops.draft(**only(arguments, r), want_draft_logits=True, parallel=False)
        for got, want in zip(alone, together, strict=True):
            np.testing.assert_array_equal(got[0], want[r])


@pytest.mark.parametrize("head", HEADS)
def test_draft_without_kept_logits_gives_the_same_tokens_and_confidences(head):
    block = Block("reduced", head)
    for signal in names.CONFIDENCE_SIGNALS:
        arguments = block.arguments(signal, mixed(block.R))
        tokens, confidences, logits, _ = dspark_ops.draft(**arguments)
        kept_tokens, kept_confidences, _, _ = dspark_ops.draft(**arguments, want_draft_logits=True)
        assert logits is None
        np.testing.assert_array_equal(tokens, kept_tokens)
        np.testing.assert_array_equal(confidences, kept_confidences)


@pytest.mark.parametrize("head", HEADS)
def test_draft_results_do_not_depend_on_threads(head):
    block = Block("demo", head)
    for kinds in (["top1", "topk_mass"], ["gini", "token"]):
        arguments = block.arguments(kinds, mixed(block.R))
        for one, many in zip(
            dspark_ops.draft(**arguments, want_draft_logits=True, parallel=False),
            dspark_ops.draft(**arguments, want_draft_logits=True, parallel=True),
            strict=True,
        ):
            np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("head", HEADS)
def test_draft_of_a_request_does_not_depend_on_its_neighbours(head):
    block = Block("reduced", head)
    requests = mixed(block.R)
    kinds = ["head", "margin", "topk_mass"]
    together = dspark_ops.draft(**block.arguments(kinds, requests), want_draft_logits=True)
    for r in range(block.R):
        alone = dspark_ops.draft(**only(block.arguments(kinds, requests), r), want_draft_logits=True)
        for got, want in zip(alone, together, strict=True):
            np.testing.assert_array_equal(got[0], want[r])


def only(arguments: dict, request: int) -> dict:
    """The arguments of one request of a call."""
    per_request = {"base_logits", "hidden", "anchor_tokens", "confidence_signal", *names.SAMPLING_INPUTS}
    return {name: a[request : request + 1] if name in per_request else a for name, a in arguments.items()}


@pytest.mark.parametrize("head", ["none", "vanilla", "gated"])
def test_draft_run_column_by_column_with_block_offset_equals_the_block(head):
    """A model draft calls the operator once per step: the counters must not start again."""
    block = Block("reduced", head)
    requests = mixed(block.R)
    whole, wanted, _, _ = dspark_ops.draft(**block.arguments("token", requests))
    previous = block.anchor_tokens
    for k in range(block.K):
        arguments = block.arguments("token", requests)
        arguments["base_logits"] = np.ascontiguousarray(block.base_logits[:, k : k + 1])
        arguments["hidden"] = np.ascontiguousarray(block.hidden[:, k : k + 1])
        arguments["anchor_tokens"] = previous
        step, confidences, _, _ = dspark_ops.draft(**arguments, block_offset=k)
        np.testing.assert_array_equal(step[:, 0], whole[:, k])
        np.testing.assert_array_equal(confidences[:, 0], wanted[:, k])
        previous = np.ascontiguousarray(step[:, 0])


def test_draft_block_offset_changes_what_rejection_and_coupled_requests_draw():
    """Negative control of the test above: at offset 0 the later columns would draw other numbers."""
    block = Block("reduced", "none")
    requests = [Sampling(accept_mode=1 + i % 2, seed=i, temperature=3.0) for i in range(block.R)]
    first, *_ = dspark_ops.draft(**block.arguments("top1", requests))
    second, *_ = dspark_ops.draft(**block.arguments("top1", requests), block_offset=1)
    assert (first != second).any(axis=1).all()


def test_draft_confidence_of_a_position_depends_on_the_token_before_it_only():
    block = Block("odd", "vanilla")
    requests = mixed(block.R)
    _, confidences, *_ = dspark_ops.draft(**block.arguments("head", requests))
    arguments = block.arguments("head", requests)
    arguments["base_logits"] = block.base_logits.copy()
    arguments["base_logits"][:, -1] = np.roll(block.base_logits[:, -1], 1, axis=-1)
    _, changed, *_ = dspark_ops.draft(**arguments)
    np.testing.assert_array_equal(changed, confidences)
    arguments["anchor_tokens"] = (block.anchor_tokens + 1) % block.V
    _, changed, *_ = dspark_ops.draft(**arguments)
    assert (changed[:, 0] != confidences[:, 0]).all()


def test_draft_confidence_without_markov_input_ignores_the_tokens():
    block = Block("odd", "vanilla", markov=False)
    requests = mixed(block.R)
    _, confidences, *_ = dspark_ops.draft(**block.arguments("head", requests))
    want = block.hidden.astype(np.float64) @ block.confidence_weight.astype(np.float64) + float(
        block.confidence_bias[0]
    )
    np.testing.assert_allclose(confidences, want, rtol=1e-5, atol=1e-6)


def test_draft_confidence_without_bias_is_the_plain_product():
    block = Block("odd", "none")
    with_bias = dspark_ops.draft(**block.arguments("head", mixed(block.R)))[1]
    arguments = block.arguments("head", mixed(block.R))
    arguments["confidence_bias"] = None
    without = dspark_ops.draft(**arguments)[1]
    np.testing.assert_allclose(with_bias - without, float(block.confidence_bias[0]), rtol=1e-4, atol=1e-5)


def test_draft_confidence_from_nan_hidden_leaves_the_tokens_alone():
    block = Block("odd", "vanilla")
    arguments = block.arguments("head", mixed(block.R))
    tokens, *_ = dspark_ops.draft(**arguments)
    arguments["hidden"] = np.full_like(block.hidden, np.nan)
    got, confidences, *_ = dspark_ops.draft(**arguments)
    np.testing.assert_array_equal(got, tokens)
    assert np.isnan(confidences).all()


def test_draft_greedy_tie_takes_the_lowest_target_id():
    rows = np.zeros((1, 1, 700), np.float32)
    rows[0, 0, [300, 301, 650]] = 1.0
    d2t = np.arange(700, dtype=np.int32) * 2 + 1
    tokens, *_ = dspark_ops.draft(
        base_logits=rows,
        anchor_tokens=np.zeros(1, np.int32),
        confidence_signal=TOP1,
        d2t=d2t,
        **arrays([Sampling(accept_mode=0)]),
    )
    assert tokens.tolist() == [[601]]


@pytest.mark.parametrize(("others", "want"), [(-200.0, 80.0), (-np.inf, 80.0), (0.0, -np.log(9.0)), (-50.0, None)])
def test_draft_top1_confidence_is_exact_far_from_and_near_certainty(others, want):
    rows = np.full((1, 1, 10), others, np.float32)
    rows[0, 0, 4] = 0.0
    _, confidences, *_ = dspark_ops.draft(
        base_logits=rows,
        anchor_tokens=np.zeros(1, np.int32),
        confidence_signal=TOP1,
        **arrays([Sampling(accept_mode=0)]),
    )
    # 9 others at e^-50: 1 - p is far below one rounding of p, and still known.
    np.testing.assert_allclose(confidences[0, 0], 50.0 - np.log(9.0) if want is None else want, rtol=1e-6)


def test_draft_top1_confidence_is_taken_before_the_filters_and_the_temperature():
    block = Block("odd", "vanilla")
    plain = dspark_ops.draft(**block.arguments("top1", [Sampling(accept_mode=0)] * block.R))[1]
    cold = dspark_ops.draft(**block.arguments("top1", [Sampling(temperature=0.01, top_k=2, accept_mode=2)] * block.R))[
        1
    ]
    np.testing.assert_array_equal(plain[:, 0], cold[:, 0])


def test_draft_draws_use_target_ids_so_that_a_reduced_vocabulary_keeps_the_noise():
    """With the same probabilities, a draft over a sub-vocabulary draws what the full one draws."""
    rng = np.random.default_rng(3)
    kept = np.sort(rng.choice(500, 60, replace=False)).astype(np.int32)
    small = (rng.normal(size=60) * 2).astype(np.float32)
    full = np.full(500, -np.inf, np.float32)
    full[kept] = small
    for seed in range(50):
        options = {"confidence_signal": TOP1, **arrays([Sampling(accept_mode=1 + seed % 2, seed=seed)])}
        anchor = np.zeros(1, np.int32)
        first, *_ = dspark_ops.draft(base_logits=small[None, None], anchor_tokens=anchor, d2t=kept, **options)
        second, *_ = dspark_ops.draft(base_logits=full[None, None], anchor_tokens=anchor, **options)
        assert first.tolist() == second.tolist()


def test_draft_outputs_passed_in_are_written_in_place():
    block = Block("odd", "vanilla")
    outputs = {
        "draft_tokens": np.full((block.R, block.K), -7, np.int32),
        "confidence_logits": np.full((block.R, block.K), np.nan, np.float32),
        "draft_logits": np.full((block.R, block.K, block.Vd), np.nan, np.float32),
        "entropies": np.full((block.R, block.K), np.nan, np.float32),
    }
    got = dspark_ops.draft(**block.arguments("head", mixed(block.R)), **outputs)
    for array, passed in zip(got, outputs.values(), strict=True):
        assert array is passed
        assert np.isfinite(passed).all() and (passed != -7).all()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_draft_faulty_row_ends_the_proposals_of_its_request_alone(head, mode, value):
    block = Block("reduced", head)
    requests = [Sampling(accept_mode=mode, seed=r) for r in range(block.R)]
    arguments = block.arguments(["gini", "head", "token"], requests)
    arguments["cutoff_policy"] = np.full(block.R, names.CUTOFF_POLICIES["dual"], np.int32)
    want = dspark_ops.draft(**arguments, want_draft_logits=True)
    rows = block.base_logits.copy()
    if value == -np.inf:
        rows[1, 2] = value
    else:
        rows[1, 2, 400] = value
    got = dspark_ops.draft(**{**arguments, "base_logits": rows}, want_draft_logits=True)
    for changed, usual in zip(got, want, strict=True):
        np.testing.assert_array_equal(changed[[0, 2]], usual[[0, 2]])
        np.testing.assert_array_equal(changed[1, :2], usual[1, :2])
    tokens, confidences, logits, entropies = got
    assert tokens[1, 2:].tolist() == [-1, -1]
    assert np.isnan(confidences[1, 2:]).all() and entropies[1, 2:].tolist() == [0, 0]
    assert not logits[1, 3].any()


def test_draft_all_requests_faulty_at_once_propose_nothing():
    block = Block("odd", "rnn")
    arguments = block.arguments("topk_mass", mixed(block.R))
    arguments["base_logits"] = np.full_like(block.base_logits, np.nan)
    tokens, confidences, logits, _ = dspark_ops.draft(**arguments)
    assert (tokens == -1).all() and np.isnan(confidences).all() and logits is None


def bad_cases():
    def f(*values):
        return np.array(values, np.float32)

    def i(*values):
        return np.array(values, np.int32)

    block = Block("odd", "gated")
    d2t = np.arange(67, dtype=np.int32)
    twisted = d2t.copy()
    twisted[5] = 4
    return {
        "temperature": ({"temperature": f(1, -0.5)}, r"temperature\[1\] is -0.5, wanted a finite number >= 0"),
        "temperature_nan": ({"temperature": f(np.nan, 1)}, r"temperature\[0\] is nan"),
        "top_k": ({"top_k": i(0, -1)}, r"top_k\[1\] is -1, wanted >= 0"),
        "top_p": ({"top_p": f(0, 1)}, r"top_p\[0\] is 0, wanted \(0, 1\]"),
        "top_p_high": ({"top_p": f(1, 1.5)}, r"top_p\[1\] is 1.5"),
        "min_p": ({"min_p": f(0, 2)}, r"min_p\[1\] is 2, wanted \[0, 1\]"),
        "accept_mode": ({"accept_mode": i(0, 5)}, r"accept_mode\[1\] is 5, wanted 0 \(greedy\)"),
        "head_type": ({"head_type": 4}, "head_type is 4, wanted 0"),
        "signal": ({"confidence_signal": i(1, 7)}, r"confidence_signal\[1\] is 7, wanted 0 \(head\), 1 \(top1\), 2"),
        "signal_negative": ({"confidence_signal": i(-1, 1)}, r"confidence_signal\[0\] is -1"),
        "signal_k": ({"confidence_signal": i(1, 257)}, r"confidence_signal\[1\] has kind 1 and k 1, wanted k 0"),
        "signal_no_k": ({"confidence_signal": i(3, 1)}, r"confidence_signal\[0\] has kind 3 and k 0, wanted k >= 1"),
        "policy": ({"cutoff_policy": i(0, 7)}, r"cutoff_policy\[1\] is 7, wanted 0 to 6"),
        "anchor": (
            {"anchor_tokens": i(3, 67)},
            r"the anchor of request 1 is token 67, wanted an id in \[0, markov_rows",
        ),
        "anchor_negative": ({"anchor_tokens": i(-1, 3)}, "the anchor of request 0 is token -1"),
        "no_w1": ({"markov_w1": None, "markov_w2": None}, "wanted"),
        "w2_dtype": ({"markov_w2": block.w2.astype(np.float64)}, "markov_w2 is float64 .* wanted float32"),
        "scales": ({"markov_w2_scales": np.ones(67, np.float32)}, "markov_w2_scales is given but head_storage is 0"),
        "no_scales": ({"markov_w2": block.w2.astype(np.int8)}, "markov_w2_scales is null but head_storage is 2"),
        "no_w2": ({"markov_w2": None}, "markov_w2 is null, wanted an array"),
        "no_gate": ({"head_weight": None}, "head_weight is null"),
        "no_gate_bias": ({"head_bias": None}, "head_bias is null"),
        "no_hidden": (
            {"hidden": None, "head_weight": None, "confidence_weight": None, "confidence_signal": i(1, 1)},
            "head_weight is null",
        ),
        "no_confidence": (
            {"confidence_weight": None, "confidence_signal": i(1, 0)},
            r"confidence_signal\[1\] is 0 \(head\), but this draft has no confidence head",
        ),
        "gate_shape": (
            {"head_weight": block.head_weight[:, :-1].copy()},
            r"head_weight is float32 \[3, 7\].*= \[3, 8\]",
        ),
        "w2_shape": (
            {"markov_w2": block.w2[:-1]},
            r"markov_w2 is float32 \[66, 3\], wanted float32 \[Vd, r\] = \[67, 3\]",
        ),
        "d2t_order": ({"d2t": twisted}, r"d2t\[5\] is 4, wanted strictly ascending target ids in \[0, 67\)"),
        "d2t_range": ({"d2t": d2t + 1}, r"d2t\[66\] is 67"),
        "block_offset": ({"block_offset": -1}, "block_offset is -1, wanted 0 to"),
        "dtype": ({"seed": i(1, 2)}, r"seed is int32 \[2\], wanted int64 \[R\] = \[2\]"),
        "rank": (
            {"base_logits": block.base_logits[0]},
            r"base_logits is float32 \[3, 67\], wanted float32 \[R, K, Vd\]",
        ),
    }


@pytest.mark.parametrize(("change", "message"), bad_cases().values(), ids=bad_cases())
def test_draft_bad_argument_is_named_with_found_and_wanted(change, message):
    block = Block("odd", "gated")
    with pytest.raises(ValueError, match=message):
        dspark_ops.draft(**{**block.arguments("head", mixed(block.R)), **change})


def test_draft_proposal_beyond_the_embedding_is_refused():
    """Without d2t a draft id is a target id: rows of W1 must cover it as soon as a later position embeds it."""
    block = Block("odd", "vanilla")
    arguments = block.arguments("top1", [Sampling(accept_mode=0)] * block.R)
    rows = np.zeros_like(block.base_logits)
    rows[..., 66] = 1e4
    arguments.update(base_logits=rows, markov_w1=block.w1[:60].copy(), anchor_tokens=np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="a proposal of request 0 is token 66, wanted an id in"):
        dspark_ops.draft(**arguments)


def test_draft_without_requests_returns_empty_arrays():
    tokens, confidences, *_ = dspark_ops.draft(
        base_logits=np.zeros((0, 3, 5), np.float32),
        anchor_tokens=np.zeros(0, np.int32),
        confidence_signal=np.zeros(0, np.int32),
        **arrays([]),
    )
    assert tokens.shape == (0, 3) and confidences.shape == (0, 3)


@pytest.mark.parametrize("storage", ["float32", *STORED])
def test_draft_of_a_large_vocabulary_gives_every_signal(storage):
    """V = 151936, as in Qwen: many tiles, one request per signal."""
    rng = np.random.default_rng(5)
    vocab, rank, kinds = 151936, 8, [kind for kind in names.CONFIDENCE_SIGNALS if kind != "head"]
    base = (rng.normal(size=(len(kinds), 1, vocab)) * 3).astype(np.float32)
    w2 = rng.normal(size=(vocab, rank)).astype(np.float32)
    stored = store_markov_w2(w2, storage)
    w1 = rng.normal(size=(4, rank)).astype(np.float32)
    requests = [Sampling(accept_mode=i % 3, seed=i) for i in range(len(kinds))]
    tokens, confidences, *_ = dspark_ops.draft(
        base_logits=base,
        anchor_tokens=np.full(len(kinds), 3, np.int32),
        markov_w1=w1,
        head_type=HEADS["vanilla"],
        confidence_signal=signals(kinds),
        **as_numpy(stored),
        **arrays(requests),
    )
    for r, kind in enumerate(kinds):
        row = base[r, 0].astype(np.float64) + load_markov_w2(stored).astype(np.float64) @ w1[3].astype(np.float64)
        want = reference.confidence_logit(row, names.CONFIDENCE_SIGNALS[kind], COUNTED, int(tokens[r, 0]))
        assert confidences[r, 0] == pytest.approx(want, rel=1e-4, abs=1e-4)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from([kind for kind in names.CONFIDENCE_SIGNALS if kind != "head"]),
    vocab=st.sampled_from([1, 2, 3, 7, 8, 9, 255, 256, 257, 513, 1500]),
    k=st.integers(1, 600),
    scale=st.sampled_from([0.0, 1e-4, 1.0, 30.0, 3e37]),
    levels=st.sampled_from([0, 3]),
    impossible=st.sampled_from([0.0, 0.5, 0.99]),
    mode=st.integers(0, 2),
    seed=st.integers(0, 2**31),
)
def test_draft_signal_of_any_row_equals_reference(kind, vocab, k, scale, levels, impossible, mode, seed):
    """Ties, impossible tokens, one token, certainty, uniformity, and differences up to the range of float32."""
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=vocab) * scale).astype(np.float32)
    if levels:
        row = rng.integers(0, levels, vocab).astype(np.float32)
    row[rng.random(vocab) < impossible] = -np.inf
    row[rng.integers(vocab)] = 1.0
    signal = names.CONFIDENCE_SIGNALS[kind]
    word = signal | (k << names.SIGNAL_BITS if kind == "topk_mass" else 0)
    tokens, confidences, _, entropies = dspark_ops.draft(
        base_logits=row[None, None],
        anchor_tokens=np.zeros(1, np.int32),
        confidence_signal=np.array([word], np.int32),
        cutoff_policy=np.array([names.CUTOFF_POLICIES["dual"]], np.int32),
        **arrays([Sampling(accept_mode=mode, seed=seed)]),
    )
    wide = row.astype(np.float64)
    want = reference.confidence_logit(wide, signal, k, int(tokens[0, 0]))
    assert sure(confidences[0, 0]) == pytest.approx(sure(want), rel=1e-6, abs=1e-12)
    if abs(want) < 25:  # beyond it a signal near 0 is a difference of entropies
        assert confidences[0, 0] == pytest.approx(want, rel=1e-5, abs=1e-5)
    assert entropies[0, 0] == pytest.approx(reference.normalised_entropy(wide), rel=1e-6, abs=1e-12)


def sure(logit: float) -> float:
    return float(1.0 / (1.0 + np.exp(-np.float64(logit))))


def draws_of_one_row(kind: str, head: str, seed: int, count: int = 24) -> tuple[np.ndarray, ...]:
    """The first position of a block, drawn by `count` requests that differ in their seeds alone."""
    block = Block("reduced", head, seed=seed % 7)
    arguments = only(block.arguments(kind, [Sampling()] * block.R), 0)
    repeated = {name: np.repeat(arguments[name][:, :1], count, axis=0) for name in ("base_logits", "hidden")}
    arguments |= repeated
    arguments["anchor_tokens"] = np.repeat(arguments["anchor_tokens"], count)
    arguments["confidence_signal"] = np.repeat(arguments["confidence_signal"], count)
    arguments |= arrays([Sampling(accept_mode=1, seed=seed + i, temperature=2.0) for i in range(count)])
    arguments["cutoff_policy"] = np.full(count, names.CUTOFF_POLICIES["dual"], np.int32)
    tokens, confidences, _, entropies = dspark_ops.draft(**arguments)
    assert len(set(tokens[:, 0].tolist())) > 1
    return tokens, confidences, entropies


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", [kind for kind in names.CONFIDENCE_SIGNALS if kind != "token"])
def test_draft_confidence_of_a_proposal_does_not_depend_on_what_was_drawn(kind, head):
    """The pre-token rule (dspark.md 4.1): c_k is settled before x_k."""
    for seed in range(0, 100, 10):
        _, confidences, entropies = draws_of_one_row(kind, head, seed)
        assert len(set(confidences[:, 0].tolist())) == 1
        assert len(set(entropies[:, 0].tolist())) == 1


@pytest.mark.parametrize("head", HEADS)
def test_draft_token_signal_does_depend_on_what_was_drawn(head):
    """Negative control of the test above, and why this signal needs the inclusive stop."""
    _, confidences, _ = draws_of_one_row("token", head, 3)
    assert len(set(confidences[:, 0].tolist())) > 1


@pytest.mark.parametrize("inclusive", [0, 1])
def test_cutoff_on_the_token_signal_decides_without_the_token_only_where_inclusive(inclusive):
    tokens, confidences, entropies = draws_of_one_row("token", "vanilla", 3)
    count = len(tokens)
    for policy, params in POLICIES.items():
        lengths, *_ = dspark_ops.cutoff(
            confidence_logits=confidences,
            entropies=entropies,
            draft_tokens=tokens,
            cutoff_policy=np.full(count, names.CUTOFF_POLICIES[policy], np.int32),
            cutoff_params=np.array([[*params, *[0] * (5 - len(params))]] * count, np.float32),
            cutoff_inclusive=np.full(count, inclusive, np.int32),
            min_verify=np.zeros(count, np.int32),
            max_verify=np.ones(count, np.int32),
        )
        # A single strike is forgiven, so two_strikes never decides about the first proposal.
        reads = policy != "two_strikes" and not inclusive
        assert len(set(lengths.tolist())) == (2 if reads else 1), policy


POLICIES = {
    "threshold": (0.01,),
    "survival": (0.01,),
    "utility": (0.01, 1.0, 0.0, 0, 9),
    "two_strikes": (0.01, 0),
    "dual": (0.005, 0.01, 0.0),
    "ramp": (0.01, 0.5, 4),
}
"""Parameters by which some of the tokens of `draws_of_one_row` fall below the bar, and some do not."""
