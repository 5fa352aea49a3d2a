from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dspark_runtime.contract.errors import CapacityError, ConfigError
from dspark_runtime.contract.names import ACCEPT_MODES, CUTOFF_POLICIES
from dspark_runtime.params import SamplingParams, SpeculativeParams
from tests.runtime.fakes import make, make_manifest


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert (params.max_tokens, params.seed, params.stop, params.stop_token_ids) == (16, None, (), ())


def test_spellings_of_vllm_mean_the_same() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[3, 4], seed=-1, top_k=-1)
    assert (params.stop_strings, params.stop_token_ids, params.seed, params.top_k) == (("x",), (3, 4), None, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, needs >= 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -2}, "top_k is -2"),
        ({"temperature": 1e39}, "temperature is 1e+39, needs >= 0 and at most 1000000"),
        ({"temperature": 10**400}, "temperature is inf"),
        ({"temperature": "1"}, "temperature is '1', needs a number"),
        ({"temperature": None}, "temperature is None, needs a number"),
        ({"temperature": True}, "temperature is True, needs a number"),
        ({"top_k": 1.5}, "top_k is 1.5, needs an integer"),
        ({"top_k": 2**31}, "top_k is 2147483648, needs"),
        ({"top_k": np.array([1, 2])}, "top_k is array([1, 2]), needs an integer"),
        ({"top_p": 1e-50}, "top_p is 1e-50, needs (0, 1], in float32 at least 1.18e-38"),
        ({"min_p": float("nan")}, "min_p is nan"),
        ({"seed": 1.5}, "seed is 1.5, needs an integer [0, 2**64)"),
        ({"seed": True}, "seed is True, needs an integer"),
        ({"seed": -2}, "seed is -2, needs [0, 2**64)"),
        ({"seed": 10**5000}, "seed is a value of type int, needs [0, 2**64)"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5, needs an integer >= 1"),
        ({"max_tokens": float("nan")}, "max_tokens is nan, needs an integer"),
        ({"stop": b"x"}, "stop is b'x', needs a string or a list of strings"),
        ({"stop": {"x": 1}}, "stop is {'x': 1}, needs a string or a list of strings"),
        ({"stop": 3}, "stop is 3, needs a string or a list of strings"),
        ({"stop": ["a", 3]}, "stop needs strings of 1 to 4096 characters"),
        ({"stop_token_ids": 3}, "stop_token_ids is 3, needs a list of token ids >= 0"),
        ({"stop_token_ids": "34"}, "stop_token_ids is '34', needs a list of token ids >= 0"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids is (1.5,), needs token ids >= 0"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no', needs True or False"),
        ({"skip_special_tokens": 1}, "skip_special_tokens is 1, needs True or False"),
        ({"include_stop_str_in_output": None}, "include_stop_str_in_output is None, needs True or False"),
        ({"speculative": {"cutoff": "all"}}, "speculative is {'cutoff': 'all'}, needs SpeculativeParams"),
        ({"speculative": None}, "speculative is None, needs SpeculativeParams"),
        ({"n": True}, "n is True, supported is only 1"),
        ({"n": np.array([1, 2])}, "n is array([1, 2]), supported is only 1"),
        ({"logit_bias": np.array([1, 2])}, "logit_bias is not supported yet"),
        ({"temperature": "x" * 9999}, "xxx..., needs a number"),
        ({"top_p": 0.0}, "top_p is 0.0, needs (0, 1]"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": 1.1}, "min_p is 1.1, needs [0, 1]"),
        ({"seed": 2**64}, "seed is 18446744073709551616, needs [0, 2**64)"),
        ({"max_tokens": 0}, "max_tokens is 0, needs >= 1"),
        ({"stop": [""]}, "stop needs strings of 1 to 4096 characters"),
        ({"stop": ["a"] * 65}, "stop has 65 strings, needs at most 64"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is (-1,), needs token ids >= 0"),
        ({"n": 2}, "n is 2, supported is only 1"),
        ({"min_tokens": 3}, "min_tokens is 3, supported is only 0"),
        ({"logprobs": 1}, "logprobs is 1, supported is only None"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is 1.1, supported is only 1.0"),
        ({"presence_penalty": 0.5}, "presence_penalty is 0.5"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is 0.5"),
        ({"logit_bias": {1: 2.0}}, "logit_bias is not supported yet"),
    ],
)
def test_sampling_value_out_of_range_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**values)
    assert message in str(caught.value)


def test_sampling_problems_come_all_in_one_message() -> None:
    with pytest.raises(ConfigError, match=r"sampling parameters: temperature .*; top_p .*; max_tokens"):
        SamplingParams(temperature=-1, top_p=2.0, max_tokens=-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cutoff": "treshold:0.4"}, "cutoff is 'treshold:0.4', supported are auto, all, off, threshold:X"),
        ({"cutoff": "threshold"}, "supported are"),
        ({"cutoff": "threshold:1.5"}, "needs a number in [0, 1]"),
        ({"cutoff": "survival:x"}, "needs a number in [0, 1]"),
        ({"cutoff": "survival:nan"}, "needs a number in [0, 1]"),
        ({"accept": "relaxed"}, "accept is 'relaxed', supported are auto, greedy, rejection, coupled"),
        ({"max_len": -1}, "max_len is -1, needs >= 0"),
        ({"max_len": float("nan")}, "max_len is nan, needs an integer >= 0"),
        ({"max_len": 2.0}, "max_len is 2.0, needs an integer >= 0"),
        ({"cutoff": 0.4}, "cutoff is 0.4, needs a string"),
        ({"cutoff": None}, "cutoff is None, needs a string"),
        ({"accept": 1}, "accept is 1, supported are auto"),
        ({"enabled": "no"}, "enabled is 'no', needs True or False"),
    ],
)
def test_speculative_value_out_of_range_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpeculativeParams(**values)
    assert message in str(caught.value)


def test_numbers_of_numpy_are_taken_as_pythons() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**64 - 1), max_tokens=np.int32(4),
        stop_token_ids=np.array([5, 6]), speculative=SpeculativeParams(max_len=np.int8(2)),
    )  # fmt: skip
    values = (params.temperature, params.top_k, params.seed, params.max_tokens, params.speculative.max_len)
    assert values == (0.5, 3, 2**64 - 1, 4, 2)
    assert [type(value) for value in values] == [float, int, int, int, int]
    assert params.stop_token_ids == (5, 6)


