/// Philox4x32-10 (Salmon et al. 2011), the counter-based generator behind every draw.
///
/// A number is a pure function of (key, counter): nothing is stored, so any thread, batch or device
/// finds the same number. Which counter serves which draw is written in ops/draw.h.
#ifndef DSPARK_PHILOX_H_
#define DSPARK_PHILOX_H_

#include <stdint.h>

#include "dspark/host_device.h"

namespace dspark {

struct PhiloxKey {
  uint32_t word0; /* low 32 bits of the seed */
  uint32_t word1; /* high 32 bits */
};

struct PhiloxWords {
  uint32_t word[4];
};

constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

DSPARK_HD inline PhiloxKey philox_key(int64_t seed) {
  const uint64_t bits = static_cast<uint64_t>(seed);
  return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

/// Ten rounds over one counter: four independent uniform 32-bit words.
DSPARK_HD inline PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kPhiloxMultiplier0) * counter.word[0];
    const uint64_t product1 = static_cast<uint64_t>(kPhiloxMultiplier1) * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key.word0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key.word1, static_cast<uint32_t>(product0)}};
    key.word0 += kPhiloxWeyl0;
    key.word1 += kPhiloxWeyl1;
  }
  return counter;
}

}  // namespace dspark
#endif  // DSPARK_PHILOX_H_
