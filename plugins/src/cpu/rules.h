/// Rules on one CPU thread: processed rows of a request (ops/rules.h says what the rules mean), and the checks of them.
#ifndef DSPARK_SRC_CPU_RULES_H_
#define DSPARK_SRC_CPU_RULES_H_

#include <cstdint>
#include <vector>

#include "dspark/ops/rules.h"

namespace dspark {

/// Refuses malformed rules, and missing arrays that the requests' rules read. Row offsets are valid already.
void check_rules(const char* op, const dspark_accept_params& params);

/// Whether any row of the request may be changed.
bool has_rules(const dspark_accept_params& params, int64_t request);

/// Tokens of a request and how often each was written in its output.
class TokenCounts {
 public:
  /// Of the positions 0 .. anchor. Throws std::invalid_argument for an id outside [0, vocab).
  void open(const RequestRules& rules, int64_t vocab);
  void add(int32_t token, bool output);

  const std::vector<int32_t>& distinct() const { return distinct_; }
  int64_t in_output(int32_t token) const { return counts_[static_cast<size_t>(token)] - 1; }

 private:
  std::vector<int32_t> counts_; /* by token, as long as the largest vocabulary seen: 0 unseen, else 1 + in the output */
  std::vector<int32_t> distinct_;
};

/// The rows of one request, in order of k, as its rules make them.
class RuledRows {
 public:
  void open(const dspark_accept_params& params, int64_t request);

  /// False: no row is changed.
  bool active() const { return active_; }

  /// Row k: `logits` itself where nothing changes, else an array of this object that holds until the next call.
  const float* processed(const float* logits, int64_t k);

 private:
  float* copy(const float* logits, int64_t mask);

  const dspark_accept_params* params_ = nullptr;
  RequestRules rules_{};
  int64_t first_row_ = 0;
  int64_t counted_ = 0; /* proposals that the counts hold */
  bool active_ = false;
  TokenCounts counts_;
  std::vector<float> row_;
};

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_RULES_H_
