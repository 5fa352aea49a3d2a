/// The Python module `dspark_ops`: all operators on NumPy arrays, without copies and without the GIL.
/// Only adapts: checks arrays, fills the parameter struct, calls the C ABI, raises its message as ValueError.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "arrays.h"
#include "dspark/dspark_ops.h"
#include "dspark/parallel.h"

namespace dspark::python {
namespace {

template <class Params>
void launch(dspark_status (*run)(const Params*, const dspark_parallel*), const Params& params, bool parallel) {
  dspark_status status = DSPARK_OK;
  std::string message;
  {
    nb::gil_scoped_release release;
    status = run(&params, parallel ? default_parallel() : nullptr);
    if (status != DSPARK_OK) message = dspark_last_error();
  }
  if (status == DSPARK_INVALID_ARGUMENT) throw nb::value_error(message.c_str());
  if (status != DSPARK_OK) throw std::runtime_error(message);
}

/// The eight per-request arrays of dspark_sampling.
struct SamplingArrays {
  Array<float> temperature;
  Array<int32_t> top_k;
  Array<float> top_p;
  Array<float> min_p;
  Array<int32_t> accept_mode;
  Array<int64_t> seed;
  Array<int32_t> sample_index;
  Array<int32_t> anchor_position;

  dspark_sampling params() const {
    return {temperature.data(), top_k.data(), top_p.data(),        min_p.data(),
            accept_mode.data(), seed.data(),  sample_index.data(), anchor_position.data()};
  }
};

SamplingArrays sampling_arrays(const char* function, int64_t requests, nb::handle temperature, nb::handle top_k,
                               nb::handle top_p, nb::handle min_p, nb::handle accept_mode, nb::handle seed,
                               nb::handle sample_index, nb::handle anchor_position) {
  return {input<float>({function, "temperature", "R"}, temperature, {requests}),
          input<int32_t>({function, "top_k", "R"}, top_k, {requests}),
          input<float>({function, "top_p", "R"}, top_p, {requests}),
          input<float>({function, "min_p", "R"}, min_p, {requests}),
          input<int32_t>({function, "accept_mode", "R"}, accept_mode, {requests}),
          input<int64_t>({function, "seed", "R"}, seed, {requests}),
          input<int32_t>({function, "sample_index", "R"}, sample_index, {requests}),
          input<int32_t>({function, "anchor_position", "R"}, anchor_position, {requests})};
}

/// markov_w2 as it is stored: float32, bfloat16 (its bits as uint16) or int8.
struct HeadMatrix {
  const void* data = nullptr;
  int32_t storage = DSPARK_HEAD_FLOAT32;

