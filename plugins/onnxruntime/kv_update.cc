#include <cstring>

#include "node.h"

namespace dspark::ort {
namespace {

/// TRT_KVCacheUpdate. `present` is usually bound to the memory of `past_cache`: nothing but the new rows is then
/// written.
struct KvUpdateKernel {
  static constexpr const OpEntry& entry = op_table::kKvUpdate;
  int32_t form;

  explicit KvUpdateKernel(const Attributes& attributes) : form(attributes.choice(0, {"packed_nhd", "padded_bhnd"})) {
    attributes.choice(1, {"linear"});
  }

  void compute(const Call& call) const {
    const bool packed = form == DSPARK_PACKED_NHD;
    const auto past = call.input<float>(0, 4);
    const auto update = call.input<float>(1, packed ? 3 : 4);
    dspark_kv_update_params p{};
    p.num_slots = past.dims[0];
    p.num_heads = past.dims[1];
    p.capacity = past.dims[2];
    p.head_width = past.dims[3];
    p.num_tokens = packed ? update.dims[0] : update.dims[2];
    p.form = form;
    if (packed) {
      call.expect(1, update.dims.data(), {p.num_tokens, p.num_heads, p.head_width});
    } else {
      call.expect(1, update.dims.data(), {p.num_slots, p.num_heads, p.num_tokens, p.head_width});
    }
    p.update = update.data;
    p.write_indices = call.input<int32_t>(2, {p.num_slots});
    p.update_lengths = call.input<int32_t>(3, {p.num_slots + 1});
    p.cache = call.output<float>(0, {p.num_slots, p.num_heads, p.capacity, p.head_width});
    if (p.cache != past.data) {
      const size_t floats = static_cast<size_t>(p.num_slots * p.num_heads * p.capacity * p.head_width);
      std::memcpy(p.cache, past.data, floats * sizeof(float));
    }
    call.done(dspark_kv_update(&p, call.parallel()));
  }
};

}  // namespace

OrtCustomOp* kv_update_node() {
  static Node<KvUpdateKernel> node;
  return &node;
}

}  // namespace dspark::ort
