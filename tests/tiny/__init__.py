"""Small models with known seeds, written to disk as real checkpoints. NumPy only, no torch.

Every maker returns the path it wrote. Logits are well spread (standard deviation about 4), so that
near ties between the two best tokens stay rare.
"""

from tests.tiny.draft import make_dspark_draft
from tests.tiny.gguf_file import make_gguf
from tests.tiny.safetensors_file import read_safetensors, write_safetensors
from tests.tiny.target import make_contrary, make_target
from tests.tiny.tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, make_tokenizer

__all__ = [
    "CHAT_TEMPLATE",
    "SPECIAL_TOKENS",
    "make_contrary",
    "make_dspark_draft",
    "make_gguf",
    "make_target",
    "make_tokenizer",
    "read_safetensors",
    "write_safetensors",
]
