"""The DSpark draft in PyTorch, read off dspark.md section 2: the judge of our draft graph.

Written from the text, one request, no caches: the whole context is computed anew each round.
Shares no code with the graph builder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Round:
    """hidden: [K, d]; base_logits, logits: [K, V]; tokens: [K]; confidence_logits: [K] or None without a head."""

    hidden: Tensor
    base_logits: Tensor
    logits: Tensor
    tokens: list[int]
    confidence_logits: Tensor | None


class DSparkReference:
    """config: the draft's config.json; weights: its tensors by their names in the file; the target's as fall-backs."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor], embed: Tensor, lm_head: Tensor) -> None:
        self.config, self.weights = config, weights
        self.embed = weights.get("embed_tokens.weight", embed)
        self.lm_head = weights.get("lm_head.weight", lm_head)
        self.eps = config["rms_norm_eps"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weights[name]

    def rope(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: [rows, heads, D]; the halves of a head are the two coordinates that turn together."""
        width = x.shape[-1]
        exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
        angles = positions.to(torch.float64)[:, None] / self.config["rope_theta"] ** exponents
        cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
        first, second = x[..., : width // 2], x[..., width // 2 :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def layer(self, i: int, x: Tensor, context: Tensor, start: int) -> Tensor:
        """x: [K, d] block rows at positions start..; context: [n, d] rows at 0..n-1 with n = start."""
        c, w, p = self.config, self.weights, f"layers.{i}"
        width, heads, kv_heads = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        normed = self.norm(x, f"{p}.input_layernorm.weight")
        both = torch.cat([context, normed])
        q = (normed @ w[f"{p}.self_attn.q_proj.weight"].T).view(-1, heads, width)
        k = (both @ w[f"{p}.self_attn.k_proj.weight"].T).view(-1, kv_heads, width)
        v = (both @ w[f"{p}.self_attn.v_proj.weight"].T).view(-1, kv_heads, width)
        positions = torch.arange(start + len(x))
        q = self.rope(self.norm(q, f"{p}.self_attn.q_norm.weight"), positions[start:])
        k = self.rope(self.norm(k, f"{p}.self_attn.k_norm.weight"), positions)
        rows = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, group].T / width**0.5
            rows.append(torch.softmax(scores, dim=-1) @ v[:, group])
        x = x + torch.cat(rows, dim=-1) @ w[f"{p}.self_attn.o_proj.weight"].T
        normed = self.norm(x, f"{p}.post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(normed @ w[f"{p}.mlp.gate_proj.weight"].T)
        up = normed @ w[f"{p}.mlp.up_proj.weight"].T
        return x + (gate * up) @ w[f"{p}.mlp.down_proj.weight"].T

    def round(self, features: Tensor, anchor: int) -> Round:
        """features: [n, ids * hidden] of the verified positions; the anchor stands at position n. Greedy."""
        c, w = self.config, self.weights
        block = c["block_size"]
        context = self.norm(features @ w["fc.weight"].T, "hidden_norm.weight")
        ids = torch.tensor([anchor] + [c["mask_token_id"]] * (block - 1))
        x = self.embed[ids]
        for i in range(c["num_hidden_layers"]):
            x = self.layer(i, x, context, len(features))
        hidden = self.norm(x, "norm.weight")
        base = hidden @ self.lm_head.T
        logits, tokens, confidences = [], [], []
        rank, kind = c["markov_rank"], c["markov_head_type"]
        state, previous = torch.zeros(rank), anchor
        for k in range(block):
            h = hidden[k]
            row = base[k]
            known = w["markov_head.markov_w1.weight"][previous] if rank else torch.zeros(0)
            if rank and kind == "vanilla":
                row = row + w["markov_head.markov_w2.weight"] @ known
            elif rank and kind == "gated":
                gate = w["markov_head.gate_proj.weight"] @ torch.cat([h, known]) + w["markov_head.gate_proj.bias"]
                row = row + w["markov_head.markov_w2.weight"] @ (torch.sigmoid(gate) * known)
            elif rank and kind == "rnn":
                z = torch.cat([state, known, h])
                g, cell, o = (w["markov_head.joint_proj.weight"] @ z + w["markov_head.joint_proj.bias"]).split(rank)
                state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(cell)
                row = row + w["markov_head.markov_w2.weight"] @ torch.tanh(o)
            if c["enable_confidence_head"]:
                seen = torch.cat([h, known]) if c["confidence_head_with_markov"] else h
                confidences.append(w["confidence_head.proj.weight"][0] @ seen + w["confidence_head.proj.bias"][0])
            logits.append(row)
            previous = int(row.argmax())
            tokens.append(previous)
        return Round(hidden, base, torch.stack(logits), tokens, torch.stack(confidences) if confidences else None)
