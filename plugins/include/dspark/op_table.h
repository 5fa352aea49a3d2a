/// The operators as graph nodes: names, domains, versions, inputs, outputs, attributes. One row each, in node order.
/// Adapters read this table and nothing else; docs/architecture.md ("Operator nodes") says the same in prose.
#ifndef DSPARK_OP_TABLE_H_
#define DSPARK_OP_TABLE_H_

#include <cstddef>

#include "dspark/dspark_ops.h"

namespace dspark {

/// kAny: the node reads the type from the tensor (markov_w2: float32, bfloat16 or int8).
enum class Element { kFloat32, kInt32, kInt64, kAny };

/// A tensor of a node. An optional one may be "" in the graph.
struct OpValue {
  const char* name;
  Element element;
  bool optional;
};

/// `text` is the value used when the node lacks a string attribute; an integer attribute falls back to `number`.
/// A null `text` with required true: the node must carry it.
struct OpAttribute {
  const char* name;
  bool is_string;
  bool required;
  const char* text;
  int number;
};

template <class T>
struct Row {
  const T* items;
  size_t size;
  const T& operator[](size_t index) const { return items[index]; }
};

template <class T, size_t N>
constexpr Row<T> row(const T (&items)[N]) {
  return {items, N};
}

struct OpEntry {
  dspark_op op;
  const char* domain;
  const char* name;
  int version;
  Row<OpValue> inputs;
  Row<OpValue> outputs;
  Row<OpAttribute> attributes;
};

namespace op_table {

inline constexpr const char* kOperatorDomain = "dspark";
inline constexpr const char* kAttentionDomain = "trt";

inline constexpr OpValue kDraftInputs[] = {
    {"base_logits", Element::kFloat32, false},     {"hidden", Element::kFloat32, true},
    {"anchor_tokens", Element::kInt32, false},     {"block_offset", Element::kInt32, false},
    {"temperature", Element::kFloat32, false},     {"top_k", Element::kInt32, false},
    {"top_p", Element::kFloat32, false},           {"min_p", Element::kFloat32, false},
    {"accept_mode", Element::kInt32, false},       {"seed", Element::kInt64, false},
    {"sample_index", Element::kInt32, false},      {"anchor_position", Element::kInt32, false},
    {"confidence_signal", Element::kInt32, false}, {"cutoff_policy", Element::kInt32, true},
    {"markov_w1", Element::kFloat32, true},        {"markov_w2", Element::kAny, true},
    {"markov_w2_scales", Element::kFloat32, true}, {"head_weight", Element::kFloat32, true},
    {"head_bias", Element::kFloat32, true},        {"confidence_weight", Element::kFloat32, true},
    {"confidence_bias", Element::kFloat32, true},  {"d2t", Element::kInt32, true},
};
inline constexpr OpValue kDraftOutputs[] = {
    {"draft_tokens", Element::kInt32, false},
    {"confidence_logits", Element::kFloat32, false},
    {"draft_logits", Element::kFloat32, false},
    {"entropies", Element::kFloat32, false},
};
inline constexpr OpAttribute kDraftAttributes[] = {
    {"head_type", false, false, nullptr, DSPARK_HEAD_NONE},
    {"confidence_with_markov", false, false, nullptr, 0},
};

inline constexpr OpValue kCutoffInputs[] = {
    {"confidence_logits", Element::kFloat32, false}, {"entropies", Element::kFloat32, true},
    {"draft_tokens", Element::kInt32, true},         {"calibration_temperatures", Element::kFloat32, true},
    {"cutoff_policy", Element::kInt32, false},       {"cutoff_params", Element::kFloat32, false},
    {"cutoff_inclusive", Element::kInt32, false},    {"min_verify", Element::kInt32, false},
    {"max_verify", Element::kInt32, false},
};
inline constexpr OpValue kCutoffOutputs[] = {
    {"verify_lengths", Element::kInt32, false},
    {"survivals", Element::kFloat32, false},
    {"confidences", Element::kFloat32, false},
};

inline constexpr OpValue kAcceptInputs[] = {
    {"logits", Element::kFloat32, false},      {"row_offsets", Element::kInt32, false},
    {"draft_tokens", Element::kInt32, true},   {"draft_logits", Element::kFloat32, true},
    {"temperature", Element::kFloat32, false}, {"top_k", Element::kInt32, false},
    {"top_p", Element::kFloat32, false},       {"min_p", Element::kFloat32, false},
    {"accept_mode", Element::kInt32, false},   {"seed", Element::kInt64, false},
    {"sample_index", Element::kInt32, false},  {"anchor_position", Element::kInt32, false},
    {"penalties", Element::kFloat32, true},    {"token_history", Element::kInt32, true},
    {"slots", Element::kInt32, true},          {"prompt_lengths", Element::kInt32, true},
    {"rules", Element::kInt32, true},          {"rule_offsets", Element::kInt32, true},
    {"token_masks", Element::kInt32, true},    {"mask_rows", Element::kInt32, true},
    {"relaxation", Element::kFloat32, true},   {"num_logprobs", Element::kInt32, true},
    {"confidences", Element::kFloat32, true},  {"d2t", Element::kInt32, true},
};
inline constexpr OpValue kAcceptOutputs[] = {
    {"accepted", Element::kInt32, false},    {"tokens", Element::kInt32, false},
    {"round_ends", Element::kInt32, false},  {"logprobs", Element::kFloat32, false},
    {"logprob_ids", Element::kInt32, false}, {"logprob_ranks", Element::kInt32, false},
};
inline constexpr OpAttribute kAcceptAttributes[] = {{"block_size", false, true, nullptr, 0}};

inline constexpr OpValue kKvUpdateInputs[] = {
    {"past_cache", Element::kFloat32, false},
    {"update", Element::kFloat32, false},
    {"write_indices", Element::kInt32, false},
    {"update_lengths", Element::kInt32, true},
};
inline constexpr OpValue kKvUpdateOutputs[] = {{"present", Element::kFloat32, false}};
inline constexpr OpAttribute kKvUpdateAttributes[] = {
    {"update_form", true, true, nullptr, 0},
    {"mode", true, false, "linear", 0},
};

inline constexpr OpValue kAttentionInputs[] = {
    {"Q", Element::kFloat32, false},          {"K", Element::kFloat32, false},
    {"V", Element::kFloat32, false},          {"attn_mask", Element::kFloat32, true},
    {"query_lengths", Element::kInt32, true}, {"kv_lengths", Element::kInt32, false},
};
inline constexpr OpValue kAttentionOutputs[] = {{"output", Element::kFloat32, false}};
inline constexpr OpAttribute kAttentionAttributes[] = {
    {"query_form", true, true, nullptr, 0},
    {"kv_form", true, false, "padded_bhnd", 0},
    {"causal_kind", true, true, nullptr, 0},
    {"TRT_decomposable", false, false, nullptr, 0},
};

inline constexpr OpValue kLinearInputs[] = {
    {"x", Element::kFloat32, false},
    {"weight", Element::kInt32, false},
    {"bias", Element::kFloat32, true},
};
inline constexpr OpValue kLinearOutputs[] = {{"y", Element::kFloat32, false}};
inline constexpr OpAttribute kLinearAttributes[] = {
    {"storage", true, true, nullptr, 0},
    {"out_features", false, true, nullptr, 0},
};

inline constexpr OpEntry kDraft{DSPARK_OP_DRAFT,   kOperatorDomain,    "DSparkDraft",        1,
                                row(kDraftInputs), row(kDraftOutputs), row(kDraftAttributes)};
inline constexpr OpEntry kCutoff{DSPARK_OP_CUTOFF,   kOperatorDomain,     "DSparkCutoff", 1,
                                 row(kCutoffInputs), row(kCutoffOutputs), {nullptr, 0}};
inline constexpr OpEntry kAccept{DSPARK_OP_ACCEPT,   kOperatorDomain,     "DSparkAccept",        1,
                                 row(kAcceptInputs), row(kAcceptOutputs), row(kAcceptAttributes)};
inline constexpr OpEntry kKvUpdate{DSPARK_OP_KV_UPDATE,  kAttentionDomain,      "TRT_KVCacheUpdate",     1,
                                   row(kKvUpdateInputs), row(kKvUpdateOutputs), row(kKvUpdateAttributes)};
inline constexpr OpEntry kAttention{DSPARK_OP_ATTENTION,   kAttentionDomain,       "TRT_Attention",          1,
                                    row(kAttentionInputs), row(kAttentionOutputs), row(kAttentionAttributes)};
inline constexpr OpEntry kLinear{DSPARK_OP_LINEAR,   kOperatorDomain,     "DSparkLinear",        1,
                                 row(kLinearInputs), row(kLinearOutputs), row(kLinearAttributes)};

/// Indexed by dspark_op.
inline constexpr const OpEntry* kAll[DSPARK_NUM_OPS] = {&kDraft, &kCutoff, &kAccept, &kKvUpdate, &kAttention, &kLinear};

}  // namespace op_table
}  // namespace dspark

#endif  // DSPARK_OP_TABLE_H_
