/// The order of a row's tokens (logit descending, id ascending), and the first ones of it.
#ifndef DSPARK_SRC_CPU_RANKED_H_
#define DSPARK_SRC_CPU_RANKED_H_

#include <cstdint>
#include <vector>

#include "rows.h"

namespace dspark {

/// A token by its place in the order.
struct Ranked {
  float logit;
  int32_t id;
  bool before(const Ranked& other) const { return logit > other.logit || (logit == other.logit && id < other.id); }
};

/// Finds the first tokens of a row, with memory that is reused from row to row.
class FirstRanked {
 public:
  /// One pass over row [size]: its maximum, and what `first` needs. The row must stay until then.
  RowMax read(const float* row, int64_t size);

  /// The `count` >= 1 first tokens of the row read last, of those above -inf; fewer where there are fewer, in no order.
  const std::vector<Ranked>& first(int64_t count);

 private:
  /// No token below this is among the `count` first.
  float bar(int64_t count);

  const float* row_ = nullptr;
  int64_t size_ = 0;
  std::vector<float> peaks_;
  std::vector<float> parts_;
  std::vector<Ranked> found_;
};

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_RANKED_H_
