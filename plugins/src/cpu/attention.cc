/// Attention on a CPU: blocks of keys, online softmax (Dao et al. 2022, arXiv:2205.14135), grouped heads sharing a
/// block.
///
/// What makes a row's result independent of its neighbours: keys are cut at fixed multiples of kBlock and kChunk, a row
/// sums in the same order in every tile, and a chunk's partial result is merged in ascending order whether the chunks
/// ran on one thread or on many.
#include "dspark/ops/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "dspark/parallel.h"
#include "lengths.h"
#include "scratch.h"
#include "status.h"

namespace dspark {
namespace {

constexpr const char* kName = "attention";

/// Keys whose scores are held at once: 64 x 64 floats of K and of V stay in a first-level cache.
constexpr int64_t kBlock = 64;
/// Keys that one piece of work covers when there are too few (slot, head) pairs to share out. A multiple of kBlock.
constexpr int64_t kChunk = 256;
/// Rows (query x head of the group) that share a transposed block of keys: enough to pay for the transposition.
constexpr int64_t kRows = 64;
/// With fewer pieces than this, long key ranges are split.
constexpr int64_t kPieces = 32;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Vector width and tile width that fit the registers of an instruction set.
struct Avx512 {
  static constexpr int width = 16, columns = 4;
  typedef float Float __attribute__((vector_size(64)));
  typedef uint32_t Bits __attribute__((vector_size(64)));
};
struct Avx2 {
  static constexpr int width = 8, columns = 2;
  typedef float Float __attribute__((vector_size(32)));
  typedef uint32_t Bits __attribute__((vector_size(32)));
};
struct Baseline {
  static constexpr int width = 4, columns = 2;
  typedef float Float __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
};

template <class Isa>
struct Lanes {
  static constexpr int width = Isa::width;
  using Float = typename Isa::Float;
  using Bits = typename Isa::Bits;

  static DSPARK_INLINE Float load(const float* from) {
    Float value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static DSPARK_INLINE void store(float* to, Float value) { __builtin_memcpy(to, &value, sizeof(value)); }
  static DSPARK_INLINE Float splat(float value) {
    // gcc 12 makes one broadcast of this; of a list of equal lanes, inlined into another target, it makes sixteen.
    float lane[width];
    for (int i = 0; i < width; ++i) lane[i] = value;
    return load(lane);
  }

  /// Lane i gets lane (i + Step) mod width.
  template <int Step, int... I>
  static DSPARK_INLINE Float rotate(Float value, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(value, value, ((I + Step) % width)...);
  }

  template <int Step = width / 2>
  static DSPARK_INLINE float max(Float value) {
    if constexpr (Step == 0) {
      return value[0];
    } else {
      const Float other = rotate<Step>(value, std::make_integer_sequence<int, width>{});
      return max<Step / 2>(value > other ? value : other);
    }
  }

  template <int Step = width / 2>
  static DSPARK_INLINE float sum(Float value) {
    if constexpr (Step == 0) {
      return value[0];
    } else {
      return sum<Step / 2>(value + rotate<Step>(value, std::make_integer_sequence<int, width>{}));
    }
  }

  /// exp(x) for x <= 0, 2 ulp (Cephes' expf polynomial); exactly 1 at 0, exactly 0 below -87, NaN for NaN.
  static DSPARK_INLINE Float exp(Float x) {
    const Float floor = splat(-87.f);
    const Float clamped = x < floor ? floor : x;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const Float shifted = clamped * 1.44269504088896341f + 12582912.f;
    const Float n = shifted - 12582912.f;
    const Float r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
    Float y = splat(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.f;
    Bits bits;
    __builtin_memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits << 23) + 0x3f800000u;
    Float power;
    __builtin_memcpy(&power, &bits, sizeof(power));
    return x < floor ? Float{} : y * power;
  }

  static DSPARK_INLINE float exp_one(float x) { return exp(splat(x))[0]; }
};

/// Sums of a set of rows over some of their keys: the largest score, sum of exp(score - largest), and the values so
/// weighted. largest: [rows], total: [rows], value: [rows, padded D].
struct Partial {
  float* largest;
  float* total;
  float* value;

