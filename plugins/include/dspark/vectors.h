/// The compiler's own vector types (GCC, Clang), lowered to what the instruction set of the enclosing clone offers.
///
/// Only for functions that are DSPARK_CLONES or inlined into one; values never cross a plain call. Not seen by nvcc.
#ifndef DSPARK_VECTORS_H_
#define DSPARK_VECTORS_H_

#include <stdint.h>
#include <string.h>

#include "dspark/host_device.h"

namespace dspark {

typedef float Float16 __attribute__((vector_size(64)));
typedef float Float8 __attribute__((vector_size(32)));
typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef uint32_t Uint16 __attribute__((vector_size(64)));
typedef uint32_t Uint8 __attribute__((vector_size(32)));
typedef uint16_t Half16 __attribute__((vector_size(32)));
typedef int16_t Short16 __attribute__((vector_size(32)));
typedef int8_t Byte16 __attribute__((vector_size(16)));
typedef double Double8 __attribute__((vector_size(64)));
typedef uint64_t Ulong8 __attribute__((vector_size(64)));

/// Unaligned.
template <class Vector, class T>
DSPARK_INLINE Vector load(const T* from) {
  Vector value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <class Vector, class T>
DSPARK_INLINE void store(T* to, const Vector& value) {
  memcpy(to, &value, sizeof value);
}

/// Lane by lane. NaN in `value` is passed over. A comparison is only ever used to select like this: as a value of its
/// own (`mask |= a > b`) GCC 12 takes it apart into scalars on AVX-512.
template <class Vector>
DSPARK_INLINE Vector larger(const Vector& value, const Vector& best) {
  return value > best ? value : best;
}

/// By halves: lane after lane would be a chain of fifteen comparisons.
DSPARK_INLINE float largest_lane(const Float16& value) {
  const Float8 half = larger(__builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7),
                             __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15));
  const Float4 quarter =
      larger(__builtin_shufflevector(half, half, 0, 1, 2, 3), __builtin_shufflevector(half, half, 4, 5, 6, 7));
  const Float4 pair = larger(quarter, __builtin_shufflevector(quarter, quarter, 2, 3, 2, 3));
  return pair[0] > pair[1] ? pair[0] : pair[1];
}

DSPARK_INLINE int32_t largest_lane(const Int16& value) {
  int32_t best = value[0];
  for (int l = 1; l < 16; ++l) best = value[l] > best ? value[l] : best;
  return best;
}

DSPARK_INLINE double largest_lane(const Double8& value) {
  double best = value[0];
  for (int l = 1; l < 8; ++l) best = value[l] > best ? value[l] : best;
  return best;
}

}  // namespace dspark
#endif  // DSPARK_VECTORS_H_
