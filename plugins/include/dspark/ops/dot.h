/// Dot products for the heads, in float: one row over a team, or four rows with several vectors at once on a CPU.
#ifndef DSPARK_OPS_DOT_H_
#define DSPARK_OPS_DOT_H_

#include <stdint.h>
#include <string.h>

#include "dspark/host_device.h"
#if !defined(__CUDACC__)
#include "dspark/vectors.h"
#endif

namespace dspark {

/// sum_j a[j] * b[j]. Each lane takes every lanes()-th element of a team, so that neighbours read neighbours.
template <class Team>
DSPARK_HD inline float dot(const Team& team, const float* a, const float* b, int64_t size) {
  float part = 0.f;
  for (int64_t j = team.lane(); j < size; j += team.lanes()) part += a[j] * b[j];
  return team.sum(part);
}

#if !defined(__CUDACC__)
/// Sixteen weights of a storage as floats, and one: float32, bfloat16 (its bits), int8 (without the scale of its row).
DSPARK_INLINE Float16 widen16(const float* from) { return load<Float16>(from); }
DSPARK_INLINE Float16 widen16(const uint16_t* from) {
  return (Float16)(__builtin_convertvector(load<Half16>(from), Uint16) << 16);
}
DSPARK_INLINE Float16 widen16(const int8_t* from) {
  // Twice as wide at a time: GCC 12 takes a conversion to four times the width apart into scalars.
  const Short16 twice = __builtin_convertvector(load<Byte16>(from), Short16);
  return __builtin_convertvector(__builtin_convertvector(twice, Int16), Float16);
}
DSPARK_INLINE float widen(float weight) { return weight; }
DSPARK_INLINE float widen(uint16_t weight) {
  const uint32_t bits = static_cast<uint32_t>(weight) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
DSPARK_INLINE float widen(int8_t weight) { return weight; }

/// The sums of four vectors' lanes, in lanes 0 to 3.
DSPARK_INLINE Float4 lane_sums(const Float16& sum0, const Float16& sum1, const Float16& sum2, const Float16& sum3) {
#define DSPARK_HALVE8(v) \
  (__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15))
#define DSPARK_HALVE4(v) (__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7))
  const Float8 half0 = DSPARK_HALVE8(sum0);
  const Float8 half1 = DSPARK_HALVE8(sum1);
  const Float8 half2 = DSPARK_HALVE8(sum2);
  const Float8 half3 = DSPARK_HALVE8(sum3);
  const Float4 quarter0 = DSPARK_HALVE4(half0);
  const Float4 quarter1 = DSPARK_HALVE4(half1);
  const Float4 quarter2 = DSPARK_HALVE4(half2);
  const Float4 quarter3 = DSPARK_HALVE4(half3);
#undef DSPARK_HALVE8
#undef DSPARK_HALVE4
  // A transposition whose additions leave row i's sum in lane i.
  const Float4 pair01 =
      __builtin_shufflevector(quarter0, quarter1, 0, 4, 1, 5) + __builtin_shufflevector(quarter0, quarter1, 2, 6, 3, 7);
  const Float4 pair23 =
      __builtin_shufflevector(quarter2, quarter3, 0, 4, 1, 5) + __builtin_shufflevector(quarter2, quarter3, 2, 6, 3, 7);
  return __builtin_shufflevector(pair01, pair23, 0, 1, 4, 5) + __builtin_shufflevector(pair01, pair23, 2, 3, 6, 7);
}

/// out[q][i] = sum_j rows[i * stride + j] * x[q][j] for four rows and Q vectors; a weight is read and widened once.
/// The order of a sum depends on `size` alone, not on Q. `ahead`: elements between what is used and what is fetched
/// into the cache, 0 for none.
template <int Q, class T>
DSPARK_INLINE void dot4(const T* rows, int64_t stride, const float* const* x, int64_t size, int64_t ahead,
                        float (*out)[4]) {
  Float16 sum[Q][4];
#pragma GCC unroll 4
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[q][i] = Float16{};
  }
  int64_t j = 0;
  for (; j + 16 <= size; j += 16) {
    Float16 row[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      row[i] = widen16(rows + i * stride + j);
      if (ahead != 0) __builtin_prefetch(rows + i * stride + j + ahead);
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      const Float16 right = load<Float16>(x[q] + j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum[q][i] += row[i] * right;
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < Q; ++q) {
    Float4 sums = lane_sums(sum[q][0], sum[q][1], sum[q][2], sum[q][3]);
    for (int64_t rest = j; rest < size; ++rest) {
      const Float4 left = {widen(rows[rest]), widen(rows[stride + rest]), widen(rows[2 * stride + rest]),
                           widen(rows[3 * stride + rest])};
      sums += left * x[q][rest];
    }
    store(out[q], sums);
  }
}

/// sum_j a[j] * b[j] in sixteen lanes.
template <class T>
DSPARK_INLINE float dot1(const T* a, const float* b, int64_t size) {
  Float16 sum = {};
  int64_t j = 0;
  for (; j + 16 <= size; j += 16) sum += widen16(a + j) * load<Float16>(b + j);
  float total = 0.f;
  for (int l = 0; l < 16; ++l) total += sum[l];
  for (; j < size; ++j) total += widen(a[j]) * b[j];
  return total;
}

DSPARK_INLINE float dot(const SoloTeam&, const float* a, const float* b, int64_t size) { return dot1(a, b, size); }
#endif

/// out[i] = start(i) + sum_j rows[i * stride + j] * x[j] for i in [0, count): a tile of a matrix-vector product.
template <class Team, class Start>
DSPARK_INLINE DSPARK_HD void multiply_rows(const Team& team, const float* rows, int64_t stride, int64_t count,
                                           const float* x, int64_t size, float* out, const Start& start) {
  for (int64_t i = 0; i < count; ++i) {
    const float sum = dot(team, rows + i * stride, x, size);
    if (team.lane() == 0) out[i] = start(i) + sum;
  }
}

#if !defined(__CUDACC__)
template <class Start>
DSPARK_INLINE void multiply_rows(const SoloTeam& team, const float* rows, int64_t stride, int64_t count, const float* x,
                                 int64_t size, float* out, const Start& start) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    float sums[1][4];
    dot4<1>(rows + i * stride, stride, &x, size, /*ahead=*/0, sums);
    for (int l = 0; l < 4; ++l) out[i + l] = start(i + l) + sums[0][l];
  }
  for (; i < count; ++i) out[i] = start(i) + dot(team, rows + i * stride, x, size);
}
#endif

}  // namespace dspark
#endif  // DSPARK_OPS_DOT_H_
