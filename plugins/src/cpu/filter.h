/// Finds what the sampling filters keep of a row (ops/filter.h says what they mean), on one CPU thread.
#ifndef DSPARK_SRC_CPU_FILTER_H_
#define DSPARK_SRC_CPU_FILTER_H_

#include <cstdint>
#include <vector>

#include "dspark/ops/draw.h"
#include "dspark/ops/filter.h"
#include "ranked.h"
#include "rows.h"

namespace dspark {

/// A filtered row with its kept tokens listed, and the memory for it, reused from row to row.
class CpuRow {
 public:
  /// Filters logits [size] and returns their row_max; where it is not usable nothing else of this row is. Keeps the
  /// pointer, not the values.
  RowMax load(const float* logits, int64_t size, const Sampling& sampling);

  /// The same, where the maximum is known already and usable.
  void load(const float* logits, int64_t size, const RowMax& max, const Sampling& sampling);

  const FilteredRow& row() const { return row_; }

  /// Kept tokens by ascending id: ids() is null when all tokens of the row are listed (some may have weight 0).
  int64_t count() const { return count_; }
  const int32_t* ids() const { return dense_ ? nullptr : ids_.data(); }
  const double* weights() const { return weights_.data(); }
  int32_t id(int64_t index) const { return dense_ ? static_cast<int32_t>(index) : ids_[static_cast<size_t>(index)]; }

  /// H = -sum p log p of the kept tokens, in nats.
  double entropy() const;

  /// Row id drawn from the kept tokens. The noise belongs to d2t[id] where d2t is given, else to the id.
  int32_t draw(const DrawKey& key, const int32_t* d2t);

 private:
  struct Candidate : Ranked {
    double weight;
  };

  void filter(const RowMax& max, const Sampling& sampling);
  void list_top_k(int64_t top_k);
  void list_nucleus_candidates(double least_weight);
  void list_at_least(double weight);
  void cut_to_mass(double mass);
  void cut_below(double weight);

  FilteredRow row_{};
  int64_t count_ = 0;
  bool dense_ = true;
  std::vector<int32_t> ids_;
  std::vector<double> weights_;
  std::vector<double> all_weights_;
  FirstRanked ranked_;
  std::vector<Candidate> candidates_;
  std::vector<int32_t> noise_ids_;
};

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_FILTER_H_
