/// DSparkCutoff, the body: confidences of a block to the number of proposals worth verifying.
#ifndef DSPARK_OPS_CUTOFF_H_
#define DSPARK_OPS_CUTOFF_H_

#include <math.h>
#include <stdint.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"

namespace dspark {

/// c = sigmoid(logit / temperature); a logit that is NaN or infinite says nothing and counts as 0.
DSPARK_HD inline double confidence_of(float logit, float temperature) {
  if (!isfinite(logit)) return 0.0;
  return 1.0 / (1.0 + exp(-static_cast<double>(logit) / static_cast<double>(temperature)));
}

/// One request: a_k = c_1 * ... * c_k and the longest prefix that the policy keeps (dspark.md 4.2).
struct CutoffRequest {
  dspark_cutoff_params params;

  DSPARK_HD void operator()(int64_t request) const {
    const float* logits = params.confidence_logits + request * params.block_size;
    float* survivals = params.survivals + request * params.block_size;
    const double threshold = static_cast<double>(params.threshold[request]);
    const int32_t policy = params.policy[request];
    double survival = 1.0;
    int32_t length = 0;
    bool open = true;
    for (int64_t k = 0; k < params.block_size; ++k) {
      const float temperature = params.calibration_temperatures ? params.calibration_temperatures[k] : 1.f;
      const double confidence = confidence_of(logits[k], temperature);
      survival *= confidence;
      survivals[k] = static_cast<float>(survival);
      if (policy == DSPARK_POLICY_THRESHOLD) open = open && confidence >= threshold;
      if (policy == DSPARK_POLICY_SURVIVAL) open = open && survival >= threshold;
      if (open) length = static_cast<int32_t>(k) + 1;
    }
    params.verify_lengths[request] = length < params.max_verify[request] ? length : params.max_verify[request];
  }
};

}  // namespace dspark
#endif  // DSPARK_OPS_CUTOFF_H_
