/// The product with markov_w2, the one large matrix of the sequential head: U_k + W2 s_k for all requests of a step.
#ifndef DSPARK_SRC_CPU_MARKOV_H_
#define DSPARK_SRC_CPU_MARKOV_H_

#include <cstdint>

#include "dspark/dspark_ops.h"

namespace dspark {

/// One request's part of a tile.
struct MarkovRow {
  const float* base;  /* U_k at the tile's first row */
  const float* state; /* [r], what W2 multiplies */
  float* out;         /* U_k + W2 s_k, as many as the tile has rows */
};

/// Rows [first, first + count) of W2 in its storage, read from memory once for all `num` requests.
void markov_tile(const dspark_draft_params& params, int64_t first, int64_t count, const MarkovRow* rows, int64_t num);

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_MARKOV_H_
