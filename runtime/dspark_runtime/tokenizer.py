"""Text to tokens and back, and chats to prompts, with the files of the bundle alone.

Chat templates are rendered as transformers renders them (`render_jinja_template`), in a sandbox and a process of
their own (templates.py), since a template is a program from somebody else's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from dspark_runtime.contract.errors import BundleError, CapacityError, ConfigError
from dspark_runtime.templates import TemplateRenderer

MAX_TEMPLATE_CHARS = 1 << 18
MAX_RENDER_SECONDS = 5.0
MAX_PROMPT_CHARS = 1 << 26

Message = Mapping[str, Any]


class Tokenizer:
    """The tokenizer of a bundle.

    tokenizer: bytes of tokenizer.json; config: the object of tokenizer_config.json (may be empty);
    template: the chat template, where it is kept apart from the config. Raises BundleError where they are unusable.
    """

    def __init__(self, tokenizer: bytes, config: Mapping[str, Any], template: str | None = None) -> None:
        try:
            self._raw = RawTokenizer.from_buffer(tokenizer)
        except Exception as error:  # the library raises bare Exception
            raise BundleError(f"tokenizer.json: cannot be read ({error}); build the bundle again") from None
        # A checkpoint's own padding and truncation settings are for training batches.
        self._raw.no_padding()
        self._raw.no_truncation()
        self._config = config
        self._template_text = template if template is not None else _template_of(config)
        self._renderer = TemplateRenderer()

    @property
    def vocab_size(self) -> int:
        """Ids that mean something: 0 .. vocab_size-1 (a model may have more rows)."""
        return self._raw.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        return self._template_text is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; with the tokenizer's own begin/end tokens unless told otherwise."""
        if len(text) > MAX_PROMPT_CHARS:
            raise CapacityError(f"prompt has {len(text)} characters, needs at most {MAX_PROMPT_CHARS}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"prompt is not valid Unicode: {error}") from None
        return list(self._raw.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._raw.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def decoder(self, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
        """`decode` with its option fixed, for a Detokenizer."""
        decode = self._raw.decode
        return lambda ids: decode(ids, skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt text of a chat. Special tokens are in the text: encode it with add_special_tokens=False.

        messages: mappings with `role` and `content`. variables: further names for the template (tools,
        enable_thinking, ...), values of JSON like the messages. Raises ConfigError without a template, or when the
        template refuses the chat.
        """
        if self._template_text is None:
            raise ConfigError("this bundle has no chat template; give the prompt as text instead of messages")
        if not messages:
            raise ConfigError("messages is empty, needs at least one")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ConfigError(f"message {message!r} needs the keys role and content")
        if len(self._template_text) > MAX_TEMPLATE_CHARS:
            raise BundleError(
                f"chat template has {len(self._template_text)} characters, needs at most {MAX_TEMPLATE_CHARS}"
            )
        special = {
            name: value.get("content") if isinstance(value, Mapping) else value
            for name, value in self._config.items()
            if name.endswith("_token") and isinstance(value, str | Mapping)
        }
        return self._renderer.render(
            self._template_text,
            {
                "tools": None,
                "documents": None,
                **special,
                **variables,
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": add_generation_prompt,
            },
            MAX_RENDER_SECONDS,
        )


def _template_of(config: Mapping[str, Any]) -> str | None:
    """`chat_template` of tokenizer_config.json: text, or a list of named ones (then `default`)."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {
            str(entry["name"]): entry["template"]
            for entry in found
            if isinstance(entry, Mapping) and entry.keys() >= {"name", "template"}
        }
        found = named.get("default")
    return found if isinstance(found, str) else None
