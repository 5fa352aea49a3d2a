#include "dspark/ops/draft.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../status.h"
#include "check.h"
#include "dspark/parallel.h"
#include "filter.h"
#include "rows.h"

namespace dspark {
namespace {

constexpr const char* kOp = "DSparkDraft";

/// What a tile of a row reports; tiles are combined in order.
struct TileResult {
  RowMax max;
  double others; /* top1 only: sum over the tile's other rows of exp(l - max) */
};

/// Call-wide memory, kept by the calling thread: a decode loop allocates once.
struct DraftScratch {
  std::vector<float> from_hidden;  /* [R, K, gate rows] */
  std::vector<float> gates;        /* [R, gate rows] */
  std::vector<float> states;       /* [R, r]: what W2 multiplies */
  std::vector<float> memory;       /* [R, r]: s_k of the rnn head */
  std::vector<float> rows;         /* [R, Vd] where a whole row is needed and nobody asked for draft_logits */
  std::vector<TileResult> tiles;   /* [R, tiles] */
  std::vector<int32_t> previous;   /* [R] x_{k-1} */
  std::vector<int64_t> sampled;    /* requests that draw, ascending */
  std::vector<RowMax> sampled_max; /* of their rows at the current position */
};

bool embeds_previous(const dspark_draft_params& params) {
  return params.head_type != DSPARK_HEAD_NONE || (params.signal == DSPARK_SIGNAL_HEAD && params.confidence_with_markov);
}

void check_head(const dspark_draft_params& params) {
  if (params.head_type < DSPARK_HEAD_NONE || params.head_type > DSPARK_HEAD_RNN) {
    refuse(kOp, ": head_type is ", params.head_type, ", wanted 0 (none), 1 (vanilla), 2 (gated) or 3 (rnn)");
  }
  if (params.signal != DSPARK_SIGNAL_HEAD && params.signal != DSPARK_SIGNAL_TOP1) {
    refuse(kOp, ": signal is ", params.signal, ", wanted 0 (head) or 1 (top1)");
  }
  const bool head = params.head_type != DSPARK_HEAD_NONE;
  const bool signal_head = params.signal == DSPARK_SIGNAL_HEAD;
  const bool gates = gate_rows(params) > 0;
  const bool embeds = embeds_previous(params);
  check_range(kOp, "markov_rank", params.markov_rank, embeds ? 1 : 0, 1 << 20);
  if (embeds) {
    check_pointer(kOp, "markov_w1", params.markov_w1);
    check_range(kOp, "markov_rows", params.markov_rows, 1, INT32_MAX);
  }
  if (head) check_pointer(kOp, "markov_w2", params.markov_w2);
  if (params.head_type == DSPARK_HEAD_GATED || params.head_type == DSPARK_HEAD_RNN) {
    check_pointer(kOp, "head_weight", params.head_weight);
    check_pointer(kOp, "head_bias", params.head_bias);
  }
  if (gates || signal_head) {
    check_pointer(kOp, "hidden", params.hidden);
    check_range(kOp, "hidden_size", params.hidden_size, 1, 1 << 24);
  }
  if (signal_head) check_pointer(kOp, "confidence_weight", params.confidence_weight);
}

void check_embedded(const dspark_draft_params& params, const char* what, int64_t request, int64_t token) {
  if (token < 0 || token >= params.markov_rows) {
    refuse(kOp, ": ", what, " of request ", request, " is token ", token,
           ", wanted an id in [0, markov_rows = ", params.markov_rows, ")");
  }
}

void check(const dspark_draft_params& params) {
  check_range(kOp, "num_requests", params.num_requests, 0, INT32_MAX);
  check_range(kOp, "block_size", params.block_size, 1, 1 << 20);
  check_range(kOp, "draft_vocab", params.draft_vocab, 1, INT32_MAX);
  check_range(kOp, "block_offset", params.block_offset, 0, (1 << 24) - params.block_size);
  check_head(params);
  if (params.num_requests == 0) return;
  check_pointer(kOp, "base_logits", params.base_logits);
  check_pointer(kOp, "anchor_tokens", params.anchor_tokens);
  check_pointer(kOp, "draft_tokens", params.draft_tokens);
  check_pointer(kOp, "confidence_logits", params.confidence_logits);
  check_sampling(kOp, params.sampling, params.num_requests);
  check_d2t(kOp, params.d2t, params.draft_vocab, embeds_previous(params) ? params.markov_rows : INT32_MAX);
  if (!embeds_previous(params)) return;
  for (int64_t r = 0; r < params.num_requests; ++r) check_embedded(params, "the anchor", r, params.anchor_tokens[r]);
}

DSPARK_CLONES void run_gate_from_hidden(const GateFromHidden& body, int64_t tile) { body(tile, SoloTeam{}); }

DSPARK_CLONES void run_gate_from_previous(const GateFromPrevious& body, int64_t tile) { body(tile, SoloTeam{}); }

DSPARK_CLONES void run_markov_tile(const MarkovTile& body) { body(SoloTeam{}); }

DSPARK_CLONES float run_head_confidence(const dspark_draft_params& params, int64_t request, int64_t k,
                                        int32_t previous_token) {
  return head_confidence(params, request, k, previous_token, SoloTeam{});
}

template <class T>
void grow(std::vector<T>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) < size) values.resize(static_cast<size_t>(size));
}

