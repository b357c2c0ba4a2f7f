#include "kernels/cuda/fused_graph.h"

#include <fmt/format.h>

#include <algorithm>

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

/// A copy of a descriptor that another one has. It must have it.
CudnnDescriptor part_of(const CudnnDescriptor& whole, cudnnBackendAttributeName_t name,
                        cudnnBackendDescriptorType_t type, const char* what) {
  CudnnDescriptor part(type, what);
  cudnnBackendDescriptor_t raw = part.get();
  std::int64_t count = 0;
  require(cudnnBackendGetAttribute(whole.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw), what);
  return part;
}

/// Copies of all descriptors of an attribute, at most `max_count`.
std::vector<CudnnDescriptor> parts_of(const CudnnDescriptor& whole, cudnnBackendAttributeName_t name,
                                      std::int64_t max_count, cudnnBackendDescriptorType_t type,
                                      const char* what) {
  std::vector<CudnnDescriptor> parts;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < max_count; ++i) raw.push_back(parts.emplace_back(type, what).get());
  std::int64_t count = 0;
  require(cudnnBackendGetAttribute(whole.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, max_count, &count,
                                   raw.data()),
          what);
  parts.resize(static_cast<std::size_t>(std::min(count, max_count)));
  return parts;
}

template <class Value>
Value value_of(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, const char* what) {
  Value value{};
  std::int64_t count = 0;
  require(cudnnBackendGetAttribute(descriptor.get(), name, type, 1, &count, &value), what);
  return value;
}

/// The engine and the knobs of a configuration.
CudnnEngine engine_of(const CudnnDescriptor& configuration, const CudnnDescriptor& engine) {
  CudnnEngine result{
      value_of<std::int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, "an engine's number"),
      {}};
  for (const CudnnDescriptor& knob :
       parts_of(configuration, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_KNOB_TYPE_COUNTS,
                CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "an engine's knobs"))
    result.knobs.emplace_back(
        value_of<cudnnBackendKnobType_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                                         "a knob"),
        value_of<std::int64_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, "a knob"));
  return result;
}

/// The configuration of an engine for a graph; absent if cuDNN refuses it.
CudnnDescriptor configuration_of(const CudnnDescriptor& graph, const CudnnEngine& chosen,
                                 const CudnnDescriptor& device) {
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine"),
      configuration(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "an engine's configuration");
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, chosen.number);
  engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, device);
  if (engine.try_finalize() != CUDNN_STATUS_SUCCESS) return {};
  std::vector<CudnnDescriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const auto& [type, value] : chosen.knobs) {
    CudnnDescriptor& knob = knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "a knob");
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, type);
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value);
    if (knob.try_finalize() != CUDNN_STATUS_SUCCESS) return {};
    raw.push_back(knob.get());
  }
  configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!raw.empty())
    configuration.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      static_cast<std::int64_t>(raw.size()), raw.data());
  if (configuration.try_finalize() != CUDNN_STATUS_SUCCESS) return {};
  return configuration;
}

/// Whether an engine has none of these notes.
bool lacks(const CudnnDescriptor& engine, std::span<const cudnnBackendNumericalNote_t> refused) {
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  std::int64_t count = 0;
  require(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   static_cast<std::int64_t>(notes.size()), &count, notes.data()),
          "an engine's notes");
  const auto present = std::span(notes).first(static_cast<std::size_t>(count));
  return std::ranges::find_first_of(present, refused) == present.end();
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

CudnnDescriptor FusedGraph::described(std::int64_t uid, std::span<const std::int64_t> extents,
                                      std::span<const std::int64_t> strides, cudnnDataType_t type,
                                      bool between_operations, bool by_value) {
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  const auto rank = static_cast<std::int64_t>(extents.size());
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, extents.data());
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides.data());
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
  tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, between_operations);
  tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  tensor.finalize();
  return tensor;
}

CudnnDescriptor FusedGraph::tensor(std::int64_t uid, std::span<const std::int64_t> extents,
                                   std::span<const std::int64_t> strides, cudnnDataType_t type) {
  return described(uid, extents, strides, type, false, false);
}

CudnnDescriptor FusedGraph::between(const Extents& extents, cudnnDataType_t type) {
  return between(extents, row_major(extents), type);
}

