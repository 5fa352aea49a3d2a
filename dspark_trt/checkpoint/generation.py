"""What generation_config.json says about sampling, as far as it can be: the defaults that a bundle carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dspark_runtime.contract.errors import shown
from dspark_trt.checkpoint.fields import is_integer

Check = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    """A finite float64, or an integer that becomes one."""
    return (isinstance(value, float) and math.isfinite(value)) or is_integer(value)


# Key -> (whether a value can be, what it should be). Ranges are those of the runtime's SamplingParams.
_RANGES: dict[str, tuple[Check, str]] = {
    "do_sample": (lambda v: isinstance(v, bool), "true or false"),
    "temperature": (lambda v: _is_number(v) and 0 <= v <= 1e6, "[0, 1000000]"),
    "top_k": (lambda v: _is_number(v) and float(v).is_integer() and -1 <= v < 2**31, "an integer in [-1, 2**31)"),
    "top_p": (lambda v: _is_number(v) and 2.0**-126 <= v <= 1, "(0, 1]"),
    "min_p": (lambda v: _is_number(v) and 0 <= v <= 1, "[0, 1]"),
    "repetition_penalty": (lambda v: _is_number(v) and 0 < v <= 1e6, "(0, 1000000]"),
    "max_new_tokens": (lambda v: is_integer(v) and v >= 1, "an integer >= 1"),
}


def generation_defaults(
    where: str, values: Mapping[str, Any], vocab_size: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values to keep, and a sentence about each that is left out because it cannot be.

    values: the JSON object, or metadata under the same keys; a null counts as absent, other keys are not ours.
    """
    ranges = _RANGES | {
        "pad_token_id": (lambda v: is_integer(v) and 0 <= v < vocab_size, f"a token in [0, {vocab_size})")
    }
    given = {key: values[key] for key in ranges if values.get(key) is not None}
    kept = {key: value for key, value in given.items() if ranges[key][0](value)}
    notes = tuple(
        f"{where}: {key} is {shown(value)}, wanted {ranges[key][1]}; left out of the defaults"
        for key, value in given.items()
        if key not in kept
    )
    return kept, notes
