// Finalizing cuDNN's descriptors: operations whose shapes fit, a graph of them, engines for it, plans.
#include "emulated_gpu/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>

#include "emulated_gpu/cudnn_descriptor.h"
#include "emulated_gpu/runtime.h"

namespace lockstep::emulated_gpu {
namespace {

using Kind = GraphOperation::Kind;

constexpr cudnnStatus_t success = CUDNN_STATUS_SUCCESS;
/// Of the widths of heads that flash attention is built for on every GPU.
constexpr std::int64_t width_step = 8;

GraphTensor tensor_of(const Descriptor& d) {
  GraphTensor tensor{.uid = d.value<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
                     .type = *element_of(d.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
                     .alignment = d.value<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                     .between = d.value_or(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false),
                     .by_value = d.value_or(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)};
  const auto extents = d.values<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
             strides = d.values<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  tensor.extents.fill(1);
  tensor.strides.fill(1);
  tensor.rank = extents.size();
  std::copy(extents.begin(), extents.end(), tensor.extents.begin());
  std::copy(strides.begin(), strides.end(), tensor.strides.begin());
  return tensor;
}

cudnnStatus_t check_tensor(const Descriptor& d) {
  const auto extents = d.values<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
             strides = d.values<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if (extents.size() != strides.size())
    return refused(CUDNN_STATUS_BAD_PARAM, "a tensor of other dimensions than strides");
  if (extents.size() != 4 && extents.size() != max_rank)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "a tensor not of 4 or 5 dimensions");
  const auto positive = [](std::int64_t number) { return number > 0; };
  if (!std::all_of(extents.begin(), extents.end(), positive) ||
      !std::all_of(strides.begin(), strides.end(), positive))
    return refused(CUDNN_STATUS_BAD_PARAM, "a tensor's extent or stride is not positive");
  if (!element_of(d.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)))
    return refused(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a tensor of a type that is not emulated");
  const GraphTensor tensor = tensor_of(d);
  if (tensor.between && tensor.by_value)
    return refused(CUDNN_STATUS_BAD_PARAM, "a tensor both between operations and a number");
  if (tensor.by_value && tensor.count() != 1)
    return refused(CUDNN_STATUS_BAD_PARAM, "a number of more than one element");
  if (tensor.alignment < 1 || !std::has_single_bit(static_cast<std::uint64_t>(tensor.alignment)))
    return refused(CUDNN_STATUS_BAD_PARAM, "an alignment that is no power of two");
  return success;
}

GraphTensor tensor_at(const Descriptor& operation, cudnnBackendAttributeName_t name) {
  return tensor_of(operation.descriptor(name));
}

/// names: of x, b and y.
void describe_convolution(const Descriptor& d, GraphOperation& made, Pass pass,
                          cudnnBackendAttributeName_t kind,
                          const std::array<cudnnBackendAttributeName_t, 3>& names) {
  made.kind = Kind::convolution;
  made.pass = pass;
  made.x = tensor_at(d, names[0]);
  made.b = tensor_at(d, names[1]);
  made.y = tensor_at(d, names[2]);
  const Descriptor& convolution = d.descriptor(kind);
  const auto numbers = [&](cudnnBackendAttributeName_t name, int of_depth) {
    const auto values = convolution.values<std::int64_t>(name);
    std::array<int, 3> all{of_depth};
    for (std::size_t i = 0; i < values.size(); ++i)
      all.at(3 - values.size() + i) = static_cast<int>(values[i]);
    return all;
  };
  const auto [padding_d, padding_h, padding_w] = numbers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0);
  const auto [stride_d, stride_h, stride_w] = numbers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1);
  const auto [dilation_d, dilation_h, dilation_w] = numbers(CUDNN_ATTR_CONVOLUTION_DILATIONS, 1);
  made.geometry = {.described = true,
                   .padding_h = padding_h,
                   .padding_w = padding_w,
                   .stride_h = stride_h,
                   .stride_w = stride_w,
                   .dilation_h = dilation_h,
                   .dilation_w = dilation_w,
                   .padding_d = padding_d,
                   .stride_d = stride_d,
                   .dilation_d = dilation_d,
                   .groups = static_cast<int>(made.images().extents[1] / made.weights().extents[1])};
}

