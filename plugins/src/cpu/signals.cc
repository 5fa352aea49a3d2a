#include "signals.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "dspark/host_device.h"
#include "dspark/ops/filter.h"
#include "dspark/vectors.h"
#include "rows.h"

namespace dspark {
namespace {

/// Sums in eight lanes.
struct Lanes {
  Double8 sum = {};
  Double8 squares = {};
  Double8 spread = {};
  Float8 second = Float8{} - std::numeric_limits<float>::infinity();

  DSPARK_INLINE void add(const Float8& logits, double max) {
    const Double8 below = __builtin_convertvector(logits, Double8) - max;
    const Double8 weight = exp_nonpositive(below);
    sum += weight;
    squares += weight * weight;
    // -inf weighs nothing, but 0 * -inf is no number.
    spread += weight * (below < -kDeepest ? Double8{} : below);
    second = larger(logits, second);
  }

  /// Lower than any finite difference of two floats.
  static constexpr double kDeepest = 1e39;
};

}  // namespace

DSPARK_CLONES RowMoments row_moments(const float* row, int64_t size, int64_t winner, double max) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Lanes lanes;
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    Float8 logits = load<Float8>(row + i);
    if (winner >= i && winner < i + 8) logits[winner - i] = kNone;
    lanes.add(logits, max);
  }
  if (i < size) {
    float rest[8];
    for (int64_t l = 0; l < 8; ++l) rest[l] = i + l < size && i + l != winner ? row[i + l] : kNone;
    lanes.add(load<Float8>(rest), max);
  }
  RowMoments result{0.0, 0.0, 0.0, kNone};
  for (int l = 0; l < 8; ++l) {
    result.sum += lanes.sum[l];
    result.squares += lanes.squares[l];
    result.spread += lanes.spread[l];
    result.second = std::max(result.second, lanes.second[l]);
  }
  return result;
}

DSPARK_CLONES double row_exp_sum_below(const float* row, int64_t size, float limit, double max) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Double8 sums = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const Float8 logits = load<Float8>(row + i);
    const Float8 below = logits < limit ? logits : Float8{} + kNone;
    sums += exp_nonpositive(__builtin_convertvector(below, Double8) - max);
  }
  double total = 0.0;
  for (int l = 0; l < 8; ++l) total += sums[l];
  for (; i < size; ++i) {
    if (row[i] < limit) total += exp_nonpositive(static_cast<double>(row[i]) - max);
  }
  return total;
}

TopMass row_top_mass(const float* row, int64_t size, int64_t k, float bound, double max, std::vector<int32_t>& ids,
                     std::vector<float>& values) {
  if (static_cast<int64_t>(ids.size()) < size) ids.resize(static_cast<size_t>(size));
  const int64_t found = row_above(row, size, bound, /*or_equal=*/true, ids.data());
  values.clear();
  for (int64_t i = 0; i < found; ++i) values.push_back(row[ids[static_cast<size_t>(i)]]);
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<float>());
  TopMass result{values[static_cast<size_t>(k - 1)], 0.0, 0.0};
  // What nth_element leaves behind has no order of its own: sum by size, so that the bits depend on the row alone.
  std::sort(values.begin(), values.begin() + k, std::greater<float>());
  for (int64_t i = 0; i < k; ++i) {
    result.inside += std::exp(static_cast<double>(values[static_cast<size_t>(i)]) - max);
  }
  const int64_t equal = std::count(values.begin() + k, values.end(), result.limit);
  result.beside = static_cast<double>(equal) * std::exp(static_cast<double>(result.limit) - max);
  return result;
}

}  // namespace dspark
