"""Sizes that an engine must take, worked out from the limits of a bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dspark_runtime.contract.compiled import Profile
from dspark_trt.backends.tensorrt_profiles import make_profiles
from tests.dspark_trt.tensorrt.networks import write
from tests.tiny import make_target


def sizes(profile: Profile) -> dict[str, tuple[int, int]]:
    return {entry.axis: (entry.min, entry.max) for entry in profile.ranges}


def test_target_profiles_take_full_rounds_and_a_chunk_of_one_slot(
    tmp_path: Path, tiny_target: Path, tiny_draft: Path
) -> None:
    made = write(tmp_path, tiny_target, tiny_draft, max_batch_size=5)
    rounds, prefill = make_profiles(made.manifest, "target", 32)
    assert (rounds.name, prefill.name) == ("rounds", "prefill")
    # Block 4: up to 5 tokens for each of 5 slots.
    assert sizes(rounds) == {"B": (1, 5), "B+1": (2, 6), "T": (1, 25), "Q": (1, 5), "N": (1, 25)}
    assert sizes(prefill) == {"B": (1, 1), "B+1": (2, 2), "T": (1, 32), "Q": (1, 32), "N": (1, 1)}


def test_dspark_draft_profile_takes_whole_blocks_only(tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    made = write(tmp_path, tiny_target, tiny_draft, max_batch_size=5, block_size=2)
    (rounds,) = make_profiles(made.manifest, "draft", 32)
    assert sizes(rounds) == {"B": (1, 5), "B+1": (2, 6), "T": (4, 20), "Q": (4, 4)}


def test_model_draft_profiles_read_prompts_too(tmp_path: Path, tiny_target: Path) -> None:
    draft = make_target(tmp_path / "draft", "llama", num_layers=2)
    made = write(tmp_path / "graphs", tiny_target, draft, draft_kind="model", block_size=3)
    assert make_profiles(made.manifest, "draft", 32) == make_profiles(made.manifest, "target", 32)


def test_target_without_a_draft_has_rounds_of_one_token_per_slot(tmp_path: Path, tiny_target: Path) -> None:
    made = write(tmp_path, tiny_target, None, max_batch_size=3)
    assert sizes(make_profiles(made.manifest, "target", 32)[0])["T"] == (1, 3)


def test_chunk_is_never_longer_than_a_request(tmp_path: Path, tiny_target: Path) -> None:
    made = write(tmp_path, tiny_target, None, max_seq_len=24)
    assert sizes(make_profiles(made.manifest, "target", 256)[1])["T"] == (1, 24)


def test_operators_in_the_graph_bring_the_axes_of_requests(tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    made = write(tmp_path, tiny_target, tiny_draft, max_batch_size=2)
    rounds = make_profiles(replace(made.manifest, operators="graph"), "target", 32)[0]
    assert sizes(rounds).items() >= {"R": (1, 2), "R+1": (2, 3), "Rj": (0, 2)}.items()
