/// Sampling filters: temperature, top-k, top-p, min-p, in this order, one code for draft and target rows.
///
/// A filtered row is described by its worst kept token alone: the filters keep the tokens that come
/// first in the order (logit descending, id ascending), so membership is one comparison and the
/// probability of any token is O(1). Finding the boundary is the backend's business (src/cpu/filter.cc).
#ifndef DSPARK_OPS_FILTER_H_
#define DSPARK_OPS_FILTER_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"
#if !defined(__CUDACC__)
#include "dspark/vectors.h"
#endif

namespace dspark {

constexpr float kGreedyTemperature = 1e-5f;

/// Sampling parameters of one request.
struct Sampling {
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  int32_t mode; /* dspark_accept_mode, DSPARK_GREEDY below kGreedyTemperature */
  int64_t seed;
  int32_t sample_index;
  int32_t anchor_position;
};

DSPARK_HD inline Sampling sampling_of(const dspark_sampling& all, int64_t request) {
  const float temperature = all.temperature[request];
  return {temperature,
          all.top_k[request],
          all.top_p[request],
          all.min_p[request],
          temperature < kGreedyTemperature ? static_cast<int32_t>(DSPARK_GREEDY) : all.accept_mode[request],
          all.seed[request],
          all.sample_index[request],
          all.anchor_position[request]};
}

DSPARK_HD inline uint64_t float_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

DSPARK_HD inline double float_of_bits(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#if !defined(__CUDACC__)
DSPARK_INLINE Ulong8 float_bits(const Double8& value) { return (Ulong8)value; }
DSPARK_INLINE Double8 float_of_bits(const Ulong8& bits) { return (Double8)bits; }
#endif

/// exp(x) for x in [-inf, 0], relative error below 1e-15; exactly 1 at 0 and 0 below -708. Real: double or Double8.
/// Branch-free, so that a loop over a vocabulary row needs no maths library.
template <class Real>
DSPARK_INLINE DSPARK_HD Real exp_nonpositive(const Real& x) {
  const Real lowest = Real{} - 708.0;
  const Real clamped = x < lowest ? lowest : x;
  // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits of the sum.
  const Real shifted = clamped * 1.4426950408889634 + 0x1.8p52;
  const Real exponent = shifted - 0x1.8p52;
  const Real rest = (clamped - exponent * 6.93147180369123816490e-01) - exponent * 1.90821492927058770002e-10;
  Real sum = rest * (1.0 / 479001600.0) + 1.0 / 39916800.0;
  sum = sum * rest + 1.0 / 3628800.0;
  sum = sum * rest + 1.0 / 362880.0;
  sum = sum * rest + 1.0 / 40320.0;
  sum = sum * rest + 1.0 / 5040.0;
  sum = sum * rest + 1.0 / 720.0;
  sum = sum * rest + 1.0 / 120.0;
  sum = sum * rest + 1.0 / 24.0;
  sum = sum * rest + 1.0 / 6.0;
  sum = sum * rest + 0.5;
  sum = sum * rest + 1.0;
  sum = sum * rest + 1.0;
  const Real scaled = sum * float_of_bits((float_bits(shifted) + 1023) << 52);
  return x < lowest ? Real{} : scaled;
}

/// The worst token that the filters keep.
struct Boundary {
  float logit;
  int32_t id;

  DSPARK_HD bool keeps(float other_logit, int32_t other_id) const {
    return other_logit > logit || (other_logit == logit && other_id <= id);
  }
};

/// p(i) = [kept] exp((logits[i] - max) / T) / total, over ids [0, size).
struct FilteredRow {
  const float* logits;
  int64_t size;
  double max;
  double inverse_temperature;
  double total; /* sum of the kept weights */
  Boundary boundary;

  DSPARK_HD double weight(int64_t id) const {
    return boundary.keeps(logits[id], static_cast<int32_t>(id))
               ? exp_nonpositive((static_cast<double>(logits[id]) - max) * inverse_temperature)
               : 0.0;
  }
  DSPARK_HD double probability(int64_t id) const { return id >= 0 && id < size ? weight(id) / total : 0.0; }
};

/// The draft id of a target id: identity without d2t, else binary search in the ascending d2t; -1 where there is none.
DSPARK_HD inline int64_t draft_id_of(int64_t target_id, const int32_t* d2t, int64_t draft_vocab) {
  if (d2t == nullptr) return target_id < draft_vocab ? target_id : -1;
  int64_t low = 0;
  int64_t high = draft_vocab;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (d2t[middle] < target_id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < draft_vocab && d2t[low] == target_id ? low : -1;
}

}  // namespace dspark
#endif  // DSPARK_OPS_FILTER_H_
