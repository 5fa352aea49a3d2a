#include "node.h"

namespace dspark::ort {
namespace {

/// TRT_Attention over caches [B, Hkv, S, D]; Q comes scaled.
struct AttentionKernel {
  static constexpr const OpEntry& entry = op_table::kAttention;
  int32_t query_form;
  int32_t causal;

  explicit AttentionKernel(const Attributes& attributes)
      : query_form(attributes.choice(0, {"packed_nhd", "padded_bhnd"})),
        causal(attributes.choice(2, {"none", "upper_left", "lower_right"})) {
    attributes.choice(1, {"padded_bhnd"});
  }

  void compute(const Call& call) const {
    const bool packed = query_form == DSPARK_PACKED_NHD;
    const auto query = call.input<float>(0, packed ? 3 : 4);
    const auto key = call.input<float>(1, 4);
    if (call.input<float>(3, 4))
      call.refuse("attn_mask is given, needs \"\": lengths and causal_kind say what is seen");
    dspark_attention_params p{};
    p.num_slots = key.dims[0];
    p.num_kv_heads = key.dims[1];
    p.capacity = key.dims[2];
    p.head_width = key.dims[3];
    p.num_heads = query.dims[1];
    p.num_tokens = packed ? query.dims[0] : query.dims[2];
    p.query_form = query_form;
    p.causal = causal;
    if (packed) {
      call.expect(0, query.dims.data(), {p.num_tokens, p.num_heads, p.head_width});
    } else {
      call.expect(0, query.dims.data(), {p.num_slots, p.num_heads, p.num_tokens, p.head_width});
    }
    p.query = query.data;
    p.key = key.data;
    p.value = call.input<float>(2, {p.num_slots, p.num_kv_heads, p.capacity, p.head_width});
    p.query_lengths = call.input<int32_t>(4, {p.num_slots + 1});
    p.kv_lengths = call.input<int32_t>(5, {p.num_slots});
    p.output = packed ? call.output<float>(0, {p.num_tokens, p.num_heads, p.head_width})
                      : call.output<float>(0, {p.num_slots, p.num_heads, p.num_tokens, p.head_width});
    call.done(dspark_attention(&p, call.parallel()));
  }
};

}  // namespace

OrtCustomOp* attention_node() {
  static Node<AttentionKernel> node;
  return &node;
}

}  // namespace dspark::ort
