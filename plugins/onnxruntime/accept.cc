#include "node.h"

namespace dspark::ort {
namespace {

/// DSparkAccept: target logits [N, V] and proposals [R, K] to kept counts [R] and tokens [R, K+1].
struct AcceptKernel {
  static constexpr const OpEntry& entry = op_table::kAccept;
  int64_t block_size;

  explicit AcceptKernel(const Attributes& attributes) : block_size(attributes.number(0)) {}

  void compute(const Call& call) const {
    const auto logits = call.input<float>(0, 2);
    const auto row_offsets = call.input<int32_t>(1, 1);
    const auto draft_logits = call.input<float>(3, 3);
    const auto d2t = call.input<int32_t>(12, 1);
    if (row_offsets.dims[0] < 1) call.refuse("row_offsets is empty, needs one entry per request and one more");
    dspark_accept_params p{};
    p.num_requests = row_offsets.dims[0] - 1;
    p.block_size = block_size;
    p.num_rows = logits.dims[0];
    p.vocab = logits.dims[1];
    p.draft_vocab = draft_logits ? draft_logits.dims[2] : d2t ? d2t.dims[0] : p.vocab;
    p.logits = logits.data;
    p.row_offsets = row_offsets.data;
    p.draft_tokens = call.input<int32_t>(2, {p.num_requests, p.block_size});
    // No rows: the draft wrote none, because no request of the step uses rejection.
    if (draft_logits && draft_logits.dims[0] != 0) {
      call.expect(3, draft_logits.dims.data(), {p.num_requests, p.block_size, p.draft_vocab});
      p.draft_logits = draft_logits.data;
    }
    if (d2t) call.expect(12, d2t.dims.data(), {p.draft_vocab});
    p.d2t = d2t.data;
    p.sampling = call.sampling(4, p.num_requests);
    p.accepted = call.output<int32_t>(0, {p.num_requests});
    p.tokens = call.output<int32_t>(1, {p.num_requests, p.block_size + 1});
    call.done(dspark_accept(&p, call.parallel()));
  }
};

}  // namespace

OrtCustomOp* accept_node() {
  static Node<AcceptKernel> node;
  return &node;
}

}  // namespace dspark::ort
