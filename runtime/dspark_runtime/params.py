"""What a caller may set per request. Names and defaults follow vLLM's SamplingParams.

Values are checked once, all problems in one message. Fields that exist there and that no code here
supports yet are refused when set, never ignored.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from dspark_runtime.contract.errors import ConfigError, shown

ACCEPT_CHOICES = ("greedy", "rejection", "coupled")
"""Acceptance modes that a request may name; the operators know more."""
THRESHOLD_POLICIES = ("threshold", "survival")
"""Policies with one number that a request may name; the operators know more."""
GREEDY_BELOW = 1e-5
"""Temperatures below this mean greedy decoding (docs/architecture.md)."""
MAX_TEMPERATURE = 1e6
"""Beyond it every distribution is uniform; far beyond, float32 ends."""
MIN_TOP_P = 2.0**-126
"""Smallest normal float32, which is what the operators read: less would be 0 there."""
MAX_TOKENS = 16
"""vLLM's default number of output tokens."""
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 4096
"""Characters of one stop string."""


@dataclass(frozen=True, slots=True)
class Cutoff:
    """How many of a round's proposals are verified: a policy of DSparkCutoff and its threshold in [0, 1]."""

    policy: str
    """`all` or one of THRESHOLD_POLICIES."""
    threshold: float


