#include "kernels/cuda/fused_graph.h"

#include "lockstep/base/error.h"

namespace lockstep::kernels {
namespace {

std::string last_error() {
  std::array<char, 512> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  return text.data();
}

void require(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw FailureError("cuDNN refuses {}: {} ({})", what, cudnnGetErrorString(status), last_error());
}

FusedGraph::Extents row_major(const FusedGraph::Extents& extents) {
  return {extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
}

/// Whether an engine's bits depend on time.
bool repeats(const CudnnDescriptor& configuration) {
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  require(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
          "to name an engine");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  count = 0;
  require(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   static_cast<std::int64_t>(notes.size()), &count, notes.data()),
          "an engine's notes");
  for (std::int64_t i = 0; i < count; ++i) {
    if (notes[static_cast<std::size_t>(i)] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
  }
  return true;
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type, const char* what) : what_(what) {
  cudnnBackendDescriptor_t raw_descriptor = nullptr;
  require(cudnnBackendCreateDescriptor(type, &raw_descriptor), what);
  holder_ = std::shared_ptr<void>(raw_descriptor,
                                  [](void* descriptor) { cudnnBackendDestroyDescriptor(descriptor); });
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          std::int64_t count, const void* values) {
  require(cudnnBackendSetAttribute(get(), name, type, count, values), what_);
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) {
  const cudnnBackendDescriptor_t raw = other.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

void CudnnDescriptor::finalize() { require(try_finalize(), what_); }
cudnnStatus_t CudnnDescriptor::try_finalize() { return cudnnBackendFinalize(get()); }

CudnnDescriptor device_properties(int index) {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "the device's properties");
  device.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, std::int32_t{index});
  device.finalize();
  return device;
}

CudnnDescriptor device_properties(const std::string& json) {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "a device's description");
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<std::int64_t>(json.size() + 1), json.c_str());
  device.finalize();
  return device;
}

CudnnDescriptor FusedGraph::described(std::int64_t uid, const Extents& extents, const Extents& strides,
                                      cudnnDataType_t type, bool between_operations, bool by_value) {
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extents.data());
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
  tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, between_operations);
  tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  tensor.finalize();
  return tensor;
}

CudnnDescriptor FusedGraph::tensor(std::int64_t uid, const Extents& extents, const Extents& strides,
                                   cudnnDataType_t type) {
  return described(uid, extents, strides, type, false, false);
}

CudnnDescriptor FusedGraph::between(const Extents& extents, cudnnDataType_t type) {
  return between(extents, row_major(extents), type);
}

CudnnDescriptor FusedGraph::between(const Extents& extents, const Extents& strides, cudnnDataType_t type) {
  return described(next_between_++, extents, strides, type, true, false);
}

CudnnDescriptor FusedGraph::number(std::int64_t uid) {
  return described(uid, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, false, true);
}

void FusedGraph::matmul(const CudnnDescriptor& a, const CudnnDescriptor& b, const CudnnDescriptor& c) {
  CudnnDescriptor kind(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product");
  kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  kind.finalize();
  add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product of tensors",
      {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
       {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
       {CUDNN_ATTR_OPERATION_MATMUL_CDESC, c},
       {CUDNN_ATTR_OPERATION_MATMUL_DESC, kind}});
}

void FusedGraph::pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor& y,
                           const CudnnDescriptor& b, const CudnnDescriptor& t, cudnnDataType_t compute,
                           std::int64_t axis) {
  CudnnDescriptor kind(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a function of elements");
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, compute);
  if (axis >= 0) kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  kind.finalize();
  add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "a function of tensors",
      {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind},
       {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
       {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y},
       {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
       {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t}});
}

void FusedGraph::reduce(cudnnReduceTensorOp_t operator_, const CudnnDescriptor& x, const CudnnDescriptor& y) {
  CudnnDescriptor kind(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction");
  kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, operator_);
  kind.finalize();
  add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a reduction of a tensor",
      {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind},
       {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x},
       {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}});
}

void FusedGraph::reshape(const CudnnDescriptor& x, const CudnnDescriptor& y) {
  add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "another shape of a tensor",
      {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}});
}

void FusedGraph::add(
    cudnnBackendDescriptorType_t type, const char* what,
    std::initializer_list<std::pair<cudnnBackendAttributeName_t, CudnnDescriptor>> operands) {
  CudnnDescriptor operation(type, what);
  for (const auto& [name, operand] : operands) {
    if (operand) operation.set(name, operand);
  }
  operation.finalize();
  operations_.push_back(operation);
}

bool FusedGraph::build(const CudnnDescriptor& device) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& operation : operations_) raw.push_back(operation.get());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "a graph");
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(raw.size()), raw.data());
  if (graph.try_finalize() != CUDNN_STATUS_SUCCESS) {
    why_ = "no graph: " + last_error();
    return false;
  }
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "a choice of engines");
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) {
    why_ = "no engine: " + last_error();
    return false;
  }
  std::int64_t count = 0;
  require(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
          "to count engines");
  std::vector<CudnnDescriptor> configurations;
  raw.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    configurations.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "an engine's configuration");
    raw.push_back(configurations.back().get());
  }
  require(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()),
          "to list engines");
  why_ = "no engine";
  for (std::int64_t i = 0; i < count; ++i) {
    const CudnnDescriptor& configuration = configurations[static_cast<std::size_t>(i)];
    if (!repeats(configuration)) {
      why_ = "only engines whose bits depend on time";
      continue;
    }
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) {
      why_ = "no plan: " + last_error();
      continue;
    }
    std::int64_t one = 0;
    require(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                     1, &one, &workspace_bytes_),
            "a plan's workspace");
    plan_ = plan;
    why_.clear();
    return true;
  }
  return false;
}

void FusedGraph::run(cudnnHandle_t handle, std::span<const std::int64_t> uids, std::span<void* const> data,
                     void* workspace) {
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "a graph's arguments");
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, static_cast<std::int64_t>(uids.size()),
           uids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<std::int64_t>(data.size()),
           data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  require(cudnnBackendExecute(handle, plan_.get(), pack.get()), "to run a graph");
}

}  // namespace lockstep::kernels
