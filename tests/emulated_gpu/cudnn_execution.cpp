// Running a graph, operation by operation: values between them are rounded to their own type.
#include <limits>
#include <map>

#include "emulated_gpu/counting.h"
#include "emulated_gpu/cudnn_descriptor.h"
#include "emulated_gpu/cudnn_graph.h"
#include "emulated_gpu/library_functions.h"
#include "emulated_gpu/runtime.h"
#include "emulated_gpu/streams.h"

namespace lockstep::emulated_gpu {
namespace {

using Kind = GraphOperation::Kind;
using Floats = std::vector<float>;

constexpr cudnnStatus_t success = CUDNN_STATUS_SUCCESS;

template <class Call>
void for_places(const Extents& extents, const Call& call) {
  Extents at{};
  for (at[0] = 0; at[0] < extents[0]; ++at[0]) {
    for (at[1] = 0; at[1] < extents[1]; ++at[1]) {
      for (at[2] = 0; at[2] < extents[2]; ++at[2]) {
        for (at[3] = 0; at[3] < extents[3]; ++at[3]) {
          for (at[4] = 0; at[4] < extents[4]; ++at[4]) call(at);
        }
      }
    }
  }
}

float applied(cudnnPointwiseMode_t mode, float x, float b, float t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_MAX:
      return std::max(x, b);
    case CUDNN_POINTWISE_MIN:
      return std::min(x, b);
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_NEG:
      return -x;
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_CMP_GT:
      return x > b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0.0f ? x : b;
    default:
      return x;  // identity
  }
}

/// One run of a graph.
class Run {
 public:
  Run(const OperationGraph& graph, const std::map<std::int64_t, void*>& data,
      const std::map<std::int64_t, float>& numbers, bool from_last)
      : graph_(graph), data_(data), numbers_(numbers), from_last_(from_last) {}

  void operator()() {
    for (const GraphOperation& operation : graph_.operations) {
      for (const GraphTensor& input : operation.inputs()) read(input);
      Floats made(operation.y.span());
      switch (operation.kind) {
        case Kind::matmul:
          multiply(operation, made);
          break;
        case Kind::pointwise:
          apply(operation, made);
          break;
        case Kind::reduction:
          reduce(operation, made);
          break;
        case Kind::convolution:
          convolve(operation, made);
          break;
        case Kind::reshape:
          // The same memory, seen by other strides.
          std::copy_n(values_.at(operation.x.uid).begin(), made.size(), made.begin());
      }
      write(operation.y, made);
    }
  }

 private:
  /// Of memory or the CPU, where the value is not known yet.
  void read(const GraphTensor& tensor) {
    if (values_.count(tensor.uid) != 0) return;
    if (tensor.by_value) {
      values_[tensor.uid] = {numbers_.at(tensor.uid)};
      return;
    }
    Floats& floats = values_[tensor.uid];
    floats.resize(tensor.span());
    for_places(tensor.extents, [&](const Extents& at) {
      const std::size_t place = tensor.place(at);
      floats[place] = load(tensor.type, data_.at(tensor.uid), place);
    });
  }

  void write(const GraphTensor& tensor, Floats& floats) {
    for (float& value : floats) value = rounded(tensor.type, value);
    if (!tensor.between) {
      for_places(tensor.extents, [&](const Extents& at) {
        const std::size_t place = tensor.place(at);
        store(tensor.type, data_.at(tensor.uid), place, floats[place]);
      });
    }
    values_[tensor.uid] = std::move(floats);
  }

  /// The element that stands at `at` of a larger shape.
  float spread(const GraphTensor& tensor, const Extents& at) const {
    Extents own = at;
    for (std::size_t d = 0; d < max_rank; ++d) {
      if (tensor.extents[d] == 1) own[d] = 0;
    }
    return values_.at(tensor.uid)[tensor.place(own)];
  }

  void apply(const GraphOperation& o, Floats& made) const {
    for_places(o.y.extents, [&](const Extents& at) {
      float& result = made[o.y.place(at)];
      if (o.mode == CUDNN_POINTWISE_GEN_INDEX) {
        result = static_cast<float>(at[static_cast<std::size_t>(o.axis)]);
      } else {
        result =
            applied(o.mode, spread(o.x, at), o.b ? spread(*o.b, at) : 0.0f, o.t ? spread(*o.t, at) : 0.0f);
      }
    });
  }

  void reduce(const GraphOperation& o, Floats& made) const {
    const bool adds = o.reduction == CUDNN_REDUCE_TENSOR_ADD;
    std::fill(made.begin(), made.end(), adds ? 0.0f : -std::numeric_limits<float>::infinity());
    const Floats& x = values_.at(o.x.uid);
    for_places(o.x.extents, [&](const Extents& at) {
      Extents to = at;
      for (std::size_t d = 0; d < max_rank; ++d) {
        if (o.y.extents[d] == 1) to[d] = 0;
      }
      float& sum = made[o.y.place(to)];
      const float value = x[o.x.place(at)];
      sum = adds ? sum + value : std::max(sum, value);
    });
  }

