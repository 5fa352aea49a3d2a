/// Whether the arguments of DSparkDraft make sense together.
#ifndef DSPARK_SRC_CPU_DRAFT_CHECK_H_
#define DSPARK_SRC_CPU_DRAFT_CHECK_H_

#include <cstdint>

#include "dspark/dspark_ops.h"

namespace dspark {

constexpr const char* kDraftOp = "DSparkDraft";

/// Whether some request's signal is `kind` (a dspark_signal).
bool any_signal(const dspark_draft_params& params, int32_t kind);

/// Whether markov_w1 is read: by the sequential head, or by the confidence head of some request.
bool embeds_previous(const dspark_draft_params& params);

/// Throws std::invalid_argument with one sentence: which argument, what was found, what was wanted.
void check_draft(const dspark_draft_params& params);

/// A token whose row of markov_w1 is about to be read; `what`: the anchor or a proposal.
void check_embedded(const dspark_draft_params& params, const char* what, int64_t request, int64_t token);

}  // namespace dspark
#endif  // DSPARK_SRC_CPU_DRAFT_CHECK_H_
