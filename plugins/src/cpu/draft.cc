#include "dspark/ops/draft.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "../scratch.h"
#include "../status.h"
#include "check.h"
#include "draft_check.h"
#include "dspark/ops/signal.h"
#include "dspark/parallel.h"
#include "filter.h"
#include "markov.h"
#include "rows.h"
#include "signals.h"

namespace dspark {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int32_t kNoToken = -1;

/// What a tile of a row reports; tiles are combined in order.
struct TileResult {
  RowMax max;
  RowMoments moments; /* beside the tile's own maximum, where the request asks for them */
};

/// A request within the call.
struct Request {
  int64_t index;
  Sampling sampling;
  Signal signal;
  bool draws;        /* x_k is drawn, not the argmax */
  bool wants_row;    /* the whole row U_k + B_k is looked at again once its maximum is known */
  bool wants_spread; /* its normalised entropy is an output */
  bool wants_moments;
  bool ended;       /* a faulty row: from there on it has no proposals */
  int32_t previous; /* x_{k-1}, target id */
  int32_t drawn;    /* x_k, draft id */
  RowMax max;       /* of the current row */
  RowMoments moments;
  TopMass top;
};

/// Call-wide memory, kept by the calling thread: a decode loop allocates once.
struct DraftScratch {
  std::vector<Request> requests;
  std::vector<float> from_hidden; /* [R, K, gate rows] */
  std::vector<float> gates;       /* [R, gate rows] */
  std::vector<float> states;      /* [R, r]: what W2 multiplies */
  std::vector<float> memory;      /* [R, r]: s_k of the rnn head */
  std::vector<float> rows;        /* [R, Vd] where a whole row is needed and nobody asked for draft_logits */
  std::vector<TileResult> tiles;  /* [R, tiles] */
  std::vector<double> below;      /* [R, tiles] of topk_mass: what a tile weighs below the limit */
  std::vector<int32_t> previous;  /* [R] x_{k-1}; the last one of a request that ended */
  std::vector<int64_t> drawing;   /* requests whose x_k is drawn */
  std::vector<int64_t> counting;  /* requests of topk_mass that leave something out */
};

DSPARK_CLONES void run_gate_from_hidden(const GateFromHidden& body, int64_t tile) { body(tile, SoloTeam{}); }

DSPARK_CLONES void run_gate_from_previous(const GateFromPrevious& body, int64_t tile) { body(tile, SoloTeam{}); }

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
        requests_(scratch.requests),
        num_tiles_((params.draft_vocab + kMarkovTile - 1) / kMarkovTile),
        embeds_(embeds_previous(params)) {}

  void run() {
    prepare();
    for (int64_t k = 0; k < params_.block_size; ++k) {
      advance_states(k);
      parallel_for(parallel_, num_tiles_, [&](int64_t tile) { fill_tile(k, tile); });
      for (Request& request : requests_) combine(request, k);
      choose_tokens(k);
      measure_top_mass(k);
      for (Request& request : requests_) {
        if (!request.ended) report(request, k);
      }
    }
  }

 private:
  void prepare() {
    const int64_t num = params_.num_requests;
    requests_.clear();
    scratch_.drawing.clear();
    scratch_.counting.clear();
    for (int64_t r = 0; r < num; ++r) {
      Request request{};
      request.index = r;
      request.sampling = sampling_of(params_.sampling, r);
      request.signal = signal_of(params_.confidence_signal[r]);
      request.draws = draws_tokens(request.sampling);
      request.wants_spread = params_.cutoff_policy && params_.cutoff_policy[r] == DSPARK_POLICY_DUAL;
      request.wants_moments = request.wants_spread || reads_moments(request.signal.kind);
      request.wants_row = request.draws || counts_top_mass(request);
      request.previous = params_.anchor_tokens[r];
      if (request.draws) scratch_.drawing.push_back(r);
      if (counts_top_mass(request)) scratch_.counting.push_back(r);
      requests_.push_back(request);
    }
    grow(scratch_.tiles, num * num_tiles_);
    if (!scratch_.counting.empty()) grow(scratch_.below, num * num_tiles_);
    const bool whole_rows = !scratch_.drawing.empty() || !scratch_.counting.empty();
    if (whole_rows && params_.draft_logits == nullptr && params_.head_type != DSPARK_HEAD_NONE) {
      grow(scratch_.rows, num * params_.draft_vocab);
    }
    prepare_gates();
  }

