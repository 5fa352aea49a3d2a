/// The C ABI of the DSpark operators: parameter structs, launches, status codes.
///
/// Everything is a plain pointer to row-major memory owned by the caller. Axis letters:
/// B slots, T packed tokens, R requests of the step, N logit rows, K block size,
/// V target vocabulary, Vd draft vocabulary, H query heads, Hkv key/value heads, D head width,
/// S cache capacity. No function allocates on behalf of the caller, throws, or keeps a pointer.
#ifndef DSPARK_DSPARK_OPS_H_
#define DSPARK_DSPARK_OPS_H_

#include <stdint.h>

#if defined(_WIN32)
#define DSPARK_API __declspec(dllexport)
#else
#define DSPARK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DSPARK_ABI_VERSION 2

typedef enum dspark_status {
  DSPARK_OK = 0,
  DSPARK_INVALID_ARGUMENT = 1, /* dspark_last_error() says which and what was wanted */
  DSPARK_INTERNAL = 2,
} dspark_status;

/// Message of the last failure on this thread; never null.
DSPARK_API const char* dspark_last_error(void);
DSPARK_API int32_t dspark_abi_version(void);

/// How an operator spreads independent pieces of work. `run` must call body(arg, i) once for every
/// i in [0, count) and return when all are done. A null dspark_parallel* means: on this thread.
/// Results never depend on the number of threads: pieces are fixed by the shapes alone.
typedef struct dspark_parallel {
  void* state;
  void (*run)(void* state, void (*body)(void* arg, int64_t index), void* arg, int64_t count);
} dspark_parallel;

/// Time spent inside an operator since the process began, for profiles.
typedef enum dspark_op {
  DSPARK_OP_DRAFT = 0,
  DSPARK_OP_CUTOFF = 1,
  DSPARK_OP_ACCEPT = 2,
  DSPARK_OP_KV_UPDATE = 3,
  DSPARK_OP_ATTENTION = 4,
  DSPARK_OP_LINEAR = 5,
  DSPARK_NUM_OPS = 6,
} dspark_op;
DSPARK_API uint64_t dspark_op_nanoseconds(dspark_op op);

typedef enum dspark_accept_mode {
  DSPARK_GREEDY = 0,
  DSPARK_REJECTION = 1,
  DSPARK_COUPLED = 2,
  DSPARK_RELAXED = 3, /* not lossless, as is typical */
  DSPARK_TYPICAL = 4
} dspark_accept_mode;
typedef enum dspark_head_type {
  DSPARK_HEAD_NONE = 0,
  DSPARK_HEAD_VANILLA = 1,
  DSPARK_HEAD_GATED = 2,
  DSPARK_HEAD_RNN = 3
} dspark_head_type;
/// Confidence signals (dspark.md 4.1): one number per proposal, larger = surer.
typedef enum dspark_signal {
  DSPARK_SIGNAL_HEAD = 0,      /* the confidence head */
  DSPARK_SIGNAL_TOP1 = 1,      /* max p */
  DSPARK_SIGNAL_MARGIN = 2,    /* largest p less second largest */
  DSPARK_SIGNAL_TOPK_MASS = 3, /* sum of the k largest p; k in the bits above DSPARK_SIGNAL_BITS */
  DSPARK_SIGNAL_ENTROPY = 4,   /* 1 - H(p) / ln Vd */
  DSPARK_SIGNAL_GINI = 5,      /* sum p^2 */
  DSPARK_SIGNAL_TOKEN = 6,     /* p of the token drawn: the one signal that is not pre-token */
} dspark_signal;
#define DSPARK_SIGNAL_BITS 8
/// Cutoff policies (dspark.md 4.2).
typedef enum dspark_policy {
  DSPARK_POLICY_ALL = 0,
  DSPARK_POLICY_THRESHOLD = 1,
  DSPARK_POLICY_SURVIVAL = 2,
  DSPARK_POLICY_UTILITY = 3,
  DSPARK_POLICY_TWO_STRIKES = 4,
  DSPARK_POLICY_DUAL = 5,
  DSPARK_POLICY_RAMP = 6,
} dspark_policy;
/// Parameters of a policy: columns of cutoff_params.
#define DSPARK_CUTOFF_COLUMNS 5
/// How markov_w2 lies in memory; the draft alone is concerned, never what the target makes of its proposals.
typedef enum dspark_head_storage {
  DSPARK_HEAD_FLOAT32 = 0,
  DSPARK_HEAD_BFLOAT16 = 1, /* uint16: the upper half of a float32 */
  DSPARK_HEAD_INT8 = 2,     /* int8 times the scale of its row */
} dspark_head_storage;

