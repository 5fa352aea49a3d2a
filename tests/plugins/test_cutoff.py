"""DSparkCutoff against its reference, by hand-made cases, and every complaint."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from dspark_runtime.oplib import library_path
from tests.reference import cutoff as reference
from tests.reference.cutoff import ALL, DUAL, RAMP, SURVIVAL, THRESHOLD, TWO_STRIKES, UTILITY, Cutoff

CLOSE = 1e-9
"""Distance of a measure from its bar below which the exponential of one library may decide otherwise than another's."""


def logit(p: float) -> float:
    return float(np.log(p / (1.0 - p)))


def run(logits, *cutoffs, temperatures=None, entropies=None, tokens=None, **outputs):
    """One request per cutoff, all with the same rows if only one is given."""
    logits = np.atleast_2d(np.array(logits, np.float32))
    logits = np.ascontiguousarray(np.broadcast_to(logits, (len(cutoffs), logits.shape[1])))
    block = logits.shape[1]

    def rows(values, dtype):
        if values is None:
            return None
        return np.ascontiguousarray(np.broadcast_to(np.array(values, dtype), logits.shape))

    return dspark_ops.cutoff(
        confidence_logits=logits,
        entropies=rows(entropies, np.float32),
        draft_tokens=rows(tokens, np.int32),
        calibration_temperatures=rows(temperatures, np.float32),
        cutoff_policy=np.array([c.policy for c in cutoffs], np.int32),
        cutoff_params=np.array([c.columns for c in cutoffs], np.float32).reshape(-1, 5),
        cutoff_inclusive=np.array([c.inclusive for c in cutoffs], np.int32),
        min_verify=np.array([c.min_verify for c in cutoffs], np.int32),
        max_verify=np.array([min(c.max_verify, block) for c in cutoffs], np.int32),
        **outputs,
    )


def lengths(confidences, *cutoffs, **inputs) -> list[int]:
    return run([logit(c) for c in confidences], *cutoffs, **inputs)[0].tolist()


BLOCK = [0.9, 0.8, 0.5, 0.95]


def test_cutoff_all_keeps_the_block_whatever_the_confidences():
    assert lengths([0.01] * 4, Cutoff(policy=ALL)) == [4]


def test_cutoff_threshold_stops_before_the_first_weak_proposal_not_the_last():
    assert lengths(BLOCK, Cutoff(policy=THRESHOLD, params=(0.6,))) == [2]


def test_cutoff_threshold_equal_to_a_confidence_keeps_it():
    assert lengths([0.5, 0.5], Cutoff(policy=THRESHOLD, params=(0.5,))) == [2]


def test_cutoff_survival_multiplies_confidences():
    kept, survivals, confidences = run([logit(c) for c in BLOCK], Cutoff(policy=SURVIVAL, params=(0.7,)))
    assert kept.tolist() == [2]
    np.testing.assert_allclose(survivals[0], [0.9, 0.72, 0.36, 0.342], rtol=1e-6)
    np.testing.assert_allclose(confidences[0], BLOCK, rtol=1e-6)


@pytest.mark.parametrize(
    ("confidences", "params", "want"),
    [
        # 1.0 * 0.7 - 0.2 * i / 9 >= 0.45: 0.7 falls below at i = 12, 0.5 at i = 3.
        ([0.1, 0.1, 0.1, 0.7, 0.7], (0.45, 1.0, 0.2, 3, 9), 5),
        ([0.5] * 5, (0.45, 1.0, 0.2, 0, 9), 2),
        ([0.5] * 5, (0.45, 1.0, 0.2, 3, 9), 3),
        ([0.9] * 5, (0.45, 1.0, 2.0, 0, 9), 2),
        ([0.9] * 5, (0.45, 0.5, 0.0, 0, 9), 5),
        ([0.9] * 5, (0.46, 0.5, 0.0, 0, 9), 0),
    ],
)
def test_cutoff_utility_weighs_confidence_against_the_position(confidences, params, want):
    assert lengths(confidences, Cutoff(policy=UTILITY, params=params)) == [want]