  static int64_t floats(int64_t rows, int64_t padded) { return rows * (padded + 2); }
  static Partial at(float* memory, int64_t rows, int64_t padded) {
    return {memory + rows * padded, memory + rows * (padded + 1), memory};
  }
};

/// A piece of work: the rows [first, first + queries) x group of one slot and key/value head.
struct Piece {
  int64_t b, g, first, queries;
};

/// Keys that some row of the piece sees: its last query sees the most.
int64_t num_keys(const AttentionIndex& at, const Piece& piece) {
  return at.visible(piece.b, piece.first + piece.queries - 1);
}

int64_t num_chunks(const AttentionIndex& at, const Piece& piece) {
  return std::max<int64_t>(1, (num_keys(at, piece) + kChunk - 1) / kChunk);
}

template <class Isa>
struct Kernel {
  using L = Lanes<Isa>;
  using Float = typename L::Float;
  static constexpr int W = Isa::width;
  static constexpr int C = Isa::columns;

  const AttentionIndex& at;
  const int64_t depth;   // D
  const int64_t padded;  // D rounded up to whole vectors

  DSPARK_INLINE explicit Kernel(const AttentionIndex& index)
      : at(index), depth(index.p->head_width), padded((index.p->head_width + W - 1) / W * W) {}

  /// What a piece needs beside its results.
  struct Work {
    float* query;      // [rows, D]
    float* keys;       // [D, kBlock], transposed
    float* values;     // [kBlock, padded], only where D is not a whole number of vectors
    float* total;      // [rows, W]
    int64_t* visible;  // [rows]
  };

  static int64_t work_floats(int64_t rows, int64_t depth, int64_t padded) {
    return rows * depth + kBlock * depth + kBlock * padded + rows * W + 2 * rows + 64;
  }

  DSPARK_INLINE Work carve(float* memory, int64_t rows) const {
    Work w;
    // The keys first: their rows are then whole cache lines. int64_t before the odd-sized arrays, for its alignment.
    w.keys = memory;
    w.values = w.keys + kBlock * depth;
    w.total = w.values + kBlock * padded;
    w.visible = reinterpret_cast<int64_t*>(w.total + rows * W);
    w.query = w.total + rows * W + 2 * rows;
    return w;
  }

  DSPARK_INLINE int64_t rows_of(const Piece& piece) const { return piece.queries * at.group(); }

  DSPARK_INLINE void gather_queries(const Piece& piece, const Work& w) const {
    const int64_t group = at.group();
    for (int64_t i = 0; i < piece.queries; ++i) {
      for (int64_t h = 0; h < group; ++h) {
        const int64_t r = i * group + h;
        std::memcpy(w.query + r * depth, at.p->query + at.query_offset(piece.b, piece.first + i, piece.g * group + h),
                    static_cast<size_t>(depth) * sizeof(float));
        w.visible[r] = at.visible(piece.b, piece.first + i);
      }
    }
  }

  /// keys[d, j] = key[j, d] for j < count, 0 up to kBlock.
  DSPARK_INLINE void transpose(const float* key, int64_t count, float* keys) const {
    typedef float Four __attribute__((vector_size(16)));
    typedef float Eight __attribute__((vector_size(32)));
    int64_t j = 0;
    for (; j + 8 <= count; j += 8) {
      const float* in = key + j * depth;
      int64_t d = 0;
      for (; d + 4 <= depth; d += 4) {
        Eight row[4];
        for (int k = 0; k < 4; ++k) {
          Four low, high;
          __builtin_memcpy(&low, in + k * depth + d, sizeof(low));
          __builtin_memcpy(&high, in + (k + 4) * depth + d, sizeof(high));
          row[k] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
        }
        const Eight a = __builtin_shufflevector(row[0], row[1], 0, 8, 1, 9, 4, 12, 5, 13);
        const Eight b = __builtin_shufflevector(row[0], row[1], 2, 10, 3, 11, 6, 14, 7, 15);
        const Eight c = __builtin_shufflevector(row[2], row[3], 0, 8, 1, 9, 4, 12, 5, 13);
        const Eight e = __builtin_shufflevector(row[2], row[3], 2, 10, 3, 11, 6, 14, 7, 15);
        const Eight column[4] = {
            __builtin_shufflevector(a, c, 0, 1, 8, 9, 4, 5, 12, 13),
            __builtin_shufflevector(a, c, 2, 3, 10, 11, 6, 7, 14, 15),
            __builtin_shufflevector(b, e, 0, 1, 8, 9, 4, 5, 12, 13),
            __builtin_shufflevector(b, e, 2, 3, 10, 11, 6, 7, 14, 15),
        };
        for (int k = 0; k < 4; ++k) __builtin_memcpy(keys + (d + k) * kBlock + j, &column[k], sizeof(Eight));
      }
      for (; d < depth; ++d) {
        for (int k = 0; k < 8; ++k) keys[d * kBlock + j + k] = in[k * depth + d];
      }
    }
    if (j == kBlock) return;
    for (int64_t d = 0; d < depth; ++d) {
      for (int64_t k = j; k < kBlock; ++k) keys[d * kBlock + k] = k < count ? key[k * depth + d] : 0.f;
    }
  }

