/// DSparkCutoff, the body: confidences of a block to the number of proposals worth verifying.
#ifndef DSPARK_OPS_CUTOFF_H_
#define DSPARK_OPS_CUTOFF_H_

#include <math.h>
#include <stdint.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"

namespace dspark {

constexpr double kStrike = 0.7; /* two_strikes: share of tau below which a confidence is a strike */

/// c = sigmoid(logit / temperature); a logit that is NaN or infinite says nothing and counts as 0.
DSPARK_HD inline double confidence_of(float logit, float temperature) {
  if (!isfinite(logit)) return 0.0;
  return 1.0 / (1.0 + exp(-static_cast<double>(logit) / static_cast<double>(temperature)));
}

/// A policy going through a block: `keeps` is asked for i = 1, 2, ... and remembers what it needs.
struct CutoffPolicy {
  int32_t policy;
  const float* params; /* [DSPARK_CUTOFF_COLUMNS] */
  int32_t strikes = 0;

  DSPARK_HD double param(int column) const { return static_cast<double>(params[column]); }

  /// Whether proposal i stands. `entropy`: H_i / ln Vd, read by `dual` alone.
  DSPARK_HD bool keeps(int64_t i, double confidence, double survival, double entropy) {
    const double position = static_cast<double>(i);
    switch (policy) {
      case DSPARK_POLICY_THRESHOLD:
        return confidence >= param(0);
      case DSPARK_POLICY_SURVIVAL:
        return survival >= param(0);
      case DSPARK_POLICY_UTILITY:
        return position <= param(3) || param(1) * confidence - param(2) * position / param(4) >= param(0);
      case DSPARK_POLICY_TWO_STRIKES:
        strikes += position > param(1) && confidence < kStrike * param(0) ? 1 : 0;
        return strikes < 2;
      case DSPARK_POLICY_DUAL:
        return confidence >= param(1) || (confidence >= param(0) && entropy <= param(2));
      case DSPARK_POLICY_RAMP: {
        const double steps = param(2) - 1.0;
        const double share = steps > 0.0 ? fmin((position - 1.0) / steps, 1.0) : 0.0;
        return confidence >= param(0) + (param(1) - param(0)) * share;
      }
      default:
        return true;
    }
  }
};

/// One request: c_k, a_k = c_1 * ... * c_k and the longest prefix that the policy keeps (dspark.md 4.2).
struct CutoffRequest {
  dspark_cutoff_params params;

  DSPARK_HD void operator()(int64_t request) const {
    const int64_t first = request * params.block_size;
    CutoffPolicy policy{params.policy[request], params.params + request * DSPARK_CUTOFF_COLUMNS};
    double survival = 1.0;
    int64_t length = 0;
    int64_t existing = 0;
    bool open = true;
    bool exists = true;
    for (int64_t k = 0; k < params.block_size; ++k) {
      exists = exists && !(params.draft_tokens && params.draft_tokens[first + k] < 0);
      const float temperature = params.calibration_temperatures ? params.calibration_temperatures[first + k] : 1.f;
      const double confidence = exists ? confidence_of(params.confidence_logits[first + k], temperature) : 0.0;
      survival *= confidence;
      params.survivals[first + k] = static_cast<float>(survival);
      params.confidences[first + k] = static_cast<float>(confidence);
      if (exists) existing = k + 1;
      const double entropy = params.entropies ? static_cast<double>(params.entropies[first + k]) : 0.0;
      if (open) {
        const bool kept = policy.keeps(k + 1, confidence, survival, entropy);
        if (kept || params.inclusive[request]) length = k + 1;
        open = kept;
      }
    }
    if (length < params.min_verify[request]) length = params.min_verify[request];
    if (length > params.max_verify[request]) length = params.max_verify[request];
    params.verify_lengths[request] = static_cast<int32_t>(length < existing ? length : existing);
  }
};

}  // namespace dspark
#endif  // DSPARK_OPS_CUTOFF_H_
