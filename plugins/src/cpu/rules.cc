#include "rules.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "rows.h"

namespace dspark {
namespace {

bool has_penalties(const dspark_rules& rules, int64_t request) {
  if (rules.penalties == nullptr) return false;
  const float* own = rules.penalties + 3 * request;
  return !Penalties{own[0], own[1], own[2]}.neutral();
}

int64_t num_records(const dspark_rules& rules, int64_t request) {
  return rules.rule_offsets ? rules.rule_offsets[request + 1] - rules.rule_offsets[request] : 0;
}

void check_penalties(const char* op, const dspark_rules& rules, int64_t num_requests) {
  if (rules.penalties == nullptr) return;
  for (int64_t r = 0; r < num_requests; ++r) {
    const float* own = rules.penalties + 3 * r;
    if (!(own[0] > 0.f && std::isfinite(own[0]))) {
      refuse(op, ": penalties[", r, ", 0] (repetition) is ", own[0], ", wanted a finite number > 0 (1 = off)");
    }
    for (int i = 1; i < 3; ++i) {
      if (std::isfinite(own[i])) continue;
      refuse(op, ": penalties[", r, ", ", i, "] (", i == 1 ? "presence" : "frequency", ") is ", own[i],
             ", wanted a finite number (0 = off)");
    }
  }
}

/// Records of one request; true where a word of two tokens or more needs the tokens before it.
bool check_records(const char* op, const dspark_rules& rules, int64_t request, int64_t vocab) {
  bool reads_history = false;
  const int64_t end = rules.rule_offsets[request + 1];
  int64_t remaining = 0; /* records that the word begun must still have */
  for (int64_t e = rules.rule_offsets[request]; e < end; ++e) {
    const int32_t* record = rules.rules + 3 * e;
    if (record[0] < DSPARK_RULE_BIAS || record[0] > DSPARK_RULE_WORD) {
      refuse(op, ": rules[", e, ", 0] is ", record[0], ", wanted 0 (bias), 1 (stop) or 2 (word)");
    }
    if (record[1] < 0 || record[1] >= vocab) {
      refuse(op, ": rules[", e, ", 1] is ", record[1], ", wanted an id in [0, vocab = ", vocab, ")");
    }
    if (record[0] == DSPARK_RULE_BIAS) {
      const float bias = bias_of(record[2]);
      if (!(bias <= std::numeric_limits<float>::max())) {
        refuse(op, ": rules[", e, ", 2] holds the bits of ", bias, ", wanted a finite bias, or -inf for a ban");
      }
    }
    const bool word = record[0] == DSPARK_RULE_WORD;
    const bool continues = word && record[2] == remaining - 1;
    if (remaining > 0 ? !continues : word && (record[2] < 0 || record[2] >= end - e)) {
      refuse(op, ": rules[", e, "] does not continue a word: wanted m records with remaining m-1, ..., 0 for m tokens");
    }
    remaining = word ? record[2] : 0;
    reads_history = reads_history || remaining > 0;
  }
  return reads_history;
}

void check_history(const char* op, const dspark_accept_params& params, int64_t request) {
  const dspark_rules& rules = params.rules;
  check_pointer(op, "token_history", rules.token_history);
  check_pointer(op, "slots", rules.slots);
  check_pointer(op, "prompt_lengths", rules.prompt_lengths);
  if (rules.slots[request] < 0 || rules.slots[request] >= rules.num_slots) {
    refuse(op, ": slots[", request, "] is ", rules.slots[request], ", wanted a row of token_history in [0, ",
           rules.num_slots, ")");
  }
  const int64_t anchor = params.sampling.anchor_position[request];
  if (anchor < 0 || anchor >= rules.history_capacity) {
    refuse(op, ": anchor_position[", request, "] is ", anchor, ", wanted a position of token_history in [0, ",
           rules.history_capacity, ")");
  }
}

void check_masks(const char* op, const dspark_rules& rules, int64_t num_rows) {
  if (rules.mask_rows == nullptr) return;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (rules.mask_rows[row] < -1 || rules.mask_rows[row] >= rules.num_masks) {
      refuse(op, ": mask_rows[", row, "] is ", rules.mask_rows[row], ", wanted -1 or a row of token_masks in [0, ",
             rules.num_masks, ")");
    }
    if (rules.mask_rows[row] >= 0) check_pointer(op, "token_masks", rules.token_masks);
  }
}

}  // namespace

