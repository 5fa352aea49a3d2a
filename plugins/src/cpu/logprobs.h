/// Log-probabilities of a row on one CPU thread (ops/logprobs.h).
#ifndef DSPARK_SRC_CPU_LOGPROBS_H_
#define DSPARK_SRC_CPU_LOGPROBS_H_

#include <cstdint>

#include "dspark/ops/logprobs.h"

namespace dspark {

/// Fills `out` for `token` and the `num` most probable tokens of logits [vocab]. token in [0, vocab), num in [0, 20].
void write_logprobs(const float* logits, int64_t vocab, int32_t token, int32_t num, const LogprobsRow& out);

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_LOGPROBS_H_
