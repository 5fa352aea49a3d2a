/// Passes over a row of draft logits that the confidence signals need (ops/signal.h), compiled per instruction set.
///
/// Sums are taken in an order fixed by the length alone, so a row gives the same bits on any thread.
#ifndef DSPARK_SRC_CPU_SIGNALS_H_
#define DSPARK_SRC_CPU_SIGNALS_H_

#include <cstdint>
#include <vector>

#include "dspark/ops/signal.h"

namespace dspark {

/// Moments of row [size] beside its winner, an id with row[winner] = max >= all others. Elements may be -inf.
RowMoments row_moments(const float* row, int64_t size, int64_t winner, double max);

/// sum of exp(row[i] - max) over row[i] < limit.
double row_exp_sum_below(const float* row, int64_t size, float limit, double max);

/// The k largest logits of a row without sorting it.
struct TopMass {
  float limit;   /* the k-th largest; whatever lies below it is left out */
  double inside; /* sum of exp(l - max) of the k largest */
  double beside; /* the same of tokens equal to the limit that are not among them */
};

/// `bound`: a number that at least k logits reach, -inf if nothing better is known. 1 <= k <= size.
/// ids, values: memory that is kept between calls.
TopMass row_top_mass(const float* row, int64_t size, int64_t k, float bound, double max, std::vector<int32_t>& ids,
                     std::vector<float>& values);

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_SIGNALS_H_
