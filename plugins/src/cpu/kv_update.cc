#include "dspark/ops/kv_update.h"

#include <cstring>

#include "dspark/parallel.h"
#include "lengths.h"
#include "status.h"

namespace dspark {
namespace {

constexpr const char* kName = "kv_update";

/// Below this many floats, waking threads costs more than the copy.
constexpr int64_t kSerialFloats = 1 << 16;

void check(const dspark_kv_update_params& p) {
  need_at_least(p.num_slots, 0, kName, "num_slots");
  need_at_least(p.num_heads, 1, kName, "num_heads");
  need_at_least(p.capacity, 0, kName, "capacity");
  need_at_least(p.head_width, 1, kName, "head_width");
  need_at_least(p.num_tokens, 0, kName, "num_tokens");
  if (p.form != DSPARK_PACKED_NHD && p.form != DSPARK_PADDED_BHND) {
    refuse("kv_update: form is " + std::to_string(p.form) + ", needs 0 (packed_nhd) or 1 (padded_bhnd)");
  }
  if (p.num_slots == 0) return;
  if (p.num_tokens > 0) {
    need(p.update, kName, "update");
    need(p.cache, kName, "cache");
  }
  need(p.write_indices, kName, "write_indices");
  if (p.form == DSPARK_PACKED_NHD) {
    need(p.update_lengths, kName, "update_lengths");
    need_cumulative(p.update_lengths, p.num_slots, p.num_tokens, kName, "update_lengths");
  } else if (p.update_lengths != nullptr) {
    refuse("kv_update: update_lengths is given with the padded form, which writes all tokens; leave it out");
  }
  const KvUpdate body{&p};
  for (int64_t b = 0; b < p.num_slots; ++b) {
    const int64_t rows = body.count(b);
    if (rows == 0) continue;  // an idle slot may hold any write index
    if (p.write_indices[b] < 0 || p.write_indices[b] + rows > p.capacity) {
      refuse("kv_update: slot " + std::to_string(b) + " writes " + std::to_string(rows) + " rows at " +
             std::to_string(p.write_indices[b]) + ", needs to stay in [0, " + std::to_string(p.capacity) +
             "), the cache's capacity");
    }
  }
}

}  // namespace
}  // namespace dspark

extern "C" dspark_status dspark_kv_update(const dspark_kv_update_params* params, const dspark_parallel* parallel) {
  using namespace dspark;
  return guarded(DSPARK_OP_KV_UPDATE, [&] {
    need(params, kName, "params");
    check(*params);
    const dspark_kv_update_params& p = *params;
    if (p.num_tokens == 0) return;
    const bool serial = p.num_tokens * p.num_heads * p.head_width < kSerialFloats;
    parallel_for(serial ? nullptr : parallel, p.num_slots * p.num_heads,
                 [&](int64_t piece) { KvUpdate{params}(piece, SoloTeam{}); });
  });
}
