#include "node.h"

namespace dspark::ort {
namespace {

/// DSparkDraft: base logits [R, K, Vd] to proposals [R, K]. Head weights are inputs, so that they can be initialisers.
struct DraftKernel {
  static constexpr const OpEntry& entry = op_table::kDraft;
  int32_t head_type;
  int32_t confidence_with_markov;

  explicit DraftKernel(const Attributes& attributes)
      : head_type(attributes.number(0)), confidence_with_markov(attributes.number(1)) {}

  void compute(const Call& call) const {
    const auto base = call.input<float>(0, 3);
    const auto hidden = call.input<float>(1, 3);
    const auto markov_w1 = call.input<float>(14, 2);
    dspark_draft_params p{};
    p.num_requests = base.dims[0];
    p.block_size = base.dims[1];
    p.draft_vocab = base.dims[2];
    p.hidden_size = hidden ? hidden.dims[2] : 0;
    p.markov_rows = markov_w1 ? markov_w1.dims[0] : 0;
    p.markov_rank = markov_w1 ? markov_w1.dims[1] : 0;
    p.head_type = head_type;
    p.confidence_with_markov = confidence_with_markov;
    p.base_logits = base.data;
    p.hidden = hidden.data;
    if (hidden) call.expect(1, hidden.dims.data(), {p.num_requests, p.block_size, p.hidden_size});
    p.anchor_tokens = call.input<int32_t>(2, {p.num_requests});
    p.block_offset = *call.input<int32_t>(3, {1});
    p.sampling = call.sampling(4, p.num_requests);
    p.confidence_signal = call.input<int32_t>(12, {p.num_requests});
    p.cutoff_policy = call.input<int32_t>(13, {p.num_requests});
    p.markov_w1 = markov_w1.data;
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    p.markov_w2 = call.any_input(15, {p.draft_vocab, p.markov_rank}, type);
    p.head_storage = storage_of(call, type);
    p.markov_w2_scales = call.input<float>(16, {p.draft_vocab});
    const int64_t d = p.hidden_size;
    const int64_t r = p.markov_rank;
    const bool rnn = head_type == DSPARK_HEAD_RNN;
    p.head_weight = rnn ? call.input<float>(17, {3 * r, r + r + d}) : call.input<float>(17, {r, d + r});
    p.head_bias = call.input<float>(18, {rnn ? 3 * r : r});
    p.confidence_weight = call.input<float>(19, {confidence_with_markov ? d + r : d});
    p.confidence_bias = call.input<float>(20, {1});
    p.d2t = call.input<int32_t>(21, {p.draft_vocab});
    p.draft_tokens = call.output<int32_t>(0, {p.num_requests, p.block_size});
    p.confidence_logits = call.output<float>(1, {p.num_requests, p.block_size});
    p.entropies = call.output<float>(3, {p.num_requests, p.block_size});
    // Only rejection compares distributions; nobody else pays for writing R * K * Vd floats.
    const bool wanted = Call::uses_rejection(p.sampling, p.num_requests);
    float* logits = call.output<float>(2, {wanted ? p.num_requests : 0, p.block_size, p.draft_vocab});
    p.draft_logits = wanted ? logits : nullptr;
    call.done(dspark_draft(&p, call.parallel()));
  }

  static int32_t storage_of(const Call& call, ONNXTensorElementDataType type) {
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return DSPARK_HEAD_FLOAT32;
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16) return DSPARK_HEAD_BFLOAT16;
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8) return DSPARK_HEAD_INT8;
    call.refuse("markov_w2 has element type " + std::to_string(type) + ", needs float32, bfloat16 or int8");
  }
};

}  // namespace

OrtCustomOp* draft_node() {
  static Node<DraftKernel> node;
  return &node;
}

}  // namespace dspark::ort
