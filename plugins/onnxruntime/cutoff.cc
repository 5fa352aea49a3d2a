#include "node.h"

namespace dspark::ort {
namespace {

/// DSparkCutoff: confidences [R, K] to verify lengths [R].
struct CutoffKernel {
  static constexpr const OpEntry& entry = op_table::kCutoff;

  explicit CutoffKernel(const Attributes&) {}

  void compute(const Call& call) const {
    const auto confidence = call.input<float>(0, 2);
    dspark_cutoff_params p{};
    p.num_requests = confidence.dims[0];
    p.block_size = confidence.dims[1];
    p.confidence_logits = confidence.data;
    p.entropies = call.input<float>(1, {p.num_requests, p.block_size});
    p.draft_tokens = call.input<int32_t>(2, {p.num_requests, p.block_size});
    p.calibration_temperatures = call.input<float>(3, {p.num_requests, p.block_size});
    p.policy = call.input<int32_t>(4, {p.num_requests});
    p.params = call.input<float>(5, {p.num_requests, DSPARK_CUTOFF_COLUMNS});
    p.inclusive = call.input<int32_t>(6, {p.num_requests});
    p.min_verify = call.input<int32_t>(7, {p.num_requests});
    p.max_verify = call.input<int32_t>(8, {p.num_requests});
    p.verify_lengths = call.output<int32_t>(0, {p.num_requests});
    p.survivals = call.output<float>(1, {p.num_requests, p.block_size});
    p.confidences = call.output<float>(2, {p.num_requests, p.block_size});
    call.done(dspark_cutoff(&p, call.parallel()));
  }
};

}  // namespace

OrtCustomOp* cutoff_node() {
  static Node<CutoffKernel> node;
  return &node;
}

}  // namespace dspark::ort
