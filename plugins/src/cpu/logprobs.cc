#include "logprobs.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "../status.h"
#include "check.h"
#include "dspark/parallel.h"
#include "ranked.h"
#include "rows.h"

namespace dspark {

void write_logprobs(const float* logits, int64_t vocab, int32_t token, int32_t num, const LogprobsRow& out) {
  out.clear();
  thread_local FirstRanked ranked;
  const RowMax max = ranked.read(logits, vocab);
  if (!max.usable()) {
    out.put(0, token, std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const double normaliser =
      log_normaliser(static_cast<double>(max.value), row_exp_sum(logits, vocab, static_cast<double>(max.value)));
  out.put(0, token, static_cast<double>(logits[token]) - normaliser);
  *out.rank = 1 + static_cast<int32_t>(row_count_above(logits, vocab, logits[token]));
  if (num == 0) return;
  std::vector<Ranked> best = ranked.first(num);
  std::sort(best.begin(), best.end(), [](const Ranked& a, const Ranked& b) { return a.before(b); });
  for (size_t i = 0; i < best.size(); ++i) {
    out.put(static_cast<int64_t>(i) + 1, best[i].id, static_cast<double>(best[i].logit) - normaliser);
  }
}

namespace {

constexpr const char* kLogprobs = "logprobs";

void check(const dspark_logprobs_params& params) {
  check_range(kLogprobs, "num_rows", params.num_rows, 0, INT32_MAX);
  check_range(kLogprobs, "vocab", params.vocab, 1, INT32_MAX);
  if (params.num_rows == 0) return;
  check_pointer(kLogprobs, "logits", params.logits);
  check_pointer(kLogprobs, "tokens", params.tokens);
  check_pointer(kLogprobs, "logprobs", params.logprobs);
  check_pointer(kLogprobs, "logprob_ids", params.logprob_ids);
  check_pointer(kLogprobs, "logprob_ranks", params.logprob_ranks);
  check_num_logprobs(kLogprobs, params.num_logprobs, params.num_rows);
  for (int64_t row = 0; row < params.num_rows; ++row) {
    if (params.tokens[row] >= -1 && params.tokens[row] < params.vocab) continue;
    refuse(kLogprobs, ": tokens[", row, "] is ", params.tokens[row],
           ", wanted -1 (none) or an id in [0, vocab = ", params.vocab, ")");
  }
}

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_logprobs(const dspark_logprobs_params* params, const dspark_parallel* parallel) {
  return dspark::guarded(DSPARK_OP_ACCEPT, [&] {
    dspark::check_pointer(dspark::kLogprobs, "params", params);
    dspark::check(*params);
    dspark::parallel_for(parallel, params->num_rows, [&](int64_t row) {
      const dspark::LogprobsRow out{params->logprobs + row * DSPARK_LOGPROB_COLUMNS,
                                    params->logprob_ids + row * DSPARK_LOGPROB_COLUMNS, params->logprob_ranks + row};
      if (params->tokens[row] < 0 || params->num_logprobs[row] < 0) return out.clear();
      dspark::write_logprobs(params->logits + row * params->vocab, params->vocab, params->tokens[row],
                             params->num_logprobs[row], out);
    });
  });
}
