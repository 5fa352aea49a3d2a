/// Confidence signals of a row of draft logits (dspark.md 4.1): from sums over the row to log(s / (1 - s)).
///
/// All sums leave the winner out and weigh tokens against it, e_i = exp(l_i - m): s and 1 - s are then both sums of
/// positive parts, and a distribution that is nearly certain, or nearly even, loses no digits to a difference.
#ifndef DSPARK_OPS_SIGNAL_H_
#define DSPARK_OPS_SIGNAL_H_

#include <math.h>
#include <stdint.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"

namespace dspark {

constexpr double kSignalLimit = 80.0; /* signals that are shares of p give logits in [-80, 80] */

/// An entry of confidence_signal.
struct Signal {
  int32_t kind; /* dspark_signal */
  int32_t k;    /* tokens of topk_mass */
};

DSPARK_HD inline Signal signal_of(int32_t word) {
  return {word & ((1 << DSPARK_SIGNAL_BITS) - 1), word >> DSPARK_SIGNAL_BITS};
}

/// Whether a signal is made of RowMoments.
DSPARK_HD inline bool reads_moments(int32_t kind) {
  return kind != DSPARK_SIGNAL_HEAD && kind != DSPARK_SIGNAL_TOPK_MASS;
}

/// What surrounds the winner of a row, the lowest id of the largest logit m.
struct RowMoments {
  double sum;     /* of e_i */
  double squares; /* of e_i^2 */
  double spread;  /* of e_i (l_i - m), <= 0 */
  float second;   /* largest l_i, -inf where there is no other */
};

/// Adds a tile whose moments stand beside `max` of its own. `holds_winner`: its winner is the row's.
DSPARK_HD inline void fold(RowMoments& row, double row_max, const RowMoments& tile, float max, bool holds_winner) {
  if (holds_winner) {
    row.sum += tile.sum;
    row.squares += tile.squares;
    row.spread += tile.spread;
    row.second = tile.second > row.second ? tile.second : row.second;
    return;
  }
  const double shift = static_cast<double>(max) - row_max;
  const double scale = exp(shift);
  row.sum += (tile.sum + 1.0) * scale;
  row.squares += (tile.squares + 1.0) * scale * scale;
  // A tile too far below to weigh anything: 0 * -inf is no number.
  if (scale > 0.0) row.spread += scale * (tile.spread + (tile.sum + 1.0) * shift);
  row.second = max > row.second ? max : row.second;
}

/// log(part / rest), clamped; both >= 0, not both 0.
DSPARK_HD inline float share_logit(double part, double rest) {
  const double logit = log(part) - log(rest);
  return static_cast<float>(fmin(fmax(logit, -kSignalLimit), kSignalLimit));
}

/// H(p) / ln size, in [0, 1]; 0 for a vocabulary of one.
DSPARK_HD inline double normalised_entropy(const RowMoments& row, int64_t size) {
  if (size < 2) return 0.0;
  const double entropy = log1p(row.sum) - row.spread / (1.0 + row.sum);
  return fmin(fmax(entropy / log(static_cast<double>(size)), 0.0), 1.0);
}

/// log(s / (1 - s)) of a signal that reads moments. `lead` = l_x - m of the token drawn, `is_winner`: it is the winner.
DSPARK_HD inline float moment_signal(int32_t kind, const RowMoments& row, double max, int64_t size, double lead,
                                     bool is_winner) {
  switch (kind) {
    case DSPARK_SIGNAL_MARGIN: {
      const double gap = static_cast<double>(row.second) - max;
      return share_logit(-expm1(gap), row.sum + exp(gap));
    }
    case DSPARK_SIGNAL_ENTROPY: {
      const double entropy = normalised_entropy(row, size);
      return share_logit(1.0 - entropy, entropy);
    }
    case DSPARK_SIGNAL_GINI:
      return share_logit(1.0 + row.squares, row.sum + (row.sum - row.squares) + row.sum * row.sum);
    case DSPARK_SIGNAL_TOKEN: {
      if (is_winner) return share_logit(1.0, row.sum);
      const double own = exp(lead);
      return share_logit(own, 1.0 + (row.sum - own));
    }
    default:
      return share_logit(1.0, row.sum);
  }
}

}  // namespace dspark
#endif  // DSPARK_OPS_SIGNAL_H_