/// One call: the loop over block positions.
class Draft {
 public:
  Draft(const dspark_draft_params& params, const dspark_parallel* parallel, DraftScratch& scratch)
      : params_(params),
        parallel_(parallel),
        scratch_(scratch),
        num_tiles_((params.draft_vocab + kMarkovTile - 1) / kMarkovTile) {}

  void run() {
    prepare();
    for (int64_t k = 0; k < params_.block_size; ++k) {
      if (params_.signal == DSPARK_SIGNAL_HEAD) {
        for (int64_t r = 0; r < params_.num_requests; ++r) {
          const int32_t previous = scratch_.previous[static_cast<size_t>(r)];
          params_.confidence_logits[r * params_.block_size + k] = run_head_confidence(params_, r, k, previous);
        }
      }
      advance_states(k);
      parallel_for(parallel_, num_tiles_, [&](int64_t tile) { fill_tile(k, tile); });
      finish_position(k);
    }
  }

 private:
  void prepare() {
    const int64_t requests = params_.num_requests;
    const int64_t rank = params_.markov_rank;
    scratch_.previous.assign(params_.anchor_tokens, params_.anchor_tokens + requests);
    scratch_.sampled.clear();
    for (int64_t r = 0; r < requests; ++r) {
      if (sampling_of(params_.sampling, r).mode != DSPARK_GREEDY) scratch_.sampled.push_back(r);
    }
    scratch_.sampled_max.resize(scratch_.sampled.size());
    grow(scratch_.tiles, requests * num_tiles_);
    const bool whole_rows = !scratch_.sampled.empty() && params_.draft_logits == nullptr;
    if (whole_rows && params_.head_type != DSPARK_HEAD_NONE) grow(scratch_.rows, requests * params_.draft_vocab);
    const int64_t gates = gate_rows(params_);
    if (gates > 0) {
      grow(scratch_.states, requests * rank);
      grow(scratch_.gates, requests * gates);
      grow(scratch_.from_hidden, requests * params_.block_size * gates);
      scratch_.memory.assign(static_cast<size_t>(requests * rank), 0.f);
      const GateFromHidden body{params_, scratch_.from_hidden.data()};
      parallel_for(parallel_, (gates + kGateTile - 1) / kGateTile,
                   [&](int64_t tile) { run_gate_from_hidden(body, tile); });
    }
  }

  /// What W2 multiplies at position k, for all requests.
  void advance_states(int64_t k) {
    const int64_t gates = gate_rows(params_);
    if (gates == 0) return;
    const GateFromPrevious body{params_, scratch_.from_hidden.data(), scratch_.previous.data(), scratch_.memory.data(),
                                k,       scratch_.gates.data()};
    parallel_for(parallel_, (gates + kGateTile - 1) / kGateTile,
                 [&](int64_t tile) { run_gate_from_previous(body, tile); });
    const int64_t rank = params_.markov_rank;
    for (int64_t r = 0; r < params_.num_requests; ++r) {
      const float* gate = scratch_.gates.data() + r * gates;
      float* state = scratch_.states.data() + r * rank;
      if (params_.head_type == DSPARK_HEAD_GATED) {
        const float* embedded = embedding(r);
        for (int64_t j = 0; j < rank; ++j) state[j] = gated_state(gate[j], embedded[j]);
      } else {
        float* memory = scratch_.memory.data() + r * rank;
        for (int64_t j = 0; j < rank; ++j) {
          memory[j] = rnn_state(gate[j], gate[rank + j], memory[j]);
          state[j] = std::tanh(gate[2 * rank + j]);
        }
      }
    }
  }

  const float* embedding(int64_t request) const {
    return params_.markov_w1 +
           static_cast<int64_t>(scratch_.previous[static_cast<size_t>(request)]) * params_.markov_rank;
  }

  const float* base_row(int64_t request, int64_t k) const {
    return params_.base_logits + (request * params_.block_size + k) * params_.draft_vocab;
  }

  bool is_sampled(int64_t request) const { return sampling_of(params_.sampling, request).mode != DSPARK_GREEDY; }

  /// Where U_k + B_k of a request is kept; null where only its maximum is wanted.
  float* kept_row(int64_t request, int64_t k) const {
    if (params_.draft_logits) {
      return params_.draft_logits + (request * params_.block_size + k) * params_.draft_vocab;
    }
    if (params_.head_type == DSPARK_HEAD_NONE || !is_sampled(request)) return nullptr;
    return scratch_.rows.data() + request * params_.draft_vocab;
  }

  /// The finished row of a sampled request.
  const float* row(int64_t request, int64_t k) const {
    const float* kept = kept_row(request, k);
    return kept ? kept : base_row(request, k);
  }

