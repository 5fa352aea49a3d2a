"""Tiny DSpark drafts in DeepSpec's own format (dspark.md section 3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny.safetensors_file import read_safetensors
from tests.tiny.target import write_weights
from tests.tiny.weights import Geometry, bias, layer_stack, linear, norm


def _target_tensors(target: Path) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(target.glob("*.safetensors")):
        tensors |= read_safetensors(file)
    return tensors


def make_dspark_draft(
    folder: Path,
    target: Path,
    head: str = "vanilla",
    *,
    confidence: bool = True,
    with_markov: bool | None = None,
    own_embeddings: bool = False,
    own_lm_head: bool | None = None,
    block_size: int = 4,
    layer_ids: tuple[int, ...] | None = None,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 24,
    intermediate_size: int = 80,
    rank: int = 8,
    mask_token_id: int = 3,
    rope_theta: float = 10_000.0,
    seed: int = 100,
    dtype: str = "float32",
    imitate: bool = False,
    tensors_without: tuple[str, ...] = (),
    extra_tensors: dict[str, np.ndarray] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write config.json and model.safetensors of a random draft for the `target` folder; returns `folder`.

    head: vanilla, gated, rnn or none (markov_rank 0). with_markov: None means wherever there are a confidence and a
    Markov head. own_embeddings: carries embed_tokens and lm_head (own_lm_head separately), other values than the
    target's. layer_ids: None is (-1, 0, num_target_layers - 2). imitate (vanilla only): rank = hidden size, W1 = the
    target's embeddings, W2 = its lm_head, base states small: foresees a `bigram` target, accepted often.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target_config = json.loads((target / "config.json").read_text())
    vocab, hidden = target_config["vocab_size"], target_config["hidden_size"]
    depth = target_config["num_hidden_layers"]
    ids = layer_ids if layer_ids is not None else tuple(sorted({-1, 0, depth - 2}))
    if imitate and head != "vanilla":
        raise ValueError("imitate needs head='vanilla'")
    rank = 0 if head == "none" else hidden if imitate else rank
    markov_input = (confidence and rank > 0) if with_markov is None else with_markov
    geometry = Geometry(
        hidden_size=hidden,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        qk_norm=True,
    )
    rng = np.random.default_rng(seed)
    tensors = {
        "fc.weight": linear(rng, hidden, len(ids) * hidden),
        "hidden_norm.weight": norm(rng, hidden),
        **layer_stack(rng, geometry),
    }
    if imitate:
        tensors["norm.weight"] *= 0.1  # a quiet base: the Markov head decides
    if rank:
        tensors["markov_head.markov_w1.weight"] = (rng.standard_normal((vocab, rank))).astype(np.float32)
        tensors["markov_head.markov_w2.weight"] = linear(rng, vocab, rank, 3.0)
    if imitate:
        copied = _target_tensors(target)
        embed = copied["model.embed_tokens.weight"]
        tensors["markov_head.markov_w1.weight"] = embed / np.sqrt((embed**2).mean(axis=1, keepdims=True))
        tensors["markov_head.markov_w2.weight"] = copied.get("lm_head.weight", embed)
    if head == "gated":
        tensors["markov_head.gate_proj.weight"] = linear(rng, rank, hidden + rank, 2.0)
        tensors["markov_head.gate_proj.bias"] = bias(rng, rank)
    if head == "rnn":
        tensors["markov_head.joint_proj.weight"] = linear(rng, 3 * rank, 2 * rank + hidden, 2.0)
        tensors["markov_head.joint_proj.bias"] = bias(rng, 3 * rank)
    if confidence:
        tensors["confidence_head.proj.weight"] = linear(rng, 1, hidden + (rank if markov_input else 0), 1.5)
        tensors["confidence_head.proj.bias"] = np.array([0.4], np.float32)
    if own_embeddings:
        tensors["embed_tokens.weight"] = linear(rng, vocab, hidden, 4.0)
    if own_lm_head if own_lm_head is not None else own_embeddings:
        tensors["lm_head.weight"] = linear(rng, vocab, hidden, 4.0)
    tensors |= extra_tensors or {}
    write_weights(folder, {k: v for k, v in tensors.items() if k not in tensors_without}, dtype)

    values = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "max_position_embeddings": target_config["max_position_embeddings"],
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * num_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "num_target_layers": depth,
        "block_size": block_size,
        "mask_token_id": mask_token_id,
        "target_layer_ids": list(ids),
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": markov_input,
        "markov_rank": rank,
        "markov_head_type": "vanilla" if head == "none" else head,
        "torch_dtype": dtype,
    }
    (folder / "config.json").write_text(json.dumps(values | (config or {}), indent=1))
    return folder
