/// DSparkLinear on a CPU: products with weights that stay as small in memory as the checkpoint has them.
///
/// A lane is a column of the output and sums over k = 0, 1, ... in order, whatever the tile. Unpacking is exact, so
/// that a row is the same to the last bit when it is alone (weights unpacked in registers, once for all rows of the
/// call) and when it is one of many (weights unpacked to a panel of floats that all row tiles read).
#include <algorithm>
#include <utility>

#include "check.h"
#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"
#include "dspark/parallel.h"
#include "dspark/vectors.h"
#include "scratch.h"
#include "status.h"

namespace dspark {
namespace {

constexpr const char* kName = "linear";

/// Sums stay in registers only where the loops over a tile have gone before variables are given places.
#define DSPARK_UNROLL _Pragma("GCC unroll 16")

/// Columns of a group: the lanes of the widest vector. A slab of groups lies together in memory.
constexpr int kColumns = 16;
constexpr int kSlabGroups = 4;
constexpr int kSlab = kSlabGroups * kColumns;
/// Groups of a panel: two vectors per row keep twelve rows in registers.
constexpr int kPanelGroups = 2;
/// Words between the one that is used and the one that is fetched: 4 KB cover the latency of memory.
constexpr int64_t kAhead = 1024;
/// Inputs that share a scale.
constexpr int64_t kBlock = 32;
/// With fewer products than this, waking threads costs more than the work.
constexpr double kSerialProducts = 1 << 17;
/// Most pieces that the slabs are shared out in.
constexpr int64_t kMaxPieces = 64;

/// Vectors, and the tiles (rows x groups) whose sums stay in registers.
struct Avx512 {
  static constexpr int width = 16, fused_rows = 8, panel_rows = 12;
  typedef float Float __attribute__((vector_size(64)));
  typedef int32_t Int __attribute__((vector_size(64)));
  typedef uint32_t Bits __attribute__((vector_size(64)));
  static constexpr int groups(int rows) { return rows <= 3 ? 4 : 2; }
};
struct Avx2 {
  static constexpr int width = 8, fused_rows = 4, panel_rows = 3;
  typedef float Float __attribute__((vector_size(32)));
  typedef int32_t Int __attribute__((vector_size(32)));
  typedef uint32_t Bits __attribute__((vector_size(32)));
  static constexpr int groups(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
};
struct Baseline {
  static constexpr int width = 4, fused_rows = 2, panel_rows = 1;
  typedef float Float __attribute__((vector_size(16)));
  typedef int32_t Int __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
  static constexpr int groups(int rows) { return rows == 1 ? 2 : 1; }
};

template <class Isa>
struct Lanes {
  using Float = typename Isa::Float;
  using Int = typename Isa::Int;
  using Bits = typename Isa::Bits;

