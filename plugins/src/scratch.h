/// Memory that an operator's threads keep between calls.
#ifndef DSPARK_SRC_SCRATCH_H_
#define DSPARK_SRC_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <new>

namespace dspark {

/// Memory of this thread, kept between calls. 64-byte aligned.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  float* floats(int64_t count) {
    if (count > size_) {
      release();
      data_ = static_cast<float*>(::operator new(static_cast<size_t>(count) * sizeof(float), std::align_val_t{64}));
      size_ = count;
    }
    return data_;
  }

 private:
  void release() {
    ::operator delete(data_, std::align_val_t{64});
    data_ = nullptr;
    size_ = 0;
  }

  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace dspark

#endif  // DSPARK_SRC_SCRATCH_H_
