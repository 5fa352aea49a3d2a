#include "filter.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dspark {
namespace {

/// Vectors only grow: a row never pays for clearing memory that it is about to overwrite.
template <class T>
T* room(std::vector<T>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) < size) values.resize(static_cast<size_t>(size));
  return values.data();
}

bool uses_top_k(const Sampling& sampling, int64_t size) { return sampling.top_k > 0 && sampling.top_k < size; }

}  // namespace

RowMax CpuRow::load(const float* logits, int64_t size, const Sampling& sampling) {
  row_.logits = logits;
  row_.size = size;
  const RowMax max = uses_top_k(sampling, size) ? ranked_.read(logits, size) : row_max(logits, size);
  if (max.usable()) filter(max, sampling);
  return max;
}

void CpuRow::load(const float* logits, int64_t size, const RowMax& max, const Sampling& sampling) {
  row_.logits = logits;
  row_.size = size;
  if (uses_top_k(sampling, size)) ranked_.read(logits, size);
  filter(max, sampling);
}

/// The row itself is known.
void CpuRow::filter(const RowMax& max, const Sampling& sampling) {
  const float* logits = row_.logits;
  const int64_t size = row_.size;
  row_.max = static_cast<double>(max.value);
  row_.inverse_temperature = 1.0 / static_cast<double>(sampling.temperature);
  row_.boundary = {-std::numeric_limits<float>::infinity(), -1};
  const bool top_k = uses_top_k(sampling, size);
  const bool top_p = sampling.top_p < 1.f;
  const bool min_p = sampling.min_p > 0.f;
  dense_ = !(top_k || top_p || min_p);
  count_ = size;
  if (top_k) {
    list_top_k(sampling.top_k);
  } else {
    double* all = room(dense_ ? weights_ : all_weights_, size);
    row_.total = row_weights(logits, size, row_.max, row_.inverse_temperature, all);
    if (dense_) return;
    if (top_p) {
      list_nucleus_candidates((1.0 - static_cast<double>(sampling.top_p)) * row_.total / static_cast<double>(size));
    } else {
      list_at_least(static_cast<double>(sampling.min_p));
    }
  }
  if (top_p) cut_to_mass(static_cast<double>(sampling.top_p) * row_.total);
  // The largest weight is exactly 1: "relative to the largest probability" needs no division.
  if (min_p) cut_below(static_cast<double>(sampling.min_p));
  row_.total = 0.0;
  Boundary worst{std::numeric_limits<float>::infinity(), -1};
  for (int64_t i = 0; i < count_; ++i) {
    row_.total += weights_[static_cast<size_t>(i)];
    const int32_t id = ids_[static_cast<size_t>(i)];
    if (logits[id] < worst.logit || (logits[id] == worst.logit && id > worst.id)) worst = {logits[id], id};
  }
  row_.boundary = worst;
}

void CpuRow::list_top_k(int64_t top_k) {
  const std::vector<Ranked>& first = ranked_.first(top_k);
  count_ = static_cast<int64_t>(first.size());
  int32_t* ids = room(ids_, count_);
  for (int64_t i = 0; i < count_; ++i) ids[i] = first[static_cast<size_t>(i)].id;
  std::sort(ids, ids + count_);
  row_.total = listed_weights(row_.logits, ids, count_, row_.max, row_.inverse_temperature, room(weights_, count_));
}

/// Everything that the nucleus of a whole row can hold. Its last token and all behind it weigh together at least
/// (1 - p) * total, and none of them more than that last one: so it weighs at least (1 - p) * total / size.
void CpuRow::list_nucleus_candidates(double least_weight) { list_at_least(least_weight * (1.0 - 1e-9)); }

void CpuRow::list_at_least(double weight) {
  count_ = weights_at_least(all_weights_.data(), row_.size, weight, room(ids_, row_.size));
  double* weights = room(weights_, count_);
  for (int64_t i = 0; i < count_; ++i) {
    weights[i] = all_weights_[static_cast<size_t>(ids_[static_cast<size_t>(i)])];
  }
}

/// Keeps the smallest prefix of the order whose weights reach `mass`: the token that crosses it stays.
/// Quickselect by weight: halves are summed, only the half that holds the crossing is split again.
void CpuRow::cut_to_mass(double mass) {
  const auto before = [](const Candidate& a, const Candidate& b) { return a.before(b); };
  Candidate* all = room(candidates_, count_);
  for (int64_t i = 0; i < count_; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)];
    all[i] = {{row_.logits[id], id}, weights_[static_cast<size_t>(i)]};
  }
  constexpr int64_t kSmall = 32;
  int64_t low = 0;
  int64_t high = count_;
  double reached = 0.0;
  while (high - low > kSmall) {
    const int64_t middle = low + (high - low) / 2;
    std::nth_element(all + low, all + middle, all + high, before);
    double half = 0.0;
    for (int64_t i = low; i < middle; ++i) half += all[i].weight;
    if (reached + half >= mass) {
      high = middle;
    } else {
      reached += half;
      low = middle;
    }
  }
  std::sort(all + low, all + high, before);
  int64_t last = low;
  for (; last < high - 1; ++last) {
    reached += all[last].weight;
    if (reached >= mass) break;
  }
  const Boundary worst{all[last].logit, all[last].id};
  int64_t kept = 0;
  for (int64_t i = 0; i < count_; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)];
    if (!worst.keeps(row_.logits[id], id)) continue;
    ids_[static_cast<size_t>(kept)] = id;
    weights_[static_cast<size_t>(kept)] = weights_[static_cast<size_t>(i)];
    ++kept;
  }
  count_ = kept;
}

void CpuRow::cut_below(double weight) {
  int64_t kept = 0;
  for (int64_t i = 0; i < count_; ++i) {
    if (weights_[static_cast<size_t>(i)] < weight) continue;
    ids_[static_cast<size_t>(kept)] = ids_[static_cast<size_t>(i)];
    weights_[static_cast<size_t>(kept)] = weights_[static_cast<size_t>(i)];
    ++kept;
  }
  count_ = kept;
}

double CpuRow::entropy() const {
  // With p = w / total: -sum p log p = log total - (sum w log w) / total.
  const double logs = weighted_logs(row_.logits, ids(), weights(), count_, row_.max, row_.inverse_temperature);
  return std::log(row_.total) - logs / row_.total;
}

int32_t CpuRow::draw(const DrawKey& key, const int32_t* d2t) {
  const int32_t* noise_ids = ids();
  if (d2t != nullptr && dense_) noise_ids = d2t;
  if (d2t != nullptr && !dense_) {
    int32_t* mapped = room(noise_ids_, count_);
    for (int64_t i = 0; i < count_; ++i) mapped[i] = d2t[ids_[static_cast<size_t>(i)]];
    noise_ids = mapped;
  }
  return id(draw_index(weights_.data(), noise_ids, count_, key));
}

}  // namespace dspark