  static DSPARK_INLINE Float splat(float value) {
    // gcc 12 makes one broadcast of this; of a list of equal lanes, inlined into another target, it makes sixteen.
    float lane[Isa::width];
    for (int i = 0; i < Isa::width; ++i) lane[i] = value;
    return load<Float>(lane);
  }
  static DSPARK_INLINE Float as_float(Bits bits) {
    Float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static DSPARK_INLINE Float to_float(Bits integers) { return __builtin_convertvector((Int)integers, Float); }

  /// float16 in the low halves of the lanes, exactly, subnormals and infinities too.
  static DSPARK_INLINE Float half(Bits bits) {
    const Bits exponent = bits & 0x7c00u;
    const Bits magnitude = (bits & 0x7fffu) << 13;
    // A subnormal's leading one appears by subtracting the smallest normal number.
    const Float subnormal = as_float(magnitude + 0x38800000u) - as_float(Bits{} + 0x38800000u);
    Bits value = magnitude + 0x38000000u;
    value = exponent == 0x7c00u ? magnitude + 0x70000000u : value;
    value = exponent == 0u ? (Bits)subnormal : value;
    return as_float(value | (bits & 0x8000u) << 16);
  }
};

/// A storage says: a block of `block` inputs is a head word (with_head) and block / per words of `per` weights each;
/// `value<J>` is weight J of a word. from_memory: worth fetching ahead, since no cache holds it.
template <class Isa>
struct Bf16 {
  using L = Lanes<Isa>;
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr int block = 2, per = 2;
  static constexpr bool with_head = false, from_memory = true;
  struct Head {};
  static DSPARK_INLINE Head head(Bits) { return {}; }
  template <int J>
  static DSPARK_INLINE Float value(Bits word, const Head&) {
    return L::as_float(J == 0 ? word << 16 : word & 0xffff0000u);
  }
};

template <class Isa>
struct Q80 {
  using L = Lanes<Isa>;
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr int block = kBlock, per = 4;
  static constexpr bool with_head = true, from_memory = true;
  struct Head {
    Float d; /* times 2^-24: q is read as the upper byte of an integer */
  };
  static DSPARK_INLINE Head head(Bits word) { return {L::as_float(word) * 0x1p-24f}; }
  template <int J>
  static DSPARK_INLINE Float value(Bits word, const Head& head) {
    Bits top = word;
    if constexpr (J < 3) top = word << (24 - 8 * J);
    if constexpr (J > 0) top = top & 0xff000000u;
    return L::to_float(top) * head.d;
  }
};

template <class Isa>
struct Q41 {
  using L = Lanes<Isa>;
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr int block = kBlock, per = 8;
  static constexpr bool with_head = true, from_memory = true;
  struct Head {
    Float d, m;
  };
  static DSPARK_INLINE Head head(Bits word) { return {L::half(word & 0xffffu), L::half(word >> 16)}; }
  template <int J>
  static DSPARK_INLINE Float value(Bits word, const Head& head) {
    Bits low = word;
    if constexpr (J > 0) low = word >> (4 * J);
    if constexpr (Isa::width == 16) {
      // A permutation reads the lowest four bits of an index only: a table of sixteen floats is the conversion.
      const Float table = {0.f, 1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f, 8.f, 9.f, 10.f, 11.f, 12.f, 13.f, 14.f, 15.f};
      return __builtin_shuffle(table, (typename L::Int)low) * head.d + head.m;
    } else {
      if constexpr (J < 7) low = low & 0xfu;
      return L::to_float(low) * head.d + head.m;
    }
  }
};

/// Weights that are floats already.
template <class Isa>
struct Plain {
  using L = Lanes<Isa>;
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr int block = 1, per = 1;
  static constexpr bool with_head = false, from_memory = false;
  struct Head {};
  static DSPARK_INLINE Head head(Bits) { return {}; }
  template <int J>
  static DSPARK_INLINE Float value(Bits word, const Head&) {
    return L::as_float(word);
  }
};

/// Words of the first column of a group, and how far the next word of a column is; the next group's is kColumns on.
struct Place {
  const int32_t* words;
  int64_t next_word;
};

template <class Isa>
struct Kernel {
  using L = Lanes<Isa>;
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr int W = Isa::width;
  static constexpr int P = kColumns / W; /* vectors of a group */

  const dspark_linear_params& p;
  const int64_t words; /* of a column */

  DSPARK_INLINE explicit Kernel(const dspark_linear_params& params)
      : p(params), words(dspark_linear_words(params.storage, params.in_features)) {}

  /// sum[r][v] += x[r] * weight J.. of the words, in order of J.
  template <class S, int R, int V, int J = 0>
  static DSPARK_INLINE void multiply(const float* x, int64_t stride, const Bits (&word)[V],
                                     const typename S::Head (&head)[V], Float (&sum)[R][V]) {
    if constexpr (J < S::per) {
      Float weight[V];
      DSPARK_UNROLL
      for (int v = 0; v < V; ++v) weight[v] = S::template value<J>(word[v], head[v]);
      DSPARK_UNROLL
      for (int r = 0; r < R; ++r) {
        const Float broadcast = L::splat(x[r * stride + J]);
        DSPARK_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] += broadcast * weight[v];
      }
      multiply<S, R, V, J + 1>(x, stride, word, head, sum);
    }
  }

  /// output[r, group ...] for R rows and G groups.
  template <class S, int R, int G>
  DSPARK_INLINE void tile(int64_t row, int64_t group, const Place& at) const {
    constexpr int V = G * P;
    Float sum[R][V];
    DSPARK_UNROLL
    for (int r = 0; r < R; ++r) {
      DSPARK_UNROLL
      for (int v = 0; v < V; ++v) sum[r][v] = Float{};
    }
    const float* x = p.input + row * p.in_features;
    const int32_t* words = at.words;
    for (int64_t k = 0; k < p.in_features; k += S::block) {
      typename S::Head head[V];
      if constexpr (S::with_head) {
        DSPARK_UNROLL
        for (int v = 0; v < V; ++v) head[v] = S::head(load<Bits>(words + v * W));
        words += at.next_word;
      }
      for (int i = 0; i < S::block; i += S::per) {
        Bits word[V];
        DSPARK_UNROLL
        for (int v = 0; v < V; ++v) word[v] = load<Bits>(words + v * W);
        if constexpr (S::from_memory) {
          DSPARK_UNROLL
          for (int g = 0; g < G; ++g) __builtin_prefetch(words + g * kColumns + kAhead);
        }
        words += at.next_word;
        multiply<S, R, V>(x + k + i, p.in_features, word, head, sum);
      }
    }
    alignas(64) float result[R * G * kColumns];
    DSPARK_UNROLL
    for (int r = 0; r < R; ++r) {
      DSPARK_UNROLL
      for (int v = 0; v < V; ++v) store(result + (r * V + v) * W, sum[r][v]);
    }
    const int64_t column = group * kColumns;
    const int64_t count = std::min<int64_t>(G * kColumns, p.out_features - column);
    for (int r = 0; r < R; ++r) {
      float* out = p.output + (row + r) * p.out_features + column;
      const float* in = result + r * G * kColumns;
      if (p.bias != nullptr) {
        for (int64_t c = 0; c < count; ++c) out[c] = in[c] + p.bias[column + c];
      } else {
        memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      }
    }
  }

