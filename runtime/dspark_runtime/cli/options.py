"""The options of `generate` that become SamplingParams, and which of them cannot act."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from dspark_runtime.contract.errors import ConfigError, shown
from dspark_runtime.params import SamplingParams
from dspark_runtime.resolve import resolve_acceptance
from dspark_runtime.speculative import RELAXATIONS, SpeculativeParams

DEFAULT_MAX_TOKENS = 256

_SAMPLING = (
    "n", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "stop", "logprobs", "prompt_logprobs",
)  # fmt: skip
_SAMPLING_LISTS = {
    "stop_token_id": "stop_token_ids", "bad_word": "bad_words", "bad_token_id": "bad_token_ids",
    "allowed_token_id": "allowed_token_ids",
}  # fmt: skip
_SPECULATION = {
    "cutoff": "cutoff", "signal": "signal", "inclusive": "inclusive", "accept": "accept", "min_verify": "min_len",
    "max_verify": "max_len", "warmup_tokens": "warmup_tokens", "adaptive": "adaptive",
}  # fmt: skip
_READS_CONFIDENCES = ("signal", "inclusive", "adaptive")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling (defaults: the bundle's generation_config.json, else those of vLLM)")
    add = group.add_argument
    add("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, metavar="N", help="default %(default)s")
    add("--min-tokens", type=int, metavar="N", help="no end before so many tokens")
    add("--n", type=int, metavar="N", help="outputs per prompt, each drawn for itself")
    add("--temperature", type=float, metavar="T", help="0 is greedy")
    add("--top-k", type=int, metavar="N", help="0 is off")
    add("--top-p", type=float, metavar="P", help="1 is off")
    add("--min-p", type=float, metavar="P", help="0 is off")
    add("--repetition-penalty", type=float, metavar="X", help="for tokens of prompt and output; 1 is off")
    add("--presence-penalty", type=float, metavar="X", help="for tokens of the output, in [-2, 2]; 0 is off")
    add("--frequency-penalty", type=float, metavar="X", help="the same for each time, in [-2, 2]; 0 is off")
    add("--seed", type=int, metavar="N", help="same seed, same text")
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    add("--stop-token-id", action="append", type=int, metavar="ID", help="end after this token; may be repeated")
    add("--ignore-eos", action="store_true", help="go on after end-of-sequence tokens")
    add(
        "--logit-bias", action="append", metavar="ID=X", help="add X in [-100, 100] to a token's logit; may be repeated"
    )
    add("--bad-word", action="append", metavar="TEXT", help="never write this; may be repeated")
    add("--bad-token-id", action="append", type=int, metavar="ID", help="never this token; may be repeated")
    add("--allowed-token-id", action="append", type=int, metavar="ID", help="no token but these; may be repeated")
    add("--logprobs", type=int, metavar="N", help="log-probabilities of the tokens and the N best, 0 to 20 (--json)")
    add("--prompt-logprobs", type=int, metavar="N", help="the same for the prompt (--json)")
    add("--echo", action="store_true", help="begin the text with the prompt's")


def add_speculation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation")
    add = group.add_argument
    add("--speculative", choices=("on", "off"), help="default on, where the bundle has a draft")
    add(
        "--cutoff",
        metavar="POLICY",
        help="which proposals are checked: auto (default), all, off, threshold:X, survival:X, utility:TAU, "
        "two_strikes:X, dual:LOW,HIGH,BAR or ramp:START,END with X in [0, 1], e.g. threshold:0.4",
    )
    add(
        "--signal",
        metavar="NAME",
        help="what counts as confidence: auto (default), head, top1, margin, topk_mass:K, entropy, gini, token",
    )
    add(
        "--inclusive",
        action=argparse.BooleanOptionalAction,
        help="check the first weak proposal too, and stop after it (default: where signal token needs it)",
    )
    add("--min-verify", type=int, metavar="N", help="check at least N proposals a round")
    add("--max-verify", type=int, metavar="N", help="check at most N proposals a round")
    add("--warmup-tokens", type=int, metavar="N", help="propose nothing before so many tokens of output")
    add(
        "--adaptive",
        metavar="WHAT:RATE",
        help="move tau or max_len after each round towards an acceptance rate, e.g. tau:0.8,window=100",
    )
    add(
        "--accept",
        metavar="MODE",
        help="auto (default): greedy at temperature 0, coupled with a seed, else rejection; greedy, rejection or "
        "coupled; relaxed[:MIN,MAX] and typical[:EPSILON,DELTA] change the output (not lossless)",
    )


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of SamplingParams that the command line sets; the others keep the bundle's defaults."""
    options = {name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None}
    options |= {
        field: getattr(args, option) for option, field in _SAMPLING_LISTS.items() if getattr(args, option) is not None
    }
    options |= {name: True for name in ("ignore_eos", "echo") if getattr(args, name)}
    if args.logit_bias is not None:
        options["logit_bias"] = dict(_bias(text) for text in args.logit_bias)
    speculative = {
        field: getattr(args, option) for option, field in _SPECULATION.items() if getattr(args, option) is not None
    }
    if args.speculative is not None:
        speculative["enabled"] = args.speculative == "on"
    options["speculative"] = SpeculativeParams(**speculative)
    return options


def _bias(text: str) -> tuple[int, float]:
    token, equals, bias = text.partition("=")
    try:
        return int(token), float(bias if equals else "")
    except ValueError:
        raise ConfigError(
            f"generate: --logit-bias is {shown(text)}, needs a token id and a number, as in 42=-1.5"
        ) from None


def idle_options(args: argparse.Namespace, params: SamplingParams, has_draft: bool) -> Iterator[str]:
    """Options that were given and cannot act, each in a sentence."""
    given = [option for option in _SPECULATION if getattr(args, option) is not None and option != "accept"]
    given += ["speculative"] if args.speculative == "on" else []
    mode, speculative = resolve_acceptance(params).mode, params.speculative
    lossy = mode in RELAXATIONS
    if not has_draft:
        yield from _said(given + ["accept"] * lossy, "this bundle has no draft")
    elif not speculative.drafts:
        yield from _said([option for option in given if option not in ("cutoff", "speculative")], "speculation is off")
    elif speculative.cutoff == "all":
        reads = [option for option in given if option in _READS_CONFIDENCES and option != "adaptive"]
        yield from _said([] if mode == "relaxed" else reads, "cutoff all reads no confidence")
    if params.is_greedy and args.accept in ("rejection", "coupled"):
        yield from _said(["accept"], "at temperature 0 decoding is greedy")
    if (params.is_greedy or mode == "greedy") and not lossy:
        draws = ("seed", "top_k", "top_p", "min_p", *(() if params.is_greedy else ("temperature",)))
        yield from _said([name for name in draws if getattr(args, name) is not None], "decoding is greedy")


def _said(options: list[str], why: str) -> Iterator[str]:
    if options:
        listed = ", ".join(f"--{option.replace('_', '-')}" for option in options)
        yield f"{listed} {'has' if len(options) == 1 else 'have'} no effect: {why}"
