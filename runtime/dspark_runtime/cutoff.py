"""What a caller may say about the cutoff: policies, signals and the adaptive controller as text (dspark.md 4).

Text, because the same words serve Python, the command line and JSON. A policy is a name and its numbers, by place or
by name: `threshold:0.4`, `utility:0.5,min_len=2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dspark_runtime.contract.errors import shown
from dspark_runtime.contract.names import CONFIDENCE_SIGNALS, CUTOFF_COLUMNS, CUTOFF_POLICIES

MAX_BLOCK = 1 << 16
"""Above every block size: bound of lengths that a caller names."""
MAX_TOPK_MASS = (1 << 23) - 1
"""k of topk_mass shares 32 bits with the signal."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a policy: its name, its range, and its value where the caller gives none (None: required)."""

    name: str
    low: float
    high: float
    default: float | None = None
    is_integer: bool = False


def _share(name: str, default: float | None = None) -> Number:
    return Number(name, 0.0, 1.0, default)


def _length(name: str, low: int, default: float | None) -> Number:
    return Number(name, low, MAX_BLOCK, default, is_integer=True)


POLICIES: dict[str, tuple[Number, ...]] = {
    "all": (),
    "threshold": (_share("tau"),),
    "survival": (_share("tau"),),
    "utility": (
        Number("tau", -100.0, 100.0, 0.45), Number("w_pos", -100.0, 100.0, 1.0), Number("w_pen", -100.0, 100.0, 0.2),
        _length("min_len", 0, 3), _length("max_len", 1, 9),
    ),
    "two_strikes": (_share("tau"), _length("min_len", 0, 0)),
    "dual": (_share("tau_low"), _share("tau_high"), _share("entropy_bar")),
    "ramp": (_share("tau_start"), _share("tau_end")),
}  # fmt: skip
"""Numbers of every policy, in the order of the columns that DSparkCutoff reads."""
MOVABLE = ("threshold", "survival", "utility", "two_strikes")
"""Policies with one tau, which `adaptive` can move."""
FORMS = (
    "auto, all, off, threshold:X, survival:X, utility:TAU,w_pos=1,w_pen=0.2,min_len=3,max_len=9, "
    "two_strikes:X,min_len=0, dual:LOW,HIGH,ENTROPY_BAR and ramp:START,END with thresholds in [0, 1]"
)


@dataclass(frozen=True, slots=True)
class Cutoff:
    """A policy of DSparkCutoff and its numbers, in the order of POLICIES."""

    policy: str
    numbers: tuple[float, ...] = ()

    def columns(self, block_size: int) -> tuple[float, ...]:
        """The CUTOFF_COLUMNS numbers that DSparkCutoff reads; block_size: K, which a ramp is spread over."""
        used = (*self.numbers, float(block_size)) if self.policy == "ramp" else self.numbers
        return (*used, *(0.0,) * (CUTOFF_COLUMNS - len(used)))


def parse_cutoff(text: str) -> Cutoff | None:
    """The policy that `text` names; None for `auto`. Raises ValueError with the reason."""
    if text == "auto":
        return None
    name, colon, rest = text.partition(":")
    if name not in POLICIES or (name == "all" and colon):
        raise ValueError(f"cutoff is {shown(text)}, supported are {FORMS}")
    numbers = parse_numbers(f"cutoff is {shown(text)}", rest if colon else None, POLICIES[name])
    if name == "dual" and numbers[0] > numbers[1]:
        raise ValueError(f"cutoff is {shown(text)}, needs tau_low <= tau_high")
    return Cutoff(name, numbers)


def parse_numbers(where: str, text: str | None, wanted: tuple[Number, ...]) -> tuple[float, ...]:
    """Values of `wanted` out of `a,b,name=c`; None: nothing after the name. ValueError, beginning with `where`."""
    given: dict[str, str] = {}
    names = [number.name for number in wanted]
    for place, part in enumerate(text.split(",") if text is not None else ()):
        name, equals, value_text = part.partition("=")
        if not equals:
            name, value_text = (names[place] if place < len(names) else ""), part
        if name not in names or name in given:
            raise ValueError(f"{where}, takes {', '.join(names)}, each once")
        given[name] = value_text
    values = []
    for number in wanted:
        if number.name not in given and number.default is not None:
            values.append(number.default)
            continue
        try:
            value = float(given.get(number.name, ""))
        except ValueError:
            value = math.nan
        if not number.low <= value <= number.high or (number.is_integer and not value.is_integer()):
            kind = "an integer" if number.is_integer else "a number"
            raise ValueError(f"{where}, needs {kind} in [{number.low:g}, {number.high:g}] for {number.name}")
        values.append(value)
    return tuple(values)


SIGNALS = ("head", "top1", "margin", "topk_mass:K", "entropy", "gini", "token")


def parse_signal(text: str) -> int | None:
    """The number by which DSparkDraft knows a signal: CONFIDENCE_SIGNALS | k << 8; None for `auto`. ValueError."""
    if text == "auto":
        return None
    name, colon, rest = text.partition(":")
    if name not in CONFIDENCE_SIGNALS or bool(colon) != (name == "topk_mass"):
        raise ValueError(f"signal is {shown(text)}, supported are auto, {', '.join(SIGNALS)}")
    (k,) = (0,) if not colon else (_topk(text, rest),)
    return CONFIDENCE_SIGNALS[name] | k << 8


def _topk(text: str, number: str) -> int:
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:12]) <= MAX_TOPK_MASS):
        raise ValueError(f"signal is {shown(text)}, needs an integer in [1, {MAX_TOPK_MASS}] after the colon")
    return int(number)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A controller that moves a cutoff so that the acceptance rate of the last rounds comes near a target."""

    moves: str
    """`tau` or `max_len`."""
    target: float
    """Accepted share of the verified proposals, in (0, 1)."""
    window: int
    """Completed rounds that the rate is taken over, >= 1."""
    low: float
    high: float
    """Bounds of what is moved."""


_RATE = Number("target", 1e-3, 1.0 - 1e-3, 0.8)
_WINDOW = Number("window", 1, 1e6, 100, is_integer=True)
ADAPTIVE: dict[str, tuple[Number, ...]] = {
    "tau": (_RATE, _WINDOW, _share("low", 0.05), _share("high", 0.95)),
    "max_len": (_RATE, _WINDOW, _length("low", 1, 1), _length("high", 1, MAX_BLOCK)),
}
ADAPTIVE_FORMS = "tau:TARGET,window=100,low=0.05,high=0.95 or max_len:TARGET,window=100,low=1,high=K"


def parse_adaptive(text: str) -> Adaptive:
    """`tau:0.8`, `max_len:target=0.7,window=50,low=2`. Raises ValueError with the reason."""
    name, colon, rest = text.partition(":")
    if name not in ADAPTIVE:
        raise ValueError(f"adaptive is {shown(text)}, supported are {ADAPTIVE_FORMS}")
    target, window, low, high = parse_numbers(f"adaptive is {shown(text)}", rest if colon else None, ADAPTIVE[name])
    if low > high:
        raise ValueError(f"adaptive is {shown(text)}, needs low <= high")
    return Adaptive(name, target, int(window), low, high)


assert set(POLICIES) == set(CUTOFF_POLICIES)
