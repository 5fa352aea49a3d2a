from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dspark_runtime.contract.errors import CapacityError, ConfigError
from dspark_runtime.contract.names import ACCEPT_MODES, CUTOFF_POLICIES
from dspark_runtime.params import SamplingParams
from dspark_runtime.speculative import SpeculativeParams
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
        ({"n": True}, "n is True, needs an integer [1, 64]"),
        ({"n": np.array([1, 2])}, "n is array([1, 2]), needs an integer [1, 64]"),
        ({"n": 0}, "n is 0, needs [1, 64]"),
        ({"n": 65}, "n is 65, needs [1, 64]"),
        ({"n": 2, "temperature": 0.0}, "n is 2, needs 1 in greedy decoding, where all outputs would be the same"),
        ({"logit_bias": np.array([1, 2])}, "logit_bias is array([1, 2]), needs a mapping of token ids"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias has 'a': 1.0, needs a mapping of token ids >= 0 to numbers in [-100"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias has -1: 1.0, needs"),
        ({"logit_bias": {1: 100.5}}, "logit_bias has 1: 100.5, needs"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias has 1: nan, needs"),
        ({"logit_bias": {1: "2"}}, "logit_bias has 1: '2', needs"),
        ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "logit_bias has 1025 entries, needs at most 1024"),
        ({"bad_words": [""]}, "bad_words needs strings of 1 to 256 characters"),
        ({"bad_words": 3}, "bad_words is 3, needs a string or a list of strings"),
        ({"bad_words": [str(i) for i in range(257)]}, "bad_words has 257 strings, needs at most 256"),
        ({"bad_token_ids": [-1]}, "bad_token_ids is (-1,), needs token ids >= 0"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty, needs at least one token id (None: all)"),
        ({"allowed_token_ids": [1.5]}, "allowed_token_ids is (1.5,), needs token ids >= 0"),
        ({"min_tokens": 17}, "min_tokens is 17, needs at most max_tokens, which is 16"),
        ({"min_tokens": -1}, "min_tokens is -1, needs >= 0"),
        ({"logprobs": 21}, "logprobs is 21, needs [0, 20]"),
        ({"logprobs": True}, "logprobs is True, needs an integer [0, 20]"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1, needs [0, 20]"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, needs [0.01, 100]"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf, needs [0.01, 100]"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1, needs [-2, 2]"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1, needs [-2, 2]"),
        ({"echo": 1}, "echo is 1, needs True or False"),
        ({"temperature": "x" * 9999}, "xxx..., needs a number"),
        ({"top_p": 0.0}, "top_p is 0.0, needs (0, 1]"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": 1.1}, "min_p is 1.1, needs [0, 1]"),
        ({"seed": 2**64}, "seed is 18446744073709551616, needs [0, 2**64)"),
        ({"max_tokens": 0}, "max_tokens is 0, needs >= 1"),
        ({"stop": [""]}, "stop needs strings of 1 to 4096 characters"),
        ({"stop": ["a"] * 65}, "stop has 65 strings, needs at most 64"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is (-1,), needs token ids >= 0"),
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
        ({"cutoff": "threshold"}, "cutoff is 'threshold', needs a number in [0, 1] for tau"),
        ({"cutoff": "threshold:1.5"}, "cutoff is 'threshold:1.5', needs a number in [0, 1] for tau"),
        ({"cutoff": "survival:x"}, "needs a number in [0, 1] for tau"),
        ({"cutoff": "survival:nan"}, "needs a number in [0, 1] for tau"),
        ({"cutoff": "survival:0.1,0.2"}, "cutoff is 'survival:0.1,0.2', takes tau, each once"),
        ({"cutoff": "threshold:tau=0.1,tau=0.2"}, "takes tau, each once"),
        ({"cutoff": "utility:0.4,weight=1"}, "takes tau, w_pos, w_pen, min_len, max_len, each once"),
        ({"cutoff": "utility:min_len=1.5"}, "needs an integer in [0, 65536] for min_len"),
        ({"cutoff": "utility:max_len=0"}, "needs an integer in [1, 65536] for max_len"),
        ({"cutoff": "two_strikes"}, "needs a number in [0, 1] for tau"),
        ({"cutoff": "dual:0.5,0.4,0.2"}, "cutoff is 'dual:0.5,0.4,0.2', needs tau_low <= tau_high"),
        ({"cutoff": "dual:0.5"}, "for tau_high"),
        ({"cutoff": "ramp:0.5"}, "for tau_end"),
        ({"cutoff": "all:1"}, "cutoff is 'all:1', supported are"),
        (
            {"signal": "best"},
            "signal is 'best', supported are auto, head, top1, margin, topk_mass:K, entropy, gini, token",
        ),
        ({"signal": "topk_mass"}, "signal is 'topk_mass', supported are"),
        ({"signal": "topk_mass:0"}, "signal is 'topk_mass:0', needs an integer in [1, 8388607] after the colon"),
        ({"signal": "topk_mass:99999999999999"}, "needs an integer in [1, 8388607]"),
        ({"signal": "head:2"}, "signal is 'head:2', supported are"),
        ({"signal": None}, "signal is None, needs a string"),
        (
            {"accept": "loose"},
            "accept is 'loose', supported are auto, greedy, rejection, coupled, relaxed:MIN_BAR,MAX_BAR",
        ),
        ({"accept": "relaxed:0.5,0.1"}, "accept is 'relaxed:0.5,0.1', needs min_bar <= max_bar"),
        ({"accept": "relaxed:2"}, "accept is 'relaxed:2', needs a number in [0, 1] for min_bar"),
        ({"accept": "typical:0.1,x"}, "needs a number in [0, 1] for delta"),
        ({"accept": "greedy:1"}, "accept is 'greedy:1', supported are"),
        ({"inclusive": 1}, "inclusive is 1, needs True or False"),
        ({"min_len": 3, "max_len": 2}, "min_len is 3, needs at most max_len, which is 2"),
        ({"min_len": -1}, "min_len is -1, needs >= 0"),
        ({"warmup_tokens": -1}, "warmup_tokens is -1, needs >= 0"),
        ({"adaptive": "speed"}, "adaptive is 'speed', supported are tau:TARGET,window=100"),
        ({"adaptive": "tau:1.5"}, "needs a number in [0.001, 0.999] for target"),
        ({"adaptive": "tau:low=0.5,high=0.4"}, "needs low <= high"),
        ({"adaptive": "max_len:window=0"}, "needs an integer in [1, 1e+06] for window"),
        ({"adaptive": 1}, "adaptive is 1, needs a string"),
        (
            {"adaptive": "tau", "cutoff": "dual:0.1,0.2,0.3"},
            "cutoff dual:0.1,0.2,0.3 has no single tau to move; use one of",
        ),
        ({"max_len": -1}, "max_len is -1, needs >= 0"),
        ({"max_len": float("nan")}, "max_len is nan, needs an integer >= 0"),
        ({"max_len": 2.0}, "max_len is 2.0, needs an integer >= 0"),
        ({"cutoff": 0.4}, "cutoff is 0.4, needs a string"),
        ({"cutoff": None}, "cutoff is None, needs a string"),
        ({"accept": 1}, "accept is 1, needs a string"),
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
    cutoff = make(make_manifest(signal=signal), [1]).control.cutoff
    assert (cutoff.policy, cutoff.params) == (CUTOFF_POLICIES["threshold"], (threshold, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("all", (0, 0, 0, 0, 0)),
        ("threshold:0.25", (0.25, 0, 0, 0, 0)),
        ("survival:tau=0.25", (0.25, 0, 0, 0, 0)),
        ("utility", (0.45, 1.0, 0.2, 3, 9)),
        ("utility:0.5,w_pen=0.1,min_len=0", (0.5, 1.0, 0.1, 0, 9)),
        ("two_strikes:0.6", (0.6, 0, 0, 0, 0)),
        ("two_strikes:0.6,min_len=2", (0.6, 2, 0, 0, 0)),
        ("dual:0.2,0.7,0.5", (0.2, 0.7, 0.5, 0, 0)),
        ("ramp:0.3,0.8", (0.3, 0.8, 4, 0, 0)),
    ],
)
def test_cutoff_named_is_taken(text: str, params: tuple[float, ...]) -> None:
    cutoff = make(make_manifest(block_size=4), [1], speculative=SpeculativeParams(cutoff=text)).control.cutoff
    assert (cutoff.policy, cutoff.params) == (CUTOFF_POLICIES[text.partition(":")[0]], params)


@pytest.mark.parametrize(
    ("text", "number"),
    [("auto", 0), ("head", 0), ("top1", 1), ("topk_mass:5", 3 | 5 << 8), ("entropy", 4), ("token", 6)],
)
def test_signal_named_is_taken(text: str, number: int) -> None:
    request = make(make_manifest(signal="head"), [1], speculative=SpeculativeParams(signal=text))
    assert request.sampling.confidence_signal == number


def test_signal_of_a_head_that_the_draft_lacks_is_refused_where_it_drafts() -> None:
    head = {"temperature": 0.0, "speculative": SpeculativeParams(signal="head")}
    with pytest.raises(ConfigError, match="signal is 'head', but this bundle's draft has no confidence head"):
        make(make_manifest(signal="top1"), [1], **head)
    assert not make(make_manifest(block_size=0), [1], **head).drafts


@pytest.mark.parametrize(
    ("values", "speculative", "inclusive"),
    [
        ({}, {"signal": "token"}, True),
        ({}, {"signal": "token", "cutoff": "all"}, False),
        ({}, {"signal": "top1"}, False),
        ({}, {"signal": "top1", "inclusive": True}, True),
        ({"seed": 3}, {"signal": "token"}, False),
        ({"temperature": 0.0}, {"signal": "token", "inclusive": False}, False),
        ({"temperature": 0.0}, {"signal": "token", "accept": "rejection"}, False),
    ],
)
def test_stop_is_inclusive_where_token_would_skew_the_output(
    values: dict[str, Any], speculative: dict[str, Any], inclusive: bool
) -> None:
    request = make(make_manifest(), [1], **values, speculative=SpeculativeParams(**speculative))
    assert request.control.cutoff.inclusive == inclusive


def test_token_signal_with_an_exclusive_stop_is_refused_under_rejection() -> None:
    exclusive = SpeculativeParams(signal="token", inclusive=False)
    with pytest.raises(ConfigError, match="skews the output; set inclusive to True, give a seed, or use another"):
        make(make_manifest(), [1], speculative=exclusive)
    assert not make(make_manifest(), [1], seed=1, speculative=exclusive).control.cutoff.inclusive


@pytest.mark.parametrize(
    ("accept", "mode", "numbers"),
    [
        ("relaxed", "relaxed", (0.1, 0.5)),
        ("relaxed:0.2,max_bar=0.3", "relaxed", (0.2, 0.3)),
        ("typical", "typical", (0.09, 0.3)),
        ("typical:0.2,0.4", "typical", (0.2, 0.4)),
    ],
)
def test_lossy_acceptance_says_so_on_the_request(accept: str, mode: str, numbers: tuple[float, float]) -> None:
    speculative = SpeculativeParams(accept=accept)
    request = make(make_manifest(), [1], speculative=speculative)
    assert (request.sampling.accept_mode, request.sampling.relaxation) == (ACCEPT_MODES[mode], numbers)
    assert not request.lossless
    assert make(make_manifest(block_size=0), [1], speculative=speculative).lossless
    assert make(make_manifest(), [1]).lossless


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_token_ids": [7, 1000]}, "stop_token_ids has token id 1000: this vocabulary has ids [0, 1000)"),
        ({"logit_bias": {1000: 1.0}}, "logit_bias has token id 1000"),
        ({"bad_token_ids": [2000]}, "bad_token_ids has token id 2000"),
        ({"allowed_token_ids": [1, 1001]}, "allowed_token_ids has token id 1001"),
        ({"logit_bias": {1000: 1.0}, "bad_token_ids": [2000]}, "logit_bias has token id 1000; bad_token_ids has token"),
        ({"allowed_token_ids": [5, 6], "bad_token_ids": [6, 5, 7]}, "together leave no token to choose"),
    ],
)
def test_ids_that_the_vocabulary_lacks_are_refused_at_admission(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(make_manifest(), [1], **values)
    assert message in str(caught.value)


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
