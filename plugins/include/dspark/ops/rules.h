/// What rules make of a row of target logits (dspark_rules): which of them act at a position, and how a penalty counts.
///
/// Who visits the tokens of a row, and where counts are kept, belongs to the backend.
#ifndef DSPARK_OPS_RULES_H_
#define DSPARK_OPS_RULES_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "dspark/dspark_ops.h"
#include "dspark/host_device.h"

namespace dspark {

struct Penalties {
  float repetition = 1.f;
  float presence = 0.f;
  float frequency = 0.f;

  DSPARK_HD bool neutral() const { return repetition == 1.f && presence == 0.f && frequency == 0.f; }

  /// The logit of a token that was written before, `count` times of them in the output. Sums in double: rounded once,
  /// whether the processor fuses products or not.
  DSPARK_HD float apply(float logit, int64_t count) const {
    double value = static_cast<double>(logit);
    if (repetition != 1.f) {
      const double factor = static_cast<double>(repetition);
      value = value > 0.0 ? value / factor : value * factor;
    }
    value -= static_cast<double>(frequency) * static_cast<double>(count);
    value -= count > 0 ? static_cast<double>(presence) : 0.0;
    return static_cast<float>(value);
  }
};

/// The rules of one request.
struct RequestRules {
  Penalties penalties;
  const int32_t* records; /* [num_records, 3] */
  int64_t num_records;
  const int32_t* history;   /* its row of token_history; may be null where neither penalties nor words read it */
  const int32_t* proposals; /* its row of draft_tokens; null without proposals */
  int64_t anchor;           /* position of the last committed token */
  int64_t prompt_length;

  /// The token at a position before the one that a row decides.
  DSPARK_HD int32_t token(int64_t position) const {
    return position <= anchor ? history[position] : proposals[position - anchor - 1];
  }
};

DSPARK_HD inline RequestRules rules_of(const dspark_accept_params& params, int64_t request) {
  const dspark_rules& all = params.rules;
  RequestRules rules{};
  if (all.penalties) {
    const float* own = all.penalties + 3 * request;
    rules.penalties = {own[0], own[1], own[2]};
  }
  if (all.rule_offsets) {
    rules.records = all.rules + 3 * static_cast<int64_t>(all.rule_offsets[request]);
    rules.num_records = static_cast<int64_t>(all.rule_offsets[request + 1]) - all.rule_offsets[request];
  }
  if (all.token_history && all.slots) {
    rules.history = all.token_history + static_cast<int64_t>(all.slots[request]) * all.history_capacity;
  }
  if (params.draft_tokens) rules.proposals = params.draft_tokens + request * params.block_size;
  rules.anchor = params.sampling.anchor_position[request];
  rules.prompt_length = all.prompt_lengths ? all.prompt_lengths[request] : 0;
  return rules;
}

/// Row of token_masks that a row of logits wants; -1: none.
DSPARK_HD inline int64_t mask_row(const dspark_rules& rules, int64_t row) {
  return rules.mask_rows ? rules.mask_rows[row] : -1;
}

/// Whether the output before `position` ends with the first `count` tokens of a word.
DSPARK_HD inline bool ends_with(const RequestRules& rules, int64_t position, const int32_t* word, int64_t count) {
  if (position - count < rules.prompt_length) return count == 0;
  for (int64_t i = 0; i < count; ++i) {
    if (rules.token(position - count + i) != word[3 * i + 1]) return false;
  }
  return true;
}

DSPARK_HD inline float bias_of(int32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// Calls add(id, number) for every record that acts on the token at `position`; a ban adds -inf. The order of bans
/// among themselves and with biases does not matter: nothing finite brings a logit back from -inf.
template <class Add>
DSPARK_HD void each_record(const RequestRules& rules, int64_t position, Add&& add) {
  constexpr float kBan = -INFINITY;
  for (int64_t i = 0; i < rules.num_records; ++i) {
    const int32_t* record = rules.records + 3 * i;
    if (record[0] == DSPARK_RULE_BIAS) {
      add(record[1], bias_of(record[2]));
    } else if (record[0] == DSPARK_RULE_STOP) {
      if (position < record[2]) add(record[1], kBan);
    } else {
      const int64_t before = record[2];
      if (ends_with(rules, position, record, before)) add(record[3 * before + 1], kBan);
      i += before;
    }
  }
}

}  // namespace dspark
#endif  // DSPARK_OPS_RULES_H_
