"""Which tokens a reduced draft vocabulary keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from dspark_runtime.contract.errors import ConfigError
from dspark_trt import draft_vocab
from dspark_trt.draft_vocab import choose_draft_vocab, read_sample


@pytest.fixture
def letters() -> bytes:
    """A tokenizer of ten words, w0 .. w9."""
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(10)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer.to_str().encode()


def test_draft_vocab_keeps_stops_then_frequent_then_low_ids(letters: bytes) -> None:
    d2t = choose_draft_vocab(letters, "w7 w7 w7 w5 w5 w4 w6", 5, 12, always=(9,))
    # 9 always; 7 and 5 by count; 4 before 6 although both occur once; then the lowest id, 0, not yet needed.
    assert d2t.tolist() == [4, 5, 6, 7, 9] and d2t.dtype == np.int32
    assert choose_draft_vocab(letters, "w7 w7 w5", 4, 12, always=(9,)).tolist() == [0, 5, 7, 9]


def test_draft_vocab_of_all_tokens_is_the_identity(letters: bytes) -> None:
    assert choose_draft_vocab(letters, "w3", 12, 12, always=(2,)).tolist() == list(range(12))


@pytest.mark.parametrize("size", [1, 13])
def test_draft_vocab_size_out_of_range_is_refused(letters: bytes, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"draft_vocab is {size}, needs \[2, 12\]"):
        choose_draft_vocab(letters, "w3", size, 12, always=(2, 3))


def test_vocab_sample_that_is_packaged_holds_prose_sums_and_code() -> None:
    text = read_sample(None)
    assert len(text) > 10_000
    assert all(part in text for part in ("The answer is", "def ", "```python", "\\boxed{"))


def test_vocab_sample_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sample").write_bytes(b"abc\xff\xfe")
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(invalid start byte at 3\)"):
        read_sample(tmp_path / "sample")


def test_sample_without_an_end_is_refused_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_vocab, "MAX_SAMPLE_BYTES", 1000)
    with pytest.raises(ConfigError, match="draft_vocab_text /dev/zero is longer than 1000 bytes; give a part of it"):
        read_sample(Path("/dev/zero"))
