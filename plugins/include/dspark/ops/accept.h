/// DSparkAccept, the body: the order of tests and draws of one request (dspark.md 5.2, 5.3).
///
/// Knows which number serves which draw and when a row is needed; how a row is filtered or a token is
/// drawn belongs to `Rows`, which each backend brings. Rows past the first rejection are never touched.
#ifndef DSPARK_OPS_ACCEPT_H_
#define DSPARK_OPS_ACCEPT_H_

#include <stdint.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"
#include "dspark/ops/draw.h"
#include "dspark/ops/filter.h"

namespace dspark {

/// Lossless rejection test of a proposal, multiplied out: no division, no clamp (Leviathan et al. 2023, Algorithm 1).
DSPARK_HD inline bool keeps_proposal(double uniform, double draft_probability, double target_probability) {
  return uniform * draft_probability < target_probability;
}

/// Kept proposals first, then the target's token, then -1.
DSPARK_HD inline void write_outcome(const dspark_accept_params& params, int64_t request, int64_t accepted,
                                    int32_t target_token) {
  int32_t* tokens = params.tokens + request * (params.block_size + 1);
  for (int64_t k = 0; k < accepted; ++k) tokens[k] = params.draft_tokens[request * params.block_size + k];
  tokens[accepted] = target_token;
  for (int64_t k = accepted + 1; k <= params.block_size; ++k) tokens[k] = -1;
  params.accepted[request] = static_cast<int32_t>(accepted);
}

/// One sampled request; false where a row cannot be used (`Rows` remembers which and why). `Rows` offers
///   load_target(row), load_draft(request, k): filter a row of logits; false where it holds NaN or no finite logit;
///   target_probability(id), draft_probability(id): of the loaded rows, id a target id;
///   draw_target(key), draw_residual(key): the token drawn from p_t, from max(p_t - p_d, 0) normalised (or from p_t
///   where that mass is 0 or not finite).
template <class Rows>
DSPARK_HD bool accept_request(const dspark_accept_params& params, int64_t request, Rows& rows) {
  const Sampling sampling = sampling_of(params.sampling, request);
  const int64_t first_row = params.row_offsets[request];
  const int64_t verify_length = params.row_offsets[request + 1] - first_row - 1;
  const auto anchored = [&](Purpose purpose, int64_t k) {
    return anchored_draw(sampling.seed, sampling.sample_index, sampling.anchor_position, purpose, k);
  };
  int32_t token = -1;
  for (int64_t k = 0;; ++k) {
    if (!rows.load_target(first_row + k)) return false;
    const bool last = k == verify_length;
    const int32_t proposal = last ? -1 : params.draft_tokens[request * params.block_size + k];
    if (sampling.mode == DSPARK_COUPLED) {
      const int64_t position = static_cast<int64_t>(sampling.anchor_position) + 1 + k;
      token = rows.draw_target(coupled_draw(sampling.seed, sampling.sample_index, position));
      if (!last && token == proposal) continue;
    } else if (last) {
      token = rows.draw_target(anchored(Purpose::kBonus, k));
    } else {
      if (!rows.load_draft(request, k)) return false;
      const double uniform = uniform_of(draw_words(anchored(Purpose::kAccept, k), 0).word[0]);
      if (keeps_proposal(uniform, rows.draft_probability(proposal), rows.target_probability(proposal))) continue;
      token = rows.draw_residual(anchored(Purpose::kResidual, k));
    }
    write_outcome(params, request, k, token);
    return true;
  }
}

}  // namespace dspark
#endif  // DSPARK_OPS_ACCEPT_H_
