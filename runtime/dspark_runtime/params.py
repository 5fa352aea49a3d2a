"""What a caller may set per request. Names, defaults and meanings follow vLLM's SamplingParams.

Values are checked once, all problems in one message; ids are compared with the vocabulary when the request is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dspark_runtime.checks import (
    as_integer,
    as_number,
    bool_problems,
    float_problem,
    integer_problem,
    strings_problem,
    token_ids_problem,
)
from dspark_runtime.contract.errors import ConfigError, shown
from dspark_runtime.contract.names import MAX_LOGPROBS
from dspark_runtime.speculative import SpeculativeParams

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
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024
"""Entries of logit_bias: every one is looked at for every row of logits."""
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LENGTH = 256
"""Characters of one bad word."""
MAX_BAD_TOKENS = 1024
MAX_ALLOWED_TOKENS = 1 << 20
MAX_SAMPLES = 64
"""Outputs of one request."""
MIN_REPETITION, MAX_REPETITION = 0.01, 100.0
"""Far outside of it, penalised logits leave float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and where the output ends. Lengths are counted in tokens.

    What the target's logits become before temperature, top_k, top_p and min_p, in this order: allowed_token_ids,
    bad_words, then bad_token_ids, min_tokens and logit_bias, then the penalties.
    """

    n: int = 1
    """Outputs of the prompt, each drawn for itself; 1 at temperature 0, where all would be the same."""
    temperature: float = 1.0
    """>= 0; below 1e-5 the most probable token is taken (greedy)."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 or -1: all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this, in (0, 1]."""
    min_p: float = 0.0
    """Drop tokens below this share of the largest probability, in [0, 1]."""
    repetition_penalty: float = 1.0
    """Tokens of the prompt and the output so far: positive logits are divided by it, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that are in the output so far, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Taken from the logit of a token once for each time that it is in the output so far, in [-2, 2]."""
    logit_bias: Mapping[int, float] | None = None
    """Token id -> what is added to its logit, in [-100, 100]."""
    bad_words: str | Sequence[str] | None = None
    """Texts that must not appear, with and without a leading space: the last token of one is impossible where the
    output ends in those before it. A text that is cut into tokens in another way is not found, as in vLLM."""
    bad_token_ids: Sequence[int] | None = None
    """Tokens that are impossible."""
    allowed_token_ids: Sequence[int] | None = None
    """Tokens that are possible, end of sequence among them only if named; None: all."""
    seed: int | None = None
    """64 bits, unsigned: the same seed gives the same output in any batch. None or -1: a fresh key."""
    max_tokens: int | None = MAX_TOKENS
    """Most tokens of output, >= 1; None: as many as the bundle's max_seq_len leaves."""
    min_tokens: int = 0
    """Tokens of output before an end of sequence or a token of stop_token_ids is possible, and before stop strings
    are looked for."""
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
    echo: bool = False
    """Begin the text with the prompt's."""
    logprobs: int | None = None
    """Log-probabilities of each chosen token and of so many of the most probable ones, 0 to 20; None: none. They are
    the model's own, before anything above changes them."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    speculative: SpeculativeParams = field(default_factory=SpeculativeParams)

    def __post_init__(self) -> None:
        problems = [*self._range_problems(), *self._list_problems(), *self._bias_problems()]
        problems += bool_problems(self, "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "echo")
        if not isinstance(self.speculative, SpeculativeParams):
            problems.append(f"speculative is {shown(self.speculative)}, needs SpeculativeParams")
        if not problems:
            problems += self._contradictions()
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
        penalty = f"[{MIN_REPETITION:g}, {MAX_REPETITION:g}]"
        count = f"[0, {MAX_LOGPROBS}]"
        return [
            *integer_problem(self, "n", 1, MAX_SAMPLES + 1, f"[1, {MAX_SAMPLES}]"),
            *float_problem(self, "temperature", 0.0, MAX_TEMPERATURE, f">= 0 and at most {MAX_TEMPERATURE:.0f}"),
            *integer_problem(self, "top_k", -1, 2**31, ">= 0 and below 2**31 (0 or -1: off)"),
            *float_problem(self, "top_p", MIN_TOP_P, 1.0, f"(0, 1], in float32 at least {MIN_TOP_P:.3g}"),
            *float_problem(self, "min_p", 0.0, 1.0, "[0, 1]"),
            *float_problem(self, "repetition_penalty", MIN_REPETITION, MAX_REPETITION, penalty),
            *float_problem(self, "presence_penalty", -2.0, 2.0, "[-2, 2]"),
            *float_problem(self, "frequency_penalty", -2.0, 2.0, "[-2, 2]"),
            *integer_problem(self, "seed", -1, 2**64, "[0, 2**64)", optional=True),
            *integer_problem(self, "max_tokens", 1, None, ">= 1", optional=True),
            *integer_problem(self, "min_tokens", 0, None, ">= 0"),
            *integer_problem(self, "logprobs", 0, MAX_LOGPROBS + 1, count, optional=True),
            *integer_problem(self, "prompt_logprobs", 0, MAX_LOGPROBS + 1, count, optional=True),
        ]

    def _list_problems(self) -> list[str]:
        allowed_is_none = self.allowed_token_ids is None
        problems = [
            *strings_problem(self, "stop", MAX_STOP_STRINGS, MAX_STOP_LENGTH),
            *strings_problem(self, "bad_words", MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH),
            *token_ids_problem(self, "stop_token_ids", MAX_STOP_TOKENS),
            *token_ids_problem(self, "bad_token_ids", MAX_BAD_TOKENS),
            *token_ids_problem(self, "allowed_token_ids", MAX_ALLOWED_TOKENS),
        ]
        if allowed_is_none:
            object.__setattr__(self, "allowed_token_ids", None)
        elif self.allowed_token_ids == ():
            problems.append("allowed_token_ids is empty, needs at least one token id (None: all)")
        return problems

    def _bias_problems(self) -> list[str]:
        given = self.logit_bias
        if given is None:
            return []
        wanted = "needs a mapping of token ids >= 0 to numbers in [-100, 100]"
        if not isinstance(given, Mapping):
            return [f"logit_bias is {shown(given)}, {wanted}"]
        if len(given) > MAX_BIASES:
            return [f"logit_bias has {len(given)} entries, needs at most {MAX_BIASES}"]
        biases: dict[int, float] = {}
        for key, value in given.items():
            token, bias = as_integer(key), as_number(value)
            if token is None or token < 0 or bias is None or not -100.0 <= bias <= 100.0:
                return [f"logit_bias has {shown(key)}: {shown(value)}, {wanted}"]
            biases[token] = bias
        object.__setattr__(self, "logit_bias", biases)
        return []

    def _contradictions(self) -> list[str]:
        problems = []
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            problems.append(f"min_tokens is {self.min_tokens}, needs at most max_tokens, which is {self.max_tokens}")
        if self.n > 1 and (self.is_greedy or self.speculative.accept == "greedy"):
            problems.append(f"n is {self.n}, needs 1 in greedy decoding, where all outputs would be the same")
        return problems
