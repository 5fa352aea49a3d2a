"""Qwen: 2 and 2.5 put a bias on q, k and v; 3 norms every query and key head before RoPE."""

from __future__ import annotations

from dspark_runtime.contract.errors import GraphError
from dspark_trt.config import DecoderConfig
from dspark_trt.graph.decoder import Stack, decoder_stack
from dspark_trt.graph.layers import CacheNames
from dspark_trt.graph.step import Context, Tensors


def qwen2(ctx: Context, config: DecoderConfig, tensors: Tensors, caches: CacheNames) -> Stack:
    """Biases on q, k and v, none on o_proj and the MLP."""
    if config.qk_norm or not config.qkv_bias:
        raise GraphError("qwen2: wanted biases on q, k, v and no q/k norms; is this another family's configuration?")
    return decoder_stack(ctx, config, tensors, caches)


def qwen3(ctx: Context, config: DecoderConfig, tensors: Tensors, caches: CacheNames) -> Stack:
    """Norms of query and key heads; biases only where `attention_bias` says so."""
    if not config.qk_norm:
        raise GraphError("qwen3: wanted q/k norms; is this another family's configuration?")
    return decoder_stack(ctx, config, tensors, caches)
