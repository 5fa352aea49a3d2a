"""How a request uses the bundle's draft: what a caller may set, checked, and what `auto` means (dspark.md 4, 5)."""

from __future__ import annotations

from dataclasses import dataclass

from dspark_runtime.checks import bool_problems, integer_problem
from dspark_runtime.contract.errors import ConfigError, shown
from dspark_runtime.contract.names import ACCEPT_MODES
from dspark_runtime.cutoff import MAX_BLOCK, MOVABLE, Number, parse_adaptive, parse_cutoff, parse_numbers, parse_signal

RELAXATIONS = {
    "relaxed": (Number("min_bar", 0.0, 1.0, 0.1), Number("max_bar", 0.0, 1.0, 0.5)),
    "typical": (Number("epsilon", 0.0, 1.0, 0.09), Number("delta", 0.0, 1.0, 0.3)),
}
"""Acceptance that changes the output, and its numbers: a proposal of confidence c is kept where its probability exceeds
max_bar + (min_bar - max_bar) * c, or min(epsilon, delta * exp(-entropy))."""
ACCEPT_FORMS = "auto, greedy, rejection, coupled, relaxed:MIN_BAR,MAX_BAR, typical:EPSILON,DELTA"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A mode of DSparkAccept and the two numbers that `relaxed` and `typical` read."""

    mode: str
    numbers: tuple[float, float] = (0.0, 0.0)


def parse_accept(text: str) -> Acceptance | None:
    """The mode that `text` names; None for `auto`. Raises ValueError with the reason."""
    name, colon, rest = text.partition(":")
    if name == "auto" and not colon:
        return None
    if name not in ACCEPT_MODES or (colon and name not in RELAXATIONS):
        raise ValueError(f"accept is {shown(text)}, supported are {ACCEPT_FORMS}")
    if name not in RELAXATIONS:
        return Acceptance(name)
    first, second = parse_numbers(f"accept is {shown(text)}", rest if colon else None, RELAXATIONS[name])
    if name == "relaxed" and first > second:
        raise ValueError(f"accept is {shown(text)}, needs min_bar <= max_bar")
    return Acceptance(name, (first, second))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeParams:
    """How a request uses the bundle's draft. Without a draft in the bundle all of it is moot."""

    enabled: bool = True
    """False: plain decoding, in the same rounds as everybody else, with no draft rows."""
    cutoff: str = "auto"
    """How many proposals are verified: auto, off (which is enabled=False), or a policy of cutoff.py. auto is
    threshold:0.4 with a confidence head and threshold:0.6 on the draft's largest probability without."""
    signal: str = "auto"
    """What the policy reads as confidence: auto (the head's, top1 for a draft without one), head, top1, margin,
    topk_mass:K, entropy, gini, or token, the probability of the very token that was drawn."""
    inclusive: bool | None = None
    """True: a proposal below the bar is verified all the same and stops only those after it. False: it is left out
    itself. None: True for signal `token` under rejection above temperature 0, where leaving it out would skew the
    output (False is refused there), else False."""
    accept: str = "auto"
    """auto, greedy, rejection, coupled, or relaxed[:MIN_BAR,MAX_BAR] and typical[:EPSILON,DELTA], which change the
    output (dspark.md 5). auto: greedy at temperature 0, coupled with a seed (the output is then, token for token, what
    plain decoding gives with that seed), else rejection."""
    min_len: int = 0
    """Proposals verified whatever their confidence, as far as there are so many."""
    max_len: int | None = None
    """Most proposals verified per round, >= 0; None: the block size."""
    warmup_tokens: int = 0
    """Output tokens before the first proposal: nothing is drafted while there are fewer."""
    adaptive: str | None = None
    """Moves tau or max_len after completed rounds towards a target acceptance rate: tau:TARGET or max_len:TARGET, with
    window=, low= and high= (cutoff.py)."""

    def __post_init__(self) -> None:
        problems = bool_problems(self, "enabled") + self._text_problems()
        if self.inclusive is not None:
            problems += bool_problems(self, "inclusive")
        found = integer_problem(self, "min_len", 0, MAX_BLOCK, f">= 0 and below {MAX_BLOCK}")
        found += integer_problem(self, "max_len", 0, None, ">= 0", optional=True)
        if not found and self.max_len is not None and self.min_len > self.max_len:
            found.append(f"min_len is {self.min_len}, needs at most max_len, which is {self.max_len}")
        problems += found + integer_problem(self, "warmup_tokens", 0, None, ">= 0")
        if problems:
            raise ConfigError("speculative parameters: " + "; ".join(problems))

    @property
    def drafts(self) -> bool:
        """Whether the request ever asks for proposals."""
        return self.enabled and self.cutoff != "off" and self.max_len != 0

    def _text_problems(self) -> list[str]:
        problems = []
        for name, parse in (("cutoff", _check_cutoff), ("signal", parse_signal), ("accept", parse_accept)):
            text = getattr(self, name)
            if not isinstance(text, str):
                problems.append(f"{name} is {shown(text)}, needs a string")
                continue
            try:
                parse(text)
            except ValueError as error:
                problems.append(str(error))
        if self.adaptive is not None and not isinstance(self.adaptive, str):
            problems.append(f"adaptive is {shown(self.adaptive)}, needs a string")
        elif self.adaptive is not None and not problems:
            try:
                self._check_adaptive(self.adaptive)
            except ValueError as error:
                problems.append(str(error))
        return problems

    def _check_adaptive(self, text: str) -> None:
        cutoff = parse_cutoff(self.cutoff) if self.cutoff != "off" else None
        if parse_adaptive(text).moves == "tau" and cutoff is not None and cutoff.policy not in MOVABLE:
            raise ValueError(
                f"adaptive is {shown(text)}, but cutoff {self.cutoff} has no single tau to move; use one of "
                f"{', '.join(MOVABLE)}"
            )


def _check_cutoff(text: str) -> None:
    if text != "off":
        parse_cutoff(text)
