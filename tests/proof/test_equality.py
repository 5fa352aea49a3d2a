from __future__ import annotations

import pytest

from tests.proof.equality import Comparison


def test_comparison_wrong_token_with_clear_margin_fails() -> None:
    comparison = Comparison()
    comparison.add(0, [1, 2, 3], [1, 5, 3], [1.0, 0.5, 1.0])
    with pytest.raises(AssertionError, match="token 1: got 2, wanted 5"):
        comparison.check("control")


def test_comparison_short_output_fails() -> None:
    comparison = Comparison()
    comparison.add(0, [1, 2], [1, 2, 3], [1.0, 1.0, 1.0])
    with pytest.raises(AssertionError, match="2 tokens, wanted 3"):
        comparison.check("control")


def test_comparison_near_ties_above_the_share_fail() -> None:
    comparison = Comparison()
    comparison.add(0, [1, 2, 3], [1, 5, 3], [1.0, 1e-4, 1.0])
    with pytest.raises(AssertionError):
        comparison.check("control")


def test_comparison_one_near_tie_in_many_tokens_passes() -> None:
    comparison = Comparison()
    comparison.add(0, [0] * 1999 + [1], [0] * 1999 + [2], [1.0] * 1999 + [1e-5])
    comparison.check("control")
    assert comparison.near_ties == [(0, 1999, 1e-5)]
