"""Tiny GGUF files, written with the `gguf` package's own writer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.tiny.safetensors_file import read_safetensors
from tests.tiny.target import make_target
from tests.tiny.tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _gguf_name(name: str) -> str:
    flat = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in flat:
        return flat[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_NAMES[module]}.{kind}"


def _interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of q/k rows: the two halves of a head, interleaved."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocab_size: int, pre: str) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), vocab_size)]
    types = [
        gguf.TokenType.CONTROL if t in SPECIAL_TOKENS else
        gguf.TokenType.UNUSED if t.startswith("[PAD") else gguf.TokenType.NORMAL
        for t in tokens
    ]  # fmt: skip
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def make_gguf(
    folder: Path,
    family: str = "llama",
    *,
    pre: str | None = None,
    quantization: str = "F32",
    extra_fields: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
    **overrides: Any,
) -> Path:
    """Write `folder`/model.gguf holding the model that make_target(family, **overrides) makes; returns the file.

    quantization: F32, F16, Q8_0 or Q4_1, of matrices whose rows it divides. pre: tokenizer kind, None is the family's
    (llama `smollm`, qwen2 `qwen2`). extra_fields: more keys, e.g. `llama.rope.scaling.type`; str, int,
    float or bool. Only what GGUF of these families can say is allowed of make_target: no o or mlp biases, rope default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        source = make_target(Path(name), family, **overrides)
        config = json.loads((source / "config.json").read_text())
        tensors = read_safetensors(source / "model.safetensors")
        path = folder / "model.gguf"
        writer = gguf.GGUFWriter(path, family)
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        writer.add_vocab_size(config["vocab_size"])
        head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        writer.add_rope_dimension_count(head_dim)
        if "head_dim" in config:
            writer.add_key_length(head_dim)
            writer.add_value_length(head_dim)
        adders: dict[type, Callable[..., None]] = {
            str: writer.add_string,
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
        }
        for key, value in (extra_fields or {}).items():
            adders[type(value)](key, value)
        _add_tokenizer(writer, source, config["vocab_size"], pre or ("qwen2" if family == "qwen2" else "smollm"))
    kind = gguf.GGMLQuantizationType[quantization]
    for name, tensor in tensors.items():
        if family == "llama" and ".q_proj." in name:
            tensor = _interleave(tensor, config["num_attention_heads"])
        elif family == "llama" and ".k_proj." in name:
            tensor = _interleave(tensor, config["num_key_value_heads"])
        if tensor.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), tensor)
    for name, tensor in (extra_tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