  /// scores[r, j] = query[r] . key[j], summed over d in order.
  template <int R>
  DSPARK_INLINE void score(const float* query, const float* keys, float* scores) const {
    for (int64_t j = 0; j < kBlock; j += W * C) {
      Float sum[R][C];
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) sum[r][c] = Float{};
      }
      for (int64_t d = 0; d < depth; ++d) {
        Float key[C];
        for (int c = 0; c < C; ++c) key[c] = L::load(keys + d * kBlock + j + c * W);
        for (int r = 0; r < R; ++r) {
          const Float q = L::splat(query[r * depth + d]);
          for (int c = 0; c < C; ++c) sum[r][c] += q * key[c];
        }
      }
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) L::store(scores + r * kBlock + j + c * W, sum[r][c]);
      }
    }
  }

  /// scores[0, seen) become weights against the row's new maximum (0 from `seen` on); what was summed is rescaled.
  DSPARK_INLINE void soften(float* scores, int64_t seen, float* largest, float* total, float* value) const {
    for (int64_t j = seen; j < kBlock; ++j) scores[j] = kMinusInfinity;
    Float top = L::load(scores);
    for (int64_t j = W; j < kBlock; j += W) {
      const Float next = L::load(scores + j);
      top = next > top ? next : top;
    }
    const float peak = L::max(top);
    Float sum = L::load(total);
    if (peak > *largest) {
      if (*largest != kMinusInfinity) {
        const Float factor = L::splat(L::exp_one(*largest - peak));
        sum *= factor;
        for (int64_t d = 0; d < padded; d += W) L::store(value + d, L::load(value + d) * factor);
      }
      *largest = peak;
    }
    // While every score was -inf there is no maximum to subtract: -inf - 0 gives the weight 0, -inf + inf gave NaN.
    const Float base = L::splat(*largest == kMinusInfinity ? 0.f : *largest);
    for (int64_t j = 0; j < kBlock; j += W) {
      const Float weight = L::exp(L::load(scores + j) - base);
      L::store(scores + j, weight);
      sum += weight;
    }
    L::store(total, sum);
  }

  /// value[r, :] += sum over j in [from, to) of weights[r, j] * values[j, :], in order of j; N vectors of it.
  template <int R, int N>
  DSPARK_INLINE void gather_strip(const float* weights, const float* values, int64_t stride, int64_t from, int64_t to,
                                  float* value) const {
    Float sum[R][N];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) sum[r][n] = L::load(value + r * padded + n * W);
    }
    for (int64_t j = from; j < to; ++j) {
      Float v[N];
      for (int n = 0; n < N; ++n) v[n] = L::load(values + j * stride + n * W);
      for (int r = 0; r < R; ++r) {
        const Float weight = L::splat(weights[r * kBlock + j]);
        for (int n = 0; n < N; ++n) sum[r][n] += weight * v[n];
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) L::store(value + r * padded + n * W, sum[r][n]);
    }
  }

  template <int R>
  DSPARK_INLINE void gather(const float* weights, const float* values, int64_t stride, int64_t from, int64_t to,
                            float* value) const {
    int64_t d = 0;
    for (; d + C * W <= padded; d += C * W) {
      gather_strip<R, C>(weights, values + d, stride, from, to, value + d);
    }
    for (; d < padded; d += W) gather_strip<R, 1>(weights, values + d, stride, from, to, value + d);
  }

  /// R rows against the block of keys that starts at `start`.
  template <int R>
  DSPARK_INLINE void tile(int64_t r, int64_t start, const float* values, int64_t stride, const Work& w,
                          const Partial& out) const {
    int64_t seen[R];
    int64_t least = kBlock;
    int64_t most = 0;
    for (int k = 0; k < R; ++k) {
      seen[k] = std::min(std::max<int64_t>(w.visible[r + k] - start, 0), kBlock);
      least = std::min(least, seen[k]);
      most = std::max(most, seen[k]);
    }
    if (most == 0) return;
    alignas(64) float scores[R * kBlock];
    score<R>(w.query + r * depth, w.keys, scores);
    for (int k = 0; k < R; ++k) {
      if (seen[k] == 0) continue;
      soften(scores + k * kBlock, seen[k], out.largest + r + k, w.total + (r + k) * W, out.value + (r + k) * padded);
    }
    // Keys that only some rows see go row by row: a NaN in a value row must not reach a row that does not see it.
    gather<R>(scores, values, stride, 0, least, out.value + r * padded);
    if (most == least) return;
    for (int k = 0; k < R; ++k) {
      if (seen[k] > least) {
        gather<1>(scores + k * kBlock, values, stride, least, seen[k], out.value + (r + k) * padded);
      }
    }
  }

  /// The partial result of a piece over the keys [begin, end); queries must have been gathered.
  DSPARK_INLINE void chunk(const Piece& piece, int64_t begin, int64_t end, const Work& w, const Partial& out) const {
    const int64_t rows = rows_of(piece);
    std::fill(out.largest, out.largest + rows, kMinusInfinity);
    std::fill(out.value, out.value + rows * padded, 0.f);
    std::fill(w.total, w.total + rows * W, 0.f);
    const int64_t offset = at.key_offset(piece.b, piece.g);
    for (int64_t start = begin; start < end; start += kBlock) {
      const int64_t count = std::min(kBlock, end - start);
      transpose(at.p->key + offset + start * depth, count, w.keys);
      const float* values = at.p->value + offset + start * depth;
      if (padded != depth) {
        for (int64_t j = 0; j < count; ++j) {
          float* to = w.values + j * padded;
          std::memcpy(to, values + j * depth, static_cast<size_t>(depth) * sizeof(float));
          std::fill(to + depth, to + padded, 0.f);
        }
        values = w.values;
      }
      int64_t r = 0;
      for (; r + 6 <= rows; r += 6) tile<6>(r, start, values, padded, w, out);
      for (; r + 3 <= rows; r += 3) tile<3>(r, start, values, padded, w, out);
      for (; r < rows; ++r) tile<1>(r, start, values, padded, w, out);
    }
    for (int64_t r = 0; r < rows; ++r) out.total[r] = L::sum(L::load(w.total + r * W));
  }

  /// into += from, rows that saw nothing in `from` (total 0 and no maximum) left alone.
  DSPARK_INLINE void merge(int64_t rows, const Partial& into, const Partial& from) const {
    for (int64_t r = 0; r < rows; ++r) {
      float* to = into.value + r * padded;
      const float* add = from.value + r * padded;
      if (from.total[r] == 0.f) continue;
      // The larger maximum keeps its scale: one factor is 1, so that one product and one sum remain, in one order.
      if (from.largest[r] > into.largest[r]) {
        const float factor = L::exp_one(into.largest[r] - from.largest[r]);
        for (int64_t d = 0; d < padded; d += W) L::store(to + d, L::load(to + d) * factor + L::load(add + d));
        into.total[r] = into.total[r] * factor + from.total[r];
        into.largest[r] = from.largest[r];
      } else {
        const float factor = L::exp_one(from.largest[r] - into.largest[r]);
        for (int64_t d = 0; d < padded; d += W) L::store(to + d, L::load(add + d) * factor + L::load(to + d));
        into.total[r] = from.total[r] * factor + into.total[r];
      }
    }
  }

  DSPARK_INLINE void write(const Piece& piece, const Partial& result) const {
    const int64_t group = at.group();
    for (int64_t i = 0; i < piece.queries; ++i) {
      const bool blind = at.visible(piece.b, piece.first + i) == 0;
      for (int64_t h = 0; h < group; ++h) {
        const int64_t r = i * group + h;
        float* out = at.p->output + at.query_offset(piece.b, piece.first + i, piece.g * group + h);
        const float scale = blind ? 0.f : 1.f / result.total[r];
        for (int64_t d = 0; d < depth; ++d) out[d] = result.value[r * padded + d] * scale;
      }
    }
  }

  /// The partial result of chunk c of a piece.
  DSPARK_INLINE void run_part(const Piece& piece, int64_t c, float* result, Scratch& scratch) const {
    const int64_t rows = rows_of(piece);
    const Work w = carve(scratch.floats(work_floats(rows, depth, padded)), rows);
    gather_queries(piece, w);
    chunk(piece, c * kChunk, std::min(num_keys(at, piece), (c + 1) * kChunk), w, Partial::at(result, rows, padded));
  }

  DSPARK_INLINE void merge_part(const Piece& piece, float* into, const float* from) const {
    const int64_t rows = rows_of(piece);
    merge(rows, Partial::at(into, rows, padded), Partial::at(const_cast<float*>(from), rows, padded));
  }

  DSPARK_INLINE void write_result(const Piece& piece, float* result) const {
    write(piece, Partial::at(result, rows_of(piece), padded));
  }
};

