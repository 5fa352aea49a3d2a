#include "node.h"

#include "dspark/ops/filter.h"

namespace dspark::ort {

std::string text(const int64_t* dims, size_t rank) {
  std::string out = "[";
  for (size_t i = 0; i < rank; ++i) out += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return out + "]";
}

int32_t Attributes::number(size_t index) const {
  const OpAttribute& attribute = entry_.attributes[index];
  int64_t value = attribute.number;
  const OrtStatusPtr status = Ort::GetApi().KernelInfoGetAttribute_int64(info_, attribute.name, &value);
  if (status == nullptr) return static_cast<int32_t>(value);
  Ort::GetApi().ReleaseStatus(status);
  if (attribute.required) {
    throw std::invalid_argument(std::string(entry_.name) + ": the node lacks the attribute " + attribute.name);
  }
  return attribute.number;
}

std::string Attributes::string(size_t index) const {
  const OpAttribute& attribute = entry_.attributes[index];
  // The first call asks for the size, terminating zero included.
  size_t size = 0;
  OrtStatusPtr status = Ort::GetApi().KernelInfoGetAttribute_string(info_, attribute.name, nullptr, &size);
  if (status == nullptr) {
    std::string value(size, '\0');
    status = Ort::GetApi().KernelInfoGetAttribute_string(info_, attribute.name, value.data(), &size);
    if (status == nullptr) {
      value.resize(size == 0 ? 0 : size - 1);
      return value;
    }
  }
  Ort::GetApi().ReleaseStatus(status);
  if (attribute.required) {
    throw std::invalid_argument(std::string(entry_.name) + ": the node lacks the attribute " + attribute.name);
  }
  return attribute.text;
}

int32_t Attributes::choice(size_t index, std::initializer_list<const char*> choices) const {
  const std::string value = string(index);
  std::string wanted;
  int32_t position = 0;
  for (const char* choice : choices) {
    if (value == choice) return position;
    wanted += (position == 0 ? "" : ", ") + std::string(choice);
    ++position;
  }
  throw std::invalid_argument(std::string(entry_.name) + ": the attribute " + entry_.attributes[index].name + " is '" +
                              value + "', supported: " + wanted);
}

Call::Call(const OpEntry& entry, OrtKernelContext* context)
    : entry_(entry), context_(context), num_inputs_(context_.GetInputCount()), parallel_{context, &Call::run} {}

Ort::ConstValue Call::fetch(size_t index, size_t rank, int64_t* dims) const {
  const OpValue& declared = entry_.inputs[index];
  const Ort::ConstValue value = index < num_inputs_ ? context_.GetInput(index) : Ort::ConstValue{nullptr};
  if (!value) {
    if (!declared.optional) refuse(std::string(declared.name) + " is missing");
    return value;
  }
  const Ort::TensorTypeAndShapeInfo info = value.GetTensorTypeAndShapeInfo();
  const size_t found = info.GetDimensionsCount();
  if (found != rank) {
    refuse(std::string(declared.name) + " has " + std::to_string(found) + " dimensions, needs " + std::to_string(rank));
  }
  Ort::ThrowOnError(Ort::GetApi().GetDimensions(info, dims, rank));
  return value;
}

const void* Call::any_input(size_t index, std::initializer_list<int64_t> shape, ONNXTensorElementDataType& type) const {
  std::array<int64_t, 4> dims{};
  const Ort::ConstValue value = fetch(index, shape.size(), dims.data());
  if (!value) return nullptr;
  expect(index, dims.data(), shape);
  type = value.GetTensorTypeAndShapeInfo().GetElementType();
  return value.GetTensorRawData();
}

void Call::expect(size_t index, const int64_t* dims, std::initializer_list<int64_t> shape) const {
  size_t axis = 0;
  for (const int64_t wanted : shape) {
    if (dims[axis++] != wanted) {
      refuse(std::string(entry_.inputs[index].name) + " has shape " + text(dims, shape.size()) + ", needs " +
             text(shape.begin(), shape.size()));
    }
  }
}

dspark_sampling Call::sampling(size_t first, int64_t requests) const {
  dspark_sampling s;
  s.temperature = input<float>(first, {requests});
  s.top_k = input<int32_t>(first + 1, {requests});
  s.top_p = input<float>(first + 2, {requests});
  s.min_p = input<float>(first + 3, {requests});
  s.accept_mode = input<int32_t>(first + 4, {requests});
  s.seed = input<int64_t>(first + 5, {requests});
  s.sample_index = input<int32_t>(first + 6, {requests});
  s.anchor_position = input<int32_t>(first + 7, {requests});
  return s;
}

bool Call::uses_rejection(const dspark_sampling& sampling, int64_t requests) {
  for (int64_t r = 0; r < requests; ++r) {
    const bool greedy = sampling.temperature[r] < kGreedyTemperature;
    if (!greedy && sampling.accept_mode[r] == DSPARK_REJECTION) return true;
  }
  return false;
}

void Call::done(dspark_status status) const {
  if (status == DSPARK_OK) return;
  // The sentence names its operator already.
  if (status == DSPARK_INVALID_ARGUMENT) throw std::invalid_argument(dspark_last_error());
  throw std::runtime_error(dspark_last_error());
}

void Call::run(void* state, void (*body)(void*, int64_t), void* arg, int64_t count) {
  struct Work {
    void (*body)(void*, int64_t);
    void* arg;
  } work{body, arg};
  auto piece = [](void* data, size_t index) {
    const Work& w = *static_cast<const Work*>(data);
    w.body(w.arg, static_cast<int64_t>(index));
  };
  const auto* context = static_cast<const OrtKernelContext*>(state);
  Ort::ThrowOnError(Ort::GetApi().KernelContext_ParallelFor(context, piece, static_cast<size_t>(count), 0, &work));
}

}  // namespace dspark::ort