@pytest.mark.parametrize(
    ("confidences", "params", "want"),
    [
        ([0.9, 0.3, 0.9, 0.3, 0.9], (0.5, 0), 3),  # the second strike cuts just before itself
        ([0.9, 0.36, 0.9, 0.36, 0.9], (0.5, 0), 5),  # 0.7 * 0.5 = 0.35
        ([0.3, 0.3, 0.9, 0.3, 0.9], (0.5, 2), 5),  # the first two positions count no strikes
        ([0.3, 0.3, 0.9, 0.3, 0.3], (0.5, 2), 4),
        ([0.3, 0.3], (0.5, 0), 1),
    ],
)
def test_cutoff_two_strikes_forgives_one_weak_proposal(confidences, params, want):
    assert lengths(confidences, Cutoff(policy=TWO_STRIKES, params=params)) == [want]


def test_cutoff_dual_asks_the_entropy_between_its_thresholds():
    dual = Cutoff(policy=DUAL, params=(0.3, 0.7, 0.5))
    assert lengths([0.8, 0.5, 0.5], dual, entropies=[0.9, 0.4, 0.6]) == [2]
    assert lengths([0.8, 0.5, 0.29], dual, entropies=[0.9, 0.5, 0.0]) == [2]
    assert lengths([0.7, 0.7], dual, entropies=[1.0, 1.0]) == [2]
    assert lengths([0.69, 0.7], dual, entropies=[np.nan, 0.0]) == [0]


def test_cutoff_ramp_rises_from_the_first_position_to_the_last():
    assert lengths([0.5, 0.5, 0.5, 0.5], Cutoff(policy=RAMP, params=(0.2, 0.8, 4))) == [2]  # 0.2, 0.4, 0.6, 0.8
    assert lengths([0.5, 0.5, 0.5, 0.5], Cutoff(policy=RAMP, params=(0.2, 0.8, 1))) == [4]
    assert lengths([0.5, 0.5, 0.5, 0.5], Cutoff(policy=RAMP, params=(0.2, 0.8, 2))) == [1]  # 0.8 from position 2 on


@pytest.mark.parametrize(
    ("cutoff", "want"),
    [
        (Cutoff(policy=THRESHOLD, params=(0.6,), inclusive=True), 3),
        (Cutoff(policy=SURVIVAL, params=(0.1,), inclusive=True), 4),
        (Cutoff(policy=TWO_STRIKES, params=(0.99, 0), inclusive=True), 4),
        (Cutoff(policy=ALL, inclusive=True), 4),
        (Cutoff(policy=THRESHOLD, params=(0.95,), inclusive=True, max_verify=0), 0),
    ],
)
def test_cutoff_inclusive_verifies_the_first_weak_proposal_and_stops_those_after_it(cutoff, want):
    assert lengths(BLOCK, cutoff) == [want]


@pytest.mark.parametrize("policy", range(7))
def test_cutoff_min_and_max_verify_clamp_every_policy(policy):
    params = {UTILITY: (-2.0, 1.0, 0.0, 0, 1), DUAL: (0.0, 0.0, 1.0), RAMP: (0.0, 0.0, 4)}.get(policy, (0.0,))
    for most in (0, 1, 4):
        keep_all = Cutoff(policy=policy, params=params, max_verify=most)
        assert lengths(BLOCK, keep_all, entropies=[0] * 4) == [most]
    if policy != ALL:
        params = {UTILITY: (9.0, 1.0, 0.0, 0, 1), DUAL: (1.0, 1.0, 0.0), RAMP: (1.0, 1.0, 4)}.get(policy, (1.0,))
        least = Cutoff(policy=policy, params=params, min_verify=3, max_verify=3)
        assert lengths([0.1] * 4, least, entropies=[0] * 4) == [3]