/// The kernel compiled for one instruction set. Each function exists once, so that a row's arithmetic is the same
/// machine code whether its chunks were shared out or not.
struct Level {
  int64_t width;
  void (*run_part)(const AttentionIndex&, const Piece&, int64_t, float*, Scratch&);
  void (*merge_part)(const AttentionIndex&, const Piece&, float*, const float*);
  void (*write_result)(const AttentionIndex&, const Piece&, float*);
};

#define DSPARK_ATTENTION_LEVEL(Isa, TARGET)                                                                        \
  TARGET void run_part_##Isa(const AttentionIndex& at, const Piece& piece, int64_t c, float* result, Scratch& s) { \
    Kernel<Isa>(at).run_part(piece, c, result, s);                                                                 \
  }                                                                                                                \
  TARGET void merge_part_##Isa(const AttentionIndex& at, const Piece& piece, float* into, const float* from) {     \
    Kernel<Isa>(at).merge_part(piece, into, from);                                                                 \
  }                                                                                                                \
  TARGET void write_result_##Isa(const AttentionIndex& at, const Piece& piece, float* result) {                    \
    Kernel<Isa>(at).write_result(piece, result);                                                                   \
  }                                                                                                                \
  constexpr Level k##Isa{Isa::width, run_part_##Isa, merge_part_##Isa, write_result_##Isa};

