#include "dspark/ops/accept.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../status.h"
#include "check.h"
#include "dspark/parallel.h"
#include "filter.h"
#include "logprobs.h"
#include "rows.h"
#include "rules.h"

namespace dspark {
namespace {

constexpr const char* kOp = "DSparkAccept";

bool uses_draft_logits(const dspark_accept_params& params, int64_t request) {
  return params.row_offsets[request + 1] - params.row_offsets[request] > 1 &&
         acceptance_of(params.sampling, request).sampling.mode == DSPARK_REJECTION;
}

bool wants_logprobs(const dspark_accept_params& params) {
  for (int64_t r = 0; params.num_logprobs && r < params.num_requests; ++r) {
    if (params.num_logprobs[r] >= 0) return true;
  }
  return false;
}

void check_rows(const dspark_accept_params& params) {
  const int32_t* offsets = params.row_offsets;
  if (offsets[0] < 0) refuse(kOp, ": row_offsets[0] is ", offsets[0], ", wanted >= 0");
  for (int64_t r = 0; r < params.num_requests; ++r) {
    const int64_t rows = static_cast<int64_t>(offsets[r + 1]) - offsets[r];
    if (rows < 1 || rows > params.block_size + 1) {
      refuse(kOp, ": row_offsets gives request ", r, " ", rows,
             " rows, wanted 1 to block_size + 1 = ", params.block_size + 1);
    }
    if (offsets[r + 1] > params.num_rows) {
      refuse(kOp, ": row_offsets[", r + 1, "] is ", offsets[r + 1], ", wanted at most num_rows ", params.num_rows);
    }
    if (rows > 1) check_pointer(kOp, "draft_tokens", params.draft_tokens);
    for (int64_t k = 0; k + 1 < rows; ++k) {
      const int32_t token = params.draft_tokens[r * params.block_size + k];
      if (token < 0 || token >= params.vocab) {
        refuse(kOp, ": draft_tokens[", r, ", ", k, "] is ", token, ", wanted an id in [0, vocab = ", params.vocab, ")");
      }
    }
  }
}

void check_relaxation(const dspark_accept_params& params) {
  for (int64_t r = 0; r < params.num_requests; ++r) {
    const int32_t mode = acceptance_of(params.sampling, r).sampling.mode;
    if (!is_lossy(mode)) continue;
    check_pointer(kOp, "relaxation", params.relaxation);
    for (int i = 0; i < 2; ++i) {
      const float value = params.relaxation[2 * r + i];
      if (value >= 0.f && std::isfinite(value)) continue;
      refuse(kOp, ": relaxation[", r, ", ", i, "] is ", value, ", wanted a finite number >= 0");
    }
    const bool verifies = params.row_offsets[r + 1] - params.row_offsets[r] > 1;
    if (verifies && mode == DSPARK_RELAXED) check_pointer(kOp, "confidences", params.confidences);
  }
}

void check(const dspark_accept_params& params) {
  check_range(kOp, "num_requests", params.num_requests, 0, INT32_MAX);
  check_range(kOp, "block_size", params.block_size, 0, 1 << 20);
  check_range(kOp, "vocab", params.vocab, 1, INT32_MAX);
  check_range(kOp, "num_rows", params.num_rows, 0, INT32_MAX);
  if (params.num_requests == 0) return;
  check_pointer(kOp, "logits", params.logits);
  check_pointer(kOp, "row_offsets", params.row_offsets);
  check_pointer(kOp, "accepted", params.accepted);
  check_pointer(kOp, "tokens", params.tokens);
  check_pointer(kOp, "round_ends", params.round_ends);
  check_sampling(kOp, params.sampling, params.num_requests);
  check_rows(params);
  check_rules(kOp, params);
  check_relaxation(params);
  if (params.num_logprobs) check_num_logprobs(kOp, params.num_logprobs, params.num_requests);
  if (wants_logprobs(params)) {
    check_pointer(kOp, "logprobs", params.logprobs);
    check_pointer(kOp, "logprob_ids", params.logprob_ids);
    check_pointer(kOp, "logprob_ranks", params.logprob_ranks);
  }
  bool draft_logits = false;
  for (int64_t r = 0; r < params.num_requests; ++r) draft_logits = draft_logits || uses_draft_logits(params, r);
  if (!draft_logits) return;
  check_pointer(kOp, "draft_logits", params.draft_logits);
  check_range(kOp, "draft_vocab", params.draft_vocab, 1, INT32_MAX);
  check_d2t(kOp, params.d2t, params.draft_vocab, params.vocab);
}

/// DSPARK_END_BONUS where the row can be used.
dspark_round_end fault_of(const RowMax& max) {
  if (max.usable()) return DSPARK_END_BONUS;
  if (max.has_nan) return DSPARK_END_NAN;
  return max.id < 0 ? DSPARK_END_IMPOSSIBLE : DSPARK_END_INFINITE;
}

/// The rows of a request, processed and filtered one at a time, and draws from them (see accept_request).
class CpuRows {
 public:
  void open(const dspark_accept_params& params, int64_t request, const Acceptance& how) {
    params_ = &params;
    request_ = request;
    sampling_ = how.sampling;
    rules_.open(params, request);
  }

