"""A real byte-level BPE tokenizer, trained on a few lines, with a ChatML template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
"""Ids 0..3. End of sequence is 2 (and 0), beginning 1, padding 2, the drafts' mask 3."""
NUM_BYTES = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = (
    "The quick brown fox jumps over the lazy dog and then the dog jumps over the fox.",
    "What is 12 + 30? The answer is 42, because 12 + 30 = 42.",
    "def add(left, right):\n    return left + right\n",
    "user asks the assistant a question and the assistant answers the question.",
    "for index in range(10):\n    print(index, index * index)\n",
)


def _byte_level_bpe(size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def _word_level(size: int) -> Tokenizer:
    words = [*SPECIAL_TOKENS, *(f"t{i}" for i in range(len(SPECIAL_TOKENS), size))]
    vocabulary = {word: i for i, word in enumerate(words[:size])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in words[: min(4, size)]])
    return tokenizer


def make_tokenizer(folder: Path, size: int = 320) -> Tokenizer:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json.

    `size` is the tokenizer's vocabulary. From 260 on a byte-level BPE (any text can be encoded; at most about
    420 tokens, the text has no more merges); below that, words `t4 t5 ...` split at white space, for
    tests that want a vocabulary of a dozen tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _byte_level_bpe(size) if size >= NUM_BYTES + len(SPECIAL_TOKENS) else _word_level(size)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[2],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    generation = {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    return tokenizer
