/// Passes over one vocabulary row, compiled per instruction set: maximum, exponentials, noise words.
///
/// Sums are taken in an order fixed by the length alone, so a row gives the same bits on any thread.
#ifndef DSPARK_SRC_CPU_ROWS_H_
#define DSPARK_SRC_CPU_ROWS_H_

#include <cstdint>

#include "dspark/ops/draw.h"

namespace dspark {

struct RowMax {
  float value; /* -inf in a row without finite logits */
  int32_t id;  /* lowest id with this value; -1 where the row is empty or has none above -inf */
  bool has_nan;

  /// +inf is no logit either: its softmax is undefined.
  bool usable() const { return !has_nan && id >= 0 && value <= 3.4028234663852886e38f; }
};

/// Largest value and its lowest id, in one pass over memory.
RowMax row_max(const float* row, int64_t size);

/// Ids that one peak stands for: those of peak p are p * kPeakSpan and the ones behind it.
constexpr int64_t kPeakSpan = 128;

constexpr int64_t num_peaks(int64_t size) { return (size + kPeakSpan - 1) / kPeakSpan; }

/// As row_max, and the largest value under every peak (-inf where there is none) into peaks [num_peaks(size)]: whoever
/// looks for the first tokens of the row then reads a few spans of it only.
RowMax row_peaks(const float* row, int64_t size, float* peaks);

/// weights[i] = exp((row[i] - max) * inverse_temperature), [size]; returns their sum.
double row_weights(const float* row, int64_t size, double max, double inverse_temperature, double* weights);

/// As row_weights for the listed ids only: weights[i] belongs to row[ids[i]].
double listed_weights(const float* row, const int32_t* ids, int64_t count, double max, double inverse_temperature,
                      double* weights);

/// sum_i exp(row[i] - max).
double row_exp_sum(const float* row, int64_t size, double max);

/// How many row[i] > threshold.
int64_t row_count_above(const float* row, int64_t size, float threshold);

/// out[i] = row[i] where bit i % 32 of mask[i / 32] is set, else -inf.
void masked_row(const float* row, int64_t size, const int32_t* mask, float* out);

/// sum_i weights[i] log weights[i] over the positive ones, where weights[i] = exp((row[id] - max) *
/// inverse_temperature) and id is ids[i], or i without ids.
double weighted_logs(const float* row, const int32_t* ids, const double* weights, int64_t count, double max,
                     double inverse_temperature);

/// Ids with row[i] > threshold (or, with `or_equal`, >=) into ids, ascending; returns how many. ids: room for `size`.
int64_t row_above(const float* row, int64_t size, float threshold, bool or_equal, int32_t* ids);

/// As row_above, for weights, >=.
int64_t weights_at_least(const double* weights, int64_t size, double threshold, int32_t* ids);

/// Index i in [0, count) of argmax(log weights[i] + gumbel(draw, ids[i])); ties: lowest i. ids null: the index itself.
/// Weights are >= 0, of any scale; those of 0 are impossible. At least one must be positive.
int64_t draw_index(const double* weights, const int32_t* ids, int64_t count, const DrawKey& draw);

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_ROWS_H_