void check_rules(const char* op, const dspark_accept_params& params) {
  const dspark_rules& rules = params.rules;
  check_penalties(op, rules, params.num_requests);
  check_masks(op, rules, params.num_rows);
  const int32_t* offsets = rules.rule_offsets;
  if (offsets && offsets[0] < 0) refuse(op, ": rule_offsets[0] is ", offsets[0], ", wanted >= 0");
  for (int64_t r = 0; r < params.num_requests; ++r) {
    if (offsets && (offsets[r + 1] < offsets[r] || offsets[r + 1] > rules.num_rules)) {
      refuse(op, ": rule_offsets[", r + 1, "] is ", offsets[r + 1], ", wanted ", offsets[r],
             " (the entry before it) to num_rules = ", rules.num_rules);
    }
    bool reads_history = has_penalties(rules, r);
    if (num_records(rules, r) > 0) {
      check_pointer(op, "rules", rules.rules);
      reads_history = check_records(op, rules, r, params.vocab) || reads_history;
    }
    if (reads_history) check_history(op, params, r);
  }
}

bool has_rules(const dspark_accept_params& params, int64_t request) {
  if (has_penalties(params.rules, request) || num_records(params.rules, request) > 0) return true;
  for (int64_t row = params.row_offsets[request]; row < params.row_offsets[request + 1]; ++row) {
    if (mask_row(params.rules, row) >= 0) return true;
  }
  return false;
}

void TokenCounts::open(const RequestRules& rules, int64_t vocab) {
  // Clears what the last request left, also where an exception ended it.
  for (const int32_t token : distinct_) counts_[static_cast<size_t>(token)] = 0;
  distinct_.clear();
  if (static_cast<int64_t>(counts_.size()) < vocab) counts_.resize(static_cast<size_t>(vocab));
  for (int64_t position = 0; position <= rules.anchor; ++position) {
    const int32_t token = rules.history[position];
    if (token < 0 || token >= vocab) {
      refuse("DSparkAccept: token_history holds ", token, " at position ", position,
             " of a request, wanted an id in [0, vocab = ", vocab, ")");
    }
    add(token, position >= rules.prompt_length);
  }
}

void TokenCounts::add(int32_t token, bool output) {
  int32_t& count = counts_[static_cast<size_t>(token)];
  if (count == 0) {
    distinct_.push_back(token);
    count = 1;
  }
  count += output ? 1 : 0;
}

void RuledRows::open(const dspark_accept_params& params, int64_t request) {
  params_ = &params;
  active_ = has_rules(params, request);
  if (!active_) return;
  rules_ = rules_of(params, request);
  first_row_ = params.row_offsets[request];
  counted_ = 0;
  if (!rules_.penalties.neutral()) counts_.open(rules_, params.vocab);
}

const float* RuledRows::processed(const float* logits, int64_t k) {
  float* changed = nullptr;
  const auto row = [&] { return changed ? changed : changed = copy(logits, -1); };
  const int64_t mask = mask_row(params_->rules, first_row_ + k);
  if (mask >= 0) changed = copy(logits, mask);
  const int64_t position = rules_.anchor + 1 + k;
  each_record(rules_, position, [&](int32_t id, float added) { row()[id] += added; });
  if (rules_.penalties.neutral()) return changed ? changed : logits;
  for (; counted_ < k; ++counted_)
    counts_.add(rules_.proposals[counted_], rules_.anchor + 1 + counted_ >= rules_.prompt_length);
  for (const int32_t token : counts_.distinct()) {
    row()[token] = rules_.penalties.apply(row()[token], counts_.in_output(token));
  }
  return row();
}

float* RuledRows::copy(const float* logits, int64_t mask) {
  const int64_t vocab = params_->vocab;
  if (static_cast<int64_t>(row_.size()) < vocab) row_.resize(static_cast<size_t>(vocab));
  if (mask < 0) {
    std::memcpy(row_.data(), logits, static_cast<size_t>(vocab) * sizeof(float));
  } else {
    masked_row(logits, vocab, params_->rules.token_masks + mask * ((vocab + 31) / 32), row_.data());
  }
  return row_.data();
}

}  // namespace dspark
