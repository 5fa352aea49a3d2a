from __future__ import annotations

import numpy as np
import pytest

from tests.proof.chi_square import p_value


def test_p_value_equals_a_table() -> None:
    # chi^2 = 9.488 with 4 degrees of freedom is the 5 % quantile.
    counts = np.full(5, 10_000.0)
    counts[0] += np.sqrt(9.4877 * 10_000 / 2)
    counts[1] -= np.sqrt(9.4877 * 10_000 / 2)
    assert p_value(counts, np.full(5, 0.2)) == pytest.approx(0.05, abs=1e-4)


def test_p_value_of_true_laws_is_uniform_although_rare_outcomes_are_joined() -> None:
    rng = np.random.default_rng(3)
    law = rng.dirichlet(np.full(30, 0.3))
    found = [p_value(rng.multinomial(2_000, law), law) for _ in range(2_000)]
    assert np.quantile(found, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.04)


def test_p_value_of_an_impossible_outcome_is_zero() -> None:
    assert p_value([500, 300, 200, 1], [0.5, 0.3, 0.2, 0.0]) == 0.0


def test_p_value_of_too_few_outcomes_is_refused() -> None:
    with pytest.raises(ValueError, match="2 outcomes"):
        p_value([500, 499, 1], [0.5, 0.499, 0.001])
