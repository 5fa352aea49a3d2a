/// Float dot products for the heads: one row over a team, or four rows at once on a CPU.
#ifndef DSPARK_OPS_DOT_H_
#define DSPARK_OPS_DOT_H_

#include <stdint.h>

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
/// out[i] = sum_j rows[i * stride + j] * x[j] for i in [0, 4). The order of the sums depends on `size` alone.
DSPARK_INLINE void dot4(const float* rows, int64_t stride, const float* x, int64_t size, float* out) {
  Float16 sum0 = {};
  Float16 sum1 = {};
  Float16 sum2 = {};
  Float16 sum3 = {};
  int64_t j = 0;
  for (; j + 16 <= size; j += 16) {
    const Float16 right = load<Float16>(x + j);
    sum0 += load<Float16>(rows + j) * right;
    sum1 += load<Float16>(rows + stride + j) * right;
    sum2 += load<Float16>(rows + 2 * stride + j) * right;
    sum3 += load<Float16>(rows + 3 * stride + j) * right;
  }
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
  Float4 sums =
      __builtin_shufflevector(pair01, pair23, 0, 1, 4, 5) + __builtin_shufflevector(pair01, pair23, 2, 3, 6, 7);
  for (; j < size; ++j) {
    const Float4 left = {rows[j], rows[stride + j], rows[2 * stride + j], rows[3 * stride + j]};
    sums += left * x[j];
  }
  store(out, sums);
}

/// A CPU's team of one sums in sixteen lanes.
DSPARK_INLINE float dot(const SoloTeam&, const float* a, const float* b, int64_t size) {
  Float16 sum = {};
  int64_t j = 0;
  for (; j + 16 <= size; j += 16) sum += load<Float16>(a + j) * load<Float16>(b + j);
  float total = 0.f;
  for (int l = 0; l < 16; ++l) total += sum[l];
  for (; j < size; ++j) total += a[j] * b[j];
  return total;
}
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
    float sums[4];
    dot4(rows + i * stride, stride, x, size, sums);
    for (int l = 0; l < 4; ++l) out[i + l] = start(i + l) + sums[l];
  }
  for (; i < count; ++i) out[i] = start(i) + dot(team, rows + i * stride, x, size);
}
#endif

}  // namespace dspark
#endif  // DSPARK_OPS_DOT_H_
