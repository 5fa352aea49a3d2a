#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "dspark/parallel.h"

namespace dspark {
namespace {

/// Threads that help whoever calls run(). The caller works too and only waits for helpers that really joined its job:
/// in a forked child, where no helper lives, it simply does everything itself.
class Pool {
 public:
  explicit Pool(unsigned helpers) {
    // Detached, and the pool is never destroyed: joining from a static destructor can hang an interpreter's exit.
    for (unsigned i = 0; i < helpers; ++i) std::thread([this] { help(); }).detach();
  }

  void run(void (*body)(void*, int64_t), void* arg, int64_t count) {
    // One job at a time: a second caller does its pieces alone rather than waiting for the first.
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) {
      for (int64_t i = 0; i < count; ++i) body(arg, i);
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      body_ = body;
      arg_ = arg;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      ++job_;
    }
    wake_.notify_all();
    work(body, arg, count);
    std::unique_lock<std::mutex> lock(mutex_);
    count_ = 0;  // a helper that wakes up late finds nothing to join
    done_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void work(void (*body)(void*, int64_t), void* arg, int64_t count) {
    for (int64_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) body(arg, i);
  }

  void help() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return job_ != seen; });
      seen = job_;
      if (count_ == 0) continue;
      const auto body = body_;
      void* const arg = arg_;
      const int64_t count = count_;
      ++active_;
      lock.unlock();
      work(body, arg, count);
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<int64_t> next_{0};
  void (*body_)(void*, int64_t) = nullptr;
  void* arg_ = nullptr;
  int64_t count_ = 0;
  int64_t active_ = 0;
  uint64_t job_ = 0;
};

void run_on_pool(void* state, void (*body)(void*, int64_t), void* arg, int64_t count) {
  static_cast<Pool*>(state)->run(body, arg, count);
}

}  // namespace

dspark_parallel* default_parallel() {
  static Pool* const pool = new Pool(std::max(1u, std::thread::hardware_concurrency()) - 1);
  static dspark_parallel parallel{pool, run_on_pool};
  return &parallel;
}

}  // namespace dspark
