/// DSparkDraft, the bodies: states of the sequential head, and its confidences (dspark.md 2.2).
///
/// A block goes left to right; within one position everything here is independent work in pieces whose
/// sizes depend on the shapes alone. The product with W2 and what is drawn from the finished row belong to the backend.
#ifndef DSPARK_OPS_DRAFT_H_
#define DSPARK_OPS_DRAFT_H_

#include <math.h>
#include <stdint.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"
#include "dspark/ops/dot.h"
#include "dspark/ops/draw.h"
#include "dspark/ops/filter.h"

namespace dspark {

constexpr int64_t kGateTile = 64;    /* rows of head_weight in one piece */
constexpr int64_t kMarkovTile = 256; /* rows of markov_w2 in one piece */

DSPARK_HD inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

/// Rows of head_weight: gated r, rnn 3r, else 0.
DSPARK_HD inline int64_t gate_rows(const dspark_draft_params& params) {
  if (params.head_type == DSPARK_HEAD_GATED) return params.markov_rank;
  if (params.head_type == DSPARK_HEAD_RNN) return 3 * params.markov_rank;
  return 0;
}

/// Columns of head_weight.
DSPARK_HD inline int64_t gate_columns(const dspark_draft_params& params) {
  const int64_t recurrent = params.head_type == DSPARK_HEAD_RNN ? params.markov_rank : 0;
  return recurrent + params.markov_rank + params.hidden_size;
}

/// What h_k adds to every gate of every position, before the loop: out[R, K, gate_rows] = W[:, h] h_k + b.
/// One pass over the large part of head_weight instead of one per position.
struct GateFromHidden {
  dspark_draft_params params;
  float* out;

  template <class Team>
  DSPARK_INLINE DSPARK_HD void operator()(int64_t tile, const Team& team) const {
    const int64_t rows = gate_rows(params);
    const int64_t first = tile * kGateTile;
    const int64_t count = rows - first < kGateTile ? rows - first : kGateTile;
    const int64_t column = params.head_type == DSPARK_HEAD_RNN ? 2 * params.markov_rank : 0;
    const int64_t columns = gate_columns(params);
    const float* weight = params.head_weight + first * columns + column;
    const float* bias = params.head_bias + first;
    for (int64_t i = 0; i < params.num_requests * params.block_size; ++i) {
      multiply_rows(team, weight, columns, count, params.hidden + i * params.hidden_size, params.hidden_size,
                    out + i * rows + first, [bias](int64_t row) { return bias[row]; });
    }
  }
};

/// The rest of the gates at position k: out[R, gate_rows] = from_hidden[r, k] + W[:, w1] W1[x_{k-1}] (+ W[:, s]
/// s_{k-1}).
struct GateFromPrevious {
  dspark_draft_params params;
  const float* from_hidden;       /* [R, K, gate_rows] */
  const int32_t* previous_tokens; /* [R] x_{k-1} */
  const float* previous_states;   /* [R, r], rnn only */
  int64_t k;
  float* out;

  template <class Team>
  DSPARK_INLINE DSPARK_HD void operator()(int64_t tile, const Team& team) const {
    const int64_t rows = gate_rows(params);
    const int64_t rank = params.markov_rank;
    const int64_t first = tile * kGateTile;
    const int64_t count = rows - first < kGateTile ? rows - first : kGateTile;
    const int64_t columns = gate_columns(params);
    const bool recurrent = params.head_type == DSPARK_HEAD_RNN;
    const float* weight = params.head_weight + first * columns;
    for (int64_t r = 0; r < params.num_requests; ++r) {
      const float* start = from_hidden + (r * params.block_size + k) * rows + first;
      const float* embedded = params.markov_w1 + static_cast<int64_t>(previous_tokens[r]) * rank;
      float* gates = out + r * rows + first;
      multiply_rows(team, weight + (recurrent ? rank : params.hidden_size), columns, count, embedded, rank, gates,
                    [start](int64_t row) { return start[row]; });
      if (recurrent) {
        team.sync();
        multiply_rows(team, weight, columns, count, previous_states + r * rank, rank, gates,
                      [gates](int64_t row) { return gates[row]; });
      }
    }
  }
};

/// out[j] = sigmoid(gate_j) * W1[x_{k-1}]_j: what W2 multiplies in the gated head.
DSPARK_HD inline float gated_state(float gate, float embedded) { return sigmoid(gate) * embedded; }

/// s_k = sigmoid(g) * s_{k-1} + (1 - sigmoid(g)) * tanh(c); W2 multiplies tanh(o).
DSPARK_HD inline float rnn_state(float gate, float candidate, float previous) {
  const float keep = sigmoid(gate);
  return keep * previous + (1.f - keep) * tanhf(candidate);
}

/// c_k before the sigmoid: w . [h_k ; W1[x_{k-1}]] + b; it depends on x_{k-1}, not on x_k.
template <class Team>
DSPARK_INLINE DSPARK_HD float head_confidence(const dspark_draft_params& params, int64_t request, int64_t k,
                                              int32_t previous_token, const Team& team) {
  const float* hidden = params.hidden + (request * params.block_size + k) * params.hidden_size;
  float logit = dot(team, params.confidence_weight, hidden, params.hidden_size);
  if (params.confidence_with_markov) {
    const float* embedded = params.markov_w1 + static_cast<int64_t>(previous_token) * params.markov_rank;
    logit += dot(team, params.confidence_weight + params.hidden_size, embedded, params.markov_rank);
  }
  return params.confidence_bias ? logit + params.confidence_bias[0] : logit;
}

/// Whether x_k is drawn; else it is the argmax. Every mode but greedy draws above the temperature that means greedy.
DSPARK_HD inline bool draws_tokens(const Sampling& sampling) {
  return sampling.mode != DSPARK_GREEDY && !(sampling.temperature < kGreedyTemperature);
}

/// Which number draws x_k: the round's anchor in rejection mode, the token's own position in coupled mode.
DSPARK_HD inline DrawKey draft_draw(const Sampling& sampling, int64_t block_position) {
  if (sampling.mode == DSPARK_COUPLED) {
    const int64_t position = static_cast<int64_t>(sampling.anchor_position) + 1 + block_position;
    return coupled_draw(sampling.seed, sampling.sample_index, position);
  }
  return anchored_draw(sampling.seed, sampling.sample_index, sampling.anchor_position, Purpose::kDraft, block_position);
}

}  // namespace dspark
#endif  // DSPARK_OPS_DRAFT_H_