DSPARK_ATTENTION_LEVEL(Baseline, )
#if DSPARK_X86_LEVELS
DSPARK_ATTENTION_LEVEL(Avx2, DSPARK_X86_V3)
DSPARK_ATTENTION_LEVEL(Avx512, DSPARK_X86_V4)
#endif
#undef DSPARK_ATTENTION_LEVEL

const Level& level() {
#if DSPARK_X86_LEVELS
  static const Level& best = x86_level() == 4 ? kAvx512 : x86_level() == 3 ? kAvx2 : kBaseline;
  return best;
#else
  return kBaseline;
#endif
}

/// A chunk of a split piece, and where its partial result lies, in floats.
struct Part {
  const Piece* piece;
  int64_t chunk, offset;
};

/// What the calling thread keeps between calls, so that a step allocates nothing.
struct Plan {
  std::vector<Piece> pieces;
  std::vector<Part> parts;
  Scratch partials;
};

int64_t partial_floats(const AttentionIndex& at, const Piece& piece) {
  const int64_t width = level().width;
  return Partial::floats(piece.queries * at.group(), (at.p->head_width + width - 1) / width * width);
}

/// A whole piece on this thread.
void run_piece(const AttentionIndex& at, const Piece& piece) {
  thread_local Scratch work;
  thread_local Scratch results;
  const Level& kernel = level();
  const int64_t part = partial_floats(at, piece);
  float* whole = results.floats(2 * part);
  float* next = whole + part;
  kernel.run_part(at, piece, 0, whole, work);
  const int64_t chunks = num_chunks(at, piece);
  for (int64_t c = 1; c < chunks; ++c) {
    kernel.run_part(at, piece, c, next, work);
    kernel.merge_part(at, piece, whole, next);
  }
  kernel.write_result(at, piece, whole);
}

/// Few pieces with long keys: their chunks are shared out, then merged in the order in which run_piece would.
void run_split(const AttentionIndex& at, Plan& plan, const dspark_parallel* parallel) {
  const Level& kernel = level();
  plan.parts.clear();
  int64_t size = 0;
  for (const Piece& piece : plan.pieces) {
    const int64_t chunks = num_chunks(at, piece);
    for (int64_t c = 0; c < chunks; ++c) {
      plan.parts.push_back({&piece, c, size});
      size += partial_floats(at, piece);
    }
  }
  float* memory = plan.partials.floats(size);
  const Part* parts = plan.parts.data();
  const int64_t count = static_cast<int64_t>(plan.parts.size());
  parallel_for(parallel, count, [&](int64_t i) {
    thread_local Scratch work;
    kernel.run_part(at, *parts[i].piece, parts[i].chunk, memory + parts[i].offset, work);
  });
  float* whole = nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = parts[i];
    if (part.chunk == 0) {
      whole = memory + part.offset;
    } else {
      kernel.merge_part(at, *part.piece, whole, memory + part.offset);
    }
    if (i + 1 == count || parts[i + 1].chunk == 0) kernel.write_result(at, *part.piece, whole);
  }
}

