#include "dspark/ops/cutoff.h"

#include <cmath>

#include "../status.h"
#include "check.h"
#include "dspark/parallel.h"

namespace dspark {
namespace {

void check(const dspark_cutoff_params& params) {
  constexpr const char* kOp = "DSparkCutoff";
  check_range(kOp, "num_requests", params.num_requests, 0, INT32_MAX);
  check_range(kOp, "block_size", params.block_size, 1, 1 << 20);
  if (params.num_requests == 0) return;
  check_pointer(kOp, "confidence_logits", params.confidence_logits);
  check_pointer(kOp, "policy", params.policy);
  check_pointer(kOp, "threshold", params.threshold);
  check_pointer(kOp, "max_verify", params.max_verify);
  check_pointer(kOp, "verify_lengths", params.verify_lengths);
  check_pointer(kOp, "survivals", params.survivals);
  for (int64_t k = 0; params.calibration_temperatures && k < params.block_size; ++k) {
    const float temperature = params.calibration_temperatures[k];
    if (!(temperature > 0.f && std::isfinite(temperature))) {
      refuse(kOp, ": calibration_temperatures[", k, "] is ", temperature, ", wanted a finite number > 0");
    }
  }
  for (int64_t r = 0; r < params.num_requests; ++r) {
    if (params.policy[r] < DSPARK_POLICY_ALL || params.policy[r] > DSPARK_POLICY_SURVIVAL) {
      refuse(kOp, ": policy[", r, "] is ", params.policy[r], ", wanted 0 (all), 1 (threshold) or 2 (survival)");
    }
    if (!(params.threshold[r] >= 0.f && params.threshold[r] <= 1.f)) {
      refuse(kOp, ": threshold[", r, "] is ", params.threshold[r], ", wanted [0, 1]");
    }
    if (params.max_verify[r] < 0 || params.max_verify[r] > params.block_size) {
      refuse(kOp, ": max_verify[", r, "] is ", params.max_verify[r], ", wanted 0 to block_size ", params.block_size);
    }
  }
}

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_cutoff(const dspark_cutoff_params* params, const dspark_parallel*) {
  return dspark::guarded(DSPARK_OP_CUTOFF, [&] {
    dspark::check_pointer("DSparkCutoff", "params", params);
    dspark::check(*params);
    // A few exponentials per request: waking a thread would cost more.
    for (int64_t r = 0; r < params->num_requests; ++r) dspark::CutoffRequest{*params}(r);
  });
}
