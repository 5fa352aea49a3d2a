"""Which tokens a draft's lm_head keeps: the most frequent ones of a text sample.

The draft proposes from a smaller vocabulary, so its lm_head costs less. Nothing is lost in the
output: the target decides, over its whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dspark_runtime.contract.errors import ConfigError

SAMPLE = Path(__file__).parent / "data" / "vocab_sample.txt"
"""A short text of several kinds that the package ships."""
MAX_SAMPLE_BYTES = 64 * 2**20


def read_sample(path: Path | None) -> str:
    """The UTF-8 text whose tokens are counted; None: the packaged one. Raises ConfigError."""
    source = SAMPLE if path is None else path
    try:
        with source.open("rb") as file:  # may be a pipe or a device, whose size nobody knows
            data = file.read(MAX_SAMPLE_BYTES + 1)
        if len(data) > MAX_SAMPLE_BYTES:
            raise ConfigError(f"draft_vocab_text {source} is longer than {MAX_SAMPLE_BYTES} bytes; give a part of it")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"draft_vocab_text {source} is not UTF-8 text ({error.reason} at {error.start})") from None
    except OSError as error:
        raise ConfigError(f"draft_vocab_text {source} cannot be read: {error.strerror}") from None


def choose_draft_vocab(
    tokenizer_json: bytes, text: str, size: int, vocab_size: int, always: Collection[int]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Target ids that the draft keeps, ascending: d2t, [size] int32, draft id -> target id.

    First `always` (stop tokens), then the tokens of `text` by falling count, ties by lowest id;
    what is left is filled by lowest id, since the merge order of a BPE tokenizer is an order of
    frequency in the text that the tokenizer itself was trained on.
    Raises ConfigError when `size` is not in [len(always), vocab_size].
    """
    kept = {token for token in always if 0 <= token < vocab_size}
    if not max(1, len(kept)) <= size <= vocab_size:
        raise ConfigError(f"draft_vocab is {size}, needs [{max(1, len(kept))}, {vocab_size}] with this target")
    ids = Tokenizer.from_str(tokenizer_json.decode("utf-8")).encode(text, add_special_tokens=False).ids
    counts = np.bincount(np.array(ids, np.int64), minlength=vocab_size)[:vocab_size]
    counts[list(kept)] = len(ids) + 1
    # A stable sort by falling count leaves equal counts, the zeros among them, by rising id.
    order = np.argsort(-counts, kind="stable")
    return np.sort(order[:size]).astype(np.int32)