  void prepare_gates() {
    const int64_t gates = gate_rows(params_);
    if (gates == 0) return;
    const int64_t num = params_.num_requests;
    scratch_.previous.resize(static_cast<size_t>(num));
    grow(scratch_.states, num * params_.markov_rank);
    grow(scratch_.gates, num * gates);
    grow(scratch_.from_hidden, num * params_.block_size * gates);
    scratch_.memory.assign(static_cast<size_t>(num * params_.markov_rank), 0.f);
    const GateFromHidden body{params_, scratch_.from_hidden.data()};
    parallel_for(parallel_, (gates + kGateTile - 1) / kGateTile,
                 [&](int64_t tile) { run_gate_from_hidden(body, tile); });
  }

  /// What W2 multiplies at position k, for all requests.
  void advance_states(int64_t k) {
    const int64_t gates = gate_rows(params_);
    if (gates == 0) return;
    for (const Request& request : requests_) {
      scratch_.previous[static_cast<size_t>(request.index)] = request.previous;
    }
    const GateFromPrevious body{params_, scratch_.from_hidden.data(), scratch_.previous.data(), scratch_.memory.data(),
                                k,       scratch_.gates.data()};
    parallel_for(parallel_, (gates + kGateTile - 1) / kGateTile,
                 [&](int64_t tile) { run_gate_from_previous(body, tile); });
    const int64_t rank = params_.markov_rank;
    for (const Request& request : requests_) {
      const float* gate = scratch_.gates.data() + request.index * gates;
      float* state = scratch_.states.data() + request.index * rank;
      if (params_.head_type == DSPARK_HEAD_GATED) {
        const float* embedded = embedding(request);
        for (int64_t j = 0; j < rank; ++j) state[j] = gated_state(gate[j], embedded[j]);
      } else {
        float* memory = scratch_.memory.data() + request.index * rank;
        for (int64_t j = 0; j < rank; ++j) {
          memory[j] = rnn_state(gate[j], gate[rank + j], memory[j]);
          state[j] = std::tanh(gate[2 * rank + j]);
        }
      }
    }
  }

  const float* embedding(const Request& request) const {
    return params_.markov_w1 + static_cast<int64_t>(request.previous) * params_.markov_rank;
  }

  const float* state(const Request& request) const {
    if (params_.head_type == DSPARK_HEAD_VANILLA) return embedding(request);
    return scratch_.states.data() + request.index * params_.markov_rank;
  }

  int64_t place(const Request& request, int64_t k) const { return request.index * params_.block_size + k; }

  const float* base_row(const Request& request, int64_t k) const {
    return params_.base_logits + place(request, k) * params_.draft_vocab;
  }

  /// Where U_k + B_k of a request is kept; null where only its tiles are wanted, or it is U_k itself.
  float* kept_row(const Request& request, int64_t k) const {
    if (params_.draft_logits) return params_.draft_logits + place(request, k) * params_.draft_vocab;
    if (params_.head_type == DSPARK_HEAD_NONE || !request.wants_row) return nullptr;
    return scratch_.rows.data() + request.index * params_.draft_vocab;
  }

  /// The finished row of a request that wants_row.
  const float* row(const Request& request, int64_t k) const {
    const float* kept = kept_row(request, k);
    return kept ? kept : base_row(request, k);
  }

  TileResult* tiles(const Request& request) const { return scratch_.tiles.data() + request.index * num_tiles_; }

