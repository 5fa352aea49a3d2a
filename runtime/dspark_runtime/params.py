"""What a caller may set per request. Names and defaults follow vLLM's SamplingParams.

Values are checked once, all problems in one message. Fields that exist there and that no code here
supports yet are refused when set, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dspark_runtime.contract.errors import ConfigError
from dspark_runtime.contract.names import ACCEPT_MODES, CUTOFF_POLICIES

GREEDY_BELOW = 1e-5
"""Temperatures below this mean greedy decoding (docs/architecture.md)."""
MAX_TOKENS = 16
"""vLLM's default number of output tokens."""
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 4096
"""Characters of one stop string."""


@dataclass(frozen=True, slots=True)
class Cutoff:
    """How many of a round's proposals are verified: a policy of DSparkCutoff and its threshold in [0, 1]."""

    policy: str
    """One of CUTOFF_POLICIES."""
    threshold: float


def parse_cutoff(text: str) -> Cutoff | None:
    """`all`, `threshold:0.4` or `survival:0.3`; None for `auto`. Raises ValueError with the reason."""
    name, colon, number = text.partition(":")
    if text == "auto":
        return None
    if text == "all":
        return Cutoff("all", 0.0)
    if name not in CUTOFF_POLICIES or name == "all" or not colon:
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
        problems = []
        if self.cutoff != "off":
            try:
                parse_cutoff(self.cutoff)
            except ValueError as error:
                problems.append(str(error))
        if self.accept not in ("auto", *ACCEPT_MODES):
            problems.append(f"accept is '{self.accept}', supported are auto, {', '.join(ACCEPT_MODES)}")
        if self.max_len is not None and self.max_len < 0:
            problems.append(f"max_len is {self.max_len}, needs >= 0")
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
        stop = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        problems = [*self._range_problems(), *self._stop_problems(), *self._unsupported()]
        if problems:
            raise ConfigError("sampling parameters: " + "; ".join(problems))

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop or ())

    def _range_problems(self) -> list[str]:
        problems = []
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            problems.append(f"temperature is {self.temperature}, needs >= 0")
        if not 0 <= self.top_k < 2**31:
            problems.append(f"top_k is {self.top_k}, needs >= 0 (0 or -1: off)")
        if not 0.0 < self.top_p <= 1.0:
            problems.append(f"top_p is {self.top_p}, needs (0, 1]")
        if not 0.0 <= self.min_p <= 1.0:
            problems.append(f"min_p is {self.min_p}, needs [0, 1]")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            problems.append(f"seed is {self.seed}, needs [0, 2**64)")
        if self.max_tokens is not None and self.max_tokens < 1:
            problems.append(f"max_tokens is {self.max_tokens}, needs >= 1")
        return problems

    def _stop_problems(self) -> list[str]:
        problems = []
        strings = self.stop_strings
        if any(not isinstance(text, str) or not text or len(text) > MAX_STOP_LENGTH for text in strings):
            problems.append(f"stop needs strings of 1 to {MAX_STOP_LENGTH} characters")
        if len(strings) > MAX_STOP_STRINGS:
            problems.append(f"stop has {len(strings)} strings, needs at most {MAX_STOP_STRINGS}")
        if any(not isinstance(token, int) or token < 0 for token in self.stop_token_ids or ()):
            problems.append(f"stop_token_ids is {self.stop_token_ids}, needs token ids >= 0")
        return problems

    def _unsupported(self) -> list[str]:
        neutral = {
            "n": 1, "min_tokens": 0, "logprobs": None, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }  # fmt: skip
        problems = [
            f"{name} is {getattr(self, name)}, supported is only {value}"
            for name, value in neutral.items()
            if getattr(self, name) != value
        ]
        if self.logit_bias:
            problems.append("logit_bias is not supported yet")
        return problems
