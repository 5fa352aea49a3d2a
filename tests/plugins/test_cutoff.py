"""DSparkCutoff against its reference, by hand-made cases, and every complaint."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_runtime import dspark_ops
from dspark_runtime.oplib import library_path
from tests.reference.cutoff import ALL, SURVIVAL, THRESHOLD, confidences, cutoff


def logit(p: float) -> float:
    return float(np.log(p / (1.0 - p)))


def run(logits, policy, threshold, max_verify=None, temperatures=None, **outputs):
    logits = np.atleast_2d(np.array(logits, np.float32))
    requests, block = logits.shape
    return dspark_ops.cutoff(
        confidence_logits=logits,
        policy=np.full(requests, policy, np.int32),
        threshold=np.full(requests, threshold, np.float32),
        max_verify=np.full(requests, block if max_verify is None else max_verify, np.int32),
        calibration_temperatures=None if temperatures is None else np.array(temperatures, np.float32),
        **outputs,
    )


LOGITS = [logit(0.9), logit(0.8), logit(0.5), logit(0.95)]


def test_cutoff_all_keeps_the_block_whatever_the_confidences():
    assert run(LOGITS, ALL, 1.0)[0].tolist() == [4]


def test_cutoff_threshold_stops_before_the_first_weak_proposal_not_the_last():
    assert run(LOGITS, THRESHOLD, 0.6)[0].tolist() == [2]


def test_cutoff_threshold_equal_to_a_confidence_keeps_it():
    assert run([0.0, 0.0], THRESHOLD, 0.5)[0].tolist() == [2]


def test_cutoff_survival_multiplies_confidences():
    lengths, survivals = run(LOGITS, SURVIVAL, 0.7)
    assert lengths.tolist() == [2]  # 0.9, 0.72, 0.36
    np.testing.assert_allclose(survivals[0], [0.9, 0.72, 0.36, 0.342], rtol=1e-6)


@pytest.mark.parametrize("policy", [ALL, THRESHOLD, SURVIVAL])
def test_cutoff_max_verify_clamps_every_policy(policy):
    assert run(LOGITS, policy, 0.0, max_verify=1)[0].tolist() == [1]
    assert run(LOGITS, policy, 0.0, max_verify=0)[0].tolist() == [0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_cutoff_confidence_without_a_value_counts_as_zero(bad):
    lengths, survivals = run([5.0, bad, 5.0], THRESHOLD, 0.1)
    assert lengths.tolist() == [1]
    assert survivals[0, 1:].tolist() == [0.0, 0.0]


def test_cutoff_calibration_temperature_flattens_its_own_position_only():
    assert run([2.0, 2.0], THRESHOLD, 0.7)[0].tolist() == [2]
    assert run([2.0, 2.0], THRESHOLD, 0.7, temperatures=[1.0, 9.0])[0].tolist() == [1]
    assert run([2.0, 2.0], THRESHOLD, 0.7, temperatures=[9.0, 1.0])[0].tolist() == [0]


def test_cutoff_outputs_passed_in_are_written_in_place():
    lengths, survivals = np.full(1, -7, np.int32), np.full((1, 4), -7, np.float32)
    got = run(LOGITS, ALL, 0.0, verify_lengths=lengths, survivals=survivals)
    assert got[0] is lengths and got[1] is survivals
    assert lengths.tolist() == [4] and survivals.min() > 0


def test_cutoff_without_requests_returns_empty_arrays():
    lengths, survivals = run(np.zeros((0, 3)), ALL, 0.5)
    assert lengths.shape == (0,) and survivals.shape == (0, 3)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), requests=st.integers(1, 5), block=st.integers(1, 9))
def test_cutoff_random_blocks_equal_reference(data, requests, block):
    value = st.one_of(st.floats(-90, 90, width=32), st.sampled_from([np.nan, np.inf, -np.inf]))
    logits = np.array(data.draw(st.lists(value, min_size=requests * block, max_size=requests * block)), np.float32)
    logits = logits.reshape(requests, block)
    policies = np.array(data.draw(st.lists(st.integers(0, 2), min_size=requests, max_size=requests)), np.int32)
    unit = st.floats(0, 1, width=32)
    thresholds = np.array(data.draw(st.lists(unit, min_size=requests, max_size=requests)), np.float32)
    limits = np.array(data.draw(st.lists(st.integers(0, block), min_size=requests, max_size=requests)), np.int32)
    scale = st.floats(0.125, 4, width=32)
    temperatures = np.array(data.draw(st.lists(scale, min_size=block, max_size=block)), np.float32)
    lengths, survivals = dspark_ops.cutoff(
        confidence_logits=logits,
        policy=policies,
        threshold=thresholds,
        max_verify=limits,
        calibration_temperatures=temperatures,
    )
    want_lengths, want_survivals = cutoff(logits, policies, thresholds, limits, temperatures)
    np.testing.assert_allclose(survivals, want_survivals, rtol=1e-5, atol=1e-30)
    measures = np.concatenate([confidences(logits, temperatures), want_survivals], axis=1)
    near = np.abs(measures - thresholds[:, None].astype(np.float64)).min(axis=1) < 1e-12
    for got, want, is_near in zip(lengths.tolist(), want_lengths, near, strict=True):
        assert got == want or is_near


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": np.array([3], np.int32)}, r"policy\[0\] is 3, wanted 0 \(all\), 1 \(threshold\) or 2"),
        ({"threshold": np.array([1.5], np.float32)}, r"threshold\[0\] is 1.5, wanted \[0, 1\]"),
        ({"threshold": np.array([np.nan], np.float32)}, r"threshold\[0\] is nan"),
        ({"max_verify": np.array([5], np.int32)}, r"max_verify\[0\] is 5, wanted 0 to block_size 4"),
        ({"max_verify": np.array([-1], np.int32)}, r"max_verify\[0\] is -1"),
        (
            {"calibration_temperatures": np.array([1, 0, 1, 1], np.float32)},
            r"calibration_temperatures\[1\] is 0, wanted a finite number > 0",
        ),
        ({"confidence_logits": np.zeros((1, 0), np.float32), "survivals": None}, "block_size is 0, wanted 1 to"),
        ({"confidence_logits": np.zeros((1, 4))}, r"confidence_logits is float64 \[1, 4\], wanted float32 \[R, K\]"),
        ({"confidence_logits": np.zeros((4, 2), np.float32).T[:1]}, "with gaps or another order"),
        ({"policy": [0]}, r"policy is a list, wanted an array int32 \[R\] = \[1\]"),
        ({"policy": np.zeros(2, np.int32)}, r"policy is int32 \[2\], wanted int32 \[R\] = \[1\]"),
        ({"verify_lengths": np.zeros(1, np.int64)}, r"verify_lengths is int64 \[1\], wanted int32"),
    ],
)
def test_cutoff_bad_argument_is_named_with_found_and_wanted(change, message):
    arguments = {
        "confidence_logits": np.zeros((1, 4), np.float32),
        "policy": np.zeros(1, np.int32),
        "threshold": np.zeros(1, np.float32),
        "max_verify": np.zeros(1, np.int32),
    }
    with pytest.raises(ValueError, match=message):
        dspark_ops.cutoff(**{**arguments, **change})


def test_cutoff_output_that_cannot_be_written_is_refused():
    frozen = np.zeros(1, np.int32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="verify_lengths is an array that cannot be written, wanted a writable array"):
        run(LOGITS, ALL, 0.0, verify_lengths=frozen)


def test_op_nanoseconds_grow_with_every_call_and_unknown_names_are_refused():
    before = dspark_ops.op_nanoseconds("cutoff")
    run(LOGITS, ALL, 0.0)
    assert dspark_ops.op_nanoseconds("cutoff") > before
    with pytest.raises(ValueError, match="op is 'sort', wanted draft, cutoff, accept, kv_update, attention or linear"):
        dspark_ops.op_nanoseconds("sort")
    assert dspark_ops.abi_version() == 1


@pytest.mark.parametrize("op", ["draft", "cutoff", "accept"])
def test_c_abi_null_params_are_an_invalid_argument_with_a_message(op):
    library = ctypes.CDLL(str(library_path()))
    library.dspark_last_error.restype = ctypes.c_char_p
    assert getattr(library, f"dspark_{op}")(None, None) == 1
    assert library.dspark_last_error().decode() == f"DSpark{op.capitalize()}: params is null, wanted an array"
