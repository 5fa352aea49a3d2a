"""The operators of dspark-trt on NumPy arrays (compiled; plugins/python/module.cc).

Arrays are C-contiguous, of exactly the dtype and shape named, and never copied; ValueError says what was found and
wanted. Outputs that are not passed in are allocated. The GIL is released while an operator runs; with
`parallel=False` it stays on the calling thread. Results do not depend on the number of threads.
Axes: R requests, K block size, V target and Vd draft vocabulary, N logit rows, r rank, d hidden width,
M rows, N and K output and input features of linear,
B slots, T packed tokens, Q padded queries, H and Hkv heads, D head width, S cache capacity.
"""

import numpy as np
from numpy.typing import NDArray

_Float = NDArray[np.float32]
_Int = NDArray[np.int32]
_Long = NDArray[np.int64]

def draft(
    *,
    base_logits: _Float,
    anchor_tokens: _Int,
    temperature: _Float,
    top_k: _Int,
    top_p: _Float,
    min_p: _Float,
    accept_mode: _Int,
    seed: _Long,
    sample_index: _Int,
    anchor_position: _Int,
    confidence_signal: _Int,
    cutoff_policy: _Int | None = None,
    hidden: _Float | None = None,
    block_offset: int = 0,
    markov_w1: _Float | None = None,
    markov_w2: _Float | NDArray[np.uint16] | NDArray[np.int8] | None = None,
    markov_w2_scales: _Float | None = None,
    head_weight: _Float | None = None,
    head_bias: _Float | None = None,
    confidence_weight: _Float | None = None,
    confidence_bias: _Float | None = None,
    d2t: _Int | None = None,
    head_type: int = 0,
    confidence_with_markov: bool = False,
    draft_tokens: _Int | None = None,
    confidence_logits: _Float | None = None,
    draft_logits: _Float | None = None,
    entropies: _Float | None = None,
    want_draft_logits: bool = False,
    parallel: bool = True,
) -> tuple[_Int, _Float, _Float | None, _Float]:
    """The sequential head of a DSpark draft, left to right (DSparkDraft).

    base_logits [R, K, Vd] and hidden [R, K, d] are the draft's rows, anchor_tokens [R] target ids; the sampling
    arrays, confidence_signal (CONFIDENCE_SIGNALS | k << 8) and cutoff_policy are [R]. head_type is one of HEAD_TYPES.
    Weights as in dspark_ops.h: markov_w1 [rows, r], markov_w2 [Vd, r] in float32, bfloat16 (bits as uint16) or int8
    (with markov_w2_scales [Vd]), head_weight gated [r, d + r] or rnn [3r, 2r + d], confidence_weight [d (+ r)],
    d2t [Vd] strictly ascending target ids.
    Returns draft_tokens [R, K] (target ids), confidence_logits [R, K], draft_logits [R, K, Vd] (None unless an array
    was passed or want_draft_logits is set), and entropies [R, K] in [0, 1], 0 where the policy is not dual. From a row
    with NaN, +inf or nothing finite on, a request has tokens -1, confidence logits NaN and entropies 0.
    """

def cutoff(
    *,
    confidence_logits: _Float,
    cutoff_policy: _Int,
    cutoff_params: _Float,
    cutoff_inclusive: _Int,
    min_verify: _Int,
    max_verify: _Int,
    entropies: _Float | None = None,
    draft_tokens: _Int | None = None,
    calibration_temperatures: _Float | None = None,
    verify_lengths: _Int | None = None,
    survivals: _Float | None = None,
    confidences: _Float | None = None,
    parallel: bool = True,
) -> tuple[_Int, _Float, _Float]:
    """Confidences to verify lengths (DSparkCutoff; policies and their columns: dspark_ops.h).

    confidence_logits, entropies, draft_tokens and calibration_temperatures are [R, K], cutoff_params [R, 5], all
    others [R]. entropies may be left out where no policy is dual.
    Returns verify_lengths [R] in [0, max_verify], survivals and confidences [R, K] in [0, 1]. A NaN or infinite logit
    counts as 0; from a token of -1 on there are no proposals.
    """

