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

float FirstRanked::bar(int64_t count) {
  // `count` disjoint parts of the row with a value of at least b hold `count` tokens of at least b: none below the
  // count-th largest maximum of any parts is among the first. Three times as many parts as tokens leave few others
  // above it, and selecting among few costs little: every comparison of a selection is a branch that nobody foresees.
  const int64_t num = static_cast<int64_t>(peaks_.size());
  if (count > num) return -std::numeric_limits<float>::infinity();
  // Part i holds the peaks i, i + num_parts, ...
  const int64_t num_parts = std::min(3 * count, num);
  parts_.assign(peaks_.begin(), peaks_.begin() + num_parts);
  float* parts = parts_.data();
  for (int64_t start = num_parts; start < num; start += num_parts) {
    const float* peaks = peaks_.data() + start;
    const int64_t size = std::min(num_parts, num - start);
    for (int64_t i = 0; i < size; ++i) parts[i] = peaks[i] > parts[i] ? peaks[i] : parts[i];
  }
  std::nth_element(parts_.begin(), parts_.begin() + (count - 1), parts_.end(), std::greater<float>());
  return parts_[static_cast<size_t>(count - 1)];
}

const std::vector<Ranked>& FirstRanked::first(int64_t count) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const float least = bar(count);
  found_.clear();
  for (size_t p = 0; p < peaks_.size(); ++p) {
    if (!(peaks_[p] >= least) || peaks_[p] == kNone) continue;
    const int64_t start = static_cast<int64_t>(p) * kPeakSpan;
    const int64_t end = std::min(start + kPeakSpan, size_);
    for (int64_t id = start; id < end; ++id) {
      if (row_[id] >= least && row_[id] > kNone) found_.push_back({row_[id], static_cast<int32_t>(id)});
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