  HeadMatrix(const Place& place, nb::handle object, int64_t vocab, int64_t rank) {
    if (object.is_none()) return;
    const std::string dtype = nb::hasattr(object, "dtype") ? text(object.attr("dtype")) : "";
    if (dtype == "uint16") {
      storage = DSPARK_HEAD_BFLOAT16;
      data = input<uint16_t>(place, object, {vocab, rank}).data();
    } else if (dtype == "int8") {
      storage = DSPARK_HEAD_INT8;
      data = input<int8_t>(place, object, {vocab, rank}).data();
    } else {
      data = input<float>(place, object, {vocab, rank}).data();
    }
  }
};

nb::tuple draft(nb::object base_logits, nb::object anchor_tokens, nb::object temperature, nb::object top_k,
                nb::object top_p, nb::object min_p, nb::object accept_mode, nb::object seed, nb::object sample_index,
                nb::object anchor_position, nb::object confidence_signal, nb::object cutoff_policy, nb::object hidden,
                int32_t block_offset, nb::object markov_w1, nb::object markov_w2, nb::object markov_w2_scales,
                nb::object head_weight, nb::object head_bias, nb::object confidence_weight, nb::object confidence_bias,
                nb::object d2t, int32_t head_type, bool confidence_with_markov, nb::object draft_tokens,
                nb::object confidence_logits, nb::object draft_logits, nb::object entropies, bool want_draft_logits,
                bool parallel) {
  constexpr const char* kName = "draft";
  const auto base = input<float>({kName, "base_logits", "R, K, Vd"}, base_logits, {kAny, kAny, kAny});
  const int64_t requests = base.size(0);
  const int64_t block = base.size(1);
  const int64_t vocab = base.size(2);
  const auto states = optional_input<float>({kName, "hidden", "R, K, d"}, hidden, {requests, block, kAny});
  const int64_t width = states ? states.size(2) : 0;
  const auto anchors = input<int32_t>({kName, "anchor_tokens", "R"}, anchor_tokens, {requests});
  const auto w1 = optional_input<float>({kName, "markov_w1", "rows, r"}, markov_w1, {kAny, kAny});
  const int64_t rank = w1 ? w1.size(1) : 0;
  const HeadMatrix w2({kName, "markov_w2", "Vd, r"}, markov_w2, vocab, rank);
  const auto w2_scales = optional_input<float>({kName, "markov_w2_scales", "Vd"}, markov_w2_scales, {vocab});
  const bool rnn = head_type == DSPARK_HEAD_RNN;
  const int64_t gates = rnn ? 3 * rank : rank;
  const int64_t columns = (rnn ? 2 : 1) * rank + width;
  const auto gate =
      optional_input<float>({kName, "head_weight", rnn ? "3r, r + r + d" : "r, d + r"}, head_weight, {gates, columns});
  const auto gate_bias = optional_input<float>({kName, "head_bias", rnn ? "3r" : "r"}, head_bias, {gates});
  const auto confidence = optional_input<float>({kName, "confidence_weight", confidence_with_markov ? "d + r" : "d"},
                                                confidence_weight, {width + (confidence_with_markov ? rank : 0)});
  const auto confidence_b = optional_input<float>({kName, "confidence_bias", "1"}, confidence_bias, {1});
  const auto map = optional_input<int32_t>({kName, "d2t", "Vd"}, d2t, {vocab});
  const auto sampling = sampling_arrays(kName, requests, temperature, top_k, top_p, min_p, accept_mode, seed,
                                        sample_index, anchor_position);
  const auto signal_kinds = input<int32_t>({kName, "confidence_signal", "R"}, confidence_signal, {requests});
  const auto policies = optional_input<int32_t>({kName, "cutoff_policy", "R"}, cutoff_policy, {requests});
  const Output<int32_t> tokens({kName, "draft_tokens", "R, K"}, draft_tokens, {requests, block});
  const Output<float> signals({kName, "confidence_logits", "R, K"}, confidence_logits, {requests, block});
  const Output<float> spreads({kName, "entropies", "R, K"}, entropies, {requests, block});
  Array<float, true> kept;
  if (want_draft_logits || !draft_logits.is_none()) {
    Output<float> output({kName, "draft_logits", "R, K, Vd"}, draft_logits, {requests, block, vocab});
    draft_logits = output.object;
    kept = output.array;
  }
  dspark_draft_params params{};
  params.num_requests = requests;
  params.block_size = block;
  params.draft_vocab = vocab;
  params.hidden_size = width;
  params.markov_rank = rank;
  params.markov_rows = w1 ? w1.size(0) : 0;
  params.head_type = head_type;
  params.head_storage = w2.storage;
  params.confidence_with_markov = confidence_with_markov ? 1 : 0;
  params.block_offset = block_offset;
  params.base_logits = base.data();
  params.hidden = states.data();
  params.anchor_tokens = anchors.data();
  params.markov_w1 = w1.data();
  params.markov_w2 = w2.data;
  params.markov_w2_scales = w2_scales.data();
  params.head_weight = gate.data();
  params.head_bias = gate_bias.data();
  params.confidence_weight = confidence.data();
  params.confidence_bias = confidence_b.data();
  params.d2t = map.data();
  params.sampling = sampling.params();
  params.confidence_signal = signal_kinds.data();
  params.cutoff_policy = policies.data();
  params.draft_tokens = tokens.data();
  params.confidence_logits = signals.data();
  params.entropies = spreads.data();
  params.draft_logits = kept.data();
  launch(dspark_draft, params, parallel);
  return nb::make_tuple(tokens.object, signals.object, draft_logits, spreads.object);
}

nb::tuple cutoff(nb::object confidence_logits, nb::object cutoff_policy, nb::object cutoff_params,
                 nb::object cutoff_inclusive, nb::object min_verify, nb::object max_verify, nb::object entropies,
                 nb::object draft_tokens, nb::object calibration_temperatures, nb::object verify_lengths,
                 nb::object survivals, nb::object confidences, bool parallel) {
  constexpr const char* kName = "cutoff";
  const auto logits = input<float>({kName, "confidence_logits", "R, K"}, confidence_logits, {kAny, kAny});
  const int64_t requests = logits.size(0);
  const int64_t block = logits.size(1);
  const auto spreads = optional_input<float>({kName, "entropies", "R, K"}, entropies, {requests, block});
  const auto proposals = optional_input<int32_t>({kName, "draft_tokens", "R, K"}, draft_tokens, {requests, block});
  const auto temperatures =
      optional_input<float>({kName, "calibration_temperatures", "R, K"}, calibration_temperatures, {requests, block});
  const auto policies = input<int32_t>({kName, "cutoff_policy", "R"}, cutoff_policy, {requests});
  const auto columns = input<float>({kName, "cutoff_params", "R, 5"}, cutoff_params, {requests, DSPARK_CUTOFF_COLUMNS});
  const auto stops = input<int32_t>({kName, "cutoff_inclusive", "R"}, cutoff_inclusive, {requests});
  const auto least = input<int32_t>({kName, "min_verify", "R"}, min_verify, {requests});
  const auto most = input<int32_t>({kName, "max_verify", "R"}, max_verify, {requests});
  const Output<int32_t> lengths({kName, "verify_lengths", "R"}, verify_lengths, {requests});
  const Output<float> products({kName, "survivals", "R, K"}, survivals, {requests, block});
  const Output<float> values({kName, "confidences", "R, K"}, confidences, {requests, block});
  dspark_cutoff_params params{};
  params.num_requests = requests;
  params.block_size = block;
  params.confidence_logits = logits.data();
  params.entropies = spreads.data();
  params.draft_tokens = proposals.data();
  params.calibration_temperatures = temperatures.data();
  params.policy = policies.data();
  params.params = columns.data();
  params.inclusive = stops.data();
  params.min_verify = least.data();
  params.max_verify = most.data();
  params.verify_lengths = lengths.data();
  params.survivals = products.data();
  params.confidences = values.data();
  launch(dspark_cutoff, params, parallel);
  return nb::make_tuple(lengths.object, products.object, values.object);
}

/// The arrays of dspark_rules; None switches off what it serves.
struct RuleArrays {
  Array<float> penalties;
  Array<int32_t> token_history;
  Array<int32_t> slots;
  Array<int32_t> prompt_lengths;
  Array<int32_t> rules;
  Array<int32_t> rule_offsets;
  Array<int32_t> token_masks;
  Array<int32_t> mask_rows;