def accept(
    *,
    logits: _Float,
    row_offsets: _Int,
    temperature: _Float,
    top_k: _Int,
    top_p: _Float,
    min_p: _Float,
    accept_mode: _Int,
    seed: _Long,
    sample_index: _Int,
    anchor_position: _Int,
    draft_tokens: _Int | None = None,
    draft_logits: _Float | None = None,
    penalties: _Float | None = None,
    token_history: _Int | None = None,
    slots: _Int | None = None,
    prompt_lengths: _Int | None = None,
    rules: _Int | None = None,
    rule_offsets: _Int | None = None,
    token_masks: _Int | None = None,
    mask_rows: _Int | None = None,
    relaxation: _Float | None = None,
    num_logprobs: _Int | None = None,
    confidences: _Float | None = None,
    d2t: _Int | None = None,
    accepted: _Int | None = None,
    tokens: _Int | None = None,
    round_ends: _Int | None = None,
    logprobs: _Float | None = None,
    logprob_ids: _Int | None = None,
    logprob_ranks: _Int | None = None,
    parallel: bool = True,
) -> tuple[_Int, _Int, _Int, _Float | None, _Int | None, _Int | None]:
    """Which proposals the target keeps, and its own next token (DSparkAccept).

    logits [N, V], row_offsets [R + 1]: request r owns rows row_offsets[r] .. row_offsets[r + 1] - 1, one more than its
    verify length. draft_tokens [R, K] target ids; draft_logits [R, K, Vd] (0 rows: absent) where a request with
    proposals uses rejection. K is 0 without draft_tokens.
    penalties [R, 3] to mask_rows [N] are the rules of dspark_ops.h (penalties, and words of several tokens, read
    token_history [B, S], slots [R] and prompt_lengths [R]); relaxation [R, 2] where a request is relaxed or typical,
    confidences [R, K] (0 rows: absent) where one with proposals is relaxed.
    Returns accepted [R], tokens [R, K + 1] (kept proposals, the target's token, then -1; -1 as the target's token
    where its row is faulty), round_ends [R] (ROUND_END_REASONS), and with num_logprobs [R] logprobs
    [R, K + 1, 21], logprob_ids [R, K + 1, 21] and logprob_ranks [R, K + 1], else None for these three.
    """

def logprobs(
    *,
    logits: _Float,
    tokens: _Int,
    num_logprobs: _Int,
    logprobs: _Float | None = None,
    logprob_ids: _Int | None = None,
    logprob_ranks: _Int | None = None,
    parallel: bool = True,
) -> tuple[_Float, _Int, _Int]:
    """Log-probabilities of tokens [N] under logits [N, V], beside the num_logprobs [N] most probable ones.

    Returns logprobs [N, 21] (the token's own, then the most probable, descending; 0 where there is none), their
    ids [N, 21] (-1 where there is none) and the rank [N] of the token from 1. A row with token -1 or num_logprobs -1
    holds nothing; one without a distribution gives NaN.
    """

def kv_update(
    *, cache: _Float, update: _Float, write_indices: _Int, update_lengths: _Int | None = None, parallel: bool = True
) -> None:
    """Writes new keys or values into cache [B, Hkv, S, D] in place (TRT_KVCacheUpdate).

    update is packed [T, Hkv, D] with cumulative update_lengths [B + 1], or padded [B, Hkv, Q, D] without;
    write_indices [B]: row of a slot's first token.
    """

def attention(
    *,
    query: _Float,
    key: _Float,
    value: _Float,
    kv_lengths: _Int,
    causal: int,
    query_lengths: _Int | None = None,
    output: _Float | None = None,
    parallel: bool = True,
) -> _Float:
    """softmax(q k^T) v over the first kv_lengths[b] keys, unscaled (TRT_Attention).

    query is packed [T, H, D] with cumulative query_lengths [B + 1], or padded [B, H, Q, D] without; key and value
    [B, Hkv, S, D]; causal: 0 none, 1 upper left, 2 lower right. Returns the output in the form of the query.
    """

def linear(
    *,
    x: _Float,
    weight: _Int,
    storage: str,
    out_features: int,
    bias: _Float | None = None,
    output: _Float | None = None,
    parallel: bool = True,
) -> _Float:
    """x W^T + bias in float32, W [N, K] as a checkpoint stores it (DSparkLinear); out_features is N.

    x [M, K]; storage `bf16`, `q8_0` or `q4_1`; weight [ceil(N / 64), words, 64] as dspark_ops.h lays it out; bias [N].
    Returns y [M, N]. A row depends on that row alone, to the last bit.
    """

def op_nanoseconds(op: str) -> int:
    """Time spent so far inside `draft`, `cutoff`, `accept`, `kv_update`, `attention` or `linear`, by every caller."""

def abi_version() -> int:
    """Version of the C ABI that the library was built with."""
