"""Llama: SmolLM2, Llama 2 and 3. Neither biases on q, k, v alone nor norms of query and key heads."""

from __future__ import annotations

from dspark_runtime.contract.errors import GraphError
from dspark_trt.config import DecoderConfig
from dspark_trt.graph.decoder import Stack, decoder_stack
from dspark_trt.graph.layers import CacheNames
from dspark_trt.graph.step import Context, Tensors


def llama(ctx: Context, config: DecoderConfig, tensors: Tensors, caches: CacheNames) -> Stack:
    """`attention_bias` puts a bias on all four projections, `mlp_bias` on all three of the MLP."""
    if config.qk_norm:
        raise GraphError("llama: the configuration asks for q/k norms, which this family does not have")
    if config.qkv_bias != config.o_bias:
        raise GraphError("llama: attention biases are on all four projections or on none")
    return decoder_stack(ctx, config, tensors, caches)