CudnnDescriptor FusedGraph::between(std::span<const std::int64_t> extents,
                                    std::span<const std::int64_t> strides, cudnnDataType_t type) {
  return described(next_between_++, extents, strides, type, true, false);
}

CudnnDescriptor FusedGraph::number(std::int64_t uid) {
  constexpr Extents one{1, 1, 1, 1};
  return described(uid, one, one, CUDNN_DATA_FLOAT, false, true);
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

void FusedGraph::convolution(ops::ConvolutionPass pass, const ops::ConvolutionGeometry& geometry,
                             bool volumes, const CudnnDescriptor& x, const CudnnDescriptor& w,
                             const CudnnDescriptor& y) {
  using Numbers = std::array<std::int64_t, 3>;
  const std::int64_t count = volumes ? 3 : 2;
  const auto numbers = [volumes](const ops::Directions& of) {
    return volumes ? Numbers{of.depth, of.height, of.width} : Numbers{of.height, of.width};
  };
  const Numbers stride = numbers(geometry.stride), padding = numbers(geometry.padding),
                dilation = numbers(geometry.dilation);
  CudnnDescriptor kind(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "a convolution");
  kind.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  kind.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  kind.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, count);
  kind.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, count, stride.data());
  kind.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, count, padding.data());
  kind.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, count, padding.data());
  kind.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, count, dilation.data());
  kind.finalize();
  struct Names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t kind, x, w, y, alpha, beta;
  };
  static constexpr Names names[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
  const Names& name = names[static_cast<std::size_t>(pass)];
  CudnnDescriptor operation(name.operation, "a convolution of tensors");
  operation.set(name.kind, kind);
  operation.set(name.x, x);
  operation.set(name.w, w);
  operation.set(name.y, y);
  operation.set(name.alpha, CUDNN_TYPE_FLOAT, 1.0f);
  operation.set(name.beta, CUDNN_TYPE_FLOAT, 0.0f);
  if (operation.try_finalize() != CUDNN_STATUS_SUCCESS) refused_ = "no convolution: " + last_error();
  operations_.push_back(operation);
}

std::string CudnnEngine::text() const {
  std::string settings;
  for (const auto& [type, value] : knobs)
    settings += fmt::format("{}{} = {}", settings.empty() ? "" : ", ", static_cast<int>(type), value);
  return fmt::format("engine {} ({})", number, settings);
}

bool FusedGraph::take(const CudnnDescriptor& configuration, const CudnnDescriptor& device,
                      const PlanRules& rules) {
  const CudnnDescriptor engine = part_of(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                         CUDNN_BACKEND_ENGINE_DESCRIPTOR, "to name an engine");
  if (!lacks(engine, rules.refused_notes)) {
    why_ = "only engines whose bits depend on time, or with less precision";
    return false;
  }
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
  if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) {
    why_ = "no plan: " + last_error();
    return false;
  }
  workspace_bytes_ = value_of<std::int64_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                            "a plan's workspace");
  if (workspace_bytes() > rules.max_workspace_bytes) {
    why_ = "only plans with much working memory";
    return false;
  }
  plan_ = plan;
  try {
    engine_ = engine_of(configuration, engine);
  } catch (const FailureError&) {  // the plan is good, but no other graph can be asked for its engine
    engine_ = {};
  }
  why_.clear();
  return true;
}

bool FusedGraph::build(const CudnnDescriptor& device, const PlanRules& rules) {
  why_ = refused_;
  if (!refused_.empty()) return false;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& operation : operations_) raw.push_back(operation.get());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "a graph");
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(raw.size()), raw.data());
  if (graph.try_finalize() != CUDNN_STATUS_SUCCESS) {
    why_ = "no graph: " + last_error();
    return false;
  }
  if (rules.engine && rules.engine->number < 0) {
    why_ = "cuDNN does not describe its engine";
    return false;
  }
  if (rules.engine) {
    const CudnnDescriptor configuration = configuration_of(graph, *rules.engine, device);
    if (configuration) return take(configuration, device, rules);
    why_ = "not by " + rules.engine->text() + ": " + last_error();
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
  why_ = "no engine";
  std::int64_t count = 0;
  require(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
          "to count engines");
  if (count == 0) return false;
  const std::vector<CudnnDescriptor> configurations =
      parts_of(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, count, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
               "to list engines");
  return std::ranges::any_of(configurations, [&](const CudnnDescriptor& configuration) {
    return take(configuration, device, rules);
  });
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
