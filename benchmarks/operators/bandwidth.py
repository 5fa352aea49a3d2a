"""How fast this machine reads memory: what an operator that reads a large weight once is measured against."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def reader(array: Array) -> Callable[[], object]:
    """A call that reads every byte of a float32 `array` once, on every processor: a part each, as a dot product."""
    threads = os.cpu_count() or 1
    parts = np.array_split(array.reshape(-1), threads)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda part: np.dot(part, part), parts))
