/// Spreading independent pieces over the threads a caller lends us.
#ifndef DSPARK_PARALLEL_H_
#define DSPARK_PARALLEL_H_

#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>

#include "dspark/dspark_ops.h"

namespace dspark {

/// Calls body(i) once for every i in [0, count), in any order and on any thread; null: in order, on this thread.
/// When pieces throw, the exception of the lowest one is rethrown here after all have ended, whatever the schedule.
template <class F>
void parallel_for(const dspark_parallel* parallel, int64_t count, F&& body) {
  if (parallel == nullptr || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  struct Call {
    F& body;
    std::mutex mutex;
    std::exception_ptr error;
    int64_t error_index;
  } call{body, {}, nullptr, std::numeric_limits<int64_t>::max()};
  // An exception must not cross `run`, which may be foreign C code.
  auto piece = [](void* arg, int64_t index) {
    Call& c = *static_cast<Call*>(arg);
    try {
      c.body(index);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(c.mutex);
      if (index < c.error_index) {
        c.error = std::current_exception();
        c.error_index = index;
      }
    }
  };
  parallel->run(parallel->state, piece, &call, count);
  if (call.error) std::rethrow_exception(call.error);
}

/// A process-wide pool of one thread per processor, started at first use; for callers that bring no threads (Python).
DSPARK_API dspark_parallel* default_parallel();

}  // namespace dspark

#endif  // DSPARK_PARALLEL_H_
