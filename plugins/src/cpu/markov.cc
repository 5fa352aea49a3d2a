#include "markov.h"

#include <type_traits>

#include "dspark/host_device.h"
#include "dspark/ops/dot.h"

namespace dspark {
namespace {

/// Bytes between the weight that is used and the one that is fetched: covers the latency of memory.
constexpr int64_t kAheadBytes = 4096;

/// A tile of W2, [count, rank] of elements T.
template <class T>
struct Weights {
  const T* values;
  const float* scales; /* of the rows, for int8 */
  int64_t rank;
  int64_t count;

  /// base + w . s. One expression without a branch, so that every caller rounds it alike (product and sum may be one
  /// instruction).
  DSPARK_INLINE float finish(int64_t row, float base, float sum) const {
    if constexpr (std::is_same_v<T, int8_t>) return base + scales[row] * sum;
    return base + sum;
  }
};

/// Four rows of weights for Q requests.
template <int Q, class T>
DSPARK_INLINE void four_rows(const Weights<T>& w, int64_t row, const MarkovRow* requests, bool fetch) {
  const float* states[Q];
  for (int q = 0; q < Q; ++q) states[q] = requests[q].state;
  float sums[Q][4];
  constexpr int64_t kAhead = kAheadBytes / static_cast<int64_t>(sizeof(T));
  dot4<Q>(w.values + row * w.rank, w.rank, states, w.rank, fetch ? kAhead : 0, sums);
  for (int q = 0; q < Q; ++q) {
    for (int i = 0; i < 4; ++i) requests[q].out[row + i] = w.finish(row + i, requests[q].base[row + i], sums[q][i]);
  }
}

/// The requests that are left when fewer than kMost go together.
template <int Q, class T>
DSPARK_INLINE void four_rows_rest(const Weights<T>& w, int64_t row, const MarkovRow* requests, int64_t num,
                                  bool fetch) {
  if constexpr (Q > 0) {
    if (num == Q) {
      four_rows<Q>(w, row, requests, fetch);
    } else {
      four_rows_rest<Q - 1>(w, row, requests, num, fetch);
    }
  }
}

/// kMost: requests whose sums stay in registers together. A row's sums are the same for every kMost.
template <int kMost, class T>
DSPARK_INLINE void run_tile(const Weights<T>& w, const MarkovRow* requests, int64_t num) {
  int64_t row = 0;
  for (; row + 4 <= w.count; row += 4) {
    int64_t q = 0;
    for (; q + kMost <= num; q += kMost) four_rows<kMost>(w, row, requests + q, q == 0);
    four_rows_rest<kMost - 1>(w, row, requests + q, num - q, q == 0);
  }
  for (; row < w.count; ++row) {
    for (int64_t q = 0; q < num; ++q) {
      const float sum = dot1(w.values + row * w.rank, requests[q].state, w.rank);
      requests[q].out[row] = w.finish(row, requests[q].base[row], sum);
    }
  }
}

template <class T>
DSPARK_INLINE Weights<T> weights(const dspark_draft_params& p, int64_t first, int64_t count) {
  const float* scales = p.markov_w2_scales ? p.markov_w2_scales + first : nullptr;
  return {static_cast<const T*>(p.markov_w2) + first * p.markov_rank, scales, p.markov_rank, count};
}

#define DSPARK_MARKOV_LEVEL(name, most, TARGET)                                                                      \
  TARGET void name(const dspark_draft_params& p, int64_t first, int64_t count, const MarkovRow* rows, int64_t num) { \
    if (p.head_storage == DSPARK_HEAD_FLOAT32) {                                                                     \
      run_tile<most>(weights<float>(p, first, count), rows, num);                                                    \
    } else if (p.head_storage == DSPARK_HEAD_BFLOAT16) {                                                             \
      run_tile<most>(weights<uint16_t>(p, first, count), rows, num);                                                 \
    } else {                                                                                                         \
      run_tile<most>(weights<int8_t>(p, first, count), rows, num);                                                   \
    }                                                                                                                \
  }

DSPARK_MARKOV_LEVEL(tile_baseline, 1, )
#if DSPARK_X86_LEVELS
DSPARK_MARKOV_LEVEL(tile_avx2, 1, DSPARK_X86_V3)
DSPARK_MARKOV_LEVEL(tile_avx512, 4, DSPARK_X86_V4)
#endif
#undef DSPARK_MARKOV_LEVEL

using Tile = void (*)(const dspark_draft_params&, int64_t, int64_t, const MarkovRow*, int64_t);

Tile best_tile() {
#if DSPARK_X86_LEVELS
  return x86_level() == 4 ? tile_avx512 : x86_level() == 3 ? tile_avx2 : tile_baseline;
#else
  return tile_baseline;
#endif
}

}  // namespace

void markov_tile(const dspark_draft_params& params, int64_t first, int64_t count, const MarkovRow* rows, int64_t num) {
  static const Tile tile = best_tile();
  tile(params, first, count, rows, num);
}

}  // namespace dspark
