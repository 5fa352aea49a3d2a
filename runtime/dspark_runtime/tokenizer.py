"""Text to tokens and back, and chats to prompts, with the files of the bundle alone.

Chat templates are rendered as transformers renders them (`render_jinja_template`), in a sandbox with limits on
size and time, since a template is a program from somebody else's checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as RawTokenizer

from dspark_runtime.contract.errors import BundleError, CapacityError, ConfigError

MAX_TEMPLATE_CHARS = 1 << 18
MAX_RENDERED_CHARS = 1 << 24
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
        self._template: jinja2.Template | None = None

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
        enable_thinking, ...). Raises ConfigError without a template, or when the template refuses the chat.
        """
        if self._template_text is None:
            raise ConfigError("this bundle has no chat template; give the prompt as text instead of messages")
        if not messages:
            raise ConfigError("messages is empty, needs at least one")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ConfigError(f"message {message!r} needs the keys role and content")
        if self._template is None:
            self._template = _compile(self._template_text)
        special = {
            name: value.get("content") if isinstance(value, Mapping) else value
            for name, value in self._config.items()
            if name.endswith("_token") and isinstance(value, str | Mapping)
        }
        return _render(
            self._template,
            {
                "tools": None,
                "documents": None,
                **special,
                **variables,
                "messages": [dict(message) for message in messages],
                "add_generation_prompt": add_generation_prompt,
            },
        )


def _template_of(config: Mapping[str, Any]) -> str | None:
    """`chat_template` of tokenizer_config.json: text, or a list of named ones (then `default`)."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {
            entry["name"]: entry["template"] for entry in found if isinstance(entry, Mapping) and "template" in entry
        }
        found = named.get("default")
    return found if isinstance(found, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant said; it changes no text."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, plus what it lacks: a deadline in loops and calls, and a limit on the size of values."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.deadline = float("inf")
        self.filters["tojson"] = _to_json
        self.filters["dspark_watched"] = self.watched
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise jinja2.TemplateError(f"took more than {MAX_RENDER_SECONDS:g} s")

    def watched(self, items: Iterable[Any]) -> Iterable[Any]:
        self.check_time()
        return _Watched(self, items) if isinstance(items, list | tuple | range) else self._each(items)

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.check_time()
            yield item

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, "dspark_watched", [], [], None, None, lineno=loop.lineno)
        return tree

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self.check_time()
        return super().call(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        size = sum(len(value) for value in (left, right) if isinstance(value, str | list | tuple))
        if operator == "*":
            size *= max((value for value in (left, right) if isinstance(value, int)), default=1)
        too_large = operator == "**" and (abs(left) > 1e6 or abs(right) > 64)
        if operator == "%" and isinstance(left, str):
            raise jinja2.TemplateError("formats text with %, which is not allowed")
        if size > MAX_RENDERED_CHARS or too_large:
            raise jinja2.TemplateError(f"makes a value of more than {MAX_RENDERED_CHARS} characters")
        return super().call_binop(context, operator, left, right)


class _Watched(Sequence[Any]):
    """A list whose iteration looks at the clock; still a sequence, so that `loop.length` and slices work."""

    def __init__(self, sandbox: _Sandbox, items: Sequence[Any]) -> None:
        self._sandbox = sandbox
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._sandbox.check_time()
            yield item


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _compile(text: str) -> jinja2.Template:
    if len(text) > MAX_TEMPLATE_CHARS:
        raise BundleError(f"chat template has {len(text)} characters, needs at most {MAX_TEMPLATE_CHARS}")
    try:
        return _Sandbox().from_string(text)
    except (jinja2.TemplateError, RecursionError) as error:
        raise BundleError(f"chat template cannot be compiled: {error}") from None


def _render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    sandbox = template.environment
    assert isinstance(sandbox, _Sandbox)
    sandbox.deadline = time.monotonic() + MAX_RENDER_SECONDS
    pieces, length = [], 0
    try:
        for piece in template.generate(variables):
            sandbox.check_time()
            pieces.append(piece)
            length += len(piece)
            if length > MAX_RENDERED_CHARS:
                raise jinja2.TemplateError(f"writes more than {MAX_RENDERED_CHARS} characters")
    except jinja2.TemplateError as error:
        raise ConfigError(f"chat template refused the messages: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, ArithmeticError, RecursionError) as error:
        raise ConfigError(f"chat template failed on the messages: {type(error).__name__}: {error}") from None
    return "".join(pieces)
