/// Log-probabilities, the body: how a row of the outputs is laid out (dspark_logprobs). Finding the maximum, the sum,
/// the rank and the most probable tokens belongs to the backend.
#ifndef DSPARK_OPS_LOGPROBS_H_
#define DSPARK_OPS_LOGPROBS_H_

#include <math.h>
#include <stdint.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"

namespace dspark {

/// Where one row's log-probabilities go: values and ids [21], rank [1].
struct LogprobsRow {
  float* values;
  int32_t* ids;
  int32_t* rank;

  DSPARK_HD void clear() const {
    for (int i = 0; i < DSPARK_LOGPROB_COLUMNS; ++i) {
      values[i] = 0.f;
      ids[i] = -1;
    }
    *rank = 0;
  }

  DSPARK_HD void put(int64_t column, int32_t id, double logprob) const {
    values[column] = static_cast<float>(logprob);
    ids[column] = id;
  }
};

/// log sum_i exp(l_i), from the largest l and sum_i exp(l_i - max).
DSPARK_HD inline double log_normaliser(double max, double sum) { return max + log(sum); }

}  // namespace dspark
#endif  // DSPARK_OPS_LOGPROBS_H_
