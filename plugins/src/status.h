/// Where exceptions stop: every C entry point runs inside `guarded`.
#ifndef DSPARK_SRC_STATUS_H_
#define DSPARK_SRC_STATUS_H_

#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>

#include "dspark/dspark_ops.h"

namespace dspark {

/// Keeps `message` for dspark_last_error() of this thread and returns `status`. Never throws.
dspark_status fail(dspark_status status, const char* message) noexcept;

void add_nanoseconds(dspark_op op, uint64_t nanoseconds) noexcept;

/// Runs f() and adds its time to the operator's counter. std::invalid_argument becomes DSPARK_INVALID_ARGUMENT,
/// anything else DSPARK_INTERNAL; the message is what dspark_last_error() then says.
template <class F>
dspark_status guarded(dspark_op op, F&& f) noexcept {
  const auto start = std::chrono::steady_clock::now();
  dspark_status status = DSPARK_OK;
  try {
    f();
  } catch (const std::invalid_argument& error) {
    status = fail(DSPARK_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    status = fail(DSPARK_INTERNAL, "out of memory for an operator's scratch");
  } catch (const std::exception& error) {
    status = fail(DSPARK_INTERNAL, error.what());
  } catch (...) {
    status = fail(DSPARK_INTERNAL, "unknown exception inside an operator");
  }
  const auto elapsed = std::chrono::steady_clock::now() - start;
  add_nanoseconds(op, static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count()));
  return status;
}

}  // namespace dspark

#endif  // DSPARK_SRC_STATUS_H_