  /// Tensor cores take one type: where one operand is bf16, so is the other.
  void multiply(const GraphOperation& o, Floats& made) const {
    const bool half = o.x.type == Element::bfloat16 || o.b->type == Element::bfloat16;
    const auto operand = [&](const GraphTensor& tensor) {
      Floats floats = values_.at(tensor.uid);
      if (half) {
        for (float& value : floats) value = rounded(Element::bfloat16, value);
      }
      return floats;
    };
    const Floats a = operand(o.x), b = operand(*o.b);
    const std::int64_t depth = o.x.extents[3];
    const auto a_step = static_cast<std::size_t>(o.x.strides[3]),
               b_step = static_cast<std::size_t>(o.b->strides[2]);
    for_places(o.y.extents, [&](const Extents& at) {
      const float* from_a = &a[o.x.place({at[0], at[1], at[2], 0})];
      const float* from_b = &b[o.b->place({at[0], at[1], 0, at[3]})];
      float sum = 0;
      for (std::int64_t l = 0; l < depth; ++l)
        sum += from_a[static_cast<std::size_t>(l) * a_step] * from_b[static_cast<std::size_t>(l) * b_step];
      made[o.y.place(at)] = sum;
    });
  }

  /// In float32: operands are read, and the result is stored, by their own type elsewhere.
  void convolve(const GraphOperation& o, Floats& made) const {
    ConvolutionCall call{.pass = o.pass,
                         .x = *images_of(o.images()),
                         .w = *images_of(o.weights()),
                         .y = *images_of(o.results()),
                         .geometry = o.geometry,
                         .made = made.data(),
                         .from_last = from_last_};
    call.x.type = call.w.type = call.y.type = CUDNN_DATA_FLOAT;
    const void *const first = values_.at(o.x.uid).data(), *const second = values_.at(o.b->uid).data();
    (o.pass == Pass::backward_data ? call.w_data : call.x_data) = first;
    (o.pass == Pass::forward ? call.w_data : call.y_data) = second;
    compute(call);
  }

  const OperationGraph& graph_;
  const std::map<std::int64_t, void*>& data_;
  const std::map<std::int64_t, float>& numbers_;
  bool from_last_;
  std::map<std::int64_t, Floats> values_;
};

}  // namespace

std::optional<int> operands_of(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_NEG:
    case CUDNN_POINTWISE_GEN_INDEX:
      return 1;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_MAX:
    case CUDNN_POINTWISE_MIN:
    case CUDNN_POINTWISE_CMP_GE:
    case CUDNN_POINTWISE_CMP_GT:
      return 2;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return 3;
    default:
      return std::nullopt;
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (!handle || !plan || !pack) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nothing to run");
  const Descriptor &own_plan = described(plan), &own_pack = described(pack);
  if (own_plan.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
      own_pack.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
    return refused(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "not a plan and its arguments");
  if (!own_plan.finalized || !own_pack.finalized)
    return refused(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a plan or its arguments are not finalized");
  const auto uids = own_pack.values<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto addresses = own_pack.values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<std::int64_t, void*> data;
  for (std::size_t i = 0; i < uids.size(); ++i) {
    if (!data.emplace(uids[i], addresses[i]).second)
      return refused(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two addresses for one unique id");
  }
  std::map<std::int64_t, float> numbers;  // on the CPU: theirs is read now
  for (const GraphTensor& tensor : own_plan.graph->tensors) {
    if (tensor.between) continue;
    const auto found = data.find(tensor.uid);
    if (found == data.end() || !found->second)
      return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                     "no address for the tensor of unique id " + std::to_string(tensor.uid));
    if (tensor.by_value) {
      numbers[tensor.uid] = load(tensor.type, found->second, 0);
    } else if (reinterpret_cast<std::uintptr_t>(found->second) %
                   static_cast<std::uintptr_t>(tensor.alignment) !=
               0) {
      return refused(
          CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
          "the address of unique id " + std::to_string(tensor.uid) + " is not aligned as described");
    }
  }
  void* const workspace = own_pack.value_or<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (faults().broken != cudaSuccess) return refused(CUDNN_STATUS_EXECUTION_FAILED, "the device is broken");
  const auto workspace_bytes =
      static_cast<std::size_t>(own_plan.value<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
  if (!workspace && workspace_bytes > 0) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace");
  const Descriptor& configuration = own_plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (own_plan.graph->convolution() &&
      configuration.descriptor(CUDNN_ATTR_ENGINECFG_ENGINE)
              .value<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) != good_engine)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "a convolution by an engine that no plan may take");
  bool from_last = false;
  for (const auto& knob : configuration.attributes.at(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).descriptors)
    from_last = from_last || knob->value<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) != 0;
  if (const cudnnStatus_t wrong = check_device(handle); wrong != success) return wrong;
  require_within_reach({workspace});
  for (const auto& [uid, address] : data) require_within_reach({address});
  ++counts().graph_runs;
  enqueue(stream_of(handle), [graph = own_plan.graph, data, numbers, workspace, workspace_bytes, from_last] {
    if (counting().on()) return counting().call("cudnnBackendExecute", graph->operand_bytes());
    spoil(workspace, workspace_bytes);
    Run(*graph, data, numbers, from_last)();
  });
  return success;
}

}  // namespace lockstep::emulated_gpu
