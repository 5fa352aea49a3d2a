from __future__ import annotations

from typing import Any

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
    ],
)
def test_speculative_value_out_of_range_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpeculativeParams(**values)
    assert message in str(caught.value)


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