  DSPARK_INLINE Place place(int64_t group) const {
    return {p.weight + group / kSlabGroups * words * kSlab + group % kSlabGroups * kColumns, kSlab};
  }

  /// All R rows of the call against the slabs [first, last).
  template <class S, int R>
  DSPARK_INLINE void fused(int64_t first, int64_t last) const {
    constexpr int G = Isa::groups(R);
    static_assert(kSlabGroups % G == 0, "a tile stays inside its slab");
    for (int64_t group = first * kSlabGroups; group < last * kSlabGroups; group += G) {
      if (group * kColumns < p.out_features) tile<S, R, G>(0, group, place(group));
    }
  }

  template <class S, int R = 1>
  DSPARK_INLINE void fused_any(int64_t first, int64_t last) const {
    if (p.num_rows == R) {
      fused<S, R>(first, last);
    } else if constexpr (R < Isa::fused_rows) {
      fused_any<S, R + 1>(first, last);
    }
  }

  /// panel[k, column] = weight of the groups [group, group + kPanelGroups), which are of one slab.
  template <class S>
  DSPARK_INLINE void unpack(int64_t group, float* panel) const {
    constexpr int V = kPanelGroups * P;
    const int32_t* from = place(group).words;
    for (int64_t k = 0; k < p.in_features; k += S::block) {
      typename S::Head head[V];
      if constexpr (S::with_head) {
        DSPARK_UNROLL
        for (int v = 0; v < V; ++v) head[v] = S::head(load<Bits>(from + v * W));
        from += kSlab;
      }
      for (int i = 0; i < S::block; i += S::per) {
        float* to = panel + (k + i) * kPanelGroups * kColumns;
        DSPARK_UNROLL
        for (int v = 0; v < V; ++v) unpack_word<S>(load<Bits>(from + v * W), head[v], to + v * W);
        for (int g = 0; g < kPanelGroups; ++g) __builtin_prefetch(from + g * kColumns + kAhead);
        from += kSlab;
      }
    }
  }

  template <class S, int J = 0>
  static DSPARK_INLINE void unpack_word(Bits word, const typename S::Head& head, float* to) {
    if constexpr (J < S::per) {
      store(to + J * kPanelGroups * kColumns, S::template value<J>(word, head));
      unpack_word<S, J + 1>(word, head, to);
    }
  }

  template <int R = 1>
  DSPARK_INLINE void rest(int64_t row, int64_t group, const Place& at) const {
    if (p.num_rows - row == R) {
      tile<Plain<Isa>, R, kPanelGroups>(row, group, at);
    } else if constexpr (R + 1 < Isa::panel_rows) {
      rest<R + 1>(row, group, at);
    }
  }