def test_cutoff_proposals_from_a_missing_token_on_are_not_verified_whatever_min_verify_says():
    cutoffs = [Cutoff(policy=ALL), Cutoff(policy=ALL, min_verify=4), Cutoff(policy=THRESHOLD, params=(0.0,))]
    kept, survivals, confidences = run([3.0] * 4, *cutoffs, tokens=[5, 7, -1, 9])
    assert kept.tolist() == [2, 2, 2]
    assert confidences[:, 2:].max() == 0 and survivals[:, 2:].max() == 0 and confidences[:, :2].min() > 0.9
    assert run([3.0] * 4, *cutoffs, tokens=[-1, 7, 8, 9])[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_cutoff_confidence_without_a_value_counts_as_zero(bad):
    kept, survivals, confidences = run([5.0, bad, 5.0], Cutoff(policy=THRESHOLD, params=(0.1,)))
    assert kept.tolist() == [1]
    assert survivals[0, 1:].tolist() == [0.0, 0.0]
    assert confidences[0, 1] == 0 and confidences[0, 2] > 0.9


def test_cutoff_calibration_temperature_flattens_its_own_position_only():
    threshold = Cutoff(policy=THRESHOLD, params=(0.7,))
    assert run([2.0, 2.0], threshold)[0].tolist() == [2]
    assert run([2.0, 2.0], threshold, temperatures=[1.0, 9.0])[0].tolist() == [1]
    assert run([2.0, 2.0], threshold, temperatures=[9.0, 1.0])[0].tolist() == [0]


def test_cutoff_calibration_temperatures_belong_to_their_request():
    threshold = Cutoff(policy=THRESHOLD, params=(0.7,))
    temperatures = [[1.0, 9.0], [9.0, 1.0]]
    assert run([[2.0, 2.0]] * 2, threshold, threshold, temperatures=temperatures)[0].tolist() == [1, 0]


def test_cutoff_outputs_passed_in_are_written_in_place():
    outputs = {
        "verify_lengths": np.full(1, -7, np.int32),
        "survivals": np.full((1, 4), -7, np.float32),
        "confidences": np.full((1, 4), -7, np.float32),
    }
    got = run([1.0] * 4, Cutoff(policy=ALL), **outputs)
    for array, passed in zip(got, outputs.values(), strict=True):
        assert array is passed and passed.min() > 0


def test_cutoff_without_requests_returns_empty_arrays():
    kept, survivals, confidences = run(np.zeros((1, 3)))
    assert kept.shape == (0,) and survivals.shape == confidences.shape == (0, 3)


unit = st.floats(0, 1, width=32)
PARAMS = {
    ALL: st.just(()),
    THRESHOLD: st.tuples(unit),
    SURVIVAL: st.tuples(unit),
    UTILITY: st.tuples(
        st.floats(-2, 2, width=32),
        st.floats(-2, 2, width=32),
        st.floats(-2, 2, width=32),
        st.integers(0, 5),
        st.integers(1, 12),
    ),
    TWO_STRIKES: st.tuples(unit, st.integers(0, 4)),
    DUAL: st.tuples(unit, unit, unit),
    RAMP: st.tuples(unit, unit, st.integers(1, 16)),
}
"""Parameters of every policy."""


@st.composite
def cutoffs(draw, block):
    policy = draw(st.sampled_from(list(PARAMS)))
    most = draw(st.integers(0, block))
    return Cutoff(
        policy=policy,
        params=draw(PARAMS[policy]),
        inclusive=draw(st.booleans()),
        min_verify=draw(st.integers(0, most)),
        max_verify=most,
    )


@st.composite
def blocks(draw):
    """R cutoffs and rows [R, K] of everything that they read."""
    requests, block = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3, 7, 16]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (requests, block)
    logits = rng.normal(size=shape, scale=draw(st.sampled_from([0.5, 3.0, 60.0]))).astype(np.float32)
    logits[rng.random(shape) < 0.05] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0]))
    tokens = np.where(rng.random(shape) < draw(st.sampled_from([0.0, 0.1])), -1, 5)
    return (
        [draw(cutoffs(block)) for _ in range(requests)],
        logits,
        rng.uniform(0.25, 4, shape).astype(np.float32),
        rng.uniform(0, 1, shape).astype(np.float32),
        tokens.astype(np.int32),
    )


