"""Timing of things that are compared: they take turns, so that a busy moment of the machine meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

PAUSE = 0.01
"""Seconds before each call: worker threads of the one before (OpenMP's) spin for a while after it has returned."""

Key = TypeVar("Key", bound=Hashable)


def alternate(calls: Mapping[Key, Callable[[], object]], repeats: int) -> dict[Key, float]:
    """Median seconds of each call."""
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for _ in range(repeats + 1):
        for key, call in calls.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            call()
            times[key].append(time.perf_counter() - start)
    # The first call of each allocates.
    return {key: statistics.median(record[1:]) for key, record in times.items()}
