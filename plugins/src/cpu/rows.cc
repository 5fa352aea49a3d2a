#include "rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dspark/host_device.h"
#include "dspark/ops/filter.h"
#include "dspark/vectors.h"

namespace dspark {
namespace {

constexpr int64_t kStripe = 64; /* elements that a vectorised inner loop takes at a time */

/// Asks for what lies two pages behind these `count` values. A row that streams through is bound by memory, and the
/// processor's own prefetching starts anew at every page: with this a row of 600 KB takes a third less. Past the end of
/// the row it is the next row, or harmless.
DSPARK_INLINE void prefetch_behind(const float* values, int64_t count) {
  constexpr uintptr_t kAhead = 8192;
  constexpr int64_t kLine = 64 / sizeof(float);
  const uintptr_t address = reinterpret_cast<uintptr_t>(values) + kAhead;
  for (int64_t i = 0; i < count; i += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<uintptr_t>(i) * sizeof(float)));
  }
}

struct StripeMax {
  float value; /* NaN is passed over */
  bool has_nan;
};

DSPARK_INLINE StripeMax stripe_max(const float* values, int64_t count) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  constexpr int32_t kMagnitude = 0x7FFFFFFF;
  constexpr int32_t kInfinity = 0x7F800000;
  Float16 best0 = Float16{} + kNone;
  Float16 best1 = best0;
  Int16 bits = {}; /* largest magnitude as an integer: above that of infinity only for NaN */
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const Float16 value0 = load<Float16>(values + i);
    const Float16 value1 = load<Float16>(values + i + 16);
    best0 = larger(value0, best0);
    best1 = larger(value1, best1);
    bits = larger((Int16)value0 & kMagnitude, bits);
    bits = larger((Int16)value1 & kMagnitude, bits);
  }
  StripeMax result{largest_lane(larger(best1, best0)), largest_lane(bits) > kInfinity};
  for (; i < count; ++i) {
    result.value = values[i] > result.value ? values[i] : result.value;
    result.has_nan = result.has_nan || values[i] != values[i];
  }
  return result;
}

/// row_max, telling note(p, value) the largest value of every span p of kPeakSpan ids on the way.
template <class Note>
DSPARK_INLINE RowMax find_max(const float* row, int64_t size, const Note& note) {
  RowMax best{-std::numeric_limits<float>::infinity(), -1, false};
  int64_t highest = -1;
  for (int64_t start = 0; start < size; start += kPeakSpan) {
    prefetch_behind(row + start, kPeakSpan);
    const StripeMax found = stripe_max(row + start, std::min(kPeakSpan, size - start));
    note(start / kPeakSpan, found.value);
    best.has_nan = best.has_nan || found.has_nan;
    if (!(found.value > best.value)) continue;
    best.value = found.value;
    highest = start;
  }
  if (highest < 0) return best;
  while (row[highest] != best.value) ++highest;
  best.id = static_cast<int32_t>(highest);
  return best;
}

/// words[lane * 16 + i] = the word of token 4 * groups[i] + lane, for 16 groups. The 32-bit words of Philox lie in
/// 64-bit lanes, where a product's two halves come out of one multiplication.
DSPARK_INLINE void stripe_words(const DrawKey& draw, const uint32_t* groups, uint32_t* words) {
  constexpr uint64_t kLow = 0xFFFFFFFFu;
  for (int half = 0; half < 16; half += 8) {
    Ulong8 c0 = Ulong8{} + static_cast<uint64_t>(draw.word0);
    Ulong8 c1 = Ulong8{} + static_cast<uint64_t>(draw.word1);
    Ulong8 c2 = __builtin_convertvector(load<Uint8>(groups + half), Ulong8);
    Ulong8 c3 = Ulong8{} + static_cast<uint64_t>(draw.word3);
    uint32_t key0 = draw.key.word0;
    uint32_t key1 = draw.key.word1;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const Ulong8 product0 = c0 * static_cast<uint64_t>(kPhiloxMultiplier0);
      const Ulong8 product1 = c2 * static_cast<uint64_t>(kPhiloxMultiplier1);
      c0 = (product1 >> 32) ^ c1 ^ static_cast<uint64_t>(key0);
      c1 = product1 & kLow;
      c2 = (product0 >> 32) ^ c3 ^ static_cast<uint64_t>(key1);
      c3 = product0 & kLow;
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
    store(words + half, __builtin_convertvector(c0, Uint8));
    store(words + 16 + half, __builtin_convertvector(c1, Uint8));
    store(words + 32 + half, __builtin_convertvector(c2, Uint8));
    store(words + 48 + half, __builtin_convertvector(c3, Uint8));
  }
}

