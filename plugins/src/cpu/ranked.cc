#include "ranked.h"

#include <algorithm>
#include <limits>

#include "rows.h"

namespace dspark {

void first_ranked(const float* row, int64_t size, int64_t count, std::vector<Ranked>& first) {
  const auto before = [](const Ranked& a, const Ranked& b) { return a.before(b); };
  constexpr int64_t kStripe = 256;
  int32_t stripe[kStripe];
  first.clear();
  // Only values above the last of the best so far can still enter: of equals, the earlier id is already in.
  float bar = -std::numeric_limits<float>::infinity();
  const auto keep_best = [&] {
    std::nth_element(first.begin(), first.begin() + (count - 1), first.end(), before);
    first.resize(static_cast<size_t>(count));
    bar = first.back().logit;
  };
  for (int64_t start = 0; start < size; start += kStripe) {
    const int64_t found = row_above(row + start, std::min(kStripe, size - start), bar, false, stripe);
    for (int64_t i = 0; i < found; ++i) {
      const int32_t id = static_cast<int32_t>(start) + stripe[i];
      first.push_back({row[id], id});
    }
    if (static_cast<int64_t>(first.size()) >= 2 * count + kStripe) keep_best();
  }
  if (static_cast<int64_t>(first.size()) > count) keep_best();
}

}  // namespace dspark