  /// One tile of the rows of all requests, so that W2 is read once per position.
  void fill_tile(int64_t k, int64_t tile) {
    thread_local Scratch memory;
    thread_local std::vector<MarkovRow> parts;
    const int64_t first = tile * kMarkovTile;
    const int64_t count = std::min(kMarkovTile, params_.draft_vocab - first);
    float* local = memory.floats(params_.num_requests * kMarkovTile);
    parts.clear();
    for (const Request& request : requests_) {
      if (request.ended) continue;
      float* kept = kept_row(request, k);
      float* out = kept ? kept + first : local + request.index * kMarkovTile;
      if (params_.head_type != DSPARK_HEAD_NONE) {
        parts.push_back({base_row(request, k) + first, state(request), out});
      } else if (kept) {
        std::memcpy(out, base_row(request, k) + first, static_cast<size_t>(count) * sizeof(float));
      }
    }
    if (!parts.empty()) markov_tile(params_, first, count, parts.data(), static_cast<int64_t>(parts.size()));
    size_t part = 0;
    for (const Request& request : requests_) {
      if (request.ended) continue;
      const float* values = params_.head_type == DSPARK_HEAD_NONE ? base_row(request, k) + first : parts[part++].out;
      TileResult& result = tiles(request)[tile];
      result.max = row_max(values, count);
      if (result.max.id < 0) continue;
      if (request.wants_moments) {
        result.moments = row_moments(values, count, result.max.id, static_cast<double>(result.max.value));
      }
      result.max.id += static_cast<int32_t>(first);
    }
  }

  /// The row's maximum out of its tiles, and its moments; ends the request where the row is none.
  void combine(Request& request, int64_t k) {
    if (request.ended) return no_proposal(request, k);
    const TileResult* results = tiles(request);
    RowMax max = results[0].max;
    for (int64_t t = 1; t < num_tiles_; ++t) {
      const bool has_nan = max.has_nan || results[t].max.has_nan;
      if (results[t].max.value > max.value) max = results[t].max;
      max.has_nan = has_nan;
    }
    request.max = max;
    if (!max.usable()) {
      request.ended = true;
      return no_proposal(request, k);
    }
    if (!request.wants_moments) return;
    request.moments = {0.0, 0.0, 0.0, kNone};
    for (int64_t t = 0; t < num_tiles_; ++t) {
      const RowMax& tile = results[t].max;
      if (tile.id < 0) continue;
      fold(request.moments, static_cast<double>(max.value), results[t].moments, tile.value, tile.id == max.id);
    }
  }

  void no_proposal(const Request& request, int64_t k) {
    const int64_t at = place(request, k);
    params_.draft_tokens[at] = kNoToken;
    params_.confidence_logits[at] = std::numeric_limits<float>::quiet_NaN();
    if (params_.entropies) params_.entropies[at] = 0.f;
    // The faulty row itself stays to be looked at; those behind it were never computed.
    if (params_.draft_logits && k + 1 < params_.block_size) {
      float* next = params_.draft_logits + (at + 1) * params_.draft_vocab;
      std::memset(next, 0, static_cast<size_t>(params_.draft_vocab) * sizeof(float));
    }
  }

  /// x_k of every request that still proposes.
  void choose_tokens(int64_t k) {
    for (Request& request : requests_) request.drawn = request.max.id;
    for_each_of(scratch_.drawing, [&](Request& request) {
      thread_local CpuRow filtered;
      filtered.load(row(request, k), params_.draft_vocab, request.max, request.sampling);
      request.drawn = filtered.draw(draft_draw(request.sampling, params_.block_offset + k), params_.d2t);
    });
    for (Request& request : requests_) {
      if (request.ended) continue;
      const int32_t token = params_.d2t ? params_.d2t[request.drawn] : request.drawn;
      if (k + 1 < params_.block_size && embeds_) check_embedded(params_, "a proposal", request.index, token);
      params_.draft_tokens[place(request, k)] = token;
    }
  }

