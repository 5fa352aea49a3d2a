"""Optimisation profiles: which sizes of a step an engine must take. Numbers only, no engine.

A prefill chunk binds one slot and is a call of its own; as part of a round it would pad every other
slot to the chunk. So there are two profiles with kernels of their own where a graph reads prompts.
"""

from __future__ import annotations

from dataclasses import replace

from dspark_runtime.contract.compiled import AxisRange, Profile
from dspark_runtime.contract.graph_io import expected_tensors
from dspark_runtime.contract.manifest import Manifest

ROUNDS = "rounds"
PREFILL = "prefill"
RULES_A_REQUEST = 1024
"""Most records of biases, stops and words that a request brings."""


def make_profiles(manifest: Manifest, role: str, prefill_chunk: int) -> tuple[Profile, ...]:
    """Profiles of the `target` or the `draft`; kernels are tuned for the full batch, which costs most.

    rounds: 1..B slots with up to K + 1 tokens each. prefill: one slot, up to `prefill_chunk` tokens of
    which the last wants logits. A dspark draft has blocks of one size and no prefill.
    """
    slots, draft = manifest.limits.max_batch_size, manifest.draft
    block = draft.block_size if draft is not None else 0
    if role == "draft" and draft is not None and draft.kind == "dspark":
        size = draft.pass_size
        rounds = _profile(ROUNDS, slots, tokens=(size, slots * size), queries=(size, size), rows=(1, 1))
        return _of_inputs(manifest, role, (rounds,))
    longest = block + 1
    most = slots * longest
    chunk = min(prefill_chunk, manifest.limits.max_seq_len)
    rounds = _profile(ROUNDS, slots, tokens=(1, most), queries=(1, longest), rows=(1, most))
    prefill = _profile(PREFILL, 1, tokens=(1, chunk), queries=(1, chunk), rows=(1, 1))
    return _of_inputs(manifest, role, (rounds, prefill))


def _of_inputs(manifest: Manifest, role: str, profiles: tuple[Profile, ...]) -> tuple[Profile, ...]:
    """Without the axes that no input of the graph has."""
    inputs = (tensor for tensor in expected_tensors(manifest, role) if tensor.direction == "input")
    used = {axis for tensor in inputs for axis in tensor.axes}
    return tuple(replace(p, ranges=tuple(r for r in p.ranges if r.axis in used)) for p in profiles)


def _profile(
    name: str, slots: int, *, tokens: tuple[int, int], queries: tuple[int, int], rows: tuple[int, int]
) -> Profile:
    # Every slot may take part in a step as a request; R counts those that do, Rj is 0 or R where one of them uses
    # rejection, Rc where one is relaxed.
    ranges = (
        _range("B", 1, slots),
        _range("B+1", 2, slots + 1),
        _range("T", *tokens),
        _range("Q", *queries),
        _range("R", 1, slots),
        _range("R+1", 2, slots + 1),
        _range("Rj", 0, slots),
        _range("Rc", 0, slots),
        _range("N", *rows),
        _range("E", 0, slots * RULES_A_REQUEST),
        _range("M", 0, rows[1]),
    )
    return Profile(name=name, ranges=ranges, device_memory_bytes=None)


def _range(axis: str, low: int, high: int) -> AxisRange:
    return AxisRange(axis=axis, min=low, opt=high, max=high)
