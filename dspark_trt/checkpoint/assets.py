"""The small files that a bundle carries beside its engines: tokenizer, chat template, generation defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import CheckpointError, shown
from dspark_trt.checkpoint.fields import Fields, is_text, parse_object, read_bytes, read_object
from dspark_trt.config import TargetConfig

SPECIAL_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What tokenizer_config.json of a bundle says."""

    chat_template: str | None = None
    special: dict[str, str] = field(default_factory=dict)
    """Role (SPECIAL_ROLES) -> token."""


def _dump(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def load_tokenizer(data: bytes, where: str) -> Tokenizer:
    """Raises CheckpointError when the tokenizers library cannot read it."""
    try:
        return Tokenizer.from_str(data.decode())
    except BaseException as error:
        # The library raises bare Exception, and a panic of its own, which is none.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"{where}: is not a tokenizer that the tokenizers library reads ({shown(str(error), 200)})"
        ) from None


def check_vocabulary(tokenizer: Tokenizer, config: TargetConfig, where: str) -> None:
    """Every id must have a row of embeddings; rows without an id (padding) are fine. Raises CheckpointError."""
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= config.vocab_size:
        raise CheckpointError(
            f"{where}: has token ids up to {largest}, the model has {config.vocab_size} rows of embeddings; "
            f"is it another model's tokenizer?"
        )


def make_assets(
    tokenizer_json: bytes, facts: TokenizerFacts, config: TargetConfig, generation: dict[str, Any]
) -> dict[str, bytes]:
    """The three files of a bundle; `generation`: what `generation_defaults` keeps."""
    return {
        names.TOKENIZER: tokenizer_json,
        names.TOKENIZER_CONFIG: _dump(
            dict(facts.special) | ({} if facts.chat_template is None else {"chat_template": facts.chat_template})
        ),
        names.GENERATION_CONFIG: _dump(
            {"eos_token_id": list(config.eos_token_ids), "bos_token_id": config.bos_token_id, **generation}
        ),
    }


def _template(fields: Fields) -> str | None:
    """A string, or the one named `default` of a list of {name, template}."""
    value = fields.values.get("chat_template")
    if value is None or is_text(value):
        return cast("str | None", value)
    if isinstance(value, list):
        named = [item.get("template") for item in value if isinstance(item, dict) and item.get("name") == "default"]
        if named and is_text(named[-1]):
            return str(named[-1])
        raise fields.wrong("chat_template", "a string, or a list with a template named 'default'")
    raise fields.wrong("chat_template", "a string")


def _special(fields: Fields) -> dict[str, str]:
    tokens = {}
    for role in SPECIAL_ROLES:
        value = fields.values.get(role)
        if isinstance(value, dict):  # an AddedToken written out
            value = value.get("content")
        if is_text(value):
            tokens[role] = cast(str, value)
    return tokens


def read_facts(folder: Path) -> TokenizerFacts:
    """From tokenizer_config.json, chat_template.jinja (which wins) and special_tokens_map.json, as far as there.

    `add_bos_token` and `add_eos_token` are not read: transformers lets tokenizer.json decide, and so do we.
    """
    special: dict[str, str] = {}
    template = None
    if (folder / "special_tokens_map.json").is_file():
        special |= _special(Fields("special_tokens_map.json", read_object(folder / "special_tokens_map.json")))
    path = folder / names.TOKENIZER_CONFIG
    if path.is_file():
        fields = Fields(str(path), read_object(path))
        special |= _special(fields)
        template = _template(fields)
    if (folder / "chat_template.json").is_file():
        template = _template(Fields(str(folder / "chat_template.json"), read_object(folder / "chat_template.json")))
    if (folder / "chat_template.jinja").is_file():
        try:
            template = read_bytes(folder / "chat_template.jinja").decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{folder / 'chat_template.jinja'}: is not UTF-8 ({error.reason})") from None
    return TokenizerFacts(chat_template=template, special=special)


def read_assets(folder: Path, config: TargetConfig, generation: dict[str, Any]) -> dict[str, bytes]:
    """The files of a Hugging Face folder. Raises CheckpointError when the tokenizer is missing or does not fit."""
    path = folder / names.TOKENIZER
    if not path.is_file():
        raise CheckpointError(f"{folder}: has no {names.TOKENIZER}; save the tokenizer in its fast form beside it")
    data = read_bytes(path)
    parse_object(data, str(path))  # for a message with the place of the fault
    tokenizer = load_tokenizer(data, str(path))
    check_vocabulary(tokenizer, config, str(path))
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        # Left on by a training run: a prompt must neither be cut nor filled up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        data = tokenizer.to_str().encode()
    return make_assets(data, read_facts(folder), config, generation)
