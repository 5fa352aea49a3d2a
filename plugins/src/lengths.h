/// Checks that the packed operators share: cumulative lengths and the sentences about them.
#ifndef DSPARK_SRC_LENGTHS_H_
#define DSPARK_SRC_LENGTHS_H_

#include <cstdint>
#include <stdexcept>
#include <string>

namespace dspark {

[[noreturn]] inline void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

inline std::string at(const char* name, int64_t index) { return std::string(name) + "[" + std::to_string(index) + "]"; }

inline void need(const void* pointer, const char* op, const char* name) {
  if (pointer == nullptr) refuse(std::string(op) + ": " + name + " is null, needs data");
}

inline void need_at_least(int64_t value, int64_t least, const char* op, const char* name) {
  if (value < least) {
    refuse(std::string(op) + ": " + name + " is " + std::to_string(value) + ", needs at least " +
           std::to_string(least));
  }
}

/// lengths [num + 1]: first 0, never falling, last at most `rows`.
inline void need_cumulative(const int32_t* lengths, int64_t num, int64_t rows, const char* op, const char* name) {
  if (lengths[0] != 0) refuse(std::string(op) + ": " + at(name, 0) + " is " + std::to_string(lengths[0]) + ", needs 0");
  for (int64_t b = 0; b < num; ++b) {
    if (lengths[b + 1] < lengths[b]) {
      refuse(std::string(op) + ": " + at(name, b + 1) + " is " + std::to_string(lengths[b + 1]) +
             ", needs at least the entry before it, " + std::to_string(lengths[b]));
    }
  }
  if (lengths[num] > rows) {
    refuse(std::string(op) + ": " + at(name, num) + " is " + std::to_string(lengths[num]) + ", needs at most the " +
           std::to_string(rows) + " packed rows");
  }
}

}  // namespace dspark

#endif  // DSPARK_SRC_LENGTHS_H_
