"""A step's arrays in each form, on a case small enough to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import BundleError, CapacityError
from dspark_runtime.plan import SlotSampling
from dspark_runtime.sessions.base import Array, Binding, Tensor
from dspark_runtime.sessions.buffers import Buffer, allocate_caches
from dspark_runtime.sessions.packing import Packer
from dspark_runtime.sessions.sampling import NO_CUTOFF, CutoffInputs, SamplingInputs


class FakeSession:
    """Inputs by name; tensors whose handle is the array itself."""

    def __init__(self, *inputs: str, shapes: Mapping[str, tuple[int | None, ...]] | None = None) -> None:
        self.inputs: dict[str, tuple[int | None, ...]] = dict.fromkeys(inputs, (None,)) | dict(shapes or {})
        self.outputs = {name + names.PRESENT: shape for name, shape in (shapes or {}).items()}

    def tensor(self, array: Array) -> Tensor:
        return Tensor(array, array)

    def bind(self, caches: Mapping[str, Array]) -> Binding:
        raise NotImplementedError


def pack(packer: Packer) -> dict[str, list[object]]:
    """Slots 1 and 2 of 4: two tokens from row 5 on, and three from row 0 on."""
    tensors = packer.pack(
        np.array([1, 2], np.int32),
        np.array([5, 0], np.int32),
        np.array([2, 3], np.int32),
        np.arange(10, 15, dtype=np.int32),
    )
    return {name: tensor.array.tolist() for name, tensor in tensors.items()}


def test_packed_step_lists_tokens_by_slot() -> None:
    assert pack(Packer(FakeSession(), "trt", 4, 16, causal=True)) == {
        names.TOKEN_IDS: [10, 11, 12, 13, 14],
        names.POSITIONS: [5, 6, 0, 1, 2],
        names.WRITE_INDICES: [0, 5, 0, 0],
        names.UPDATE_LENGTHS: [0, 0, 2, 5, 5],
        names.KV_LENGTHS: [0, 7, 3, 0],
    }


def test_padded_step_pads_queries_on_the_left() -> None:
    arrays = pack(Packer(FakeSession(names.QUERY_ROWS), "trt", 4, 16, causal=True))
    assert arrays[names.QUERY_ROWS] == [[0, 0, 0], [0, 0, 1], [2, 3, 4], [0, 0, 0]]
    # Token t is row output_rows[t] of [B * Q].
    assert arrays[names.OUTPUT_ROWS] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("causal", [True, False])
def test_standard_step_pads_queries_on_the_right_and_masks_by_length(causal: bool) -> None:
    packer = Packer(FakeSession(names.QUERY_ROWS), "standard", 4, 9, causal=causal)
    packer.protect(0, 6)
    packer.protect(np.array([2, 3], np.int32), np.array([1, 4], np.int32))
    arrays = pack(packer)
    assert arrays[names.QUERY_ROWS] == [[0, 0, 0], [0, 1, 0], [2, 3, 4], [0, 0, 0]]
    assert arrays[names.OUTPUT_ROWS] == [3, 4, 6, 7, 8]
    # Idle slots get their padding rows behind what they hold.
    assert arrays[names.WRITE_INDICES] == [6, 5, 0, 4]
    visible = np.array(arrays[names.ATTENTION_MASK])[:, 0].sum(axis=-1).tolist()
    seen = [[1, 1, 1], [6, 7, 1], [1, 2, 3], [1, 1, 1]] if causal else [[1, 1, 1], [7, 7, 1], [3, 3, 3], [1, 1, 1]]
    assert visible == seen


def test_step_with_fewer_rows_than_wanted_gets_rows_of_no_slot() -> None:
    packer = Packer(FakeSession(names.QUERY_ROWS), "trt", 2, 16, causal=True, min_rows=2)
    one = np.array([1], np.int32)
    arrays = {name: t.array.tolist() for name, t in packer.pack(one, one * 3, one, one * 42).items()}
    assert arrays[names.TOKEN_IDS] == [42, 0]
    assert arrays[names.POSITIONS] == [3, 0]
    assert arrays[names.UPDATE_LENGTHS] == [0, 0, 1]
    assert arrays[names.OUTPUT_ROWS] == [1, 0]


def test_step_after_a_larger_one_holds_nothing_of_it() -> None:
    packer = Packer(FakeSession(names.QUERY_ROWS), "trt", 4, 16, causal=True)
    first = pack(packer)
    one = np.array([3], np.int32)
    packer.pack(one, one, one - 1, np.array([7, 8], np.int32))
    assert pack(packer) == first


def test_buffer_gives_the_same_tensor_for_a_shape_and_grows_when_needed() -> None:
    buffer = Buffer(np.int32, FakeSession().tensor)
    small = buffer.view(2, 3)
    assert buffer.view(2, 3) is small
    large = buffer.view(4, 3)
    assert buffer.view(2, 3) is not small
    assert np.shares_memory(buffer.view(2, 3).array, large.array)


def test_caches_of_one_name_are_one_array() -> None:
    shape = (None, 2, 16, 8)
    target = FakeSession(shapes={"target_key.0": shape, "context_key.0": shape})
    draft = FakeSession(shapes={"context_key.0": (None, 2, None, 8)})
    caches = allocate_caches([target, draft], 3, 16, "bundle")
    assert {name: array.shape for name, array in caches.items()} == dict.fromkeys(
        ("target_key.0", "context_key.0"), (3, 2, 16, 8)
    )
    assert not any(array.any() for array in caches.values())


@pytest.mark.parametrize("shape", [(None, 2, 17, 8), (None, None, 16, 8)])
def test_cache_of_another_capacity_is_refused(shape: tuple[int | None, ...]) -> None:
    with pytest.raises(BundleError, match=r"target_key\.0 has shape .*, wanted \[B, heads, 16, width\]"):
        allocate_caches([FakeSession(shapes={"target_key.0": shape})], 3, 16, "bundle")


@pytest.mark.parametrize("capacity", [2**38, 2**61])
def test_caches_without_room_are_refused_with_their_size_and_what_to_lower(capacity: int) -> None:
    session = FakeSession(shapes={"target_key.0": (None, 2, None, 8), "target_value.0": (None, 2, None, 8)})
    size = 2 * 4 * 1024 * 2 * capacity * 8
    wanted = rf"1024 requests of {capacity} tokens take {size} bytes, .*smaller --max-batch-size or --max-seq-len"
    with pytest.raises(CapacityError, match=wanted):
        allocate_caches([session], 1024, capacity, "bundle")


def sampling(temperature: float) -> SlotSampling:
    return SlotSampling(
        temperature=temperature,
        top_k=3,
        top_p=0.5,
        min_p=0.25,
        accept_mode=2,
        seed=-5,
        sample_index=0,
        relaxation=(0.0, 0.0),
        confidence_signal=1,
        prompt_length=4,
        num_logprobs=-1,
        rules=None,
        needs_draft_logits=False,
    )


def test_sampling_inputs_follow_the_requests_of_each_step() -> None:
    inputs = SamplingInputs(FakeSession())
    for temperatures in ([0.5, 1.0], [0.5, 1.0], [2.0], [0.0, 0.5, 1.0]):
        positions = np.arange(len(temperatures), dtype=np.int32) + 9
        arrays = inputs.fill([sampling(t) for t in temperatures], positions)
        assert arrays[names.TEMPERATURE].array.tolist() == temperatures
        assert arrays[names.ANCHOR_POSITION].array.tolist() == positions.tolist()
        assert arrays[names.SEED].array.tolist() == [-5] * len(temperatures)
        assert {*names.SAMPLING_INPUTS, names.CONFIDENCE_SIGNAL} == arrays.keys()


def test_cutoff_inputs_follow_policies_and_limits_of_each_round() -> None:
    inputs = CutoffInputs(FakeSession())
    strict = replace(NO_CUTOFF, policy=1, params=(0.75, 0.0, 0.0, 0.0, 0.0), inclusive=True, min_verify=3)
    for cutoffs, limits in (((strict, NO_CUTOFF), [4, 2]), ((strict, NO_CUTOFF), [2, 2]), ((NO_CUTOFF,), [1])):
        arrays = {name: tensor.array.tolist() for name, tensor in inputs.fill(cutoffs, limits).items()}
        assert arrays == {
            names.CUTOFF_POLICY: [cutoff.policy for cutoff in cutoffs],
            names.CUTOFF_PARAMS: [list(cutoff.params) for cutoff in cutoffs],
            names.CUTOFF_INCLUSIVE: [int(cutoff.inclusive) for cutoff in cutoffs],
            names.MIN_VERIFY: [min(cutoff.min_verify, most) for cutoff, most in zip(cutoffs, limits, strict=True)],
            names.MAX_VERIFY: limits,
        }