/// Of an operation whose attributes are set.
GraphOperation operation_of(const Descriptor& d) {
  GraphOperation made;
  const auto maybe = [&](cudnnBackendAttributeName_t name) {
    return d.has(name) ? std::optional(tensor_at(d, name)) : std::nullopt;
  };
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      made.kind = Kind::matmul;
      made.x = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
      made.b = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
      made.y = tensor_at(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Descriptor& kind = d.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      made.kind = Kind::pointwise;
      made.mode = kind.value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
      made.axis = kind.value_or(CUDNN_ATTR_POINTWISE_AXIS, std::int64_t{-1});
      made.x = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      made.y = tensor_at(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
      made.b = maybe(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      made.t = maybe(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      made.kind = Kind::reduction;
      made.reduction = d.descriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                           .value<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
      made.x = tensor_at(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
      made.y = tensor_at(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      describe_convolution(
          d, made, Pass::forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
          {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
           CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y});
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      describe_convolution(
          d, made, Pass::backward_data, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
          {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX});
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      describe_convolution(
          d, made, Pass::backward_filter, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW});
      break;
    default:
      made.kind = Kind::reshape;
      made.x = tensor_at(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
      made.y = tensor_at(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  }
  return made;
}

/// Each extent is that of `whole`, or one.
bool spreads_to(const Extents& part, const Extents& whole) {
  for (std::size_t d = 0; d < max_rank; ++d) {
    if (part[d] != whole[d] && part[d] != 1) return false;
  }
  return true;
}

cudnnStatus_t check_matmul(const GraphOperation& o) {
  const Extents &a = o.x.extents, &b = o.b->extents, &c = o.y.extents;
  const bool fits = a[2] == c[2] && a[3] == b[2] && b[3] == c[3] && a[0] == c[0] && a[1] == c[1] &&
                    b[0] == c[0] && b[1] == c[1];
  return fits ? success : refused(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "matrices that do not fit");
}

cudnnStatus_t check_pointwise(const GraphOperation& o) {
  const std::optional<int> operands = operands_of(o.mode);
  if (!operands) return refused(CUDNN_STATUS_NOT_SUPPORTED, "a function of elements that is not emulated");
  if (*operands != 1 + int{o.b.has_value()} + int{o.t.has_value()} || (*operands == 2 && o.t))
    return refused(CUDNN_STATUS_BAD_PARAM, "a function of elements with other operands than it has");
  for (const GraphTensor& input : o.inputs()) {
    if (!spreads_to(input.extents, o.y.extents))
      return refused(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "operands that do not spread to the result");
  }
  if ((o.mode == CUDNN_POINTWISE_GEN_INDEX) != (o.axis >= 0) || o.axis > 3)
    return refused(CUDNN_STATUS_BAD_PARAM, "an index needs its axis, and nothing else does");
  const bool compares = o.mode >= CUDNN_POINTWISE_CMP_EQ && o.mode <= CUDNN_POINTWISE_CMP_LE;
  if (compares && o.y.type != Element::boolean)
    return refused(CUDNN_STATUS_BAD_PARAM, "a comparison into other than truth values");
  if (o.t && o.t->type != Element::boolean)
    return refused(CUDNN_STATUS_BAD_PARAM, "a selection by other than truth values");
  return success;
}

/// Of a convolution's own descriptor.
cudnnStatus_t check_geometry(const Descriptor& d) {
  const auto dimensions = d.value<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
  if (dimensions != 2 && dimensions != 3)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "a convolution over other than two or three dimensions");
  if (d.value<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "a convolution with turned weights, which is not emulated");
  if (d.value<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "a convolution whose sums are not float32");
  for (const auto& [name, smallest] : {std::pair{CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1},
                                       {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0},
                                       {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0},
                                       {CUDNN_ATTR_CONVOLUTION_DILATIONS, 1}}) {
    const auto values = d.values<std::int64_t>(name);
    if (static_cast<std::int64_t>(values.size()) != dimensions ||
        *std::min_element(values.begin(), values.end()) < smallest)
      return refused(CUDNN_STATUS_BAD_PARAM, "a convolution's stride, padding or dilation");
  }
  if (d.values<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS) !=
      d.values<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS))
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "other padding behind than before, which is not emulated");
  return success;
}

cudnnStatus_t check_convolution(const GraphOperation& o) {
  std::array<std::optional<Images>, 3> described{images_of(o.images()), images_of(o.weights()),
                                                 images_of(o.results())};
  for (std::optional<Images>& one : described) {
    if (!one) return refused(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "a convolution of tensors with gaps");
  }
  if (o.x.type != o.b->type || (o.y.type != o.x.type && !(o.y.between && o.y.type == Element::float32)))
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "a convolution of several types");
  for (std::optional<Images>& one : described) one->type = CUDNN_DATA_FLOAT;  // compared above
  return checked(*described[0], *described[1], o.geometry, *described[2]);
}

cudnnStatus_t check_operation(const GraphOperation& o) {
  if (o.y.by_value) return refused(CUDNN_STATUS_BAD_PARAM, "an operation writes a number on the CPU");
  if (o.y.overlaps())
    return refused(CUDNN_STATUS_BAD_PARAM, "a result two of whose elements lie in one place");
  switch (o.kind) {
    case Kind::matmul:
      return check_matmul(o);
    case Kind::convolution:
      return check_convolution(o);
    case Kind::pointwise:
      return check_pointwise(o);
    case Kind::reduction:
      if (o.reduction != CUDNN_REDUCE_TENSOR_ADD && o.reduction != CUDNN_REDUCE_TENSOR_MAX)
        return refused(CUDNN_STATUS_NOT_SUPPORTED, "a reduction that is not emulated");
      if (!spreads_to(o.y.extents, o.x.extents))
        return refused(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a reduction to another shape");
      return success;
    case Kind::reshape:
      if (o.x.count() != o.y.count() || o.y.span() > o.x.span())
        return refused(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "another shape of more elements");
      return success;
  }
  return success;
}

/// Every value between operations is made once, before it is used; a number stands for one tensor.
cudnnStatus_t make_graph(Descriptor& d) {
  auto graph = std::make_shared<OperationGraph>();
  std::set<std::int64_t> made;
  for (const auto& descriptor : d.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors) {
    const GraphOperation operation = operation_of(*descriptor);
    std::vector<GraphTensor> used = operation.inputs();
    for (const GraphTensor& input : used) {
      if (input.between && made.count(input.uid) == 0)
        return refused(CUDNN_STATUS_BAD_PARAM, "a value is used that no operation before has made");
    }
    if (!made.insert(operation.y.uid).second)
      return refused(CUDNN_STATUS_BAD_PARAM, "two operations write one tensor");
    used.push_back(operation.y);
    for (const GraphTensor& tensor : used) {
      const auto same = std::find_if(graph->tensors.begin(), graph->tensors.end(),
                                     [&](const GraphTensor& other) { return other.uid == tensor.uid; });
      if (same == graph->tensors.end()) {
        graph->tensors.push_back(tensor);
      } else if (!(*same == tensor)) {
        return refused(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two tensors of one unique id");
      }
    }
    graph->operations.push_back(operation);
  }
  d.graph = graph;
  return success;
}

/// The limits of flash attention's kernels: half precision in packs of 16 bytes, heads not too wide.
bool engine_takes(const OperationGraph& graph) {
  if (faults().any_width) return true;
  const std::int64_t max_width = faults().major == 9 ? 256 : 128;
  return std::all_of(graph.tensors.begin(), graph.tensors.end(), [=](const GraphTensor& tensor) {
    if (tensor.between || tensor.type != Element::bfloat16) return true;
    for (std::size_t d = 0; d < 4; ++d) {
      if (tensor.strides[d] != 1 && tensor.strides[d] % width_step != 0) return false;
      if (tensor.strides[d] == 1 && d > 1 &&
          (tensor.extents[d] % width_step != 0 || tensor.extents[d] > max_width))
        return false;
    }
    return true;
  });
}

using Notes = std::vector<cudnnBackendNumericalNote_t>;

std::shared_ptr<const Descriptor> knob_choice(cudnnBackendKnobType_t type, std::int64_t value) {
  auto made = std::make_shared<Descriptor>();
  made->type = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
  made->finalized = true;
  made->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, std::vector{type});
  made->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, std::vector{value});
  return made;
}

std::shared_ptr<const Descriptor> configuration(const std::shared_ptr<const OperationGraph>& graph,
                                                std::int64_t number, const Notes& notes,
                                                std::vector<std::shared_ptr<const Descriptor>> knobs = {}) {
  auto engine = std::make_shared<Descriptor>();
  engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
  engine->finalized = true;
  engine->graph = graph;
  engine->put(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, std::vector{number});
  engine->put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes);
  auto made = std::make_shared<Descriptor>();
  made->type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
  made->finalized = true;
  made->graph = graph;
  made->put(CUDNN_ATTR_ENGINECFG_ENGINE, {std::shared_ptr<const Descriptor>(engine)});
  made->put(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, std::move(knobs));
  return made;
}

