"""Which GPUs an engine is built for."""

from __future__ import annotations

import pytest

from dspark_runtime.contract.errors import BuildError
from dspark_trt.backends.tensorrt_targets import choose_targets

KNOWN = ("7.5", "8.9", "12.0")


def test_targets_are_all_that_have_the_arithmetic() -> None:
    assert choose_targets((), KNOWN, "float16") == KNOWN
    # By number, not by text: 12.0 comes after 8.0.
    assert choose_targets((), KNOWN, "bfloat16") == ("8.9", "12.0")


def test_targets_that_were_asked_for_keep_their_order() -> None:
    assert choose_targets(("12.0", "8.9"), KNOWN, "bfloat16") == ("12.0", "8.9")


def test_target_without_the_arithmetic_is_refused() -> None:
    with pytest.raises(BuildError) as caught:
        choose_targets(("7.5",), KNOWN, "bfloat16")
    assert str(caught.value) == "compute capability 7.5 has no bfloat16; build with --dtype float16, or for 8.9, 12.0"


def test_target_that_the_library_lacks_is_refused() -> None:
    with pytest.raises(BuildError) as caught:
        choose_targets(("9.0",), KNOWN, "float16")
    assert str(caught.value) == "compute capability 9.0 is none that the library builds for: 7.5, 8.9, 12.0"
