#include "draft_check.h"

#include "check.h"
#include "dspark/ops/draft.h"
#include "dspark/ops/signal.h"

namespace dspark {
namespace {

constexpr const char* kOp = kDraftOp;

void check_signals(const dspark_draft_params& params) {
  check_pointer(kOp, "confidence_signal", params.confidence_signal);
  for (int64_t r = 0; r < params.num_requests; ++r) {
    const Signal signal = signal_of(params.confidence_signal[r]);
    if (signal.kind > DSPARK_SIGNAL_TOKEN || params.confidence_signal[r] < 0) {
      refuse(kOp, ": confidence_signal[", r, "] is ", params.confidence_signal[r],
             ", wanted 0 (head), 1 (top1), 2 (margin), 3 (topk_mass) plus 256 k, 4 (entropy), 5 (gini) or 6 (token)");
    }
    const bool counts = signal.kind == DSPARK_SIGNAL_TOPK_MASS;
    if (counts != (signal.k > 0)) {
      refuse(kOp, ": confidence_signal[", r, "] has kind ", signal.kind, " and k ", signal.k, ", wanted k ",
             counts ? ">= 1" : "0, since topk_mass (3) alone counts tokens");
    }
    if (signal.kind == DSPARK_SIGNAL_HEAD && params.confidence_weight == nullptr) {
      refuse(kOp, ": confidence_signal[", r,
             "] is 0 (head), but this draft has no confidence head (confidence_weight is null), wanted another signal");
    }
  }
}

void check_policies(const dspark_draft_params& params) {
  for (int64_t r = 0; params.cutoff_policy && r < params.num_requests; ++r) {
    if (params.cutoff_policy[r] < DSPARK_POLICY_ALL || params.cutoff_policy[r] > DSPARK_POLICY_RAMP) {
      refuse(kOp, ": cutoff_policy[", r, "] is ", params.cutoff_policy[r], ", wanted 0 to ", int{DSPARK_POLICY_RAMP});
    }
    if (params.cutoff_policy[r] == DSPARK_POLICY_DUAL) check_pointer(kOp, "entropies", params.entropies);
  }
}

void check_head(const dspark_draft_params& params) {
  const bool head = params.head_type != DSPARK_HEAD_NONE;
  const bool signal_head = any_signal(params, DSPARK_SIGNAL_HEAD);
  const bool embeds = embeds_previous(params);
  check_range(kOp, "markov_rank", params.markov_rank, embeds ? 1 : 0, 1 << 20);
  if (embeds) {
    check_pointer(kOp, "markov_w1", params.markov_w1);
    check_range(kOp, "markov_rows", params.markov_rows, 1, INT32_MAX);
  }
  if (head) {
    check_pointer(kOp, "markov_w2", params.markov_w2);
    if (params.head_storage < DSPARK_HEAD_FLOAT32 || params.head_storage > DSPARK_HEAD_INT8) {
      refuse(kOp, ": head_storage is ", params.head_storage, ", wanted 0 (float32), 1 (bfloat16) or 2 (int8)");
    }
    const bool scaled = params.head_storage == DSPARK_HEAD_INT8;
    if (scaled != (params.markov_w2_scales != nullptr)) {
      refuse(kOp, ": markov_w2_scales is ", scaled ? "null" : "given", " but head_storage is ", params.head_storage,
             ", wanted scales with 2 (int8) alone");
    }
  }
  if (gate_rows(params) > 0) {
    check_pointer(kOp, "head_weight", params.head_weight);
    check_pointer(kOp, "head_bias", params.head_bias);
  }
  if (gate_rows(params) > 0 || signal_head) {
    check_pointer(kOp, "hidden", params.hidden);
    check_range(kOp, "hidden_size", params.hidden_size, 1, 1 << 24);
  }
}

}  // namespace

bool any_signal(const dspark_draft_params& params, int32_t kind) {
  for (int64_t r = 0; r < params.num_requests; ++r) {
    if (signal_of(params.confidence_signal[r]).kind == kind) return true;
  }
  return false;
}

bool embeds_previous(const dspark_draft_params& params) {
  return params.head_type != DSPARK_HEAD_NONE ||
         (params.confidence_with_markov && any_signal(params, DSPARK_SIGNAL_HEAD));
}

void check_embedded(const dspark_draft_params& params, const char* what, int64_t request, int64_t token) {
  if (token < 0 || token >= params.markov_rows) {
    refuse(kOp, ": ", what, " of request ", request, " is token ", token,
           ", wanted an id in [0, markov_rows = ", params.markov_rows, ")");
  }
}

void check_draft(const dspark_draft_params& params) {
  check_range(kOp, "num_requests", params.num_requests, 0, INT32_MAX);
  check_range(kOp, "block_size", params.block_size, 1, 1 << 20);
  check_range(kOp, "draft_vocab", params.draft_vocab, 1, INT32_MAX);
  check_range(kOp, "block_offset", params.block_offset, 0, (1 << 24) - params.block_size);
  if (params.head_type < DSPARK_HEAD_NONE || params.head_type > DSPARK_HEAD_RNN) {
    refuse(kOp, ": head_type is ", params.head_type, ", wanted 0 (none), 1 (vanilla), 2 (gated) or 3 (rnn)");
  }
  if (params.num_requests == 0) return;
  check_signals(params);
  check_policies(params);
  check_head(params);
  check_pointer(kOp, "base_logits", params.base_logits);
  check_pointer(kOp, "anchor_tokens", params.anchor_tokens);
  check_pointer(kOp, "draft_tokens", params.draft_tokens);
  check_pointer(kOp, "confidence_logits", params.confidence_logits);
  check_sampling(kOp, params.sampling, params.num_requests);
  const bool embeds = embeds_previous(params);
  check_d2t(kOp, params.d2t, params.draft_vocab, embeds ? params.markov_rows : INT32_MAX);
  for (int64_t r = 0; embeds && r < params.num_requests; ++r) {
    check_embedded(params, "the anchor", r, params.anchor_tokens[r]);
  }
}

}  // namespace dspark
