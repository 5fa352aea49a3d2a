/// TRT_Attention: which rows there are, which keys a row sees, where they lie. Shared by every implementation; the
/// arithmetic of the CPU is in src/cpu/attention.cc (tensor cores want another shape of the same sums).
#ifndef DSPARK_OPS_ATTENTION_H_
#define DSPARK_OPS_ATTENTION_H_

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"

namespace dspark {

/// Index arithmetic over dspark_attention_params. b: slot, i: query of the slot, h: query head, g: key/value head.
struct AttentionIndex {
  const dspark_attention_params* p;

  DSPARK_HD bool packed() const { return p->query_form == DSPARK_PACKED_NHD; }

  /// Query heads that share a key/value head.
  DSPARK_HD int64_t group() const { return p->num_heads / p->num_kv_heads; }

  /// Queries of slot b.
  DSPARK_HD int64_t num_queries(int64_t b) const {
    return packed() ? p->query_lengths[b + 1] - p->query_lengths[b] : p->num_tokens;
  }

  /// Row of query i of slot b for head h, in floats from the start of `query` and `output`.
  DSPARK_HD int64_t query_offset(int64_t b, int64_t i, int64_t h) const {
    if (packed()) return ((p->query_lengths[b] + i) * p->num_heads + h) * p->head_width;
    return ((b * p->num_heads + h) * p->num_tokens + i) * p->head_width;
  }

  /// First key (and value) row of head g of slot b, in floats.
  DSPARK_HD int64_t key_offset(int64_t b, int64_t g) const {
    return (b * p->num_kv_heads + g) * p->capacity * p->head_width;
  }

  /// Keys that query i of slot b sees: the rows [0, visible).
  DSPARK_HD int64_t visible(int64_t b, int64_t i) const {
    const int64_t keys = p->kv_lengths[b];
    int64_t end = keys;
    if (p->causal == DSPARK_CAUSAL_UPPER_LEFT) end = i + 1;
    if (p->causal == DSPARK_CAUSAL_LOWER_RIGHT) end = keys - num_queries(b) + i + 1;
    if (end > keys) end = keys;
    return end > 0 ? end : 0;
  }
};

}  // namespace dspark

#endif  // DSPARK_OPS_ATTENTION_H_
