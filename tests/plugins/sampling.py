"""Sampling parameters of tests, as the arrays that operators take and as the records that references take."""

from __future__ import annotations

import numpy as np

from tests.reference.filters import Sampling
from tests.reference.rules import Rules

CLOSE = 1e-6
"""Relative lead of a decision below which rounding may decide otherwise."""

FIELDS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "accept_mode": np.int32,
    "seed": np.int64,
    "sample_index": np.int32,
    "anchor_position": np.int32,
}


def arrays(requests: list[Sampling]) -> dict[str, np.ndarray]:
    return {name: np.array([getattr(r, name) for r in requests], dtype=dtype) for name, dtype in FIELDS.items()}


def same(**options: object) -> dict[str, np.ndarray]:
    """Arrays for one request."""
    return arrays([Sampling(**options)])  # type: ignore[arg-type]


def rule_arrays(requests: list[Rules], row_offsets: np.ndarray, vocab: int) -> dict[str, np.ndarray]:
    """Rules as the operator takes them: request i in slot 2i + 1 of a history whose stale part is no token."""
    histories = [(*rules.prompt, *rules.output) for rules in requests]
    history = np.full((2 * len(requests) + 1, max(map(len, histories), default=0) + 2), -77, np.int32)
    for i, tokens in enumerate(histories):
        history[2 * i + 1, : len(tokens)] = tokens
    records = [rules.records() for rules in requests]
    masks, mask_rows = [np.zeros((vocab + 31) // 32, np.uint32)], np.full(int(row_offsets[-1]), -1, np.int32)
    for i, rules in enumerate(requests):
        for row, allowed in zip(range(row_offsets[i], row_offsets[i + 1]), rules.allowed, strict=False):
            if allowed is None:
                continue
            mask_rows[row] = len(masks)
            masks.append(np.zeros_like(masks[0]))
            for token in allowed:
                masks[-1][token // 32] |= np.uint32(1 << token % 32)
    return {
        "penalties": np.array([(r.repetition, r.presence, r.frequency) for r in requests], np.float32).reshape(-1, 3),
        "token_history": history,
        "slots": np.arange(1, 2 * len(requests), 2, dtype=np.int32),
        "prompt_lengths": np.array([len(rules.prompt) for rules in requests], np.int32),
        "rules": np.array([record for part in records for record in part], np.int32).reshape(-1, 3),
        "rule_offsets": np.cumsum([0, *map(len, records)]).astype(np.int32),
        "token_masks": np.array(masks).view(np.int32),
        "mask_rows": mask_rows,
    }


FILTERS = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5},
    "top_k_1": {"top_k": 1},
    "top_k_beyond_vocabulary": {"top_k": 10**6},
    "top_p": {"top_p": 0.8},
    "tiny_top_p": {"top_p": 1e-6},
    "min_p": {"min_p": 0.1},
    "min_p_1": {"min_p": 1.0},
    "all": {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "top_p_min_p": {"temperature": 0.8, "top_p": 0.95, "min_p": 0.01},
}
"""Filter settings by name; every sampling test runs through all."""