/// An engine of convolutions and its numerical notes.
struct ConvolutionEngine {
  std::int64_t number;
  Notes notes;
};

constexpr std::int64_t attention_engine = 2;  // whose bits repeat

/// Of a convolution: first what no plan may take, as it adds in the order of time, is less precise, or needs
/// too much memory (heavy_engine). Half precision is in channels last only.
constexpr std::int64_t heavy_engine = 5;
std::vector<ConvolutionEngine> convolution_engines(const OperationGraph& graph) {
  const GraphOperation& convolution = *graph.convolution();
  if (!faults().convolution_graphs || (!faults().fused_bias && graph.operations.size() > 1)) return {};
  const bool half = convolution.x.type == Element::bfloat16;
  if (half && images_of(convolution.x)->format != CUDNN_TENSOR_NHWC) return {};
  std::vector<ConvolutionEngine> engines{
      {1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}},
      {2, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}},
      {3, {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}}};
  engines.push_back(
      {4, half ? Notes{CUDNN_NUMERICAL_NOTE_WINOGRAD} : Notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE}});
  engines.push_back({heavy_engine, {}});
  engines.push_back({good_engine, half ? Notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE} : Notes{}});
  return engines;
}

/// The faster engine first, which adds in the order of time; none for what no kernel is built for. The order
/// of a convolution's additions depends on its images.
cudnnStatus_t find_engines(Descriptor& d) {
  d.graph = d.descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).graph;
  std::vector<std::shared_ptr<const Descriptor>> found;
  if (const GraphOperation* const convolution = d.graph->convolution()) {
    const std::int64_t order = convolution->images().extents[0] % 3 == 0 ? 1 : 0;
    for (const auto& [number, notes] : convolution_engines(*d.graph))
      found.push_back(configuration(d.graph, number, notes, {knob_choice(order_knob, order)}));
  } else if (engine_takes(*d.graph)) {
    found = {
        configuration(d.graph, 1, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}),
        configuration(d.graph, attention_engine, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE})};
  }
  d.put(CUDNN_ATTR_ENGINEHEUR_RESULTS, found);
  return success;
}