/// The best token so far of a categorical draw.
struct Race {
  double score = -std::numeric_limits<double>::infinity();
  int64_t index = -1;

  DSPARK_INLINE void enter(int64_t i, double weight, uint32_t word) {
    const double candidate = std::log(weight) + gumbel_of(word);
    if (candidate > score || (candidate == score && i < index)) {
      score = candidate;
      index = i;
    }
  }
  /// A token wins only if -log1p(-u) < weight * exp(-score), and -log1p(-u) >= u: so u above this cannot win.
  /// The slack covers the rounding of both sides.
  DSPARK_INLINE double bar() const { return std::exp(-score) * (1.0 + 1e-9); }
};

/// Largest weight.
DSPARK_INLINE double heaviest(const double* weights, int64_t count) {
  Double8 best = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) best = larger(load<Double8>(weights + i), best);
  double result = largest_lane(best);
  for (; i < count; ++i) result = weights[i] > result ? weights[i] : result;
  return result;
}

/// Whether some token's uniform is not above weight * bar.
DSPARK_INLINE bool any_can_win(const double* weights, const uint32_t* words, int64_t count, double bar) {
  Double8 best = Double8{} - 1.0;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const Double8 uniform = (__builtin_convertvector(load<Uint8>(words + i), Double8) + 0.5) * 0x1p-32;
    best = larger(load<Double8>(weights + i) * bar - uniform, best);
  }
  bool any = largest_lane(best) >= 0.0;
  for (; i < count; ++i) any = any || uniform_of(words[i]) <= weights[i] * bar;
  return any;
}

}  // namespace

DSPARK_CLONES RowMax row_max(const float* row, int64_t size) {
  return find_max(row, size, [](int64_t, float) __attribute__((always_inline)) {});
}

DSPARK_CLONES RowMax row_peaks(const float* row, int64_t size, float* peaks) {
  return find_max(row, size,
                  [peaks](int64_t span, float value) __attribute__((always_inline)) { peaks[span] = value; });
}

DSPARK_CLONES double row_weights(const float* row, int64_t size, double max, double inverse_temperature,
                                 double* weights) {
  Double8 sums = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const Double8 logits = __builtin_convertvector(load<Float8>(row + i), Double8);
    const Double8 weight = exp_nonpositive((logits - max) * inverse_temperature);
    store(weights + i, weight);
    sums += weight;
  }
  double total = 0.0;
  for (int l = 0; l < 8; ++l) total += sums[l];
  for (; i < size; ++i) {
    weights[i] = exp_nonpositive((static_cast<double>(row[i]) - max) * inverse_temperature);
    total += weights[i];
  }
  return total;
}

DSPARK_CLONES double listed_weights(const float* row, const int32_t* ids, int64_t count, double max,
                                    double inverse_temperature, double* weights) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    weights[i] = exp_nonpositive((static_cast<double>(row[ids[i]]) - max) * inverse_temperature);
  }
  for (int64_t i = 0; i < count; ++i) total += weights[i];
  return total;
}

DSPARK_CLONES double row_exp_sum(const float* row, int64_t size, double max) {
  Double8 sums = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    sums += exp_nonpositive(__builtin_convertvector(load<Float8>(row + i), Double8) - max);
  }
  double total = 0.0;
  for (int l = 0; l < 8; ++l) total += sums[l];
  for (; i < size; ++i) total += exp_nonpositive(static_cast<double>(row[i]) - max);
  return total;
}

