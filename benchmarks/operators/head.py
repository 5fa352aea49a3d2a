"""One step of the vanilla head (DSparkDraft): GB/s of its matrix W2 in each storage, beside a plain read of memory.

At batch 1 a step reads W2 once and does little else, so it should take as long as reading does. Batches share that
read. The signals of confidence come out of the same pass over the logits; they are measured over the int8 matrix, where
the rest of the step is smallest and what a signal costs shows most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspark_runtime import dspark_ops
from dspark_runtime.contract import names
from dspark_trt.head_storage import store_markov_w2
from operators.bandwidth import reader
from operators.turns import alternate

Array = np.ndarray[Any, np.dtype[Any]]
READ = "read"
TOP_K = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured. `share_of_read`: its GB/s over those of the plain read; None where it is not about that."""

    what: str
    batch: int
    ms: float
    gb_per_s: float | None
    share_of_read: float | None


def measure_head(vocab: int, rank: int, batches: Sequence[int], repeats: int) -> list[Row]:
    """The read, then every storage at every batch, then every signal at batch 1; medians of alternating calls."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((vocab, rank), dtype=np.float32)
    stored = {storage: _arguments(store_markov_w2(weight, storage)) for storage in names.HEAD_STORAGES}
    steps = {batch: _step(rng, vocab, rank, batch) for batch in batches}
    calls: dict[tuple[str, int], Callable[[], object]] = {(READ, 1): reader(weight)}
    sizes = {(READ, 1): weight.nbytes}
    for batch, step in steps.items():
        for storage, matrix in stored.items():
            calls[storage, batch] = _call(step | matrix)
            sizes[storage, batch] = matrix["markov_w2"].nbytes
    for signal, number in names.CONFIDENCE_SIGNALS.items():
        word = number | (TOP_K << names.SIGNAL_BITS if signal == "topk_mass" else 0)
        step = steps[batches[0]] | {"confidence_signal": np.full(batches[0], word, np.int32)}
        calls[f"int8, signal {signal}", batches[0]] = _call(step | stored["int8"])
    seconds = alternate(calls, repeats)
    rate = {key: sizes[key] / seconds[key] / 1e9 for key in sizes}
    return [
        Row(
            what=what,
            batch=batch,
            ms=time_taken * 1e3,
            gb_per_s=rate.get((what, batch)),
            share_of_read=rate[what, batch] / rate[READ, 1] if (what, batch) in rate else None,
        )
        for (what, batch), time_taken in seconds.items()
    ]


def _arguments(stored: Mapping[str, Array]) -> dict[str, Array]:
    """Stored weights as the operator takes them: bfloat16 as its bits."""
    return {name: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for name, a in stored.items()}


def _step(rng: np.random.Generator, vocab: int, rank: int, batch: int) -> dict[str, Any]:
    """Everything of a greedy step but W2; the confidence is the head's."""
    zeros = np.zeros(batch, np.int32)
    return {
        "base_logits": rng.standard_normal((batch, 1, vocab), dtype=np.float32),
        "hidden": rng.standard_normal((batch, 1, 64), dtype=np.float32),
        "confidence_weight": rng.standard_normal(64, dtype=np.float32),
        "markov_w1": rng.standard_normal((1, rank), dtype=np.float32),
        "head_type": names.HEAD_TYPES["vanilla"],
        "anchor_tokens": zeros,
        "confidence_signal": zeros,
        "temperature": np.zeros(batch, np.float32),
        "top_k": zeros,
        "top_p": np.ones(batch, np.float32),
        "min_p": np.zeros(batch, np.float32),
        "accept_mode": zeros,
        "seed": np.zeros(batch, np.int64),
        "sample_index": zeros,
        "anchor_position": zeros,
    }


def _call(arguments: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: dspark_ops.draft(**arguments)
