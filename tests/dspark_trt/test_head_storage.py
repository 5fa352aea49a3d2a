"""Storage of markov_w2: what the arrays stand for, and how far that is from the weight."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dspark_runtime.contract.names import HEAD_STORAGES
from dspark_trt.head_storage import ROWS_AT_ONCE, load_markov_w2, store_markov_w2

WEIGHT = np.random.default_rng(4).standard_normal((ROWS_AT_ONCE + 3, 5)).astype(np.float32)


def test_float32_is_the_weight_itself() -> None:
    assert store_markov_w2(WEIGHT, "float32")["markov_w2"] is WEIGHT


def test_bfloat16_is_the_nearest() -> None:
    arrays = store_markov_w2(WEIGHT, "bfloat16")
    assert list(arrays) == ["markov_w2"] and arrays["markov_w2"].dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(load_markov_w2(arrays), WEIGHT, rtol=2**-8)


def test_int8_is_off_by_half_a_step_of_its_row_at_most() -> None:
    arrays = store_markov_w2(WEIGHT, "int8")
    assert arrays["markov_w2"].dtype == np.int8 and arrays["markov_w2_scales"].shape == (len(WEIGHT),)
    error = np.abs(load_markov_w2(arrays) - WEIGHT)
    assert (error <= arrays["markov_w2_scales"][:, None] * 0.5001).all()
    assert error[-1].max() > 0  # the rows behind ROWS_AT_ONCE are converted as well


def test_int8_row_of_zeros_stays_zero() -> None:
    arrays = store_markov_w2(np.zeros((2, 3), np.float32), "int8")
    assert not load_markov_w2(arrays).any() and not arrays["markov_w2_scales"].any()


@pytest.mark.parametrize("storage", HEAD_STORAGES)
def test_what_was_stored_is_stored_again_without_loss(storage: str) -> None:
    once = load_markov_w2(store_markov_w2(WEIGHT, storage))
    np.testing.assert_allclose(load_markov_w2(store_markov_w2(once, storage)), once, rtol=1e-6)