  /// For topk_mass: where the k largest logits end, then what every tile weighs below.
  void measure_top_mass(int64_t k) {
    if (scratch_.counting.empty()) return;
    for_each_of(scratch_.counting, [&](Request& request) { find_top_mass(request, k); });
    parallel_for(parallel_, num_tiles_, [&](int64_t tile) {
      const int64_t first = tile * kMarkovTile;
      const int64_t count = std::min(kMarkovTile, params_.draft_vocab - first);
      for (const int64_t r : scratch_.counting) {
        const Request& request = requests_[static_cast<size_t>(r)];
        if (request.ended) continue;
        const double max = static_cast<double>(request.max.value);
        double& below = scratch_.below[static_cast<size_t>(r * num_tiles_ + tile)];
        below = row_exp_sum_below(row(request, k) + first, count, request.top.limit, max);
      }
    });
  }

  /// Those of `list` that still propose, spread over the threads.
  template <class F>
  void for_each_of(const std::vector<int64_t>& list, const F& body) {
    parallel_for(parallel_, static_cast<int64_t>(list.size()), [&](int64_t i) {
      Request& request = requests_[static_cast<size_t>(list[static_cast<size_t>(i)])];
      if (!request.ended) body(request);
    });
  }

  /// Whether there is anything to count: all tokens together weigh 1.
  bool counts_top_mass(const Request& request) const {
    return request.signal.kind == DSPARK_SIGNAL_TOPK_MASS && request.signal.k < params_.draft_vocab;
  }

  void find_top_mass(Request& request, int64_t k) const {
    thread_local std::vector<int32_t> ids;
    thread_local std::vector<float> values;
    // As many tiles as tokens are asked for: each has a logit that reaches the least of their maxima.
    float bound = kNone;
    const int64_t wanted = request.signal.k;
    if (wanted <= num_tiles_) {
      values.clear();
      for (int64_t t = 0; t < num_tiles_; ++t) values.push_back(tiles(request)[t].max.value);
      std::nth_element(values.begin(), values.begin() + (wanted - 1), values.end(), std::greater<float>());
      bound = values[static_cast<size_t>(wanted - 1)];
    }
    request.top = row_top_mass(row(request, k), params_.draft_vocab, wanted, bound,
                               static_cast<double>(request.max.value), ids, values);
  }

  /// Confidence and entropy of position k; x_k becomes x_{k-1}.
  void report(Request& request, int64_t k) {
    const int64_t at = place(request, k);
    params_.confidence_logits[at] = confidence(request, k);
    if (params_.entropies) {
      const double entropy = request.wants_spread ? normalised_entropy(request.moments, params_.draft_vocab) : 0.0;
      params_.entropies[at] = static_cast<float>(entropy);
    }
    request.previous = params_.draft_tokens[at];
  }

  float confidence(const Request& request, int64_t k) const {
    const double max = static_cast<double>(request.max.value);
    switch (request.signal.kind) {
      case DSPARK_SIGNAL_HEAD:
        return run_head_confidence(params_, request.index, k, request.previous);
      case DSPARK_SIGNAL_TOPK_MASS: {
        if (!counts_top_mass(request)) return share_logit(1.0, 0.0);
        double rest = request.top.beside;
        const double* below = scratch_.below.data() + request.index * num_tiles_;
        for (int64_t t = 0; t < num_tiles_; ++t) rest += below[t];
        return share_logit(request.top.inside, rest);
      }
      default: {
        const bool is_winner = request.drawn == request.max.id;
        const double lead = is_winner ? 0.0 : static_cast<double>(row(request, k)[request.drawn]) - max;
        return moment_signal(request.signal.kind, request.moments, max, params_.draft_vocab, lead, is_winner);
      }
    }
  }

  const dspark_draft_params& params_;
  const dspark_parallel* parallel_;
  DraftScratch& scratch_;
  std::vector<Request>& requests_;
  int64_t num_tiles_;
  bool embeds_;
};

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_draft(const dspark_draft_params* params, const dspark_parallel* parallel) {
  return dspark::guarded(DSPARK_OP_DRAFT, [&] {
    dspark::check_pointer(dspark::kDraftOp, "params", params);
    dspark::check_draft(*params);
    if (params->num_requests == 0) return;
    thread_local dspark::DraftScratch scratch;
    dspark::Draft(*params, parallel, scratch).run();
  });
}
