"""The tokenizer of a GGUF file, rebuilt with the tokenizers library (byte-level BPE vocabularies).

The judge is transformers' own reading of the same file: ids are equal to its ids, also where it departs from
the model's original tokenizer.json (it does not set apart digits for `smollm`, and applies no normaliser).
"""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from dspark_runtime.contract.errors import CheckpointError, shown
from dspark_trt.checkpoint.assets import TokenizerFacts
from dspark_trt.checkpoint.fields import Fields

CONTROL, USER_DEFINED = 3, 4
"""llama.cpp's token types that are matched whole in a text."""

# Contractions; words with one sign before them; digits (in ones or threes); signs; line breaks; white space.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_GPT2 = None
"""ByteLevel's built-in pattern."""

SPLITS: dict[str, str | None] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _GPT2,
    "qwen2": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}
"""tokenizer.ggml.pre -> pattern that cuts a text into pieces before merging."""

_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable letter for each byte: itself where it prints, else from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _strings(fields: Fields, key: str) -> list[str]:
    value = fields.values.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise CheckpointError(f"{fields.where}: {key} is missing, wanted a list of strings")
    return value


def _merges(fields: Fields) -> list[tuple[str, str]]:
    pairs = [tuple(line.split(" ")) for line in _strings(fields, "tokenizer.ggml.merges")]
    if odd := [pair for pair in pairs if len(pair) != 2]:
        raise CheckpointError(
            f"{fields.where}: tokenizer.ggml.merges holds {shown(' '.join(odd[0]))}, wanted two tokens"
        )
    return [(pair[0], pair[1]) for pair in pairs]


def _special(fields: Fields, tokens: list[str]) -> dict[str, str]:
    found = {}
    for role, name in _ROLES.items():
        key = f"tokenizer.ggml.{name}_token_id"
        if fields.has(key):
            index = fields.integer(key)
            if not 0 <= index < len(tokens):
                raise CheckpointError(f"{fields.where}: {key} is {index}, wanted [0, {len(tokens)})")
            found[role] = tokens[index]
    return found


def _post_processor(fields: Fields, special: dict[str, str], tokens: list[str]) -> processors.TemplateProcessing | None:
    """Adds bos before and eos behind a text where the file says so; None where it does not."""
    bos = special.get("bos_token") if fields.flag("tokenizer.ggml.add_bos_token", False) else None
    eos = special.get("eos_token") if fields.flag("tokenizer.ggml.add_eos_token", False) else None
    if bos is None and eos is None:
        return None
    return processors.TemplateProcessing(
        single=[token for token in (bos, "$A", eos) if token is not None],
        special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys((bos, eos)) if token is not None],
    )


def gguf_tokenizer(fields: Fields) -> tuple[Tokenizer, TokenizerFacts]:
    """Tokenizer, and what tokenizer_config.json says. Raises CheckpointError.

    fields: the file's metadata, `tokenizer.*`.
    """
    if (kind := fields.text("tokenizer.ggml.model")) != "gpt2":
        raise CheckpointError(
            f"{fields.where}: tokenizer model is {shown(kind)}, supported is gpt2 (byte-level BPE); "
            f"take the safetensors form of this model"
        )
    pre = fields.text("tokenizer.ggml.pre", "default")
    if pre not in SPLITS:
        raise CheckpointError(f"{fields.where}: pre-tokenizer is {shown(pre)}, supported are {', '.join(SPLITS)}")
    tokens = _strings(fields, "tokenizer.ggml.tokens")
    types = fields.values.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise CheckpointError(f"{fields.where}: {len(tokens)} tokens have {len(types)} types, wanted one each")

    letters = _byte_alphabet()
    alphabet = set(letters.values())
    spelled = [t if set(t) <= alphabet else "".join(letters[byte] for byte in t.encode()) for t in tokens]
    vocabulary = {token: i for i, token in enumerate(spelled)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError(
            f"{fields.where}: tokenizer.ggml.tokens holds {len(tokens) - len(vocabulary)} tokens twice"
        )
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(fields)))
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{fields.where}: tokens and merges do not go together ({shown(str(error), 200)})"
        ) from None

    special = _special(fields, tokens)
    # A token outside the byte alphabet is not in the vocabulary under its name: adding it would make a new id.
    whole = [(t, kind) for t, kind in zip(tokens, types, strict=True) if set(t) <= alphabet]
    named = [t for t in special.values() if set(t) <= alphabet]
    control = dict.fromkeys([*(t for t, kind in whole if kind == CONTROL), *named])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in whole if kind == USER_DEFINED])

    pattern = SPLITS[pre]
    tokenizer.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if pattern is None
        else pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    tokenizer.decoder = decoders.ByteLevel()
    if (processor := _post_processor(fields, special, tokens)) is not None:
        tokenizer.post_processor = processor
    template = fields.text("tokenizer.chat_template") if fields.has("tokenizer.chat_template") else None
    return tokenizer, TokenizerFacts(chat_template=template, special=special)
