#include "ranked.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace dspark {

RowMax FirstRanked::read(const float* row, int64_t size) {
  row_ = row;
  size_ = size;
  peaks_.resize(static_cast<size_t>(num_peaks(size)));
  return row_peaks(row, size, peaks_.data());
}

const std::vector<Ranked>& FirstRanked::first(int64_t count) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  // `count` peaks are `count` tokens of the row: none below the least of them is among the first.
  float bar = kNone;
  if (count < static_cast<int64_t>(peaks_.size())) {
    order_ = peaks_;
    std::nth_element(order_.begin(), order_.begin() + (count - 1), order_.end(), std::greater<float>());
    bar = order_[static_cast<size_t>(count - 1)];
  }
  found_.clear();
  for (size_t p = 0; p < peaks_.size(); ++p) {
    if (!(peaks_[p] >= bar) || peaks_[p] == kNone) continue;
    const int64_t block = static_cast<int64_t>(p) / kPeakLanes * kPeakBlock;
    const int64_t end = std::min(block + kPeakBlock, size_);
    for (int64_t id = block + static_cast<int64_t>(p) % kPeakLanes; id < end; id += kPeakLanes) {
      if (row_[id] >= bar && row_[id] > kNone) found_.push_back({row_[id], static_cast<int32_t>(id)});
    }
  }
  if (static_cast<int64_t>(found_.size()) > count) {
    const auto before = [](const Ranked& a, const Ranked& b) { return a.before(b); };
    std::nth_element(found_.begin(), found_.begin() + (count - 1), found_.end(), before);
    found_.resize(static_cast<size_t>(count));
  }
  return found_;
}

}  // namespace dspark