  dspark_round_end load_target(int64_t k) {
    const float* given = params_->logits + (params_->row_offsets[request_] + k) * params_->vocab;
    if (!rules_.active()) return load_target_row(given);
    // A faulty row stays one, even where the rules would ban the fault away.
    const RowMax max = row_max(given, params_->vocab);
    return max.usable() ? load_target_row(rules_.processed(given, k)) : fault_of(max);
  }

  dspark_round_end load_draft(int64_t k) {
    const float* logits = params_->draft_logits + (request_ * params_->block_size + k) * params_->draft_vocab;
    return fault_of(draft_.load(logits, params_->draft_vocab, sampling_));
  }

  int32_t best() const { return best_; }

  double target_entropy() const { return target_.entropy(); }

  double target_probability(int32_t id) const { return target_.row().probability(id); }

  double draft_probability(int32_t id) const {
    return draft_.row().probability(draft_id_of(id, params_->d2t, params_->draft_vocab));
  }

  int32_t draw_target(const DrawKey& key) { return target_.draw(key, nullptr); }

  /// From max(p_t - p_d, 0) over the tokens that the target keeps.
  int32_t draw_residual(const DrawKey& key) {
    const int64_t count = target_.count();
    residual_.resize(static_cast<size_t>(count));
    const double target_scale = 1.0 / target_.row().total;
    for (int64_t i = 0; i < count; ++i) residual_[static_cast<size_t>(i)] = target_.weights()[i] * target_scale;
    subtract_draft(count);
    double mass = 0.0;
    for (double& weight : residual_) {
      weight = weight > 0.0 ? weight : 0.0;
      mass += weight;
    }
    // Equal distributions that rounding told apart leave nothing to draw from: then p_t itself is right.
    if (!(mass > 0.0 && std::isfinite(mass))) return draw_target(key);
    return target_.id(draw_index(residual_.data(), target_.ids(), count, key));
  }

 private:
  dspark_round_end load_target_row(const float* logits) {
    const bool greedy = sampling_.mode == DSPARK_GREEDY;
    const RowMax max = greedy ? row_max(logits, params_->vocab) : target_.load(logits, params_->vocab, sampling_);
    best_ = max.id;
    return fault_of(max);
  }

  /// Both lists ascend in target ids, so one walk over the two is enough.
  void subtract_draft(int64_t count) {
    const double draft_scale = 1.0 / draft_.row().total;
    const int32_t* d2t = params_->d2t;
    int64_t i = 0;
    for (int64_t j = 0; j < draft_.count(); ++j) {
      const int32_t draft_id = draft_.id(j);
      const int32_t id = d2t ? d2t[draft_id] : draft_id;
      if (target_.ids() == nullptr) {
        i = id;
      } else {
        while (i < count && target_.id(i) < id) ++i;
      }
      if (i >= count) break;
      if (target_.id(i) == id) residual_[static_cast<size_t>(i)] -= draft_.weights()[j] * draft_scale;
    }
  }