def parse_cutoff(text: str) -> Cutoff | None:
    """`all`, `threshold:0.4` or `survival:0.3`; None for `auto`. Raises ValueError with the reason."""
    name, colon, number = text.partition(":")
    if text == "auto":
        return None
    if text == "all":
        return Cutoff("all", 0.0)
    if name not in THRESHOLD_POLICIES or not colon:
        raise ValueError(
            f"cutoff is '{text}', supported are auto, all, off, threshold:X and survival:X with X in [0, 1]"
        )
    try:
        threshold = float(number)
    except ValueError:
        threshold = math.nan
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"cutoff is '{text}', needs a number in [0, 1] after the colon")
    return Cutoff(name, threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeParams:
    """How a request uses the bundle's draft. Without a draft in the bundle all of it is moot."""

    enabled: bool = True
    """False: plain decoding, in the same rounds as everybody else, with no draft rows."""
    cutoff: str = "auto"
    """auto, all, threshold:X, survival:X (dspark.md 4.2), or off, which is enabled=False. auto is
    threshold:0.4 with a confidence head and threshold:0.6 on the draft's largest probability without."""
    accept: str = "auto"
    """auto, greedy, rejection or coupled (dspark.md 5). auto: greedy at temperature 0, coupled with a seed (the
    output is then, token for token, what plain decoding gives with that seed), else rejection."""
    max_len: int | None = None
    """Most proposals verified per round, >= 0; None: the block size."""

    def __post_init__(self) -> None:
        problems = _bool_problems(self, "enabled")
        if not isinstance(self.cutoff, str):
            problems.append(f"cutoff is {shown(self.cutoff)}, needs a string")
        elif self.cutoff != "off":
            try:
                parse_cutoff(self.cutoff)
            except ValueError as error:
                problems.append(str(error))
        if not isinstance(self.accept, str) or self.accept not in ("auto", *ACCEPT_CHOICES):
            problems.append(f"accept is {shown(self.accept)}, supported are auto, {', '.join(ACCEPT_CHOICES)}")
        problems += _integer_problem(self, "max_len", 0, None, ">= 0", optional=True)
        if problems:
            raise ConfigError("speculative parameters: " + "; ".join(problems))

    @property
    def drafts(self) -> bool:
        """Whether the request ever asks for proposals."""
        return self.enabled and self.cutoff != "off" and self.max_len != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and where the output ends. Lengths are counted in tokens."""

    temperature: float = 1.0
    """>= 0; below 1e-5 the most probable token is taken (greedy)."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 or -1: all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this, in (0, 1]."""
    min_p: float = 0.0
    """Drop tokens below this share of the largest probability, in [0, 1]."""
    seed: int | None = None
    """64 bits, unsigned: the same seed gives the same output in any batch. None or -1: a fresh key."""
    max_tokens: int | None = MAX_TOKENS
    """Most tokens of output, >= 1; None: as many as the bundle's max_seq_len leaves."""
    stop: str | Sequence[str] | None = None
    """Strings that end the output. The text is cut before the string, the token ids after the token that
    completes it, as in vLLM."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end the output besides the model's own end of sequence: in the token ids, not in the text."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence tokens."""
    include_stop_str_in_output: bool = False
    """Keep the stop string, or the text of the stop token, in the text."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    speculative: SpeculativeParams = field(default_factory=SpeculativeParams)

    # vLLM's further fields. Only their neutral values are accepted so far.
    n: int = 1
    min_tokens: int = 0
    logprobs: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        problems = [*self._range_problems(), *self._stop_problems()]
        problems += _bool_problems(self, "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
        if not isinstance(self.speculative, SpeculativeParams):
            problems.append(f"speculative is {shown(self.speculative)}, needs SpeculativeParams")
        problems += self._unsupported()
        if problems:
            raise ConfigError("sampling parameters: " + "; ".join(problems))
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop or ())

    def _range_problems(self) -> list[str]:
        return [
            *_float_problem(self, "temperature", 0.0, MAX_TEMPERATURE, f">= 0 and at most {MAX_TEMPERATURE:.0f}"),
            *_integer_problem(self, "top_k", -1, 2**31, ">= 0 and below 2**31 (0 or -1: off)"),
            *_float_problem(self, "top_p", MIN_TOP_P, 1.0, f"(0, 1], in float32 at least {MIN_TOP_P:.3g}"),
            *_float_problem(self, "min_p", 0.0, 1.0, "[0, 1]"),
            *_integer_problem(self, "seed", -1, 2**64, "[0, 2**64)", optional=True),
            *_integer_problem(self, "max_tokens", 1, None, ">= 1", optional=True),
        ]

    def _stop_problems(self) -> list[str]:
        problems = []
        stop: Any = (self.stop,) if isinstance(self.stop, str) else () if self.stop is None else self.stop
        if not isinstance(stop, Sequence) or isinstance(stop, bytes | bytearray):
            problems.append(f"stop is {shown(stop)}, needs a string or a list of strings")
        elif len(stop) > MAX_STOP_STRINGS:
            problems.append(f"stop has {len(stop)} strings, needs at most {MAX_STOP_STRINGS}")
        elif any(not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_LENGTH for text in stop):
            problems.append(f"stop needs strings of 1 to {MAX_STOP_LENGTH} characters")
        else:
            object.__setattr__(self, "stop", tuple(stop))
        given: Any = () if self.stop_token_ids is None else self.stop_token_ids
        if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
            problems.append(f"stop_token_ids is {shown(given)}, needs a list of token ids >= 0")
        else:
            entries = tuple(given)
            tokens = tuple(as_integer(entry) for entry in entries)
            if any(token is None or token < 0 for token in tokens):
                problems.append(f"stop_token_ids is {shown(entries)}, needs token ids >= 0")
            object.__setattr__(self, "stop_token_ids", tokens)
        return problems

    def _unsupported(self) -> list[str]:
        neutral = {
            "n": 1, "min_tokens": 0, "logprobs": None, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }  # fmt: skip
        problems = [
            f"{name} is {shown(getattr(self, name))}, supported is only {value}"
            for name, value in neutral.items()
            if not _is_neutral(getattr(self, name), value)
        ]
        if not (self.logit_bias is None or (isinstance(self.logit_bias, Mapping) and not self.logit_bias)):
            problems.append("logit_bias is not supported yet")
        return problems


def as_integer(value: object) -> int | None:
    """`value` as a Python integer where it is one, NumPy's included; None for everything else, bool included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _integer_problem(
    params: object, name: str, low: int, high: int | None, wanted: str, optional: bool = False
) -> list[str]:
    """What is wrong with a field that must be an integer in [low, high); the field becomes a Python int."""
    value = getattr(params, name)
    if value is None and optional:
        return []
    number = as_integer(value)
    if number is None:
        return [f"{name} is {shown(value)}, needs an integer {wanted}"]
    if number < low or (high is not None and number >= high):
        return [f"{name} is {shown(number)}, needs {wanted}"]
    object.__setattr__(params, name, number)
    return []


def _float_problem(params: object, name: str, low: float, high: float, wanted: str) -> list[str]:
    """What is wrong with a field that must be a number in [low, high]; the field becomes a Python float."""
    value = getattr(params, name)
    if isinstance(value, bool) or not isinstance(value, Real):
        return [f"{name} is {shown(value)}, needs a number {wanted}"]
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not low <= number <= high:
        return [f"{name} is {shown(number)}, needs {wanted}"]
    object.__setattr__(params, name, number)
    return []


def _bool_problems(params: object, *fields: str) -> list[str]:
    return [
        f"{name} is {shown(getattr(params, name))}, needs True or False"
        for name in fields
        if not isinstance(getattr(params, name), bool)
    ]


def _is_neutral(value: object, neutral: float | None) -> bool:
    if neutral is None or value is None:
        return value is neutral
    return isinstance(value, Real) and not isinstance(value, bool) and value == neutral