/// Sampling parameters of the R requests of a step; every pointer is [R].
typedef struct dspark_sampling {
  const float* temperature;       /* < 1e-5: greedy (relaxed and typical: the most probable token where one is drawn) */
  const int32_t* top_k;           /* 0 = off; larger than the vocabulary = off */
  const float* top_p;             /* (0, 1]; 1 = off. The token that crosses p is kept. */
  const float* min_p;             /* [0, 1]; 0 = off */
  const int32_t* accept_mode;     /* dspark_accept_mode */
  const int64_t* seed;            /* bits of the unsigned Philox key */
  const int32_t* sample_index;    /* counter word 3 */
  const int32_t* anchor_position; /* position of the anchor; prompt length - 1 for the first token */
} dspark_sampling;

/// DSparkDraft: the sequential head, left to right, one token per block position (dspark.md 2.2).
/// x_0 = anchor; p_k = softmax((U_k + B_k(x_{k-1}, h_k)) / T), x_k ~ p_k (filters applied; argmax below 1e-5).
/// Where U_k + B_k of a request holds NaN, +inf or nothing finite, its proposals from k on do not exist: token -1,
/// confidence logit NaN, entropy 0, and zeros for the draft_logits behind k. Other requests are untouched.
typedef struct dspark_draft_params {
  int64_t num_requests; /* R */
  int64_t block_size;   /* K: columns here */
  int64_t draft_vocab;  /* Vd */
  int64_t hidden_size;  /* d; 0 when hidden is null */
  int64_t markov_rank;  /* r; 0 for no head */
  int64_t markov_rows;  /* rows of markov_w1 (target ids); an id outside is an error */
  int32_t head_type;    /* dspark_head_type */
  int32_t head_storage; /* dspark_head_storage */
  int32_t confidence_with_markov;
  int32_t block_offset;          /* block position of column 0 (k of the random counters) */
  const float* base_logits;      /* [R, K, Vd] */
  const float* hidden;           /* [R, K, d]; may be null for head none/vanilla where no signal is the head's */
  const int32_t* anchor_tokens;  /* [R] target ids */
  const float* markov_w1;        /* [markov_rows, r] or null */
  const void* markov_w2;         /* [Vd, r] of head_storage, or null */
  const float* markov_w2_scales; /* [Vd] for int8 storage, else null */
  const float*
      head_weight; /* gated: [r, d + r], input order [h; w1]; rnn: [3r, r + r + d], order [s; w1; h]; else null */
  const float* head_bias;         /* gated: [r]; rnn: [3r] (g, c, o); else null */
  const float* confidence_weight; /* [d (+ r)], order [h; w1]; null where no signal is the head's */
  const float* confidence_bias;   /* [1] or null */
  const int32_t* d2t;             /* [Vd] target id of a draft id (absolute), or null: identity */
  dspark_sampling sampling;
  const int32_t* confidence_signal; /* [R] dspark_signal | k << DSPARK_SIGNAL_BITS; k >= 1 for topk_mass, else 0 */
  const int32_t* cutoff_policy;     /* [R] dspark_policy, or null: nobody reads entropies */
  int32_t* draft_tokens;            /* out [R, K], target ids; -1 from a faulty row on */
  float* confidence_logits;         /* out [R, K]: log(s / (1 - s)) of the signal s of U_k + B_k, unfiltered and at
                                       temperature 1, clamped to +-80; the head's own number as it is */
  float* entropies;                 /* out [R, K]: H(p) / ln Vd in [0, 1] where the policy is dual, else 0; may be null
                                       where none is */
  float* draft_logits;              /* out [R, K, Vd]: U_k + B_k, unfiltered; null when nobody needs it */
} dspark_draft_params;
DSPARK_API dspark_status dspark_draft(const dspark_draft_params* params, const dspark_parallel* parallel);

