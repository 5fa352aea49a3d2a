/// The function that `SessionOptions.register_custom_ops_library` looks for.
#include "node.h"

namespace {

/// Domains live as long as the library: a session keeps pointers to them.
Ort::CustomOpDomain& attention_domain() {
  static Ort::CustomOpDomain domain = [] {
    Ort::CustomOpDomain made(dspark::op_table::kAttentionDomain);
    made.Add(dspark::ort::kv_update_node());
    made.Add(dspark::ort::attention_node());
    return made;
  }();
  return domain;
}

Ort::CustomOpDomain& operator_domain() {
  static Ort::CustomOpDomain domain = [] {
    Ort::CustomOpDomain made(dspark::op_table::kOperatorDomain);
    made.Add(dspark::ort::draft_node());
    made.Add(dspark::ort::cutoff_node());
    made.Add(dspark::ort::accept_node());
    made.Add(dspark::ort::linear_node());
    return made;
  }();
  return domain;
}

}  // namespace

extern "C" DSPARK_API OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  // Null: this ONNX Runtime is older than the headers; without an API not even a status can be made.
  if (api == nullptr) return nullptr;
  Ort::InitApi(api);
  return dspark::ort::guarded_status([&] {
    Ort::UnownedSessionOptions session(options);
    session.Add(attention_domain());
    session.Add(operator_domain());
  });
}
