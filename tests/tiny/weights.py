"""Random weights of a decoder stack under canonical names (Hugging Face's without `model.`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What decides the names and shapes of a stack. Widths in elements."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def linear(rng: np.random.Generator, rows: int, cols: int, gain: float = 1.0) -> np.ndarray:
    """[rows, cols] float32 that keeps the size of its input (times `gain`)."""
    return np.asarray(rng.standard_normal((rows, cols)) * (gain / np.sqrt(cols)), np.float32)


def bias(rng: np.random.Generator, rows: int) -> np.ndarray:
    return (rng.standard_normal(rows) * 0.2).astype(np.float32)


def norm(rng: np.random.Generator, cols: int) -> np.ndarray:
    """Around 1, and not 1: a forgotten norm weight must show."""
    return (1.0 + rng.standard_normal(cols) * 0.2).astype(np.float32)


def layer_stack(rng: np.random.Generator, geometry: Geometry, gain: float = 1.0) -> dict[str, np.ndarray]:
    """Weights of all layers and the final norm; `gain` scales what each layer adds to the residual."""
    g = geometry
    tensors: dict[str, np.ndarray] = {}
    for i in range(g.num_layers):
        prefix = f"layers.{i}."
        for name, heads in (("q", g.num_heads), ("k", g.num_kv_heads), ("v", g.num_kv_heads)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = linear(rng, heads * g.head_dim, g.hidden_size)
            if g.qkv_bias:
                tensors[f"{prefix}self_attn.{name}_proj.bias"] = bias(rng, heads * g.head_dim)
        tensors[f"{prefix}self_attn.o_proj.weight"] = linear(rng, g.hidden_size, g.num_heads * g.head_dim, gain)
        if g.o_bias:
            tensors[f"{prefix}self_attn.o_proj.bias"] = bias(rng, g.hidden_size)
        if g.qk_norm:
            tensors[f"{prefix}self_attn.q_norm.weight"] = norm(rng, g.head_dim)
            tensors[f"{prefix}self_attn.k_norm.weight"] = norm(rng, g.head_dim)
        for name, rows, cols in (
            ("gate", g.intermediate_size, g.hidden_size),
            ("up", g.intermediate_size, g.hidden_size),
            ("down", g.hidden_size, g.intermediate_size),
        ):
            scale = 2.0 * gain if name == "down" else 1.0  # silu(gate) * up halves the size
            tensors[f"{prefix}mlp.{name}_proj.weight"] = linear(rng, rows, cols, scale)
            if g.mlp_bias:
                tensors[f"{prefix}mlp.{name}_proj.bias"] = bias(rng, rows)
        tensors[f"{prefix}input_layernorm.weight"] = norm(rng, g.hidden_size)
        tensors[f"{prefix}post_attention_layernorm.weight"] = norm(rng, g.hidden_size)
    tensors["norm.weight"] = norm(rng, g.hidden_size)
    return tensors
