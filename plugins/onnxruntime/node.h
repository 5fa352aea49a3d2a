/// What the ONNX Runtime adapters share: a node described by its row of op_table.h, tensors with their shapes,
/// the session's threads as a dspark_parallel, and statuses turned into ONNX Runtime's.
#ifndef DSPARK_ONNXRUNTIME_NODE_H_
#define DSPARK_ONNXRUNTIME_NODE_H_

#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "dspark/op_table.h"
#include "onnxruntime_cxx_api.h"

namespace dspark::ort {

inline ONNXTensorElementDataType element_type(Element element) {
  switch (element) {
    case Element::kInt32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case Element::kInt64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case Element::kAny:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    default:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
}

/// A tensor of a running node; `data` is null where the graph leaves the input out ("").
template <class T>
struct Tensor {
  T* data = nullptr;
  std::array<int64_t, 4> dims{};
  size_t rank = 0;

  explicit operator bool() const { return data != nullptr; }
};

std::string text(const int64_t* dims, size_t rank);

/// Attributes of a node, read once when the session makes its kernel.
class Attributes {
 public:
  Attributes(const OpEntry& entry, const OrtKernelInfo* info) : entry_(entry), info_(info) {}

  int32_t number(size_t index) const;
  std::string string(size_t index) const;
  /// Index of the attribute's value in `choices`.
  int32_t choice(size_t index, std::initializer_list<const char*> choices) const;

 private:
  const OpEntry& entry_;
  const OrtKernelInfo* info_;
};

/// One call of a node.
class Call {
 public:
  Call(const OpEntry& entry, OrtKernelContext* context);

  /// Input `index` of the table's row, of any shape of `rank` dimensions. Throws where a required one is missing.
  template <class T>
  Tensor<const T> input(size_t index, size_t rank) const {
    Tensor<const T> tensor;
    const Ort::ConstValue value = fetch(index, rank, tensor.dims.data());
    if (!value) return tensor;
    tensor.data = value.GetTensorData<T>();
    tensor.rank = rank;
    return tensor;
  }

  /// The same, of exactly this shape.
  template <class T>
  const T* input(size_t index, std::initializer_list<int64_t> shape) const {
    const Tensor<const T> tensor = input<T>(index, shape.size());
    if (tensor) expect(index, tensor.dims.data(), shape);
    return tensor.data;
  }

  /// Input `index` of this shape and of a type that the tensor brings along (Element::kAny); null where the graph
  /// leaves it out.
  const void* any_input(size_t index, std::initializer_list<int64_t> shape, ONNXTensorElementDataType& type) const;

  template <class T>
  T* output(size_t index, std::initializer_list<int64_t> shape) const {
    return context_.GetOutput(index, shape.begin(), shape.size()).template GetTensorMutableData<T>();
  }

  /// Inputs `first` .. `first` + 7 are the sampling parameters of `requests` requests.
  dspark_sampling sampling(size_t first, int64_t requests) const;

  /// True when a request draws and tests against the draft's distributions.
  static bool uses_rejection(const dspark_sampling& sampling, int64_t requests);

  /// The session's thread pool, for as long as this call lives.
  const dspark_parallel* parallel() const { return &parallel_; }

  void expect(size_t index, const int64_t* dims, std::initializer_list<int64_t> shape) const;
  [[noreturn]] void refuse(const std::string& sentence) const {
    throw std::invalid_argument(std::string(entry_.name) + ": " + sentence);
  }
  void done(dspark_status status) const;

 private:
  Ort::ConstValue fetch(size_t index, size_t rank, int64_t* dims) const;
  static void run(void* state, void (*body)(void*, int64_t), void* arg, int64_t count);

  const OpEntry& entry_;
  Ort::KernelContext context_;
  size_t num_inputs_;
  dspark_parallel parallel_;
};

/// Runs f() and turns what it throws into a status, since exceptions must not cross into ONNX Runtime.
template <class F>
OrtStatusPtr guarded_status(F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const Ort::Exception& error) {
    return Ort::GetApi().CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::invalid_argument& error) {
    return Ort::GetApi().CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return Ort::GetApi().CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  } catch (...) {
    return Ort::GetApi().CreateStatus(ORT_RUNTIME_EXCEPTION, "unknown exception in an operator");
  }
}

/// Registers `Kernel`: it has `static constexpr const OpEntry& entry`, a constructor from Attributes, and
/// `void compute(Call&) const`.
template <class Kernel>
struct Node : Ort::CustomOpBase<Node<Kernel>, Node<Kernel>, true> {
  // CustomOpBase wants the kernel as its second type for KernelComputeV2 and KernelDestroy.
  struct Instance {
    Kernel kernel;
  };

  Node() {
    this->start_ver_ = Kernel::entry.version;
    this->end_ver_ = Kernel::entry.version;
    this->OrtCustomOp::KernelComputeV2 = [](void* instance, OrtKernelContext* context) -> OrtStatusPtr {
      return guarded_status([&] {
        Call call(Kernel::entry, context);
        static_cast<const Instance*>(instance)->kernel.compute(call);
      });
    };
    this->OrtCustomOp::KernelDestroy = [](void* instance) { delete static_cast<Instance*>(instance); };
  }

  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** out) const {
    return guarded_status([&] { *out = new Instance{Kernel(Attributes(Kernel::entry, info))}; });
  }
  OrtStatusPtr ComputeV2(OrtKernelContext*) { return nullptr; }

  const char* GetName() const { return Kernel::entry.name; }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }
  size_t GetInputTypeCount() const { return Kernel::entry.inputs.size; }
  ONNXTensorElementDataType GetInputType(size_t index) const {
    return element_type(Kernel::entry.inputs[index].element);
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t index) const {
    return Kernel::entry.inputs[index].optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
  size_t GetOutputTypeCount() const { return Kernel::entry.outputs.size; }
  ONNXTensorElementDataType GetOutputType(size_t index) const {
    return element_type(Kernel::entry.outputs[index].element);
  }
};

/// One per operator, defined beside its adapter; they live as long as the library.
OrtCustomOp* draft_node();
OrtCustomOp* cutoff_node();
OrtCustomOp* accept_node();
OrtCustomOp* kv_update_node();
OrtCustomOp* attention_node();
OrtCustomOp* linear_node();

}  // namespace dspark::ort

#endif  // DSPARK_ONNXRUNTIME_NODE_H_