  DSPARK_INLINE void products(int64_t group, const float* panel) const {
    const Place at{reinterpret_cast<const int32_t*>(panel), kPanelGroups * kColumns};
    constexpr int R = Isa::panel_rows;
    int64_t row = 0;
    for (; row + R <= p.num_rows; row += R) tile<Plain<Isa>, R, kPanelGroups>(row, group, at);
    if (row < p.num_rows) rest(row, group, at);
  }
};

/// The kernel compiled for one instruction set.
struct Level {
  int64_t fused_rows;
  void (*fused)(const dspark_linear_params&, int64_t first, int64_t last);
  void (*unpack)(const dspark_linear_params&, int64_t group, float* panel);
  void (*products)(const dspark_linear_params&, int64_t group, const float* panel);
};

#define DSPARK_LINEAR_LEVEL(Isa, TARGET)                                                           \
  TARGET void fused_##Isa(const dspark_linear_params& p, int64_t first, int64_t last) {            \
    if (p.storage == DSPARK_STORAGE_BF16) return Kernel<Isa>(p).fused_any<Bf16<Isa>>(first, last); \
    if (p.storage == DSPARK_STORAGE_Q8_0) return Kernel<Isa>(p).fused_any<Q80<Isa>>(first, last);  \
    Kernel<Isa>(p).fused_any<Q41<Isa>>(first, last);                                               \
  }                                                                                                \
  TARGET void unpack_##Isa(const dspark_linear_params& p, int64_t group, float* panel) {           \
    if (p.storage == DSPARK_STORAGE_BF16) return Kernel<Isa>(p).unpack<Bf16<Isa>>(group, panel);   \
    if (p.storage == DSPARK_STORAGE_Q8_0) return Kernel<Isa>(p).unpack<Q80<Isa>>(group, panel);    \
    Kernel<Isa>(p).unpack<Q41<Isa>>(group, panel);                                                 \
  }                                                                                                \
  TARGET void products_##Isa(const dspark_linear_params& p, int64_t group, const float* panel) {   \
    Kernel<Isa>(p).products(group, panel);                                                         \
  }                                                                                                \
  constexpr Level k##Isa{Isa::fused_rows, fused_##Isa, unpack_##Isa, products_##Isa};

DSPARK_LINEAR_LEVEL(Baseline, )
#if DSPARK_X86_LEVELS
DSPARK_LINEAR_LEVEL(Avx2, DSPARK_X86_V3)
DSPARK_LINEAR_LEVEL(Avx512, DSPARK_X86_V4)
#endif
#undef DSPARK_LINEAR_LEVEL

const Level& level() {
#if DSPARK_X86_LEVELS
  static const Level& best = x86_level() == 4 ? kAvx512 : x86_level() == 3 ? kAvx2 : kBaseline;
  return best;
#else
  return kBaseline;
#endif
}

void run(const dspark_linear_params& p, const dspark_parallel* parallel) {
  const Level& kernel = level();
  const double products = static_cast<double>(p.num_rows) * p.in_features * p.out_features;
  if (products < kSerialProducts) parallel = nullptr;
  if (p.num_rows <= kernel.fused_rows) {
    const int64_t slabs = (p.out_features + kSlab - 1) / kSlab;
    const int64_t pieces = std::min(slabs, kMaxPieces);
    parallel_for(parallel, pieces, [&](int64_t i) { kernel.fused(p, i * slabs / pieces, (i + 1) * slabs / pieces); });
    return;
  }
  constexpr int64_t kPanel = kPanelGroups * kColumns;
  parallel_for(parallel, (p.out_features + kPanel - 1) / kPanel, [&](int64_t i) {
    thread_local Scratch scratch;
    float* panel = scratch.floats(p.in_features * kPanel);
    kernel.unpack(p, i * kPanelGroups, panel);
    kernel.products(p, i * kPanelGroups, panel);
  });
}

void check(const dspark_linear_params& p) {
  constexpr int64_t kMost = int64_t{1} << 31;
  check_range(kName, "storage", p.storage, DSPARK_STORAGE_BF16, DSPARK_STORAGE_Q4_1);
  check_range(kName, "num_rows", p.num_rows, 0, kMost);
  check_range(kName, "in_features", p.in_features, 1, kMost);
  check_range(kName, "out_features", p.out_features, 1, kMost);
  if (dspark_linear_words(p.storage, p.in_features) < 0) {
    const int64_t unit = p.storage == DSPARK_STORAGE_BF16 ? 2 : kBlock;
    refuse(kName, ": in_features is ", p.in_features, ", wanted a multiple of ", unit, " for this storage");
  }
  if (p.num_rows == 0) return;
  check_pointer(kName, "input", p.input);
  check_pointer(kName, "weight", p.weight);
  check_pointer(kName, "output", p.output);
}

}  // namespace
}  // namespace dspark

extern "C" int64_t dspark_linear_words(int32_t storage, int64_t in_features) {
  if (in_features < 1) return -1;
  if (storage == DSPARK_STORAGE_BF16) return in_features % 2 == 0 ? in_features / 2 : -1;
  if (in_features % dspark::kBlock != 0) return -1;
  if (storage == DSPARK_STORAGE_Q8_0) return in_features / dspark::kBlock * 9;
  return storage == DSPARK_STORAGE_Q4_1 ? in_features / dspark::kBlock * 5 : -1;
}

extern "C" dspark_status dspark_linear(const dspark_linear_params* params, const dspark_parallel* parallel) {
  using namespace dspark;
  return guarded(DSPARK_OP_LINEAR, [&] {
    check_pointer(kName, "params", params);
    check(*params);
    if (params->num_rows > 0) run(*params, parallel);
  });
}
