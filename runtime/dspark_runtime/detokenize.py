"""Tokens to text while they arrive: whole characters only, and stop strings found where they end.

The result never depends on how the tokens were split into rounds: text is made token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""What decoders write for bytes that are not UTF-8, and so for a character that is still incomplete: byte-level
decoders once, byte-fallback decoders once per byte of the whole run of byte tokens, complete characters included."""
MAX_WINDOW = 48
"""Tokens decoded at once before the window moves on."""
CONTEXT = 6
"""Tokens kept in front of the window: decoders treat the first token of a text specially (leading space)."""


class Detokenizer:
    """Text of one request.

    decode: token ids -> text, e.g. `Tokenizer.decode`; the text of a prefix must only differ from the
    text of the whole by incomplete characters at its end (byte-level and byte-fallback decoders are so).
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        echo: str = "",
    ) -> None:
        """stop: strings that end the text, looked for once more than `min_tokens` tokens were taken, in what these
        add. echo: the text that comes before; no stop string begins in it."""
        self._decode = decode
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._hold = 0 if include_stop else max((len(text) for text in self._stop), default=1) - 1
        self._ids: list[int] = []
        self._start = 0
        self._shown = 0
        self._text = echo
        self._streamed = 0
        self._min_tokens = min_tokens
        self._searched = len(echo)
        """Length of the text that a stop string may not end in: it was looked through, or came too early."""
        self._first = len(echo)
        self.stopped_by: str | None = None
        """The stop string that ended the text."""

    @property
    def text(self) -> str:
        """All text so far; final after `finish` or a stop."""
        return self._text

    def append(self, token: int) -> bool:
        """Take one token; True when a stop string ended with it. Tokens after that are the caller's to drop."""
        self._ids.append(token)
        window = self._decode(self._ids[self._start :])
        # Only these can still change. They may hide characters of the same run that were settled before.
        settled = window.rstrip(REPLACEMENT)
        self._extend(settled[self._shown :])
        self._shown = max(self._shown, len(settled))
        if len(self._ids) - self._start > MAX_WINDOW and len(settled) == len(window):
            self._move_window()
        return self.stopped_by is not None

    def finish(self) -> None:
        """No more tokens: an incomplete character at the end becomes a replacement character."""
        if self.stopped_by is None:
            window = self._decode(self._ids[self._start :])
            hides = len(window.rstrip(REPLACEMENT)) < self._shown
            self._extend(REPLACEMENT if hides else window[self._shown :])
            self._shown = max(self._shown, len(window))

    def stream(self, finished: bool = False) -> str:
        """Text since the last call that no stop string can take back any more; with `finished` all of it."""
        end = len(self._text) if finished or self.stopped_by else max(self._streamed, len(self._text) - self._hold)
        delta = self._text[self._streamed : end]
        self._streamed = end
        return delta

    def _extend(self, delta: str) -> None:
        if not delta:
            return
        self._text += delta
        searched, self._searched = self._searched, len(self._text)
        if len(self._ids) <= self._min_tokens:
            return
        # The earliest end wins, so that the outcome does not depend on how much text came at once; of those the
        # longest string.
        best: tuple[int, int, str] | None = None
        for text in self._stop:
            # A match that ends in what was searched would have been found then.
            found = self._text.find(text, max(self._first, searched - len(text) + 1))
            if found >= 0 and (best is None or (found + len(text), found) < best[:2]):
                best = (found + len(text), found, text)
        if best is not None:
            end, begin, self.stopped_by = best
            self._text = self._text[: end if self._include_stop else begin]

    def _move_window(self) -> None:
        start = len(self._ids) - CONTEXT
        context = self._decode(self._ids[start:])
        # Moved only where the new window starts at a character and shows something.
        if context and REPLACEMENT not in context and self._text.endswith(context):
            self._start = start
            self._shown = len(context)


def text_of(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> str:
    """What a Detokenizer without stop strings makes of all `ids`, decoded at once where that is the same: a
    byte-fallback decoder writes off a whole run for one incomplete character, most often the one that the length limit
    cuts."""
    text = decode(ids)
    if REPLACEMENT not in text:
        return text
    detokenizer = Detokenizer(decode)
    for token in ids:
        detokenizer.append(token)
    detokenizer.finish()
    return detokenizer.text