  const dspark_accept_params* params_ = nullptr;
  int64_t request_ = 0;
  Sampling sampling_{};
  RuledRows rules_;
  int32_t best_ = -1;
  CpuRow target_;
  CpuRow draft_;
  std::vector<double> residual_;
};

/// A piece of work: one row of a greedy request without rules, or any other request as a whole (row < 0).
struct Piece {
  int64_t request;
  int64_t row;
};

/// A token emitted by the target's row `row`, whose log-probabilities are wanted.
struct Emitted {
  int64_t request;
  int64_t k;
};

struct AcceptScratch {
  std::vector<Piece> pieces;
  std::vector<RowMax> maxima; /* [N], rows of greedy requests without rules only */
  std::vector<Emitted> emitted;
};

/// Keeps x_k while it is the argmax of its row, then emits that row's argmax. Rows after it were looked at
/// in vain but do not count: a fault there is no fault of this round.
void finish_greedy(const dspark_accept_params& params, int64_t request, const std::vector<RowMax>& maxima) {
  const int64_t first = params.row_offsets[request];
  const int64_t verify_length = params.row_offsets[request + 1] - first - 1;
  for (int64_t k = 0;; ++k) {
    const RowMax& max = maxima[static_cast<size_t>(first + k)];
    const bool last = k == verify_length;
    if (max.usable() && !last && params.draft_tokens[request * params.block_size + k] == max.id) continue;
    const dspark_round_end end = !max.usable() ? fault_of(max) : last ? DSPARK_END_BONUS : DSPARK_END_REJECTED;
    return write_outcome(params, request, k, max.usable() ? max.id : -1, end);
  }
}

/// Of every token of the outcome, from the row that decided it.
void write_all_logprobs(const dspark_accept_params& params, const dspark_parallel* parallel,
                        std::vector<Emitted>& emitted) {
  const int64_t columns = params.block_size + 1;
  const auto place = [&](int64_t request, int64_t k) {
    const int64_t index = request * columns + k;
    return LogprobsRow{params.logprobs + index * DSPARK_LOGPROB_COLUMNS,
                       params.logprob_ids + index * DSPARK_LOGPROB_COLUMNS, params.logprob_ranks + index};
  };
  emitted.clear();
  for (int64_t r = 0; r < params.num_requests; ++r) {
    for (int64_t k = 0; k < columns; ++k) {
      place(r, k).clear();
      const bool wanted = params.num_logprobs && params.num_logprobs[r] >= 0;
      if (wanted && params.tokens[r * columns + k] >= 0) emitted.push_back({r, k});
    }
  }
  parallel_for(parallel, static_cast<int64_t>(emitted.size()), [&](int64_t i) {
    const Emitted at = emitted[static_cast<size_t>(i)];
    const float* logits = params.logits + (params.row_offsets[at.request] + at.k) * params.vocab;
    write_logprobs(logits, params.vocab, params.tokens[at.request * columns + at.k], params.num_logprobs[at.request],
                   place(at.request, at.k));
  });
}

void accept(const dspark_accept_params& params, const dspark_parallel* parallel) {
  thread_local AcceptScratch scratch;
  AcceptScratch& call = scratch;  // a lambda on another thread would see its own thread_local
  call.pieces.clear();
  call.maxima.resize(std::max(call.maxima.size(), static_cast<size_t>(params.num_rows)));
  for (int64_t r = 0; r < params.num_requests; ++r) {
    if (acceptance_of(params.sampling, r).sampling.mode != DSPARK_GREEDY || has_rules(params, r)) {
      call.pieces.push_back({r, -1});
      continue;
    }
    for (int64_t row = params.row_offsets[r]; row < params.row_offsets[r + 1]; ++row) call.pieces.push_back({r, row});
  }
  parallel_for(parallel, static_cast<int64_t>(call.pieces.size()), [&](int64_t i) {
    const Piece piece = call.pieces[static_cast<size_t>(i)];
    if (piece.row >= 0) {
      call.maxima[static_cast<size_t>(piece.row)] = row_max(params.logits + piece.row * params.vocab, params.vocab);
      return;
    }
    thread_local CpuRows rows;
    const Acceptance how = acceptance_of(params.sampling, piece.request);
    rows.open(params, piece.request, how);
    accept_request(params, piece.request, how, rows);
  });
  for (const Piece& piece : call.pieces) {
    if (piece.row == params.row_offsets[piece.request]) finish_greedy(params, piece.request, call.maxima);
  }
  if (params.logprobs && params.logprob_ids && params.logprob_ranks) write_all_logprobs(params, parallel, call.emitted);
}

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_accept(const dspark_accept_params* params, const dspark_parallel* parallel) {
  return dspark::guarded(DSPARK_OP_ACCEPT, [&] {
    dspark::check_pointer(dspark::kOp, "params", params);
    dspark::check(*params);
    dspark::accept(*params, parallel);
  });
}