/// An engine that a program asks for by number.
cudnnStatus_t find_engine(Descriptor& d) {
  d.graph = d.descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH).graph;
  const auto number = d.value<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (!faults().chosen_engines)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "no engine of this number for the graph");
  if (!d.graph->convolution() && number == attention_engine && engine_takes(*d.graph)) {
    d.put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Notes{CUDNN_NUMERICAL_NOTE_TENSOR_CORE});
    return success;
  }
  if (!d.graph->convolution())
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "no engine of this number for the graph");
  for (const auto& [known, notes] : convolution_engines(*d.graph)) {
    if (known != number) continue;
    d.put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes);
    return success;
  }
  return refused(CUDNN_STATUS_NOT_SUPPORTED, "no engine of this number for the graph");
}

cudnnStatus_t check_configuration(Descriptor& d) {
  d.graph = d.descriptor(CUDNN_ATTR_ENGINECFG_ENGINE).graph;
  if (!d.has(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES))
    d.put(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, std::vector<std::shared_ptr<const Descriptor>>{});
  for (const auto& knob : d.attributes.at(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).descriptors) {
    const auto value = knob->value<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    if (knob->value<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) != order_knob || value < 0 ||
        value >= orders)
      return refused(CUDNN_STATUS_BAD_PARAM, "a knob that the engine does not have, or not with this value");
  }
  return success;
}