  dspark_rules params() const {
    dspark_rules all{};
    all.num_slots = token_history ? token_history.size(0) : 0;
    all.history_capacity = token_history ? token_history.size(1) : 0;
    all.num_rules = rules ? rules.size(0) : 0;
    all.num_masks = token_masks ? token_masks.size(0) : 0;
    all.penalties = penalties.data();
    all.token_history = token_history.data();
    all.slots = slots.data();
    all.prompt_lengths = prompt_lengths.data();
    all.rules = rules.data();
    all.rule_offsets = rule_offsets.data();
    all.token_masks = token_masks.data();
    all.mask_rows = mask_rows.data();
    return all;
  }
};

nb::tuple accept(nb::object logits, nb::object row_offsets, nb::object temperature, nb::object top_k, nb::object top_p,
                 nb::object min_p, nb::object accept_mode, nb::object seed, nb::object sample_index,
                 nb::object anchor_position, nb::object draft_tokens, nb::object draft_logits, nb::object penalties,
                 nb::object token_history, nb::object slots, nb::object prompt_lengths, nb::object rules,
                 nb::object rule_offsets, nb::object token_masks, nb::object mask_rows, nb::object relaxation,
                 nb::object num_logprobs, nb::object confidences, nb::object d2t, nb::object accepted,
                 nb::object tokens, nb::object round_ends, nb::object logprobs, nb::object logprob_ids,
                 nb::object logprob_ranks, bool parallel) {
  constexpr const char* kName = "accept";
  const auto rows = input<float>({kName, "logits", "N, V"}, logits, {kAny, kAny});
  const int64_t vocab = rows.size(1);
  const auto offsets = input<int32_t>({kName, "row_offsets", "R + 1"}, row_offsets, {kAny});
  if (offsets.size(0) < 1) refuse_array({kName, "row_offsets", "R + 1"}, "empty", "R + 1 entries");
  const int64_t requests = offsets.size(0) - 1;
  const auto proposals = optional_input<int32_t>({kName, "draft_tokens", "R, K"}, draft_tokens, {requests, kAny});
  const int64_t block = proposals ? proposals.size(1) : 0;
  const auto draft_rows =
      optional_input<float>({kName, "draft_logits", "R or 0, K, Vd"}, draft_logits, {kAny, block, kAny});
  // No rows is how a draft says that nobody needed them.
  const bool drafted = draft_rows && draft_rows.size(0) > 0;
  if (drafted && draft_rows.size(0) != requests) {
    refuse_array({kName, "draft_logits", ""}, std::to_string(draft_rows.size(0)) + " rows",
                 "0 or R = " + std::to_string(requests));
  }
  const int64_t draft_vocab = draft_rows ? draft_rows.size(2) : 0;
  const auto map = optional_input<int32_t>({kName, "d2t", "Vd"}, d2t, {draft_rows ? draft_vocab : kAny});
  const auto sampling = sampling_arrays(kName, requests, temperature, top_k, top_p, min_p, accept_mode, seed,
                                        sample_index, anchor_position);
  const RuleArrays all{
      optional_input<float>({kName, "penalties", "R, 3"}, penalties, {requests, 3}),
      optional_input<int32_t>({kName, "token_history", "B, S"}, token_history, {kAny, kAny}),
      optional_input<int32_t>({kName, "slots", "R"}, slots, {requests}),
      optional_input<int32_t>({kName, "prompt_lengths", "R"}, prompt_lengths, {requests}),
      optional_input<int32_t>({kName, "rules", "E, 3"}, rules, {kAny, 3}),
      optional_input<int32_t>({kName, "rule_offsets", "R + 1"}, rule_offsets, {requests + 1}),
      optional_input<int32_t>({kName, "token_masks", "M, ceil(V / 32)"}, token_masks, {kAny, (vocab + 31) / 32}),
      optional_input<int32_t>({kName, "mask_rows", "N"}, mask_rows, {rows.size(0)})};
  const auto bars = optional_input<float>({kName, "relaxation", "R, 2"}, relaxation, {requests, 2});
  const auto wanted = optional_input<int32_t>({kName, "num_logprobs", "R"}, num_logprobs, {requests});
  const auto sure = optional_input<float>({kName, "confidences", "R or 0, K"}, confidences, {kAny, block});
  const bool confident = sure && sure.size(0) > 0;
  if (confident && sure.size(0) != requests) {
    refuse_array({kName, "confidences", ""}, std::to_string(sure.size(0)) + " rows",
                 "0 or R = " + std::to_string(requests));
  }
  const Output<int32_t> counts({kName, "accepted", "R"}, accepted, {requests});
  const Output<int32_t> kept({kName, "tokens", "R, K + 1"}, tokens, {requests, block + 1});
  const Output<int32_t> ends({kName, "round_ends", "R"}, round_ends, {requests});
  dspark_accept_params params{};
  params.num_requests = requests;
  params.block_size = block;
  params.vocab = vocab;
  params.draft_vocab = draft_vocab;
  params.num_rows = rows.size(0);
  params.logits = rows.data();
  params.row_offsets = offsets.data();
  params.draft_tokens = proposals.data();
  params.draft_logits = drafted ? draft_rows.data() : nullptr;
  params.d2t = map.data();
  params.sampling = sampling.params();
  params.rules = all.params();
  params.relaxation = bars.data();
  params.confidences = confident ? sure.data() : nullptr;
  params.num_logprobs = wanted.data();
  params.accepted = counts.data();
  params.tokens = kept.data();
  params.round_ends = ends.data();
  if (wanted) {
    const Output<float> values({kName, "logprobs", "R, K + 1, 21"}, logprobs,
                               {requests, block + 1, DSPARK_LOGPROB_COLUMNS});
    const Output<int32_t> ids({kName, "logprob_ids", "R, K + 1, 21"}, logprob_ids,
                              {requests, block + 1, DSPARK_LOGPROB_COLUMNS});
    const Output<int32_t> ranks({kName, "logprob_ranks", "R, K + 1"}, logprob_ranks, {requests, block + 1});
    params.logprobs = values.data();
    params.logprob_ids = ids.data();
    params.logprob_ranks = ranks.data();
    logprobs = values.object;
    logprob_ids = ids.object;
    logprob_ranks = ranks.object;
  }
  launch(dspark_accept, params, parallel);
  return nb::make_tuple(counts.object, kept.object, ends.object, logprobs, logprob_ids, logprob_ranks);
}

nb::tuple logprobs(nb::object logits, nb::object tokens, nb::object num_logprobs, nb::object logprobs,
                   nb::object logprob_ids, nb::object logprob_ranks, bool parallel) {
  constexpr const char* kName = "logprobs";
  const auto rows = input<float>({kName, "logits", "N, V"}, logits, {kAny, kAny});
  const int64_t count = rows.size(0);
  const auto chosen = input<int32_t>({kName, "tokens", "N"}, tokens, {count});
  const auto wanted = input<int32_t>({kName, "num_logprobs", "N"}, num_logprobs, {count});
  const Output<float> values({kName, "logprobs", "N, 21"}, logprobs, {count, DSPARK_LOGPROB_COLUMNS});
  const Output<int32_t> ids({kName, "logprob_ids", "N, 21"}, logprob_ids, {count, DSPARK_LOGPROB_COLUMNS});
  const Output<int32_t> ranks({kName, "logprob_ranks", "N"}, logprob_ranks, {count});
  const dspark_logprobs_params params{count,         rows.size(1),  rows.data(), chosen.data(),
                                      wanted.data(), values.data(), ids.data(),  ranks.data()};
  launch(dspark_logprobs, params, parallel);
  return nb::make_tuple(values.object, ids.object, ranks.object);
}

void kv_update(nb::object cache, nb::object update, nb::object write_indices, nb::object update_lengths,
               bool parallel) {
  constexpr const char* kName = "kv_update";
  const Array<float, true> target({kName, "cache", "B, Hkv, S, D"}, cache, {kAny, kAny, kAny, kAny});
  const int64_t slots = target.size(0);
  const int64_t heads = target.size(1);
  const int64_t width = target.size(3);
  const bool packed = !update_lengths.is_none();
  const auto source = packed ? input<float>({kName, "update", "T, Hkv, D"}, update, {kAny, heads, width})
                             : input<float>({kName, "update", "B, Hkv, Q, D"}, update, {slots, heads, kAny, width});
  const auto indices = input<int32_t>({kName, "write_indices", "B"}, write_indices, {slots});
  const auto lengths = optional_input<int32_t>({kName, "update_lengths", "B + 1"}, update_lengths, {slots + 1});
  dspark_kv_update_params params{};
  params.num_slots = slots;
  params.num_heads = heads;
  params.capacity = target.size(2);
  params.head_width = width;
  params.num_tokens = source.size(packed ? 0 : 2);
  params.form = packed ? DSPARK_PACKED_NHD : DSPARK_PADDED_BHND;
  params.update = source.data();
  params.write_indices = indices.data();
  params.update_lengths = lengths.data();
  params.cache = target.data();
  launch(dspark_kv_update, params, parallel);
}

nb::object attention(nb::object query, nb::object key, nb::object value, nb::object kv_lengths, int32_t causal,
                     nb::object query_lengths, nb::object output, bool parallel) {
  constexpr const char* kName = "attention";
  const auto keys = input<float>({kName, "key", "B, Hkv, S, D"}, key, {kAny, kAny, kAny, kAny});
  const int64_t slots = keys.size(0);
  const int64_t width = keys.size(3);
  const auto values = input<float>({kName, "value", "B, Hkv, S, D"}, value, {slots, keys.size(1), keys.size(2), width});
  const bool packed = !query_lengths.is_none();
  const auto queries = packed ? input<float>({kName, "query", "T, H, D"}, query, {kAny, kAny, width})
                              : input<float>({kName, "query", "B, H, Q, D"}, query, {slots, kAny, kAny, width});
  const auto rows = optional_input<int32_t>({kName, "query_lengths", "B + 1"}, query_lengths, {slots + 1});
  const auto lengths = input<int32_t>({kName, "kv_lengths", "B"}, kv_lengths, {slots});
  const Place place{kName, "output", packed ? "T, H, D" : "B, H, Q, D"};
  const Output<float> result = packed ? Output<float>(place, output, {queries.size(0), queries.size(1), width})
                                      : Output<float>(place, output, {slots, queries.size(1), queries.size(2), width});
  dspark_attention_params params{};
  params.num_slots = slots;
  params.num_heads = queries.size(1);
  params.num_kv_heads = keys.size(1);
  params.capacity = keys.size(2);
  params.head_width = width;
  params.num_tokens = queries.size(packed ? 0 : 2);
  params.query_form = packed ? DSPARK_PACKED_NHD : DSPARK_PADDED_BHND;
  params.causal = causal;
  params.query = queries.data();
  params.key = keys.data();
  params.value = values.data();
  params.query_lengths = rows.data();
  params.kv_lengths = lengths.data();
  params.output = result.data();
  launch(dspark_attention, params, parallel);
  return result.object;
}

nb::object linear(nb::object x, nb::object weight, const std::string& storage, int64_t out_features, nb::object bias,
                  nb::object output, bool parallel) {
  constexpr const char* kName = "linear";
  constexpr const char* kStorages[] = {"bf16", "q8_0", "q4_1"};
  int32_t kind = 0;
  while (kind < 3 && storage != kStorages[kind]) ++kind;
  if (kind == 3) {
    throw nb::value_error(("linear: storage is '" + storage + "', wanted bf16, q8_0 or q4_1").c_str());
  }
  if (out_features < 1) {
    throw nb::value_error(("linear: out_features is " + std::to_string(out_features) + ", wanted at least 1").c_str());
  }
  const auto rows = input<float>({kName, "x", "M, K"}, x, {kAny, kAny});
  dspark_linear_params params{};
  params.num_rows = rows.size(0);
  params.in_features = rows.size(1);
  params.out_features = out_features;
  params.storage = kind;
  const int64_t words = dspark_linear_words(kind, params.in_features);
  const int64_t slabs = (out_features + 63) / 64;
  // Where the storage does not take the width (-1, which matches every shape here), the operator says so.
  const auto packed = input<int32_t>({kName, "weight", "slabs, words, 64"}, weight, {slabs, words, 64});
  const auto added = optional_input<float>({kName, "bias", "N"}, bias, {out_features});
  const Output<float> result({kName, "output", "M, N"}, output, {params.num_rows, out_features});
  params.input = rows.data();
  params.weight = packed.data();
  params.bias = added.data();
  params.output = result.data();
  launch(dspark_linear, params, parallel);
  return result.object;
}

uint64_t op_nanoseconds(const std::string& op) {
  constexpr const char* kNames[DSPARK_NUM_OPS] = {"draft", "cutoff", "accept", "kv_update", "attention", "linear"};
  for (int i = 0; i < DSPARK_NUM_OPS; ++i) {
    if (op == kNames[i]) return dspark_op_nanoseconds(static_cast<dspark_op>(i));
  }
  throw nb::value_error(
      ("op_nanoseconds: op is '" + op + "', wanted draft, cutoff, accept, kv_update, attention or linear").c_str());
}

}  // namespace
}  // namespace dspark::python

