"""DSparkAccept: rejection sampling through filters against NumPy and PyTorch, greedy against a plain read of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from operators.bandwidth import reader
from operators.rounds import Step, numpy_round, torch_round
from operators.turns import alternate

Array = np.ndarray[Any, np.dtype[Any]]
SPREAD = 2.5
"""Standard deviation of the logits, about that of a language model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    requests: int
    block: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Milliseconds of one step. `accepted`: mean of the operator."""

    what: str
    ours_ms: float
    numpy_ms: float
    torch_ms: float
    accepted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """A greedy step that keeps everything, and a plain read of the same logits on the same threads."""

    ms: float
    gb_per_s: float
    read_gb_per_s: float


def measure_rejection(shape: Shape, *, top_k: int, top_p: float, repeats: int) -> list[Rejection]:
    """A draft equal to the target, where every row counts for all three, and one beside it, where the operator stops
    at the first refusal of each request. Checks that the three accept the same where that does not depend on chance."""
    rng = np.random.default_rng(3)
    logits = _logits(rng, shape)
    rows = logits.reshape(shape.requests, shape.block + 1, shape.vocab)[:, : shape.block]
    noise = rng.standard_normal(rows.shape, dtype=np.float32)
    found = []
    for what, draft_logits in (("every proposal kept", rows), ("a draft beside the target", rows + noise)):
        sampling = _sampling(shape, names.ACCEPT_MODES["rejection"], 1.0, top_k, top_p)
        step = _step(logits, np.ascontiguousarray(draft_logits), sampling, top_k, top_p)
        calls = {
            "ours": lambda s=step, a=sampling: _accept(s, a),
            "numpy": lambda s=step: numpy_round(s, rng),
            "torch": lambda s=step: torch_round(s),
        }
        counts = {name: call()[0] for name, call in calls.items()}
        if draft_logits is rows:
            assert all((count == shape.block).all() for count in counts.values()), counts
        seconds = alternate(calls, repeats)
        found.append(
            Rejection(
                what=what,
                ours_ms=seconds["ours"] * 1e3,
                numpy_ms=seconds["numpy"] * 1e3,
                torch_ms=seconds["torch"] * 1e3,
                accepted=float(counts["ours"].mean()),
            )
        )
    return found


def measure_greedy(shape: Shape, repeats: int) -> Greedy:
    rng = np.random.default_rng(4)
    logits = _logits(rng, shape)
    sampling = _sampling(shape, names.ACCEPT_MODES["greedy"], 0.0, 0, 1.0)
    rows = logits.reshape(shape.requests, shape.block + 1, shape.vocab)[:, : shape.block]
    step = _step(logits, np.ascontiguousarray(rows), sampling, 0, 1.0)
    calls = {"ours": lambda: _accept(step, sampling), "read": reader(logits)}
    assert (calls["ours"]()[0] == shape.block).all()
    seconds = alternate(calls, repeats)
    return Greedy(
        ms=seconds["ours"] * 1e3,
        gb_per_s=logits.nbytes / seconds["ours"] / 1e9,
        read_gb_per_s=logits.nbytes / seconds["read"] / 1e9,
    )


def _logits(rng: np.random.Generator, shape: Shape) -> Array:
    rows = shape.requests * (shape.block + 1)
    return rng.standard_normal((rows, shape.vocab), dtype=np.float32) * np.float32(SPREAD)


def _sampling(shape: Shape, mode: int, temperature: float, top_k: int, top_p: float) -> dict[str, Array]:
    count = shape.requests
    return {
        names.TEMPERATURE: np.full(count, temperature, np.float32),
        names.TOP_K: np.full(count, top_k, np.int32),
        names.TOP_P: np.full(count, top_p, np.float32),
        names.MIN_P: np.zeros(count, np.float32),
        names.ACCEPT_MODE: np.full(count, mode, np.int32),
        names.SEED: np.arange(count, dtype=np.int64),
        names.SAMPLE_INDEX: np.zeros(count, np.int32),
        names.ANCHOR_POSITION: np.zeros(count, np.int32),
    }


def _step(logits: Array, draft_logits: Array, sampling: dict[str, Array], top_k: int, top_p: float) -> Step:
    """Proposals are drawn from the draft, through the same filters."""
    count = len(draft_logits)
    tokens, *_ = dspark_ops.draft(
        base_logits=draft_logits,
        anchor_tokens=np.zeros(count, np.int32),
        confidence_signal=np.full(count, names.CONFIDENCE_SIGNALS["top1"], np.int32),
        **sampling,
    )
    return Step(logits, draft_logits, tokens, top_k, top_p)


def _accept(step: Step, sampling: dict[str, Array]) -> tuple[Array, Array]:
    requests, block, _ = step.shape
    accepted, tokens, *_ = dspark_ops.accept(
        logits=step.logits,
        row_offsets=np.arange(0, requests * (block + 1) + 1, block + 1, dtype=np.int32),
        draft_tokens=step.draft_tokens,
        draft_logits=step.draft_logits,
        **sampling,
    )
    return accepted, tokens