DSPARK_CLONES int64_t row_count_above(const float* row, int64_t size, float threshold) {
  constexpr int64_t kChunk = 1 << 20; /* counts in 32-bit lanes */
  int64_t total = 0;
  for (int64_t start = 0; start < size; start += kChunk) {
    const int64_t end = std::min(start + kChunk, size);
    int32_t count = 0;
    for (int64_t i = start; i < end; ++i) count += row[i] > threshold ? 1 : 0;
    total += count;
  }
  return total;
}

DSPARK_CLONES void masked_row(const float* row, int64_t size, const int32_t* mask, float* out) {
  constexpr float kImpossible = -std::numeric_limits<float>::infinity();
  for (int64_t start = 0; start < size; start += 32) {
    const uint32_t bits = static_cast<uint32_t>(mask[start / 32]);
    const int count = static_cast<int>(std::min<int64_t>(32, size - start));
    for (int i = 0; i < count; ++i) out[start + i] = bits >> i & 1 ? row[start + i] : kImpossible;
  }
}

DSPARK_CLONES double weighted_logs(const float* row, const int32_t* ids, const double* weights, int64_t count,
                                   double max, double inverse_temperature) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double logit = static_cast<double>(row[ids ? ids[i] : i]);
    total += weights[i] > 0.0 ? weights[i] * ((logit - max) * inverse_temperature) : 0.0;
  }
  return total;
}

DSPARK_CLONES int64_t row_above(const float* row, int64_t size, float threshold, bool or_equal, int32_t* ids) {
  int64_t found = 0;
  for (int64_t start = 0; start < size; start += kStripe) {
    const int64_t count = std::min(kStripe, size - start);
    const float best = stripe_max(row + start, count).value;
    if (!(best > threshold || (or_equal && best == threshold))) continue;
    for (int64_t i = start; i < start + count; ++i) {
      ids[found] = static_cast<int32_t>(i);
      found += row[i] > threshold || (or_equal && row[i] == threshold) ? 1 : 0;
    }
  }
  return found;
}

DSPARK_CLONES int64_t weights_at_least(const double* weights, int64_t size, double threshold, int32_t* ids) {
  int64_t found = 0;
  for (int64_t start = 0; start < size; start += kStripe) {
    const int64_t count = std::min(kStripe, size - start);
    if (!(heaviest(weights + start, count) >= threshold)) continue;
    for (int64_t i = start; i < start + count; ++i) {
      ids[found] = static_cast<int32_t>(i);
      found += weights[i] >= threshold ? 1 : 0;
    }
  }
  return found;
}

DSPARK_CLONES int64_t draw_index(const double* weights, const int32_t* ids, int64_t count, const DrawKey& draw) {
  Race race;
  double bar = std::numeric_limits<double>::infinity();
  const int64_t stripe = ids ? 16 : kStripe; /* without ids one call of Philox serves four tokens */
  for (int64_t start = 0; start < count; start += stripe) {
    const int64_t taken = std::min(stripe, count - start);
    if (!(heaviest(weights + start, taken) * bar >= kSmallestExponential)) continue;
    uint32_t groups[16];
    uint32_t lanes[4 * 16];
    uint32_t words[kStripe];
    if (ids) {
      for (int j = 0; j < 16; ++j) groups[j] = static_cast<uint32_t>(ids[start + (j < taken ? j : 0)]) >> 2;
      stripe_words(draw, groups, lanes);
      for (int64_t j = 0; j < taken; ++j) words[j] = lanes[(ids[start + j] & 3) * 16 + j];
    } else {
      for (int j = 0; j < 16; ++j) groups[j] = static_cast<uint32_t>(start >> 2) + static_cast<uint32_t>(j);
      stripe_words(draw, groups, lanes);
      for (int j = 0; j < 16; ++j) {
        for (int l = 0; l < 4; ++l) words[4 * j + l] = lanes[16 * l + j];
      }
    }
    if (!any_can_win(weights + start, words, taken, bar)) continue;
    for (int64_t j = 0; j < taken; ++j) {
      // At the start the bar is infinite and 0 * inf is NaN: an impossible token fails this test as well.
      if (uniform_of(words[j]) <= weights[start + j] * bar) {
        race.enter(start + j, weights[start + j], words[j]);
        bar = race.bar();
      }
    }
  }
  return race.index;
}

}  // namespace dspark
