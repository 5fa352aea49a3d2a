#include "node.h"

namespace dspark::ort {
namespace {

/// DSparkLinear: x [M, K] times a weight [N, K] as the checkpoint stores it.
struct LinearKernel {
  static constexpr const OpEntry& entry = op_table::kLinear;
  int32_t storage;
  int64_t out_features;

  explicit LinearKernel(const Attributes& attributes)
      : storage(attributes.choice(0, {"bf16", "q8_0", "q4_1"})), out_features(attributes.number(1)) {}

  void compute(const Call& call) const {
    const auto x = call.input<float>(0, 2);
    dspark_linear_params p{};
    p.num_rows = x.dims[0];
    p.in_features = x.dims[1];
    p.out_features = out_features;
    p.storage = storage;
    p.input = x.data;
    // Words of -1 (widths that the storage does not take) match no shape either.
    p.weight = call.input<int32_t>(1, {(out_features + 63) / 64, dspark_linear_words(storage, p.in_features), 64});
    p.bias = call.input<float>(2, {out_features});
    p.output = call.output<float>(0, {p.num_rows, out_features});
    call.done(dspark_linear(&p, call.parallel()));
  }
};

}  // namespace

OrtCustomOp* linear_node() {
  static Node<LinearKernel> node;
  return &node;
}

}  // namespace dspark::ort