/// DSparkCutoff: confidences to verify lengths (dspark.md 4.2). c_k = sigmoid(logit_k / t_k), 0 for a logit that is NaN
/// or infinite and for a proposal that does not exist (token -1); a_k = c_1 * ... * c_k. i counts from 1.
/// length = the longest prefix whose every proposal i satisfies, with the columns of cutoff_params:
///   all          -                                      true
///   threshold    tau                                    c_i >= tau
///   survival     tau                                    a_i >= tau
///   utility      tau, w_pos, w_pen, min_len, max_len    i <= min_len or w_pos * c_i - w_pen * i / max_len >= tau
///   two_strikes  tau, min_len                           fewer than two c_j < 0.7 * tau with min_len < j <= i
///   dual         tau_low, tau_high, entropy_bar         c_i >= tau_high, or c_i >= tau_low and H_i / ln Vd <= bar
///   ramp         tau_start, tau_end, K                  c_i >= tau_start + (tau_end - tau_start) * (i - 1) / (K - 1)
/// An inclusive cutoff verifies the proposal that failed, too, and stops those after it: what is decided about a
/// proposal then does not depend on that proposal. verify = min(max(length, min_verify), max_verify, existing ones).
/// Every decision about proposal i reads columns <= i only, so the first k columns give the same prefix.
typedef struct dspark_cutoff_params {
  int64_t num_requests;                  /* R */
  int64_t block_size;                    /* K: columns here */
  const float* confidence_logits;        /* [R, K] */
  const float* entropies;                /* [R, K]; null where no policy is dual */
  const int32_t* draft_tokens;           /* [R, K], -1: no such proposal, nor any behind it; null: all exist */
  const float* calibration_temperatures; /* [R, K], > 0; null: all 1 */
  const int32_t* policy;                 /* [R] dspark_policy */
  const float* params;                   /* [R, DSPARK_CUTOFF_COLUMNS], unused columns 0 */
  const int32_t* inclusive;              /* [R] 0 or 1 */
  const int32_t* min_verify;             /* [R] in [0, max_verify] */
  const int32_t* max_verify;             /* [R] in [0, K] */
  int32_t* verify_lengths;               /* out [R] */
  float* survivals;                      /* out [R, K] in [0, 1] */
  float* confidences;                    /* out [R, K] in [0, 1] */
} dspark_cutoff_params;
DSPARK_API dspark_status dspark_cutoff(const dspark_cutoff_params* params, const dspark_parallel* parallel);

typedef enum dspark_rule_kind {
  DSPARK_RULE_BIAS = 0, /* (0, id, bits of a float): that number is added to the logit of id; -inf is a ban */
  DSPARK_RULE_STOP = 1, /* (1, id, bound): id is impossible at positions below bound */
  DSPARK_RULE_WORD = 2, /* (2, id, remaining): m records with remaining m-1 .. 0 are a word of m tokens */
} dspark_rule_kind;

/// What the target's logits become before they are filtered, in this order: token mask, word bans, stop bans and
/// biases, penalties. The logits of a row belong to the token at its position; what was written before it are the
/// request's committed tokens and, inside a block, the proposals 1 .. k of row k. Output is what lies at or past
/// prompt_lengths. A null pointer switches off what it serves.
///   word:        the last token is impossible where the m-1 OUTPUT tokens before it are the first ones.
///   repetition:  of a token in prompt or output: logit > 0 ? logit / repetition : logit * repetition;
///   then         logit -= frequency * count in the output + presence * (count > 0). Sums in float64, rounded once.
typedef struct dspark_rules {
  int64_t num_slots;             /* B */
  int64_t history_capacity;      /* S */
  int64_t num_rules;             /* E */
  int64_t num_masks;             /* M */
  const float* penalties;        /* [R, 3] repetition > 0 (1 = off), presence, frequency (0 = off) */
  const int32_t* token_history;  /* [B, S]: a row's positions 0 .. anchor are read, the anchor is the last committed */
  const int32_t* slots;          /* [R] row of token_history */
  const int32_t* prompt_lengths; /* [R] */
  const int32_t* rules;          /* [E, 3] */
  const int32_t* rule_offsets;   /* [R+1] cumulative, last <= E */
  const int32_t* token_masks;    /* [M, ceil(V / 32)] bit i of word w: token 32 w + i is possible */
  const int32_t* mask_rows;      /* [N] row of token_masks, -1: every token is possible */
} dspark_rules;

/// Why a round ended.
typedef enum dspark_round_end {
  DSPARK_END_BONUS = 0,      /* every proposal verified was kept */
  DSPARK_END_REJECTED = 1,   /* a proposal was refused */
  DSPARK_END_NAN = 2,        /* from here on faults: this row of logits holds NaN */
  DSPARK_END_INFINITE = 3,   /* +inf */
  DSPARK_END_IMPOSSIBLE = 4, /* no finite logit, or none that the rules leave */
} dspark_round_end;

