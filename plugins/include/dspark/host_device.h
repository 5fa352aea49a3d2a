/// The only header that knows which compiler runs: function qualifiers, clones per instruction set, and the team of
/// one.
#ifndef DSPARK_HOST_DEVICE_H_
#define DSPARK_HOST_DEVICE_H_

#include <cstdint>

#if defined(__CUDACC__)
#define DSPARK_HD __host__ __device__
#else
#define DSPARK_HD
#endif

/// A callee that must end up inside its caller, so that it is compiled for the caller's instruction set.
#define DSPARK_INLINE __attribute__((always_inline)) inline

/// One function, compiled for AVX-512, AVX2 + FMA and the x86-64 baseline; the loader picks (ifunc). Everything hot
/// that it calls must be DSPARK_INLINE (lambdas: `[&](...) __attribute__((always_inline)) {}`), since a plain call
/// leaves the clone.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && \
    !defined(__SANITIZE_ADDRESS__)
#define DSPARK_X86_LEVELS 1
#define DSPARK_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
/// For bodies whose tiles differ per level: one function each, chosen with dspark::x86_level().
#define DSPARK_X86_V4 __attribute__((target("arch=x86-64-v4")))
#define DSPARK_X86_V3 __attribute__((target("arch=x86-64-v3")))
#else
#define DSPARK_X86_LEVELS 0
#define DSPARK_CLONES
#endif

namespace dspark {

#if DSPARK_X86_LEVELS
/// A test builds with a lower one to run, on this processor, the code for older processors.
#ifndef DSPARK_MAX_X86_LEVEL
#define DSPARK_MAX_X86_LEVEL 4
#endif

/// The x86-64 feature level of this processor that we have code for: 4, 3 or 1.
inline int x86_level() {
  if (DSPARK_MAX_X86_LEVEL >= 4 && __builtin_cpu_supports("x86-64-v4")) return 4;
  return DSPARK_MAX_X86_LEVEL >= 3 && __builtin_cpu_supports("x86-64-v3") ? 3 : 1;
}
#endif

/// The lanes that work on one piece together; a CPU passes this team of one, CUDA a warp.
struct SoloTeam {
  DSPARK_HD int64_t lane() const { return 0; }
  DSPARK_HD int64_t lanes() const { return 1; }
  template <class T>
  DSPARK_HD T sum(T part) const {
    return part;
  }
  template <class T>
  DSPARK_HD T max(T part) const {
    return part;
  }
  DSPARK_HD void sync() const {}
};

}  // namespace dspark

#endif  // DSPARK_HOST_DEVICE_H_