@settings(max_examples=400, deadline=None)
@given(blocks())
def test_cutoff_random_blocks_equal_reference(case):
    requests, logits, temperatures, entropies, tokens = case
    kept, survivals, confidences = run(logits, *requests, temperatures=temperatures, entropies=entropies, tokens=tokens)
    want = reference.confidences(logits, temperatures, tokens)
    np.testing.assert_allclose(confidences, want, rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(survivals, reference.survivals(want), rtol=1e-5, atol=1e-37)
    for r, cutoff in enumerate(requests):
        length, margin = reference.verify_length(cutoff, want[r], entropies[r].astype(np.float64), tokens[r].tolist())
        assert kept[r] == length or margin < CLOSE


@settings(max_examples=200, deadline=None)
@given(blocks())
def test_cutoff_first_columns_alone_decide_about_themselves(case):
    """Nothing anticipates: the block cut short gives the same prefix, and later columns change nothing before them."""
    requests, logits, temperatures, entropies, tokens = case
    kept, survivals, confidences = run(logits, *requests, temperatures=temperatures, entropies=entropies, tokens=tokens)
    for k in range(1, logits.shape[1] + 1):
        shorter = [
            Cutoff(
                policy=c.policy,
                params=c.params,
                inclusive=c.inclusive,
                min_verify=min(c.min_verify, k),
                max_verify=min(c.max_verify, k),
            )
            for c in requests
        ]
        part = run(
            logits[:, :k],
            *shorter,
            temperatures=temperatures[:, :k],
            entropies=entropies[:, :k],
            tokens=tokens[:, :k],
        )
        np.testing.assert_array_equal(part[0], np.minimum(kept, k))
        np.testing.assert_array_equal(part[1], survivals[:, :k])
        np.testing.assert_array_equal(part[2], confidences[:, :k])


@settings(max_examples=200, deadline=None)
@given(blocks(), st.integers(0, 15), st.floats(-90, 90, width=32))
def test_cutoff_inclusive_decision_about_a_proposal_does_not_read_it(case, position, other):
    """What makes the token signal usable under rejection: another c_k leaves it verified, or not, as before."""
    requests, logits, temperatures, entropies, tokens = case
    k = position % logits.shape[1]
    inclusive = [
        Cutoff(policy=c.policy, params=c.params, inclusive=True, min_verify=c.min_verify, max_verify=c.max_verify)
        for c in requests
    ]
    tokens = np.abs(tokens)
    before = run(logits, *inclusive, temperatures=temperatures, entropies=entropies, tokens=tokens)[0]
    changed = logits.copy()
    changed[:, k] = other
    after = run(changed, *inclusive, temperatures=temperatures, entropies=entropies, tokens=tokens)[0]
    np.testing.assert_array_equal(before > k, after > k)


def test_cutoff_exclusive_decision_about_a_proposal_reads_it():
    """Negative control of the test above."""
    threshold = Cutoff(policy=THRESHOLD, params=(0.5,))
    assert lengths([0.9, 0.4], threshold) != lengths([0.9, 0.6], threshold)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cutoff_policy": np.array([7], np.int32)}, r"policy\[0\] is 7, wanted 0 \(all\), 1 \(threshold\), 2"),
        ({"cutoff_params": 1.5}, r"tau of threshold for request 0 is 1.5, wanted \[0, 1\]"),
        ({"cutoff_params": np.nan}, "tau of threshold for request 0 is nan"),
        ({"cutoff_policy": 3, "cutoff_params": (0.4, 1, 0.2, 3, 0)}, r"max_len of utility .* is 0, wanted \[1, "),
        ({"cutoff_policy": 3, "cutoff_params": (np.inf, 1, 0.2, 3, 9)}, "tau of utility .* is inf, wanted a finite n"),
        ({"cutoff_policy": 3, "cutoff_params": (0.4, np.nan, 0.2, 3, 9)}, "w_pos of .* is nan, wanted a finite n"),
        ({"cutoff_policy": 4, "cutoff_params": (0.4, -1)}, "min_len of two_strikes for request 0 is -1"),
        ({"cutoff_policy": 5, "cutoff_params": (0.4, 0.6, 0.5)}, r"policy\[0\] is 5 \(dual\) but entropies is null"),
        ({"cutoff_policy": 6, "cutoff_params": (0.4, 0.6, 0)}, "K of ramp for request 0 is 0"),
        ({"cutoff_inclusive": np.array([2], np.int32)}, r"inclusive\[0\] is 2, wanted 0 or 1"),
        ({"max_verify": np.array([5], np.int32)}, r"max_verify\[0\] is 5, wanted 0 to block_size 4"),
        ({"max_verify": np.array([-1], np.int32)}, r"max_verify\[0\] is -1"),
        ({"min_verify": np.array([3], np.int32)}, r"min_verify\[0\] is 3, wanted 0 to max_verify 2"),
        (
            {"calibration_temperatures": np.array([[1, 0, 1, 1]], np.float32)},
            r"calibration_temperatures\[0, 1\] is 0, wanted a finite number > 0",
        ),
        ({"confidence_logits": np.zeros((1, 0), np.float32)}, "block_size is 0, wanted 1 to"),
        ({"confidence_logits": np.zeros((1, 4))}, r"confidence_logits is float64 \[1, 4\], wanted float32 \[R, K\]"),
        ({"confidence_logits": np.zeros((4, 2), np.float32).T[:1]}, "with gaps or another order"),
        ({"cutoff_policy": [0]}, r"cutoff_policy is a list, wanted an array int32 \[R\] = \[1\]"),
        ({"cutoff_params": np.zeros((1, 4), np.float32)}, r"cutoff_params is float32 \[1, 4\], wanted .* = \[1, 5\]"),
        ({"verify_lengths": np.zeros(1, np.int64)}, r"verify_lengths is int64 \[1\], wanted int32"),
    ],
)
def test_cutoff_bad_argument_is_named_with_found_and_wanted(change, message):
    arguments = {
        "confidence_logits": np.zeros((1, 4), np.float32),
        "cutoff_policy": np.full(1, THRESHOLD, np.int32),
        "cutoff_params": np.zeros((1, 5), np.float32),
        "cutoff_inclusive": np.zeros(1, np.int32),
        "min_verify": np.zeros(1, np.int32),
        "max_verify": np.full(1, 2, np.int32),
    }
    change = dict(change)
    if isinstance(change.get("cutoff_policy"), int):
        change["cutoff_policy"] = np.array([change["cutoff_policy"]], np.int32)
    if isinstance(change.get("cutoff_params"), float | tuple):
        values = np.atleast_1d(change["cutoff_params"])
        change["cutoff_params"] = np.zeros((1, 5), np.float32)
        change["cutoff_params"][0, : len(values)] = values
    if "confidence_logits" in change and change["confidence_logits"].shape == (1, 0):
        arguments["max_verify"] = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match=message):
        dspark_ops.cutoff(**{**arguments, **change})


def test_cutoff_output_that_cannot_be_written_is_refused():
    frozen = np.zeros(1, np.int32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="verify_lengths is an array that cannot be written, wanted a writable array"):
        run([1.0], Cutoff(policy=ALL), verify_lengths=frozen)


def test_op_nanoseconds_grow_with_every_call_and_unknown_names_are_refused():
    before = dspark_ops.op_nanoseconds("cutoff")
    run([1.0], Cutoff(policy=ALL))
    assert dspark_ops.op_nanoseconds("cutoff") > before
    with pytest.raises(ValueError, match="op is 'sort', wanted draft, cutoff, accept, kv_update, attention or linear"):
        dspark_ops.op_nanoseconds("sort")
    assert dspark_ops.abi_version() == 2


@pytest.mark.parametrize("op", ["draft", "cutoff", "accept"])
def test_c_abi_null_params_are_an_invalid_argument_with_a_message(op):
    library = ctypes.CDLL(str(library_path()))
    library.dspark_last_error.restype = ctypes.c_char_p
    assert getattr(library, f"dspark_{op}")(None, None) == 1
    assert library.dspark_last_error().decode() == f"DSpark{op.capitalize()}: params is null, wanted an array"
