/// Random draws: which counter serves which draw, and what a word becomes (dspark.md 5.6).
///
/// Rejection mode keys a draw by the round's anchor, coupled mode by the position of the token drawn:
/// a position proposed again in a later round must meet fresh numbers in the first, the same in the second.
#ifndef DSPARK_OPS_DRAW_H_
#define DSPARK_OPS_DRAW_H_

#include <math.h>
#include <stdint.h>

#include "dspark/host_device.h"
#include "dspark/philox.h"

namespace dspark {

/// Low byte of counter word 1.
enum class Purpose : uint32_t { kCoupled = 0, kDraft = 1, kAccept = 2, kResidual = 3, kBonus = 4 };

/// Everything of a draw's counter but word 2, which names the tokens.
struct DrawKey {
  PhiloxKey key;
  uint32_t word0;
  uint32_t word1;
  uint32_t word3;
};

/// A draw of rejection mode. `position`: 0-based block position k (the verify length for a bonus).
DSPARK_HD inline DrawKey anchored_draw(int64_t seed, int32_t sample_index, int32_t anchor_position, Purpose purpose,
                                       int64_t position) {
  return {philox_key(seed), static_cast<uint32_t>(anchor_position),
          static_cast<uint32_t>(purpose) | static_cast<uint32_t>(position) << 8, static_cast<uint32_t>(sample_index)};
}

/// A draw of coupled mode for the token at absolute position `token_position`.
DSPARK_HD inline DrawKey coupled_draw(int64_t seed, int32_t sample_index, int64_t token_position) {
  return {philox_key(seed), static_cast<uint32_t>(token_position), static_cast<uint32_t>(Purpose::kCoupled),
          static_cast<uint32_t>(sample_index)};
}

/// The four words of tokens 4*group .. 4*group+3 (group 0, lane 0 for a single uniform).
DSPARK_HD inline PhiloxWords draw_words(const DrawKey& draw, uint32_t group) {
  return philox({{draw.word0, draw.word1, group, draw.word3}}, draw.key);
}

/// (i + 0.5) * 2^-32: never 0 and never 1.
DSPARK_HD inline double uniform_of(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

/// Gumbel noise of a word, in [-3.14, 32 ln 2 + ln 2 = 22.88]. Float64: in float32 the largest words give +inf.
DSPARK_HD inline double gumbel_of(uint32_t word) { return -log(-log1p(-uniform_of(word))); }

DSPARK_HD inline double gumbel(const DrawKey& draw, int32_t token) {
  const uint32_t id = static_cast<uint32_t>(token);
  return gumbel_of(draw_words(draw, id >> 2).word[id & 3]);
}

/// The smallest value of -log1p(-u): no token with weight below this times exp(best score) can win.
constexpr double kSmallestExponential = 0x1p-33;

}  // namespace dspark
#endif  // DSPARK_OPS_DRAW_H_
