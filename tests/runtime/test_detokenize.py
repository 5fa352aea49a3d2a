"""Incremental text equals the decoded whole, and never shows half a character."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from dspark_runtime.detokenize import REPLACEMENT, Detokenizer, text_of
from tests.tiny import make_tokenizer


def from_bytes(ids: Sequence[int]) -> str:
    """A byte per token, as byte-level decoders end up doing."""
    return bytes(ids).decode("utf-8", errors="replace")


def split(text: str, cuts: list[int]) -> tuple[list[bytes], Callable[[Sequence[int]], str]]:
    """The bytes of `text` cut anywhere, also inside characters, and a decoder of piece numbers."""
    data = text.encode()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    return pieces, lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", errors="replace")


@given(st.text(max_size=80), st.lists(st.integers(0, 400), max_size=60))
def test_text_split_anywhere_is_the_text(text: str, cuts: list[int]) -> None:
    pieces, decode = split(text, cuts)
    detokenizer = Detokenizer(decode)
    shown = ""
    for i in range(len(pieces)):
        detokenizer.append(i)
        delta = detokenizer.stream()
        assert REPLACEMENT not in delta or REPLACEMENT in text
        shown += delta
        assert text.startswith(shown)
    detokenizer.finish()
    assert detokenizer.text == text
    assert shown + detokenizer.stream(finished=True) == text


@given(st.binary(max_size=200))
def test_any_bytes_become_what_decoding_them_at_once_gives(data: bytes) -> None:
    detokenizer = Detokenizer(from_bytes)
    shown = ""
    for byte in data:
        detokenizer.append(byte)
        shown += detokenizer.stream()
    detokenizer.finish()
    assert detokenizer.text == from_bytes(list(data))
    assert shown + detokenizer.stream(finished=True) == detokenizer.text


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 319), max_size=150))
def test_any_tokens_of_a_byte_level_tokenizer_give_its_own_text(byte_level: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(lambda window: byte_level.decode(list(window), skip_special_tokens=True))
    for token in ids:
        detokenizer.append(token)
    detokenizer.finish()
    assert detokenizer.text == byte_level.decode(ids, skip_special_tokens=True)


def test_tokens_of_a_decoder_that_strips_the_first_space_keep_all_others() -> None:
    words = [f"\u2581w{i}" for i in range(200)]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    detokenizer = Detokenizer(lambda ids: raw.decode(list(ids)))
    for token in range(200):
        detokenizer.append(token)
    detokenizer.finish()
    assert detokenizer.text == " ".join(f"w{i}" for i in range(200))


def test_replacement_character_that_the_text_really_has_is_shown_once() -> None:
    data = "a\ufffdb".encode()
    detokenizer = Detokenizer(from_bytes)
    for byte in data:
        detokenizer.append(byte)
    detokenizer.finish()
    assert detokenizer.text == "a\ufffdb"


def test_character_cut_off_by_the_end_is_replaced() -> None:
    detokenizer = Detokenizer(from_bytes)
    for byte in b"a\xe4\xb8":
        detokenizer.append(byte)
    assert detokenizer.text == "a"
    detokenizer.finish()
    assert detokenizer.text == "a" + REPLACEMENT


@given(st.text(alphabet="ab", max_size=40), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_stop_string_ends_the_text_where_it_first_ends(text: str, stops: list[str]) -> None:
    ends = [(start + len(stop), start) for stop in stops for start in range(len(text)) if text.startswith(stop, start)]
    wanted = text[: min(ends)[1]] if ends else text
    detokenizer = Detokenizer(from_bytes, stops)
    shown = ""
    for byte in text.encode():
        if detokenizer.append(byte):
            break
        shown += detokenizer.stream()
        # What was shown is never taken back.
        assert wanted.startswith(shown)
    detokenizer.finish()
    assert detokenizer.text == wanted
    assert (detokenizer.stopped_by is not None) == bool(ends)
    assert shown + detokenizer.stream(finished=True) == wanted


def test_stop_string_inside_one_token_cuts_it() -> None:
    pieces = ["one ", "two. three", " four"]
    detokenizer = Detokenizer(lambda ids: "".join(pieces[i] for i in ids), ["."])
    assert [detokenizer.append(0), detokenizer.append(1)] == [False, True]
    assert detokenizer.text == "one two"
    assert detokenizer.stopped_by == "."


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """Letters have tokens of their own, every other character is spelled in bytes, as in Llama 2."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581": 256, "a": 257, "b": 258, "\u00e9": 259}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    raw.normalizer = normalizers.Replace(" ", "\u2581")
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return raw


def chunks_of(raw: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> tuple[Detokenizer, list[str], int]:
    """The detokenizer after `ids`, what it showed token by token, and how many tokens it took."""
    detokenizer = Detokenizer(lambda window: raw.decode(list(window)), stop)
    chunks, taken = [], 0
    for token in ids:
        taken += 1
        stopped = detokenizer.append(token)
        chunks.append(detokenizer.stream())
        if stopped:
            break
    detokenizer.finish()
    return detokenizer, [*chunks, detokenizer.stream(finished=True)], taken


@settings(max_examples=60)
@given(st.text(alphabet="ab \u00e9\u6f22\u5b57\u00df\U0001f600", max_size=60))
def test_text_in_byte_fallback_tokens_is_shown_in_whole_characters(byte_fallback: Tokenizer, text: str) -> None:
    ids = byte_fallback.encode(text).ids
    detokenizer, chunks, _ = chunks_of(byte_fallback, ids)
    assert detokenizer.text == "".join(chunks) == byte_fallback.decode(ids) == text
    assert all(REPLACEMENT not in chunk for chunk in chunks)


@settings(max_examples=60)
@given(st.lists(st.one_of(st.integers(0, 259), st.sampled_from([0xE6, 0xBC, 0xA2, 257])), max_size=120))
def test_any_byte_fallback_tokens_give_the_same_text_at_once_and_in_chunks(
    byte_fallback: Tokenizer, ids: list[int]
) -> None:
    detokenizer, chunks, _ = chunks_of(byte_fallback, ids)
    assert "".join(chunks) == detokenizer.text == text_of(lambda window: byte_fallback.decode(list(window)), ids)
    whole = byte_fallback.decode(ids)
    assert REPLACEMENT in whole or whole == detokenizer.text


def test_stop_string_in_byte_fallback_tokens_ends_at_its_last_byte(byte_fallback: Tokenizer) -> None:
    ids = byte_fallback.encode("a\u5b57\u6f22b").ids
    detokenizer, chunks, taken = chunks_of(byte_fallback, ids, ["\u6f22"])
    assert (detokenizer.stopped_by, detokenizer.text, "".join(chunks)) == ("\u6f22", "a\u5b57", "a\u5b57")
    assert taken == 1 + 3 + 3


@pytest.mark.parametrize("missing", [1, 2])
def test_character_cut_off_by_the_end_leaves_those_before_it_in_its_run(byte_fallback: Tokenizer, missing: int) -> None:
    ids = byte_fallback.encode("a\u5b57\u6f22").ids[:-missing]
    detokenizer, chunks, _ = chunks_of(byte_fallback, ids)
    assert detokenizer.text == "".join(chunks) == "a\u5b57" + REPLACEMENT
    assert text_of(lambda window: byte_fallback.decode(list(window)), ids) == detokenizer.text