@pytest.mark.parametrize("values", [{"temperature": 1e6}, {"top_p": 2.0**-126}, {"min_p": 1e-300}])
def test_edges_of_the_ranges_are_in_them_as_float32(values: dict[str, float]) -> None:
    (name, value), params = next(iter(values.items())), SamplingParams(**values)
    assert getattr(params, name) == value
    assert np.isfinite(np.float32(value))
    assert name != "top_p" or np.float32(value) > 0


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({"temperature": 0.0}, "greedy"),
        ({"temperature": 0.0, "seed": 3}, "greedy"),
        ({"temperature": 1.0, "seed": 3}, "coupled"),
        ({"temperature": 1.0}, "rejection"),
        ({"temperature": 1.0, "speculative": SpeculativeParams(accept="coupled")}, "coupled"),
        ({"temperature": 1.0, "seed": 3, "speculative": SpeculativeParams(accept="rejection")}, "rejection"),
        ({"temperature": 1.0, "speculative": SpeculativeParams(accept="greedy")}, "greedy"),
    ],
)
def test_accept_auto_follows_temperature_and_seed(values: dict[str, Any], mode: str) -> None:
    request = make(make_manifest(), [1], **values)
    assert request.sampling.accept_mode == ACCEPT_MODES[mode]
    assert request.sampling.needs_draft_logits == (mode == "rejection")


def test_request_without_speculation_needs_no_draft_logits() -> None:
    request = make(make_manifest(), [1], speculative=SpeculativeParams(enabled=False))
    assert not request.sampling.needs_draft_logits
    assert not request.drafts


@pytest.mark.parametrize("cutoff", ["off", "all"])
def test_cutoff_off_is_speculation_off(cutoff: str) -> None:
    request = make(make_manifest(), [1], speculative=SpeculativeParams(cutoff=cutoff))
    assert request.drafts == (cutoff == "all")


@pytest.mark.parametrize(("signal", "threshold"), [("head", 0.4), ("top1", 0.6)])
def test_cutoff_auto_depends_on_the_drafts_signal(signal: str, threshold: float) -> None:
    sampling = make(make_manifest(signal=signal), [1]).sampling
    assert (sampling.cutoff_policy, sampling.cutoff_threshold) == (CUTOFF_POLICIES["threshold"], threshold)


def test_cutoff_named_is_taken() -> None:
    sampling = make(make_manifest(), [1], speculative=SpeculativeParams(cutoff="survival:0.25")).sampling
    assert (sampling.cutoff_policy, sampling.cutoff_threshold) == (CUTOFF_POLICIES["survival"], 0.25)


def test_seed_of_64_bits_keeps_its_bits() -> None:
    assert make(make_manifest(), [1], seed=2**64 - 2).sampling.seed == -2
    assert make(make_manifest(), [1], seed=2**63 - 1).sampling.seed == 2**63 - 1


def test_unseeded_requests_get_keys_of_their_own() -> None:
    keys = {make(make_manifest(), [1]).sampling.seed for _ in range(8)}
    assert len(keys) == 8


def test_prompt_longer_than_the_limit_is_refused_with_the_numbers() -> None:
    manifest = make_manifest(max_seq_len=64)
    with pytest.raises(CapacityError, match=r"prompt has 64 tokens, this bundle takes at most 63 \(max_seq_len 64"):
        make(manifest, range(64))
    assert make(manifest, range(63)).remaining == 1


def test_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="prompt has no tokens"):
        make(make_manifest(), [])


@pytest.mark.parametrize("ids", [[5, 1000], [-1, 5]])
def test_prompt_with_unknown_ids_is_refused(ids: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"needs \[0, 1000\)"):
        make(make_manifest(), ids)
