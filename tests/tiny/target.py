"""Tiny targets: Llama, Qwen2 and Qwen3 folders as Hugging Face writes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny.safetensors_file import read_safetensors, write_safetensors
from tests.tiny.tokenizer import make_tokenizer
from tests.tiny.weights import Geometry, layer_stack

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
LOGIT_SPREAD = 4.0
"""Standard deviation of the logits of one row."""
TOKENIZER_SIZE = 320

_ROPE: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def _rope_keys(rope: str, spelling: str, theta: float) -> dict[str, Any]:
    values = _ROPE[rope]
    if spelling == "rope_parameters":
        return {"rope_parameters": {**values, "rope_theta": theta}}
    return {"rope_theta": theta, "rope_scaling": None if rope == "default" else values}


def write_weights(folder: Path, tensors: dict[str, np.ndarray], dtype: str, num_shards: int = 1) -> None:
    """model.safetensors, or `num_shards` shards with their index; tensors dealt out in turn."""
    if num_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(tensors.items()) if i % num_shards == shard}
        write_safetensors(folder / file, part, dtype)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def make_target(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: str = "float32",
    num_shards: int = 1,
    vocab_size: int = TOKENIZER_SIZE,
    hidden_size: int = 64,
    intermediate_size: int = 96,
    num_layers: int = 4,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    tie_embeddings: bool = False,
    attention_bias: bool | None = None,
    mlp_bias: bool = False,
    rope: str = "default",
    rope_spelling: str = "rope_parameters",
    rope_theta: float = 10_000.0,
    max_position_embeddings: int = 512,
    layer_gain: float = 1.0,
    bigram: bool = False,
    tensors_without: tuple[str, ...] = (),
    config: dict[str, Any] | None = None,
) -> Path:
    """Write config.json, safetensors, tokenizer and generation_config of a random model; returns `folder`.

    dtype: float32, float16 or bfloat16, of the file. rope: default, linear or llama3; rope_spelling: `rope_parameters`
    (transformers 5) or `rope_scaling`. attention_bias: None is the family's own (qwen2: q, k, v biases; llama and
    qwen3 with True: q, k, v and o). layer_gain scales what layers add to the embedding. bigram: lm_head rows are
    the embeddings of the token before (untied only), so that with a small layer_gain (0.1) token t is
    followed by t+1 almost always: text that a draft can foresee. vocab_size below 260 gives a word tokenizer, above
    TOKENIZER_SIZE padded rows. tensors_without: names left out; config: keys that override config.json (no shape).
    """
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder, min(vocab_size, TOKENIZER_SIZE))
    width = head_dim if head_dim is not None else hidden_size // num_heads
    has_bias = family == "qwen2" if attention_bias is None else attention_bias
    geometry = Geometry(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=width,
        qkv_bias=has_bias,
        o_bias=has_bias and family != "qwen2",
        mlp_bias=mlp_bias,
        qk_norm=family == "qwen3",
    )
    rng = np.random.default_rng(seed)
    scale = LOGIT_SPREAD / np.sqrt(hidden_size)
    embed = (rng.standard_normal((vocab_size, hidden_size)) * scale).astype(np.float32)
    stack = layer_stack(rng, geometry, layer_gain)
    tensors = {"model.embed_tokens.weight": embed}
    tensors |= {f"model.{name}": tensor for name, tensor in stack.items()}
    if not tie_embeddings:
        noise = (rng.standard_normal((vocab_size, hidden_size)) * scale).astype(np.float32)
        tensors["lm_head.weight"] = np.roll(embed, 1, axis=0) if bigram else noise
    elif bigram:
        raise ValueError("bigram needs tie_embeddings=False")
    write_weights(folder, {k: v for k, v in tensors.items() if k not in tensors_without}, dtype, num_shards)

    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": tie_embeddings,
        "torch_dtype": dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **_rope_keys(rope, rope_spelling, rope_theta),
    }
    if head_dim is not None or family == "qwen3":
        values["head_dim"] = width
    if family == "qwen2":
        values |= {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": num_layers}
    else:
        values["attention_bias"] = has_bias
    if family == "llama":
        values["mlp_bias"] = mlp_bias
    (folder / "config.json").write_text(json.dumps(values | (config or {}), indent=1))
    return folder


def make_contrary(folder: Path, target: Path) -> Path:
    """A `model` draft that is always wrong: `target` with its lm_head negated, so its best token is the worst."""
    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(target.glob("*.safetensors")):
        tensors |= read_safetensors(file)
    tensors["lm_head.weight"] = -tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}, indent=1))
    write_weights(folder, tensors, "float32")
    return folder
