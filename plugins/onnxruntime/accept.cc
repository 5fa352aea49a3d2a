#include "node.h"

namespace dspark::ort {
namespace {

/// Places of op_table::kAcceptInputs.
enum Input : size_t {
  kLogits = 0,
  kRowOffsets = 1,
  kDraftTokens = 2,
  kDraftLogits = 3,
  kSampling = 4, /* the first of eight */
  kPenalties = 12,
  kTokenHistory = 13,
  kSlots = 14,
  kPromptLengths = 15,
  kRules = 16,
  kRuleOffsets = 17,
  kTokenMasks = 18,
  kMaskRows = 19,
  kRelaxation = 20,
  kNumLogprobs = 21,
  kConfidences = 22,
  kD2t = 23,
};

dspark_rules rules_of(const Call& call, int64_t num_requests, int64_t num_rows, int64_t vocab) {
  const auto history = call.input<int32_t>(kTokenHistory, 2);
  const auto records = call.input<int32_t>(kRules, 2);
  const auto masks = call.input<int32_t>(kTokenMasks, 2);
  if (records) call.expect(kRules, records.dims.data(), {records.dims[0], 3});
  if (masks) call.expect(kTokenMasks, masks.dims.data(), {masks.dims[0], (vocab + 31) / 32});
  dspark_rules rules{};
  rules.num_slots = history.dims[0];
  rules.history_capacity = history.dims[1];
  rules.num_rules = records.dims[0];
  rules.num_masks = masks.dims[0];
  rules.penalties = call.input<float>(kPenalties, {num_requests, 3});
  rules.token_history = history.data;
  rules.slots = call.input<int32_t>(kSlots, {num_requests});
  rules.prompt_lengths = call.input<int32_t>(kPromptLengths, {num_requests});
  rules.rules = records.data;
  rules.rule_offsets = call.input<int32_t>(kRuleOffsets, {num_requests + 1});
  rules.token_masks = masks.data;
  rules.mask_rows = call.input<int32_t>(kMaskRows, {num_rows});
  return rules;
}

/// DSparkAccept: target logits [N, V] and proposals [R, K] to kept counts [R], tokens [R, K+1], why the rounds ended,
/// and log-probabilities.
struct AcceptKernel {
  static constexpr const OpEntry& entry = op_table::kAccept;
  int64_t block_size;

  explicit AcceptKernel(const Attributes& attributes) : block_size(attributes.number(0)) {}

  void compute(const Call& call) const {
    const auto logits = call.input<float>(kLogits, 2);
    const auto row_offsets = call.input<int32_t>(kRowOffsets, 1);
    const auto draft_logits = call.input<float>(kDraftLogits, 3);
    const auto confidences = call.input<float>(kConfidences, 2);
    const auto d2t = call.input<int32_t>(kD2t, 1);
    if (row_offsets.dims[0] < 1) call.refuse("row_offsets is empty, needs one entry per request and one more");
    dspark_accept_params p{};
    p.num_requests = row_offsets.dims[0] - 1;
    p.block_size = block_size;
    p.num_rows = logits.dims[0];
    p.vocab = logits.dims[1];
    p.draft_vocab = draft_logits ? draft_logits.dims[2] : d2t ? d2t.dims[0] : p.vocab;
    p.logits = logits.data;
    p.row_offsets = row_offsets.data;
    p.draft_tokens = call.input<int32_t>(kDraftTokens, {p.num_requests, p.block_size});
    // No rows: the draft wrote none, because no request of the step uses rejection.
    if (draft_logits && draft_logits.dims[0] != 0) {
      call.expect(kDraftLogits, draft_logits.dims.data(), {p.num_requests, p.block_size, p.draft_vocab});
      p.draft_logits = draft_logits.data;
    }
    if (d2t) call.expect(kD2t, d2t.dims.data(), {p.draft_vocab});
    p.d2t = d2t.data;
    p.sampling = call.sampling(kSampling, p.num_requests);
    p.rules = rules_of(call, p.num_requests, p.num_rows, p.vocab);
    p.relaxation = call.input<float>(kRelaxation, {p.num_requests, 2});
    // No rows: no request of the step is relaxed.
    if (confidences && confidences.dims[0] != 0) {
      call.expect(kConfidences, confidences.dims.data(), {p.num_requests, p.block_size});
      p.confidences = confidences.data;
    }
    p.num_logprobs = call.input<int32_t>(kNumLogprobs, {p.num_requests});
    const int64_t columns = p.block_size + 1;
    p.accepted = call.output<int32_t>(0, {p.num_requests});
    p.tokens = call.output<int32_t>(1, {p.num_requests, columns});
    p.round_ends = call.output<int32_t>(2, {p.num_requests});
    p.logprobs = call.output<float>(3, {p.num_requests, columns, DSPARK_LOGPROB_COLUMNS});
    p.logprob_ids = call.output<int32_t>(4, {p.num_requests, columns, DSPARK_LOGPROB_COLUMNS});
    p.logprob_ranks = call.output<int32_t>(5, {p.num_requests, columns});
    call.done(dspark_accept(&p, call.parallel()));
  }
};

}  // namespace

OrtCustomOp* accept_node() {
  static Node<AcceptKernel> node;
  return &node;
}

}  // namespace dspark::ort