  /// One tile of W2 for all requests, so that W2 is read once per position.
  void fill_tile(int64_t k, int64_t tile) {
    const int64_t first = tile * kMarkovTile;
    const int64_t count = std::min(kMarkovTile, params_.draft_vocab - first);
    const int64_t rank = params_.markov_rank;
    float local[kMarkovTile];
    for (int64_t r = 0; r < params_.num_requests; ++r) {
      const float* base = base_row(r, k) + first;
      float* kept = kept_row(r, k);
      const float* values = kept ? kept + first : local;
      if (params_.head_type == DSPARK_HEAD_NONE) {
        if (kept) std::memcpy(kept + first, base, static_cast<size_t>(count) * sizeof(float));
        values = base;
      } else {
        const float* state =
            params_.head_type == DSPARK_HEAD_VANILLA ? embedding(r) : scratch_.states.data() + r * rank;
        run_markov_tile({base, params_.markov_w2 + first * rank, state, rank, count, kept ? kept + first : local});
      }
      TileResult& result = scratch_.tiles[static_cast<size_t>(r * num_tiles_ + tile)];
      result.max = row_max(values, count);
      result.others = 0.0;
      if (params_.signal == DSPARK_SIGNAL_TOP1 && result.max.id >= 0) {
        // Summed around the largest, not as (sum - 1): the rest may be far below one rounding of the sum.
        const int64_t winner = result.max.id;
        const double max = static_cast<double>(result.max.value);
        result.others = row_exp_sum(values, winner, max) + row_exp_sum(values + winner + 1, count - winner - 1, max);
      }
      result.max.id = result.max.id < 0 ? -1 : result.max.id + static_cast<int32_t>(first);
    }
  }

  /// The row's maximum out of its tiles, and its top1 confidence where that is the signal.
  RowMax combine(int64_t request, int64_t k) {
    const TileResult* tiles = scratch_.tiles.data() + request * num_tiles_;
    RowMax max = tiles[0].max;
    for (int64_t t = 1; t < num_tiles_; ++t) {
      const bool has_nan = max.has_nan || tiles[t].max.has_nan;
      if (tiles[t].max.value > max.value) max = tiles[t].max;
      max.has_nan = has_nan;
    }
    if (!max.usable()) {
      refuse(kOp, ": logits of request ", request, ", block position ", params_.block_offset + k,
             max.has_nan  ? " hold NaN"
             : max.id < 0 ? " have no finite value"
                          : " hold +inf",
             ", wanted finite numbers, or -inf for impossible tokens");
    }
    if (params_.signal == DSPARK_SIGNAL_TOP1) {
      double others = 0.0;
      for (int64_t t = 0; t < num_tiles_; ++t) {
        if (tiles[t].max.id < 0) continue;
        const bool winner = tiles[t].max.id == max.id;
        const double scale = std::exp(static_cast<double>(tiles[t].max.value) - static_cast<double>(max.value));
        others += winner ? tiles[t].others : (tiles[t].others + 1.0) * scale;
      }
      params_.confidence_logits[request * params_.block_size + k] = top1_confidence(others);
    }
    return max;
  }

  void set_token(int64_t request, int64_t k, int32_t draft_id) {
    const int32_t token = params_.d2t ? params_.d2t[draft_id] : draft_id;
    if (k + 1 < params_.block_size && embeds_previous(params_)) check_embedded(params_, "a proposal", request, token);
    params_.draft_tokens[request * params_.block_size + k] = token;
    scratch_.previous[static_cast<size_t>(request)] = token;
  }

  void finish_position(int64_t k) {
    const int64_t num_sampled = static_cast<int64_t>(scratch_.sampled.size());
    int64_t next_sampled = 0;
    for (int64_t r = 0; r < params_.num_requests; ++r) {
      const RowMax max = combine(r, k);
      if (next_sampled < num_sampled && scratch_.sampled[static_cast<size_t>(next_sampled)] == r) {
        scratch_.sampled_max[static_cast<size_t>(next_sampled++)] = max;
      } else {
        set_token(r, k, max.id);
      }
    }
    parallel_for(parallel_, num_sampled, [&](int64_t i) {
      thread_local CpuRow filtered;
      const int64_t r = scratch_.sampled[static_cast<size_t>(i)];
      const Sampling sampling = sampling_of(params_.sampling, r);
      filtered.load(row(r, k), params_.draft_vocab, scratch_.sampled_max[static_cast<size_t>(i)], sampling);
      set_token(r, k, filtered.draw(draft_draw(sampling, params_.block_offset + k), params_.d2t));
    });
  }

  const dspark_draft_params& params_;
  const dspark_parallel* parallel_;
  DraftScratch& scratch_;
  int64_t num_tiles_;
};

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_draft(const dspark_draft_params* params, const dspark_parallel* parallel) {
  return dspark::guarded(DSPARK_OP_DRAFT, [&] {
    dspark::check_pointer(dspark::kOp, "params", params);
    dspark::check(*params);
    if (params->num_requests == 0) return;
    thread_local dspark::DraftScratch scratch;
    dspark::Draft(*params, parallel, scratch).run();
  });
}
