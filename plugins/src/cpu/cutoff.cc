#include "dspark/ops/cutoff.h"

#include <cmath>

#include "../status.h"
#include "check.h"
#include "dspark/parallel.h"

namespace dspark {
namespace {

constexpr const char* kOp = "DSparkCutoff";

/// A column of cutoff_params that a policy reads, and its range.
struct Column {
  const char* name;
  double low;
  double high;
};

struct PolicyColumns {
  const char* policy;
  int count;
  Column columns[DSPARK_CUTOFF_COLUMNS];
};

constexpr double kAnything = 3.4028234663852886e38;
constexpr double kLengths = 1 << 20;

/// Indexed by dspark_policy.
constexpr PolicyColumns kPolicies[] = {
    {"all", 0, {}},
    {"threshold", 1, {{"tau", 0, 1}}},
    {"survival", 1, {{"tau", 0, 1}}},
    {"utility",
     5,
     {{"tau", -kAnything, kAnything},
      {"w_pos", -kAnything, kAnything},
      {"w_pen", -kAnything, kAnything},
      {"min_len", 0, kLengths},
      {"max_len", 1, kLengths}}},
    {"two_strikes", 2, {{"tau", 0, 1}, {"min_len", 0, kLengths}}},
    {"dual", 3, {{"tau_low", 0, 1}, {"tau_high", 0, 1}, {"entropy_bar", 0, 1}}},
    {"ramp", 3, {{"tau_start", 0, 1}, {"tau_end", 0, 1}, {"K", 1, kLengths}}},
};
constexpr int32_t kNumPolicies = sizeof kPolicies / sizeof *kPolicies;

void check_policy(const dspark_cutoff_params& params, int64_t r) {
  const int32_t policy = params.policy[r];
  if (policy < 0 || policy >= kNumPolicies) {
    refuse(kOp, ": policy[", r, "] is ", policy,
           ", wanted 0 (all), 1 (threshold), 2 (survival), 3 (utility), 4 (two_strikes), 5 (dual) or 6 (ramp)");
  }
  const PolicyColumns& wanted = kPolicies[policy];
  for (int c = 0; c < wanted.count; ++c) {
    const double value = static_cast<double>(params.params[r * DSPARK_CUTOFF_COLUMNS + c]);
    const Column& column = wanted.columns[c];
    if (value >= column.low && value <= column.high) continue;
    if (column.high == kAnything) {
      refuse(kOp, ": ", column.name, " of ", wanted.policy, " for request ", r, " is ", value,
             ", wanted a finite number");
    }
    refuse(kOp, ": ", column.name, " of ", wanted.policy, " for request ", r, " is ", value, ", wanted [", column.low,
           ", ", column.high, "]");
  }
  if (policy == DSPARK_POLICY_DUAL && params.entropies == nullptr) {
    refuse(kOp, ": policy[", r, "] is 5 (dual) but entropies is null, wanted an array");
  }
}

void check(const dspark_cutoff_params& params) {
  check_range(kOp, "num_requests", params.num_requests, 0, INT32_MAX);
  check_range(kOp, "block_size", params.block_size, 1, 1 << 20);
  if (params.num_requests == 0) return;
  check_pointer(kOp, "confidence_logits", params.confidence_logits);
  check_pointer(kOp, "policy", params.policy);
  check_pointer(kOp, "params", params.params);
  check_pointer(kOp, "inclusive", params.inclusive);
  check_pointer(kOp, "min_verify", params.min_verify);
  check_pointer(kOp, "max_verify", params.max_verify);
  check_pointer(kOp, "verify_lengths", params.verify_lengths);
  check_pointer(kOp, "survivals", params.survivals);
  check_pointer(kOp, "confidences", params.confidences);
  for (int64_t i = 0; params.calibration_temperatures && i < params.num_requests * params.block_size; ++i) {
    const float temperature = params.calibration_temperatures[i];
    if (!(temperature > 0.f && std::isfinite(temperature))) {
      refuse(kOp, ": calibration_temperatures[", i / params.block_size, ", ", i % params.block_size, "] is ",
             temperature, ", wanted a finite number > 0");
    }
  }
  for (int64_t r = 0; r < params.num_requests; ++r) {
    check_policy(params, r);
    if (params.inclusive[r] != 0 && params.inclusive[r] != 1) {
      refuse(kOp, ": inclusive[", r, "] is ", params.inclusive[r], ", wanted 0 or 1");
    }
    if (params.max_verify[r] < 0 || params.max_verify[r] > params.block_size) {
      refuse(kOp, ": max_verify[", r, "] is ", params.max_verify[r], ", wanted 0 to block_size ", params.block_size);
    }
    if (params.min_verify[r] < 0 || params.min_verify[r] > params.max_verify[r]) {
      refuse(kOp, ": min_verify[", r, "] is ", params.min_verify[r], ", wanted 0 to max_verify ", params.max_verify[r]);
    }
  }
}

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_cutoff(const dspark_cutoff_params* params, const dspark_parallel*) {
  return dspark::guarded(DSPARK_OP_CUTOFF, [&] {
    dspark::check_pointer(dspark::kOp, "params", params);
    dspark::check(*params);
    // A few exponentials per request: waking a thread would cost more.
    for (int64_t r = 0; r < params->num_requests; ++r) dspark::CutoffRequest{*params}(r);
  });
}