/// Convolutions need more for more images.
std::int64_t workspace_bytes(const Descriptor& plan) {
  const GraphOperation* const convolution = plan.graph->convolution();
  if (!convolution) return graph_workspace_bytes;
  const auto engine = plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                          .descriptor(CUDNN_ATTR_ENGINECFG_ENGINE)
                          .value<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (engine == heavy_engine) return std::int64_t{3} << 30;
  return convolution->pass == Pass::forward ? 0 : 8 * convolution->images().count();
}

}  // namespace

std::optional<Images> images_of(const GraphTensor& tensor) {
  const bool volumes = tensor.rank == max_rank;
  const auto n = [&](std::size_t d) { return static_cast<int>(tensor.extents[d]); };
  const auto has = [&](bool last) {
    std::int64_t stride = last ? tensor.extents[1] : 1;
    Extents wanted{};
    for (std::size_t d = tensor.rank; d-- > 2; stride *= tensor.extents[d]) wanted[d] = stride;
    wanted[1] = last ? 1 : stride;
    wanted[0] = last ? stride : stride * tensor.extents[1];
    for (std::size_t d = 0; d < tensor.rank; ++d) {
      if (tensor.extents[d] > 1 && tensor.strides[d] != wanted[d]) return false;
    }
    return true;
  };
  Images found{true, CUDNN_TENSOR_NHWC,  CUDNN_DATA_FLOAT,   n(0),
               n(1), n(tensor.rank - 2), n(tensor.rank - 1), volumes ? n(2) : 1};
  if (tensor.type == Element::bfloat16) found.type = CUDNN_DATA_BFLOAT16;
  if (has(true)) return found;
  found.format = CUDNN_TENSOR_NCHW;
  if (has(false)) return found;
  return std::nullopt;
}

cudnnStatus_t complete(Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return check_tensor(d);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return check_operation(operation_of(d));
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return check_geometry(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return find_engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return check_configuration(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return make_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return find_engines(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      d.graph = d.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).graph;
      if (!d.graph->convolution()) ++counts().attention_plans;
      d.put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, std::vector{workspace_bytes(d)});
      return success;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      if (d.attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count !=
          d.attributes.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count)
        return refused(CUDNN_STATUS_BAD_PARAM, "not as many addresses as unique ids");
      return success;
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
      if (!d.has(CUDNN_ATTR_DEVICEPROP_DEVICE_ID) && !d.has(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION))
        return refused(CUDNN_STATUS_BAD_PARAM, "properties of no device");
      if (int devices = 0; cudaGetDeviceCount(&devices) != cudaSuccess ||
                           d.value_or(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, std::int32_t{0}) >= devices)
        return refused(CUDNN_STATUS_BAD_PARAM, "properties of a device that is not there");
      return success;
    default:
      return success;
  }
}

}  // namespace lockstep::emulated_gpu