NB_MODULE(dspark_ops, module) {
  namespace nb = nanobind;
  namespace py = dspark::python;
  using nb::kw_only;
  using nb::literals::operator""_a;
  const nb::object none = nb::none();
  module.doc() = "The operators of dspark-trt on NumPy arrays: zero-copy, without the GIL. See dspark_ops.pyi.";
  module.def("draft", &py::draft, kw_only(), "base_logits"_a, "anchor_tokens"_a, "temperature"_a, "top_k"_a, "top_p"_a,
             "min_p"_a, "accept_mode"_a, "seed"_a, "sample_index"_a, "anchor_position"_a, "confidence_signal"_a,
             "cutoff_policy"_a.none() = none, "hidden"_a.none() = none, "block_offset"_a = 0,
             "markov_w1"_a.none() = none, "markov_w2"_a.none() = none, "markov_w2_scales"_a.none() = none,
             "head_weight"_a.none() = none, "head_bias"_a.none() = none, "confidence_weight"_a.none() = none,
             "confidence_bias"_a.none() = none, "d2t"_a.none() = none,
             "head_type"_a = static_cast<int32_t>(DSPARK_HEAD_NONE), "confidence_with_markov"_a = false,
             "draft_tokens"_a.none() = none, "confidence_logits"_a.none() = none, "draft_logits"_a.none() = none,
             "entropies"_a.none() = none, "want_draft_logits"_a = false, "parallel"_a = true);
  module.def("cutoff", &py::cutoff, kw_only(), "confidence_logits"_a, "cutoff_policy"_a, "cutoff_params"_a,
             "cutoff_inclusive"_a, "min_verify"_a, "max_verify"_a, "entropies"_a.none() = none,
             "draft_tokens"_a.none() = none, "calibration_temperatures"_a.none() = none,
             "verify_lengths"_a.none() = none, "survivals"_a.none() = none, "confidences"_a.none() = none,
             "parallel"_a = true);
  module.def("accept", &py::accept, kw_only(), "logits"_a, "row_offsets"_a, "temperature"_a, "top_k"_a, "top_p"_a,
             "min_p"_a, "accept_mode"_a, "seed"_a, "sample_index"_a, "anchor_position"_a,
             "draft_tokens"_a.none() = none, "draft_logits"_a.none() = none, "penalties"_a.none() = none,
             "token_history"_a.none() = none, "slots"_a.none() = none, "prompt_lengths"_a.none() = none,
             "rules"_a.none() = none, "rule_offsets"_a.none() = none, "token_masks"_a.none() = none,
             "mask_rows"_a.none() = none, "relaxation"_a.none() = none, "num_logprobs"_a.none() = none,
             "confidences"_a.none() = none, "d2t"_a.none() = none, "accepted"_a.none() = none, "tokens"_a.none() = none,
             "round_ends"_a.none() = none, "logprobs"_a.none() = none, "logprob_ids"_a.none() = none,
             "logprob_ranks"_a.none() = none, "parallel"_a = true);
  module.def("logprobs", &py::logprobs, kw_only(), "logits"_a, "tokens"_a, "num_logprobs"_a, "logprobs"_a.none() = none,
             "logprob_ids"_a.none() = none, "logprob_ranks"_a.none() = none, "parallel"_a = true);
  module.def("kv_update", &py::kv_update, kw_only(), "cache"_a, "update"_a, "write_indices"_a,
             "update_lengths"_a.none() = none, "parallel"_a = true);
  module.def("attention", &py::attention, kw_only(), "query"_a, "key"_a, "value"_a, "kv_lengths"_a, "causal"_a,
             "query_lengths"_a.none() = none, "output"_a.none() = none, "parallel"_a = true);
  module.def("linear", &py::linear, kw_only(), "x"_a, "weight"_a, "storage"_a, "out_features"_a, "bias"_a.none() = none,
             "output"_a.none() = none, "parallel"_a = true);
  module.def("op_nanoseconds", &py::op_nanoseconds, "op"_a);
  module.def("abi_version", &dspark_abi_version);
}
