/// TRT_KVCacheUpdate: new key or value rows into a cache, at each slot's write index.
#ifndef DSPARK_OPS_KV_UPDATE_H_
#define DSPARK_OPS_KV_UPDATE_H_

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"

namespace dspark {

/// cache[b, h, write_indices[b] + s, :] = row of token s of slot b, for every s of one (b, h).
struct KvUpdate {
  const dspark_kv_update_params* p;

  /// Tokens that slot b writes.
  DSPARK_HD int64_t count(int64_t b) const {
    if (p->update_lengths == nullptr) return p->num_tokens;
    return p->update_lengths[b + 1] - p->update_lengths[b];
  }

  /// piece = b * Hkv + h.
  template <class Team>
  DSPARK_HD void operator()(int64_t piece, const Team& team) const {
    const int64_t b = piece / p->num_heads;
    const int64_t h = piece % p->num_heads;
    const int64_t width = p->head_width;
    const bool packed = p->form == DSPARK_PACKED_NHD;
    const int64_t stride = packed ? p->num_heads * width : width;
    const float* in = packed ? p->update + (p->update_lengths[b] * p->num_heads + h) * width
                             : p->update + piece * p->num_tokens * width;
    float* out = p->cache + (piece * p->capacity + p->write_indices[b]) * width;
    const int64_t rows = count(b);
    for (int64_t s = 0; s < rows; ++s) {
      for (int64_t d = team.lane(); d < width; d += team.lanes()) out[s * width + d] = in[s * stride + d];
    }
  }
};

}  // namespace dspark

#endif  // DSPARK_OPS_KV_UPDATE_H_