#define DSPARK_MAX_LOGPROBS 20
#define DSPARK_LOGPROB_COLUMNS (DSPARK_MAX_LOGPROBS + 1)

/// DSparkAccept: which proposals the target keeps, and its own next token (dspark.md 5).
/// Request r owns logit rows row_offsets[r] .. row_offsets[r+1]-1: verify length l = rows - 1 in [0, K].
/// A faulty row k ends the round of its request alone: k proposals are kept and tokens[k] is -1. Rows after the first
/// refusal are no fault, whatever they hold.
///   relaxed: x_k is kept where p_t(x_k) > max_bar + (min_bar - max_bar) * confidence_k;
///   typical: where p_t(x_k) > min(epsilon, delta * exp(-H(p_t))).
/// Below temperature 1e-5 both read p_t at temperature 1, filtered, and emit its most probable token.
typedef struct dspark_accept_params {
  int64_t num_requests;
  int64_t block_size;          /* K: columns of draft_tokens and draft_logits */
  int64_t vocab;               /* V */
  int64_t draft_vocab;         /* Vd */
  int64_t num_rows;            /* N */
  const float* logits;         /* [N, V] target logits, as the model gave them */
  const int32_t* row_offsets;  /* [R+1], cumulative, last <= N */
  const int32_t* draft_tokens; /* [R, K] target ids; columns >= l are not read; may be null when all l are 0 */
  const float* draft_logits;   /* [R, K, Vd]; may be null when no request with l > 0 uses rejection */
  const int32_t* d2t;          /* [Vd] or null */
  dspark_sampling sampling;
  dspark_rules rules;
  const float* relaxation;     /* [R, 2] relaxed: min_bar, max_bar; typical: epsilon, delta. Null: neither is used */
  const float* confidences;    /* [R, K] in [0, 1], NaN counts as 0; null when no request with l > 0 is relaxed */
  const int32_t* num_logprobs; /* [R] in [-1, 20], -1: none; null: none for all */
  int32_t* accepted;           /* out [R] in [0, l] */
  int32_t* tokens;             /* out [R, K+1]: kept proposals, the target's token, then -1 */
  int32_t* round_ends;         /* out [R] dspark_round_end */
  float* logprobs;             /* out [R, K+1, 21]; this and the next two may be null where num_logprobs is */
  int32_t* logprob_ids;        /* out [R, K+1, 21] */
  int32_t* logprob_ranks;      /* out [R, K+1] */
} dspark_accept_params;
DSPARK_API dspark_status dspark_accept(const dspark_accept_params* params, const dspark_parallel* parallel);

/// Log-probabilities: log_softmax of a row of logits as the model gave them, before masks, penalties and temperature.
/// Column 0 is the token asked for, columns 1 .. num the most probable ones (descending, ties by lower id); the others
/// hold 0 and id -1. rank is 1 + the number of tokens with a larger logit. A row with token -1 or num -1 holds nothing:
/// 0, id -1, rank 0. One with NaN, +inf or no finite value gives NaN for its token and rank 0, no others.
typedef struct dspark_logprobs_params {
  int64_t num_rows;            /* N */
  int64_t vocab;               /* V */
  const float* logits;         /* [N, V] */
  const int32_t* tokens;       /* [N] */
  const int32_t* num_logprobs; /* [N] in [-1, 20] */
  float* logprobs;             /* out [N, 21] */
  int32_t* logprob_ids;        /* out [N, 21] */
  int32_t* logprob_ranks;      /* out [N] */
} dspark_logprobs_params;
DSPARK_API dspark_status dspark_logprobs(const dspark_logprobs_params* params, const dspark_parallel* parallel);

/// How queries or updates are laid out.
typedef enum dspark_form {
  DSPARK_PACKED_NHD = 0,  /* [T, H, D], lengths cumulative [B+1] */
  DSPARK_PADDED_BHND = 1, /* [B, H, Q, D] */
} dspark_form;

