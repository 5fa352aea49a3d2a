#include "status.h"

#include <atomic>
#include <string>

namespace dspark {
namespace {

std::atomic<uint64_t> op_nanoseconds[DSPARK_NUM_OPS];

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace

dspark_status fail(dspark_status status, const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();
  }
  return status;
}

void add_nanoseconds(dspark_op op, uint64_t nanoseconds) noexcept {
  op_nanoseconds[op].fetch_add(nanoseconds, std::memory_order_relaxed);
}

}  // namespace dspark

extern "C" const char* dspark_last_error(void) { return dspark::last_error().c_str(); }

extern "C" int32_t dspark_abi_version(void) { return DSPARK_ABI_VERSION; }

extern "C" uint64_t dspark_op_nanoseconds(dspark_op op) {
  if (op < 0 || op >= DSPARK_NUM_OPS) return 0;
  return dspark::op_nanoseconds[op].load(std::memory_order_relaxed);
}