void run(const dspark_attention_params& p, const dspark_parallel* parallel) {
  const AttentionIndex at{&p};
  thread_local Plan plan;
  plan.pieces.clear();
  const int64_t step = std::max<int64_t>(1, kRows / at.group());
  bool long_keys = false;
  int64_t products = 0;
  for (int64_t b = 0; b < p.num_slots; ++b) {
    const int64_t queries = at.num_queries(b);
    for (int64_t first = 0; first < queries; first += step) {
      const int64_t count = std::min(step, queries - first);
      const int64_t keys = at.visible(b, first + count - 1);
      long_keys = long_keys || keys > kChunk;
      products += count * p.num_heads * keys * p.head_width;
      for (int64_t g = 0; g < p.num_kv_heads; ++g) plan.pieces.push_back({b, g, first, count});
    }
  }
  if (at.packed()) {
    const int64_t used = p.query_lengths[p.num_slots] * p.num_heads * p.head_width;
    std::fill(p.output + used, p.output + p.num_tokens * p.num_heads * p.head_width, 0.f);
  }
  // Waking threads costs more than a few microseconds of work.
  constexpr int64_t kSerialProducts = 1 << 17;
  if (products < kSerialProducts) parallel = nullptr;
  const int64_t pieces = static_cast<int64_t>(plan.pieces.size());
  if (parallel != nullptr && long_keys && pieces < kPieces) return run_split(at, plan, parallel);
  // Taken here: inside the body, `plan` would be the helper thread's own.
  const Piece* list = plan.pieces.data();
  parallel_for(parallel, pieces, [&](int64_t i) { run_piece(at, list[i]); });
}

void check(const dspark_attention_params& p) {
  need_at_least(p.num_slots, 0, kName, "num_slots");
  need_at_least(p.num_heads, 1, kName, "num_heads");
  need_at_least(p.num_kv_heads, 1, kName, "num_kv_heads");
  need_at_least(p.capacity, 0, kName, "capacity");
  need_at_least(p.head_width, 1, kName, "head_width");
  need_at_least(p.num_tokens, 0, kName, "num_tokens");
  if (p.num_heads % p.num_kv_heads != 0) {
    refuse("attention: num_heads is " + std::to_string(p.num_heads) + ", needs a multiple of num_kv_heads, " +
           std::to_string(p.num_kv_heads));
  }
  if (p.query_form != DSPARK_PACKED_NHD && p.query_form != DSPARK_PADDED_BHND) {
    refuse("attention: query_form is " + std::to_string(p.query_form) + ", needs 0 (packed_nhd) or 1 (padded_bhnd)");
  }
  if (p.causal < DSPARK_CAUSAL_NONE || p.causal > DSPARK_CAUSAL_LOWER_RIGHT) {
    refuse("attention: causal is " + std::to_string(p.causal) + ", needs 0 (none), 1 (upper_left) or 2 (lower_right)");
  }
  if (p.num_tokens > 0) {
    need(p.query, kName, "query");
    need(p.output, kName, "output");
  }
  if (p.query_form == DSPARK_PACKED_NHD) {
    need(p.query_lengths, kName, "query_lengths");
    need_cumulative(p.query_lengths, p.num_slots, p.num_tokens, kName, "query_lengths");
  } else if (p.query_lengths != nullptr) {
    refuse("attention: query_lengths is given with the padded form, where every slot has all queries; leave it out");
  }
  if (p.num_slots == 0) return;
  need(p.kv_lengths, kName, "kv_lengths");
  const AttentionIndex index{&p};
  for (int64_t b = 0; b < p.num_slots; ++b) {
    if (index.num_queries(b) == 0) continue;  // an idle slot may hold any length
    if (p.kv_lengths[b] < 0 || p.kv_lengths[b] > p.capacity) {
      refuse("attention: " + at("kv_lengths", b) + " is " + std::to_string(p.kv_lengths[b]) + ", needs [0, " +
             std::to_string(p.capacity) + "], the cache's capacity");
    }
    if (p.kv_lengths[b] > 0) {
      need(p.key, kName, "key");
      need(p.value, kName, "value");
    }
  }
}

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_attention(const dspark_attention_params* params, const dspark_parallel* parallel) {
  using namespace dspark;
  return guarded(DSPARK_OP_ATTENTION, [&] {
    need(params, kName, "params");
    check(*params);
    run(*params, parallel);
  });
}
