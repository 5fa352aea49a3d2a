"""A weight that is no number is refused by name, in whatever form the file has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dspark_runtime.contract.errors import CheckpointError
from dspark_trt.checkpoint import load_draft, load_target
from dspark_trt.checkpoint.finite import FiniteSource
from dspark_trt.checkpoint.types import Array
from dspark_trt.stored import Stored
from tests.tiny import make_dspark_draft, make_target, read_safetensors, write_safetensors

NAME = "layers.1.mlp.up_proj.weight"


class Source:
    """One weight, as float32 and as stored."""

    def __init__(self, array: Array | None = None, stored: Stored | None = None) -> None:
        assert array is not None or stored is not None
        self._array = array if array is not None else stored.unpack()
        self._stored = stored

    def names(self) -> tuple[str, ...]:
        return (NAME,)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._array.shape

    def load(self, name: str) -> Array:
        return self._array

    def stored(self, name: str) -> Stored | None:
        return self._stored


def refusal(source: Source, read: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        getattr(FiniteSource("m", source), read)(NAME)
    return str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 1500])
def test_weight_that_is_not_finite_is_refused_with_its_name_and_place(value: float, row: int) -> None:
    array = np.ones((1600, 1024), np.float32)  # more than is looked at together
    array[row, 3] = value
    message = refusal(Source(array), "load")
    assert message.startswith(f"m: {NAME} holds {value} at [{row}, 3], wanted finite weights; ")


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
def test_stored_bfloat16_that_is_not_finite_is_refused(bits: int) -> None:
    values = np.full((64, 64), 0x3F80, np.uint16)
    values[5, 7] = bits
    assert f"{NAME} holds" in refusal(Source(stored=Stored(kind="bf16", values=values)), "stored")
    assert "at [5, 7]" in refusal(Source(stored=Stored(kind="bf16", values=values)), "stored")


@pytest.mark.parametrize("part", ["d", "m"])
def test_stored_block_with_a_scale_that_is_not_finite_is_refused(part: str) -> None:
    scales = {name: np.ones((4, 2), np.float16) for name in "dm"}
    scales[part][2, 1] = np.inf
    stored = Stored(kind="q4_1", values=np.ones((4, 64), np.uint8), **scales)
    assert "holds inf at [2, 32]" in refusal(Source(stored=stored), "stored")


def test_finite_weights_are_given_out_as_they_are() -> None:
    largest = np.full((2, 2), np.finfo(np.float32).max)
    assert FiniteSource("m", Source(largest)).load(NAME) is largest
    stored = Stored(kind="bf16", values=np.full((2, 2), 0x7F7F, np.uint16))
    assert FiniteSource("m", Source(stored=stored)).stored(NAME) is stored


def damage(folder: Path, name: str) -> None:
    tensors = read_safetensors(folder / "model.safetensors")
    tensors[name].reshape(-1)[-1] = np.nan
    write_safetensors(folder / "model.safetensors", tensors)


def test_target_and_draft_are_looked_through(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target")
    draft = make_dspark_draft(tmp_path / "draft", target)
    damage(draft, "markov_head.markov_w1.weight")
    opened = load_target(target)
    with pytest.raises(CheckpointError, match=r"draft: markov_head\.markov_w1\.weight holds nan at \["):
        load_draft(draft, opened).tensors.load("markov_head.markov_w1.weight")
    damage(target, "model.norm.weight")
    with pytest.raises(CheckpointError, match=r"target: norm\.weight holds nan at \[63\]"):
        load_target(target).tensors.load("norm.weight")
