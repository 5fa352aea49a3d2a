/// Argument checks shared by the operators: which parameter, what was found, what was wanted.
#ifndef DSPARK_SRC_CPU_CHECK_H_
#define DSPARK_SRC_CPU_CHECK_H_

#include <cmath>
#include <sstream>
#include <stdexcept>

#include "dspark/dspark_ops.h"

namespace dspark {

/// Throws std::invalid_argument with the parts joined. Not inlined: the hot path keeps only the comparison.
template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void refuse(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

inline void check_pointer(const char* op, const char* name, const void* pointer) {
  if (pointer == nullptr) refuse(op, ": ", name, " is null, wanted an array");
}

inline void check_range(const char* op, const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) refuse(op, ": ", name, " is ", value, ", wanted ", low, " to ", high);
}

/// Every pointer of `sampling` and the range of every value of its R requests.
inline void check_sampling(const char* op, const dspark_sampling& sampling, int64_t num_requests) {
  check_pointer(op, "temperature", sampling.temperature);
  check_pointer(op, "top_k", sampling.top_k);
  check_pointer(op, "top_p", sampling.top_p);
  check_pointer(op, "min_p", sampling.min_p);
  check_pointer(op, "accept_mode", sampling.accept_mode);
  check_pointer(op, "seed", sampling.seed);
  check_pointer(op, "sample_index", sampling.sample_index);
  check_pointer(op, "anchor_position", sampling.anchor_position);
  for (int64_t r = 0; r < num_requests; ++r) {
    const float temperature = sampling.temperature[r];
    const float top_p = sampling.top_p[r];
    const float min_p = sampling.min_p[r];
    if (!(temperature >= 0.f && std::isfinite(temperature))) {
      refuse(op, ": temperature[", r, "] is ", temperature, ", wanted a finite number >= 0");
    }
    if (sampling.top_k[r] < 0) refuse(op, ": top_k[", r, "] is ", sampling.top_k[r], ", wanted >= 0 (0 = off)");
    if (!(top_p > 0.f && top_p <= 1.f)) refuse(op, ": top_p[", r, "] is ", top_p, ", wanted (0, 1]");
    if (!(min_p >= 0.f && min_p <= 1.f)) refuse(op, ": min_p[", r, "] is ", min_p, ", wanted [0, 1]");
    if (sampling.accept_mode[r] < DSPARK_GREEDY || sampling.accept_mode[r] > DSPARK_TYPICAL) {
      refuse(op, ": accept_mode[", r, "] is ", sampling.accept_mode[r],
             ", wanted 0 (greedy), 1 (rejection), 2 (coupled), 3 (relaxed) or 4 (typical)");
    }
  }
}

inline void check_num_logprobs(const char* op, const int32_t* num_logprobs, int64_t count) {
  check_pointer(op, "num_logprobs", num_logprobs);
  for (int64_t i = 0; i < count; ++i) {
    if (num_logprobs[i] >= -1 && num_logprobs[i] <= DSPARK_MAX_LOGPROBS) continue;
    refuse(op, ": num_logprobs[", i, "] is ", num_logprobs[i], ", wanted -1 (none) to ", DSPARK_MAX_LOGPROBS);
  }
}

/// d2t may be null; else strictly ascending target ids in [0, vocab), so that the lowest draft id is the lowest
/// target id and a binary search inverts the map.
inline void check_d2t(const char* op, const int32_t* d2t, int64_t draft_vocab, int64_t vocab) {
  if (d2t == nullptr) return;
  int64_t previous = -1;
  for (int64_t i = 0; i < draft_vocab; ++i) {
    if (d2t[i] <= previous || d2t[i] >= vocab) {
      refuse(op, ": d2t[", i, "] is ", d2t[i], ", wanted strictly ascending target ids in [0, ", vocab, ")");
    }
    previous = d2t[i];
  }
}

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_CHECK_H_
