#include "rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dspark/host_device.h"
#include "dspark/ops/filter.h"

namespace dspark {
namespace {

constexpr int64_t kStripe = 64; /* elements that a vectorised inner loop takes at a time */

struct StripeMax {
  float value;
  bool has_nan;
};

DSPARK_INLINE StripeMax stripe_max(const float* values, int64_t count) {
  constexpr int kLanes = 16;
  float best[kLanes];
  int32_t nan[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    best[l] = -std::numeric_limits<float>::infinity();
    nan[l] = 0;
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      best[l] = values[i + l] > best[l] ? values[i + l] : best[l];
      nan[l] |= values[i + l] != values[i + l] ? 1 : 0;
    }
  }
  for (int l = 0; i < count; ++i, ++l) {
    best[l] = values[i] > best[l] ? values[i] : best[l];
    nan[l] |= values[i] != values[i] ? 1 : 0;
  }
  StripeMax result{best[0], nan[0] != 0};
  for (int l = 1; l < kLanes; ++l) {
    result.value = best[l] > result.value ? best[l] : result.value;
    result.has_nan = result.has_nan || nan[l] != 0;
  }
  return result;
}

/// words[lane][i] = the word of token 4 * groups[i] + lane. Sixteen counters side by side, so that rounds vectorise.
DSPARK_INLINE void stripe_words(const DrawKey& draw, const uint32_t* groups, uint32_t words[4][16]) {
  uint32_t* c0 = words[0];
  uint32_t* c1 = words[1];
  uint32_t* c2 = words[2];
  uint32_t* c3 = words[3];
  for (int i = 0; i < 16; ++i) {
    c0[i] = draw.word0;
    c1[i] = draw.word1;
    c2[i] = groups[i];
    c3[i] = draw.word3;
  }
  uint32_t key0 = draw.key.word0;
  uint32_t key1 = draw.key.word1;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int i = 0; i < 16; ++i) {
      const uint64_t product0 = static_cast<uint64_t>(kPhiloxMultiplier0) * c0[i];
      const uint64_t product1 = static_cast<uint64_t>(kPhiloxMultiplier1) * c2[i];
      c0[i] = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<uint32_t>(product1);
      c2[i] = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<uint32_t>(product0);
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
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

DSPARK_INLINE bool any_can_win(const double* weights, const uint32_t* words, int64_t count, double bar) {
  int32_t hits = 0;
  for (int64_t j = 0; j < count; ++j) {
    const double uniform = (static_cast<double>(words[j]) + 0.5) * 0x1p-32;
    hits += uniform <= weights[j] * bar ? 1 : 0;
  }
  return hits != 0;
}

}  // namespace

DSPARK_CLONES RowMax row_max(const float* row, int64_t size) {
  constexpr int64_t kChunk = 1024; /* still in the first cache when the winner's id is looked up */
  RowMax best{-std::numeric_limits<float>::infinity(), -1, false};
  for (int64_t start = 0; start < size; start += kChunk) {
    const int64_t count = std::min(kChunk, size - start);
    const StripeMax found = stripe_max(row + start, count);
    best.has_nan = best.has_nan || found.has_nan;
    if (!(found.value > best.value)) continue;
    best.value = found.value;
    for (int64_t i = 0; i < count; ++i) {
      if (row[start + i] == found.value) {
        best.id = static_cast<int32_t>(start + i);
        break;
      }
    }
  }
  return best;
}

DSPARK_CLONES double row_weights(const float* row, int64_t size, double max, double inverse_temperature,
                                 double* weights) {
  constexpr int kLanes = 16;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double weight = exp_nonpositive((static_cast<double>(row[i + l]) - max) * inverse_temperature);
      weights[i + l] = weight;
      sums[l] += weight;
    }
  }
  for (int l = 0; i < size; ++i, ++l) {
    weights[i] = exp_nonpositive((static_cast<double>(row[i]) - max) * inverse_temperature);
    sums[l] += weights[i];
  }
  double total = 0.0;
  for (double sum : sums) total += sum;
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
  constexpr int kLanes = 16;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) sums[l] += exp_nonpositive(static_cast<double>(row[i + l]) - max);
  }
  for (int l = 0; i < size; ++i, ++l) sums[l] += exp_nonpositive(static_cast<double>(row[i]) - max);
  double total = 0.0;
  for (double sum : sums) total += sum;
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
  for (int64_t i = 0; i < size; ++i) {
    ids[found] = static_cast<int32_t>(i);
    found += weights[i] >= threshold ? 1 : 0;
  }
  return found;
}

DSPARK_CLONES int64_t draw_index(const double* weights, const int32_t* ids, int64_t count, const DrawKey& draw) {
  // The heaviest token runs first: it sets a bar that spares nearly all others their logarithms.
  int64_t heaviest = 0;
  for (int64_t i = 1; i < count; ++i) heaviest = weights[i] > weights[heaviest] ? i : heaviest;
  const auto word_of = [&](int64_t i) {
    const uint32_t id = static_cast<uint32_t>(ids ? ids[i] : i);
    return draw_words(draw, id >> 2).word[id & 3];
  };
  Race race;
  race.enter(heaviest, weights[heaviest], word_of(heaviest));
  double bar = race.bar();
  const int64_t stripe = ids ? 16 : kStripe; /* without ids one call of Philox serves four tokens */
  for (int64_t start = 0; start < count; start += stripe) {
    const int64_t taken = std::min(stripe, count - start);
    double best = 0.0;
    for (int64_t j = 0; j < taken; ++j) best = weights[start + j] > best ? weights[start + j] : best;
    if (best * bar < kSmallestExponential) continue;
    uint32_t groups[16];
    uint32_t lanes[4][16];
    uint32_t words[kStripe];
    if (ids) {
      for (int j = 0; j < 16; ++j) groups[j] = static_cast<uint32_t>(ids[start + (j < taken ? j : 0)]) >> 2;
      stripe_words(draw, groups, lanes);
      for (int64_t j = 0; j < taken; ++j) words[j] = lanes[ids[start + j] & 3][j];
    } else {
      for (int j = 0; j < 16; ++j) groups[j] = static_cast<uint32_t>(start >> 2) + static_cast<uint32_t>(j);
      stripe_words(draw, groups, lanes);
      for (int j = 0; j < 16; ++j) {
        for (int l = 0; l < 4; ++l) words[4 * j + l] = lanes[l][j];
      }
    }
    if (!any_can_win(weights + start, words, taken, bar)) continue;
    for (int64_t j = 0; j < taken; ++j) {
      if (uniform_of(words[j]) <= weights[start + j] * bar) {
        race.enter(start + j, weights[start + j], words[j]);
        bar = race.bar();
      }
    }
  }
  return race.index;
}

}  // namespace dspark
