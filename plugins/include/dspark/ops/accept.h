/// DSparkAccept, the body: the order of tests and draws of one request (dspark.md 5.1 to 5.4).
///
/// Knows which number serves which draw and when a row is needed; how a row is processed, filtered or a token is
/// drawn belongs to `Rows`, which each backend brings. Rows past the first refusal are never touched.
#ifndef DSPARK_OPS_ACCEPT_H_
#define DSPARK_OPS_ACCEPT_H_

#include <math.h>
#include <stdint.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"
#include "dspark/ops/draw.h"
#include "dspark/ops/filter.h"

namespace dspark {

/// Whether a request takes proposals by their probability alone. Unlike the others such a mode stays what it is below
/// the greedy temperature.
DSPARK_HD inline bool is_lossy(int32_t accept_mode) {
  return accept_mode == DSPARK_RELAXED || accept_mode == DSPARK_TYPICAL;
}

/// How one request is sampled and accepted: `sampling.mode` is final, and a lossy one below the greedy temperature is
/// filtered at temperature 1 and emits the most probable token.
struct Acceptance {
  Sampling sampling;
  bool emits_best;
};

DSPARK_HD inline Acceptance acceptance_of(const dspark_sampling& all, int64_t request) {
  Acceptance how{sampling_of(all, request), false};
  if (is_lossy(all.accept_mode[request]) && how.sampling.temperature < kGreedyTemperature) {
    how.sampling.mode = all.accept_mode[request];
    how.sampling.temperature = 1.f;
    how.emits_best = true;
  }
  return how;
}

/// Lossless rejection test of a proposal, multiplied out: no division, no clamp (Leviathan et al. 2023, Algorithm 1).
DSPARK_HD inline bool keeps_proposal(double uniform, double draft_probability, double target_probability) {
  return uniform * draft_probability < target_probability;
}

/// The bar of relaxed mode: falls from max_bar at confidence 0 to min_bar at 1. relaxation: [2].
DSPARK_HD inline double relaxed_bar(const float* relaxation, float confidence) {
  const double low = static_cast<double>(relaxation[0]);
  const double high = static_cast<double>(relaxation[1]);
  const double sure = confidence > 0.f ? static_cast<double>(confidence) : 0.0;  // NaN is no confidence
  return high + (low - high) * sure;
}

/// The bar of typical acceptance (Cai et al. 2024, arXiv:2401.10774): low where the target itself is undecided.
DSPARK_HD inline double typical_bar(const float* relaxation, double entropy) {
  const double epsilon = static_cast<double>(relaxation[0]);
  const double bar = static_cast<double>(relaxation[1]) * exp(-entropy);
  return bar < epsilon ? bar : epsilon;
}

/// Kept proposals first, then the target's token (-1 after a fault), then -1.
DSPARK_HD inline void write_outcome(const dspark_accept_params& params, int64_t request, int64_t accepted,
                                    int32_t target_token, dspark_round_end end) {
  int32_t* tokens = params.tokens + request * (params.block_size + 1);
  for (int64_t k = 0; k < accepted; ++k) tokens[k] = params.draft_tokens[request * params.block_size + k];
  tokens[accepted] = target_token;
  for (int64_t k = accepted + 1; k <= params.block_size; ++k) tokens[k] = -1;
  params.accepted[request] = static_cast<int32_t>(accepted);
  params.round_ends[request] = end;
}

/// One request. `Rows` offers
///   load_target(k), load_draft(k): process and filter row k; DSPARK_END_BONUS, or the fault of the row;
///   best(): the most probable token of the loaded target row (the only thing that greedy mode asks for);
///   target_probability(id), draft_probability(id): of the loaded rows, id a target id; target_entropy();
///   draw_target(key), draw_residual(key): the token drawn from p_t, from max(p_t - p_d, 0) normalised (or from p_t
///   where that mass is 0 or not finite).
template <class Rows>
DSPARK_HD void accept_request(const dspark_accept_params& params, int64_t request, const Acceptance& how, Rows& rows) {
  const Sampling& sampling = how.sampling;
  const int64_t verify_length = static_cast<int64_t>(params.row_offsets[request + 1]) - params.row_offsets[request] - 1;
  const int32_t* proposals = params.draft_tokens + request * params.block_size;
  const auto anchored = [&](Purpose purpose, int64_t k) {
    return anchored_draw(sampling.seed, sampling.sample_index, sampling.anchor_position, purpose, k);
  };
  const auto keeps = [&](int64_t k) {
    const double probability = rows.target_probability(proposals[k]);
    if (sampling.mode == DSPARK_REJECTION) {
      const double uniform = uniform_of(draw_words(anchored(Purpose::kAccept, k), 0).word[0]);
      return keeps_proposal(uniform, rows.draft_probability(proposals[k]), probability);
    }
    const float* relaxation = params.relaxation + 2 * request;
    return probability > (sampling.mode == DSPARK_RELAXED
                              ? relaxed_bar(relaxation, params.confidences[request * params.block_size + k])
                              : typical_bar(relaxation, rows.target_entropy()));
  };
  for (int64_t k = 0;; ++k) {
    const bool last = k == verify_length;
    dspark_round_end fault = rows.load_target(k);
    if (fault == DSPARK_END_BONUS && !last && sampling.mode == DSPARK_REJECTION) fault = rows.load_draft(k);
    if (fault != DSPARK_END_BONUS) return write_outcome(params, request, k, -1, fault);
    int32_t token = -1;
    if (sampling.mode == DSPARK_GREEDY || sampling.mode == DSPARK_COUPLED) {
      // What the target picks does not depend on the proposal.
      const int64_t position = static_cast<int64_t>(sampling.anchor_position) + 1 + k;
      token = sampling.mode == DSPARK_GREEDY
                  ? rows.best()
                  : rows.draw_target(coupled_draw(sampling.seed, sampling.sample_index, position));
      if (!last && token == proposals[k]) continue;
    } else {
      if (!last && keeps(k)) continue;
      const DrawKey key = anchored(last ? Purpose::kBonus : Purpose::kResidual, k);
      if (how.emits_best) {
        token = rows.best();
      } else if (!last && sampling.mode == DSPARK_REJECTION) {
        token = rows.draw_residual(key);
      } else {
        token = rows.draw_target(key);
      }
    }
    return write_outcome(params, request, k, token, last ? DSPARK_END_BONUS : DSPARK_END_REJECTED);
  }
}

}  // namespace dspark
#endif  // DSPARK_OPS_ACCEPT_H_
