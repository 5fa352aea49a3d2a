/// The order of a row's tokens (logit descending, id ascending), and the first ones of it.
#ifndef DSPARK_SRC_CPU_RANKED_H_
#define DSPARK_SRC_CPU_RANKED_H_

#include <cstdint>
#include <vector>

namespace dspark {

/// A token by its place in the order.
struct Ranked {
  float logit;
  int32_t id;
  bool before(const Ranked& other) const { return logit > other.logit || (logit == other.logit && id < other.id); }
};

/// The `count` first tokens of row [size] among those above -inf, fewer where there are fewer, in no order.
/// count >= 1. NaN is passed over.
void first_ranked(const float* row, int64_t size, int64_t count, std::vector<Ranked>& first);

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_RANKED_H_