/// TRT_KVCacheUpdate: cache[b, :, write_indices[b] + s, :] = update of token s of slot b; nothing else changes.
typedef struct dspark_kv_update_params {
  int64_t num_slots;            /* B */
  int64_t num_heads;            /* Hkv */
  int64_t capacity;             /* S */
  int64_t head_width;           /* D */
  int64_t num_tokens;           /* T of the packed form, Q of the padded form */
  int32_t form;                 /* dspark_form */
  const float* update;          /* packed [T, Hkv, D] or padded [B, Hkv, Q, D] */
  const int32_t* write_indices; /* [B] */
  const int32_t*
      update_lengths; /* [B+1] cumulative (packed; rows past the last entry are ignored); null: padded, all Q written */
  float* cache;       /* in/out [B, Hkv, S, D] */
} dspark_kv_update_params;
DSPARK_API dspark_status dspark_kv_update(const dspark_kv_update_params* params, const dspark_parallel* parallel);

typedef enum dspark_causal {
  DSPARK_CAUSAL_NONE = 0,
  DSPARK_CAUSAL_UPPER_LEFT = 1,
  DSPARK_CAUSAL_LOWER_RIGHT = 2
} dspark_causal;

/// TRT_Attention: softmax(q k^T) v over the first kv_lengths[b] keys, grouped heads, float sums, NO scaling.
/// lower_right: query i of the Q_b of a slot sees keys [0, kv_lengths[b] - Q_b + i]; upper_left: keys [0, i].
/// A query that sees no key gives zeros. Cost follows kv_lengths, never the capacity.
/// The result of a row depends on that row and its keys alone: not on Q, B, T or threads.
typedef struct dspark_attention_params {
  int64_t num_slots;    /* B */
  int64_t num_heads;    /* H */
  int64_t num_kv_heads; /* Hkv divides H */
  int64_t capacity;     /* S */
  int64_t head_width;   /* D */
  int64_t num_tokens;   /* T (packed) or Q (padded) */
  int32_t query_form;   /* dspark_form */
  int32_t causal;       /* dspark_causal */
  const float* query;   /* packed [T, H, D] or padded [B, H, Q, D] */
  const float* key;     /* [B, Hkv, S, D] */
  const float* value;   /* [B, Hkv, S, D] */
  const int32_t*
      query_lengths;         /* packed: cumulative [B+1], rows past the last entry give zeros; padded: null, Q each */
  const int32_t* kv_lengths; /* [B] */
  float* output;             /* as query */
} dspark_attention_params;
DSPARK_API dspark_status dspark_attention(const dspark_attention_params* params, const dspark_parallel* parallel);

/// How a checkpoint stores a weight: what a float32 weight w is made of, always exactly.
typedef enum dspark_storage {
  DSPARK_STORAGE_BF16 = 0, /* the upper 16 bits of w */
  DSPARK_STORAGE_Q8_0 = 1, /* w = d * q: q in [-128, 127], a float16 d for 32 inputs */
  DSPARK_STORAGE_Q4_1 = 2, /* w = d * q + m: q in [0, 15], float16 d and m for 32 inputs */
} dspark_storage;

/// DSparkLinear: y = x W^T + bias in float32, W [out_features, in_features] kept as the checkpoint stores it.
/// Columns of y come in slabs of 64; a word holds the next few weights of one column, the first in its lowest bits:
///   bf16  in_features / 2 words: two weights each;                                in_features even
///   q8_0  a block of 32 inputs is 1 word (d as float32) and 8 words of four q;    in_features a multiple of 32
///   q4_1  a block of 32 inputs is 1 word (d, m as float16) and 4 words of eight q;             the same
/// y[m, n] = (fma over k = 0, 1, ... of x[m, k], w[n, k]) + bias[n]: a row depends on that row alone, to the last bit,
/// not on num_rows or threads. (Processors without fma round the products too.)
typedef struct dspark_linear_params {
  int64_t num_rows;      /* M */
  int64_t in_features;   /* K */
  int64_t out_features;  /* N */
  int32_t storage;       /* dspark_storage */
  const float* input;    /* [M, K] */
  const int32_t* weight; /* [ceil(N / 64), words of a column, 64]; columns past N are not used */
  const float* bias;     /* [N] or null */
  float* output;         /* [M, N] */
} dspark_linear_params;
/// Words of one column; -1 where the storage is unknown or does not take in_features.
DSPARK_API int64_t dspark_linear_words(int32_t storage, int64_t in_features);
DSPARK_API dspark_status dspark_linear(const dspark_linear_params* params, const dspark_parallel* parallel);

#ifdef __cplusplus
}
#endif
#endif  // DSPARK_DSPARK_OPS_H_
