// Convolutions by cuDNN, in the layout that its plans need.
#include "kernels/cuda/convolution.h"

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t max_workspace_bytes = std::size_t{1} << 30;
constexpr std::size_t alignment_bytes = 16;
enum ConvolutionUid : std::int64_t {
  x_of_convolution = 1,
  w_of_convolution,
  y_of_convolution,
  bias_of_convolution,
  residual_of_convolution
};
constexpr int max_algorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;  // no pass has more

cudnnDataType_t cudnn_type(DType dtype) {
  if (dtype == DType::float32) return CUDNN_DATA_FLOAT;
  if (dtype == DType::bfloat16) return CUDNN_DATA_BFLOAT16;
  throw UsageError("convolution on a GPU does not support {}", to_string(dtype));
}

/// Whether an algorithm of cuDNN's list is available, deterministic and free of TF32.
template <class Performance>
bool is_allowed(const Performance& p, const CudnnConvolution& problem) {
  return p.status == CUDNN_STATUS_SUCCESS && p.determinism == CUDNN_DETERMINISTIC &&
         (problem.dtype != DType::float32 || p.mathType == CUDNN_FMA_MATH ||
          p.mathType == CUDNN_DEFAULT_MATH);
}

}  // namespace

/// A problem in the older API, without its bias. The problem has an algorithm if usable().
class ConvolutionAlgorithm {
 public:
  ConvolutionAlgorithm(const CudnnConvolution& problem, cudnnHandle_t handle, int device)
      : device_(device), pass_(problem.pass) {
    describe(problem);
    choose(problem, handle);
  }

  bool usable() const { return usable_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

  void run(cudnnHandle_t handle, void* x, void* weight, void* y, void* workspace) const {
    const float one = 1, zero = 0;
    switch (pass_) {
      case ConvolutionPass::forward:
        return check(
            cudnnConvolutionForward(handle, &one, x_.get(), x, weight_.get(), weight, convolution_.get(),
                                    forward_, workspace, workspace_bytes_, &zero, y_.get(), y),
            "cudnnConvolutionForward", device_);
      case ConvolutionPass::backward_input:
        return check(
            cudnnConvolutionBackwardData(handle, &one, weight_.get(), weight, y_.get(), y, convolution_.get(),
                                         backward_input_, workspace, workspace_bytes_, &zero, x_.get(), x),
            "cudnnConvolutionBackwardData", device_);
      case ConvolutionPass::backward_weight:
        return check(cudnnConvolutionBackwardFilter(handle, &one, x_.get(), x, y_.get(), y,
                                                    convolution_.get(), backward_weight_, workspace,
                                                    workspace_bytes_, &zero, weight_.get(), weight),
                     "cudnnConvolutionBackwardFilter", device_);
    }
  }

 private:
  void describe(const CudnnConvolution& p) {
    const ops::ConvolutionSizes& s = p.sizes;
    const cudnnTensorFormat_t format = p.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    const cudnnDataType_t type = cudnn_type(p.dtype);
    const auto n = [](std::int64_t extent) { return static_cast<int>(extent); };
    make(x_, cudnnCreateTensorDescriptor, "cudnnCreateTensorDescriptor", device_);
    make(y_, cudnnCreateTensorDescriptor, "cudnnCreateTensorDescriptor", device_);
    make(weight_, cudnnCreateFilterDescriptor, "cudnnCreateFilterDescriptor", device_);
    make(convolution_, cudnnCreateConvolutionDescriptor, "cudnnCreateConvolutionDescriptor", device_);
    check(cudnnSetTensor4dDescriptor(x_.get(), format, type, n(s.images), n(s.in_channels), n(s.height),
                                     n(s.width)),
          "cudnnSetTensor4dDescriptor", device_);
    check(cudnnSetTensor4dDescriptor(y_.get(), format, type, n(s.images), n(s.out_channels), n(s.out_height),
                                     n(s.out_width)),
          "cudnnSetTensor4dDescriptor", device_);
    check(cudnnSetFilter4dDescriptor(weight_.get(), type, format, n(s.out_channels),
                                     n(s.in_channels / s.geometry.groups), n(s.kernel_height),
                                     n(s.kernel_width)),
          "cudnnSetFilter4dDescriptor", device_);
    const auto& [stride, padding, groups, dilation] = s.geometry;
    check(cudnnSetConvolution2dDescriptor(convolution_.get(), padding.height, padding.width, stride.height,
                                          stride.width, dilation.height, dilation.width,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor", device_);
    check(cudnnSetConvolutionGroupCount(convolution_.get(), groups), "cudnnSetConvolutionGroupCount",
          device_);
    // FMA: no TF32 in a float32 product.
    set_math(p.dtype == DType::float32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH);
  }

  void choose(const CudnnConvolution& p, cudnnHandle_t handle) {
    switch (p.pass) {
      case ConvolutionPass::forward:
        return take_first<cudnnConvolutionFwdAlgoPerf_t>(
            p, forward_, "cudnnGetConvolutionForwardAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionForwardAlgorithm_v7(handle, x_.get(), weight_.get(),
                                                            convolution_.get(), y_.get(), list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionForwardWorkspaceSize(handle, x_.get(), weight_.get(),
                                                             convolution_.get(), y_.get(), size...);
            });
      case ConvolutionPass::backward_input:
        return take_first<cudnnConvolutionBwdDataAlgoPerf_t>(
            p, backward_input_, "cudnnGetConvolutionBackwardDataAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, weight_.get(), y_.get(),
                                                                 convolution_.get(), x_.get(), list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, weight_.get(), y_.get(),
                                                                  convolution_.get(), x_.get(), size...);
            });
      case ConvolutionPass::backward_weight:
        return take_first<cudnnConvolutionBwdFilterAlgoPerf_t>(
            p, backward_weight_, "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                  handle, x_.get(), y_.get(), convolution_.get(), weight_.get(), list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionBackwardFilterWorkspaceSize(
                  handle, x_.get(), y_.get(), convolution_.get(), weight_.get(), size...);
            });
    }
  }

  /// Takes the first allowed algorithm of cuDNN's list, fastest first. The workspace is queried again,
  /// because the list's value is for the list's arithmetic, and float32 sets another.
  template <class Performance, class Algorithm, class List, class Size>
  void take_first(const CudnnConvolution& p, Algorithm& algorithm, const char* call, const List& list,
                  const Size& size) {
    std::array<Performance, max_algorithms> listed;
    int count = 0;
    check(list(max_algorithms, &count, listed.data()), call, device_);
    for (const Performance& one : std::span(listed).first(static_cast<std::size_t>(count))) {
      if (!is_allowed(one, p)) continue;
      if (p.dtype != DType::float32) set_math(one.mathType);
      usable_ = size(one.algo, &workspace_bytes_) == CUDNN_STATUS_SUCCESS &&
                workspace_bytes_ <= max_workspace_bytes;
      if (!usable_) continue;
      algorithm = one.algo;
      return;
    }
    workspace_bytes_ = 0;
  }

  void set_math(cudnnMathType_t math) {
    check(cudnnSetConvolutionMathType(convolution_.get(), math), "cudnnSetConvolutionMathType", device_);
  }

  int device_;
  ConvolutionPass pass_;
  Owned<cudnnTensorDescriptor_t, cudnnDestroyTensorDescriptor> x_, y_;
  Owned<cudnnFilterDescriptor_t, cudnnDestroyFilterDescriptor> weight_;
  Owned<cudnnConvolutionDescriptor_t, cudnnDestroyConvolutionDescriptor> convolution_;
  cudnnConvolutionFwdAlgo_t forward_{};
  cudnnConvolutionBwdDataAlgo_t backward_input_{};
  cudnnConvolutionBwdFilterAlgo_t backward_weight_{};
  std::size_t workspace_bytes_ = 0;
  bool usable_ = false;
};

std::size_t CudnnConvolution::hash() const {
  return hash_of(pass, sizes.hash(), dtype, channels_last, bias, residual);
}
std::size_t Convolutions::Key::hash() const { return hash_of(problem.hash(), parts); }

FusedGraph convolution_graph(const CudnnConvolution& p) {
  using Extents = std::vector<std::int64_t>;
  const ops::ConvolutionSizes& s = p.sizes;
  const cudnnDataType_t type = cudnn_type(p.dtype);
  const auto extents = [&](std::int64_t n, std::int64_t channels, std::int64_t depth, std::int64_t height,
                           std::int64_t width) {
    Extents all{n, channels};
    if (s.volumes) all.push_back(depth);
    all.insert(all.end(), {height, width});
    return all;
  };
  const auto strides = [&](const Extents& e) {
    Extents result(e.size(), 1);
    std::int64_t stride = p.channels_last ? e[1] : 1;
    for (std::size_t d = e.size(); d-- > 2; stride *= e[d]) result[d] = stride;
    result[1] = p.channels_last ? 1 : stride;
    result[0] = p.channels_last ? stride : stride * e[1];
    return result;
  };
  const Extents y_extents = extents(s.images, s.out_channels, s.out_depth, s.out_height, s.out_width);
  FusedGraph graph;
  const auto tensor = [&](ConvolutionUid uid, const Extents& of_tensor, cudnnDataType_t of) {
    return graph.tensor(uid, of_tensor, strides(of_tensor), of);
  };
  const CudnnDescriptor x = tensor(x_of_convolution,
                                   extents(s.images, s.in_channels, s.depth, s.height, s.width), type),
                        w = tensor(w_of_convolution,
                                   extents(s.out_channels, s.in_channels / s.geometry.groups, s.kernel_depth,
                                           s.kernel_height, s.kernel_width),
                                   type),
                        y = tensor(y_of_convolution, y_extents, type);
  std::vector<CudnnDescriptor> added;
  if (p.bias)
    added.push_back(tensor(bias_of_convolution, extents(1, s.out_channels, 1, 1, 1), CUDNN_DATA_FLOAT));
  if (p.residual) added.push_back(tensor(residual_of_convolution, y_extents, type));
  const auto sums_before = [&](std::size_t i) {
    return i == added.size() ? y : graph.between(y_extents, strides(y_extents), CUDNN_DATA_FLOAT);
  };
  CudnnDescriptor sums = sums_before(0);
  graph.convolution(p.pass, s.geometry, s.volumes, x, w, sums);
  for (std::size_t i = 0; i < added.size(); ++i) {
    const CudnnDescriptor before = std::exchange(sums, sums_before(i + 1));
    graph.pointwise(CUDNN_POINTWISE_ADD, before, sums, added[i]);
  }
  return graph;
}

// In float32 tensor cores mean TF32. Winograd and FFT are as precise as sums in float32, but in bf16 they
// round transformed operands.
PlanRules convolution_rules(DType dtype) {
  static constexpr std::array in_float32{
      CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
      CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION};
  static constexpr std::array in_bf16{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                                      CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                                      CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                                      CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_FFT};
  PlanRules rules{.max_workspace_bytes = max_workspace_bytes};
  rules.refused_notes = in_bf16;
  if (dtype == DType::float32) rules.refused_notes = in_float32;
  return rules;
}

ConvolutionPlan::ConvolutionPlan() = default;
ConvolutionPlan::~ConvolutionPlan() = default;

Convolutions::Convolutions(int device, cudaStream_t stream)
    : device_(device), properties_(device_properties(device)) {
  make(handle_, cudnnCreate, "cudnnCreate", device);
  check(cudnnSetStream(handle_.get(), stream), "cudnnSetStream", device);
}

Convolutions::~Convolutions() = default;

std::unique_ptr<ConvolutionPlan> Convolutions::new_graph(const CudnnConvolution& problem,
                                                         const CudnnEngine* engine) {
  auto plan = std::make_unique<ConvolutionPlan>();
  auto graph = std::make_unique<FusedGraph>(convolution_graph(problem));
  PlanRules rules = convolution_rules(problem.dtype);
  rules.engine = engine;
  if (!graph->build(properties_, rules)) return plan;
  plan->workspace_bytes = graph->workspace_bytes();
  plan->channels_last = problem.channels_last;
  plan->adds_bias = problem.bias;
  plan->adds_residual = problem.residual;
  plan->graph = std::move(graph);
  return plan;
}

std::unique_ptr<ConvolutionPlan> Convolutions::new_plan_in_layout(const CudnnConvolution& problem) {
  std::unique_ptr<ConvolutionPlan> plan;
  CudnnConvolution with_bias = problem, alone = problem;
  with_bias.residual = alone.residual = alone.bias = false;
  if (problem.channels_last || problem.sizes.volumes) {
    if (problem.residual && *(plan = new_graph(problem, nullptr))) return plan;
    if (problem.bias && *(plan = new_graph(with_bias, nullptr))) return plan;
    if (*(plan = new_graph(alone, nullptr))) return plan;
  }
  plan = std::make_unique<ConvolutionPlan>();
  if (problem.sizes.volumes) return plan;
  auto algorithm = std::make_unique<ConvolutionAlgorithm>(alone, handle_.get(), device_);
  if (!algorithm->usable()) return plan;
  plan->workspace_bytes = algorithm->workspace_bytes();
  plan->channels_last = problem.channels_last;
  plan->algorithm = std::move(algorithm);
  return plan;
}

std::unique_ptr<ConvolutionPlan> Convolutions::new_plan(CudnnConvolution problem) {
  std::unique_ptr<ConvolutionPlan> plan = new_plan_in_layout(problem);
  if (*plan) return plan;
  problem.channels_last = !problem.channels_last;
  return new_plan_in_layout(problem);
}

const ConvolutionPlan& Convolutions::plan(const CudnnConvolution& problem) {
  const ConvolutionPlan& plan = *plans_.get({problem, 1}, [&] { return new_plan(problem); });
  if (plan) return plan;
  throw FailureError(
      "cuDNN on cuda:{} has no reproducible algorithm for a convolution of {} in {} groups, of {}; another "
      "batch or another number of channels may have one",
      device_, problem.sizes.text(), problem.sizes.geometry.groups, to_string(problem.dtype));
}

const ConvolutionPlan* Convolutions::plan_of_parts(const CudnnConvolution& problem, int parts) {
  const ConvolutionPlan& of_one = plan(problem);
  if (parts == 1) return &of_one;
  if (!of_one.graph) return nullptr;
  const ConvolutionPlan* const of_all = plans_.get({problem, parts}, [&] {
    CudnnConvolution all = problem;
    all.sizes.images *= parts;
    all.channels_last = of_one.channels_last;
    all.bias = of_one.adds_bias;
    all.residual = of_one.adds_residual;
    return new_graph(all, &of_one.graph->engine());
  });
  return *of_all ? of_all : nullptr;
}

void Convolutions::run(const ConvolutionPlan& plan, const Addresses& at, void* workspace) {
  if (plan.algorithm) return plan.algorithm->run(handle_.get(), at.x, at.weight, at.y, workspace);
  std::array<std::int64_t, 5> uids{x_of_convolution, w_of_convolution, y_of_convolution};
  std::array<void*, 5> data{at.x, at.weight, at.y};
  std::size_t used = 3;
  const auto add = [&](ConvolutionUid uid, void* address) {
    uids[used] = uid;
    data[used++] = address;
  };
  if (plan.adds_bias) add(bias_of_convolution, at.bias);
  if (plan.adds_residual) add(residual_of_convolution, at.residual);
  plan.graph->run(handle_.get(), std::span(uids).first(used), std::span(data).first(used), workspace);
}

namespace {

/// A pass on each of `parts` equal runs of images; channels last if x or y has this layout. (One channel is
/// in both.)
CudnnConvolution problem_of(ConvolutionPass pass, ops::ConvolutionSizes sizes, const Tensor& x,
                            const Tensor& y, int parts) {
  sizes.images /= parts;
  return {.pass = pass,
          .sizes = sizes,
          .dtype = x.dtype(),
          .channels_last = x.channel_block() != 1 || y.channel_block() != 1};
}

bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.raw()) % alignment_bytes == 0;
}

/// Memory for `tensor` in that layout, where cuDNN can access it: the tensor itself if possible.
Tensor memory_in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const int block = channels_last ? static_cast<int>(tensor.size(1)) : 1;
  if (tensor.channel_block() == block && is_aligned(tensor)) return tensor;
  return gpu.empty(tensor.shape(), tensor.dtype(), block);
}

/// Copies `from` to `to` in the layout of `to`, unless they share memory.
void copy_layout(CudaBackend& gpu, const Tensor& from, const Tensor& to) {
  if (!from.shares_memory_with(to)) gpu.run(ops::ToLayout{from, to});
}

/// `tensor` itself, or its elements in the other layout.
Tensor in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const Tensor converted = memory_in_layout(gpu, tensor, channels_last);
  copy_layout(gpu, tensor, converted);
  return converted;
}

/// Part number `part` of images.
Tensor images_of_part(const Tensor& images, int part, int parts) {
  const std::int64_t count = images.size(0) / parts;
  return images.rows(part * count, (part + 1) * count);
}

/// The gradient of a weight, or those of several parts, with depth and height as one direction.
Tensor as_images(const Tensor& dweight, bool volumes) {
  if (!volumes) return dweight;
  const Shape& s = dweight.shape();
  Shape shape;
  for (int d = 0; d < s.rank() - 2; ++d) shape.append(s[d] * (d == s.rank() - 3 ? s[-2] : 1));
  shape.append(s[-1]);
  return dweight.reshape(shape);
}

/// Whether channels last differs for weights [O, C, kh, kw]: O matrices [C, kh kw] are then transposed.
bool transposes(const Tensor& weight, bool channels_last) {
  return channels_last && weight.size(-1) * weight.size(-2) > 1 && weight.size(-3) > 1;
}

/// Weights in the activations' type and layout, which they may have.
Tensor packed_weight(CudaBackend& gpu, const Tensor& weight, DType dtype, bool channels_last) {
  const bool is_packed = weight.channel_block() != 1;
  if (channels_last && positions_of(weight.shape()) > 1 && weight.size(1) > 1 && !is_packed) {
    const Tensor packed = gpu.empty(weight.shape(), dtype, static_cast<int>(weight.size(1)));
    const ops::PackedWeight one{weight, packed};
    gpu.run(ops::PackWeights{{&one, 1}});
    return packed;
  }
  const Tensor converted = gpu.in_type(weight, dtype);
  return in_layout(gpu, converted, is_packed && channels_last);
}

/// The pass forward, or that of the input's gradient, from images to images.
void convolve(CudaBackend& gpu, const CudnnConvolution& problem, const Tensor& weight, const Tensor& from,
              const Tensor& to, int parts, const Tensor& bias = {}, const Tensor& residual = {}) {
  Convolutions& convolutions = gpu.convolutions();
  const ConvolutionPlan& plan = convolutions.plan(problem);
  const bool last = plan.channels_last, forward = problem.pass == ConvolutionPass::forward;
  const Tensor source = in_layout(gpu, from, last), target = memory_in_layout(gpu, to, last),
               packed = packed_weight(gpu, weight, from.dtype(), last),
               addend = plan.adds_bias ? in_layout(gpu, bias, false) : Tensor(),
               added = plan.adds_residual ? in_layout(gpu, residual, last) : Tensor();
  const auto run = [&](const ConvolutionPlan& by, const Tensor& images, const Tensor& result,
                       const Tensor& more) {
    const Tensor workspace = gpu.scratch(static_cast<std::int64_t>(by.workspace_bytes), DType::uint8);
    convolutions.run(by,
                     {.x = forward ? images.raw() : result.raw(),
                      .weight = packed.raw(),
                      .y = forward ? result.raw() : images.raw(),
                      .bias = addend.raw(),
                      .residual = more.raw()},
                     workspace.raw());
  };
  if (const ConvolutionPlan* const all = convolutions.plan_of_parts(problem, parts)) {
    run(*all, source, target, added);
  } else {
    const auto of_part = [&](const Tensor& images, int part) {
      return images ? in_layout(gpu, images_of_part(images, part, parts), last) : Tensor();
    };
    for (int part = 0; part < parts; ++part) {
      const Tensor result = images_of_part(target, part, parts), memory = memory_in_layout(gpu, result, last);
      run(plan, of_part(source, part), memory, of_part(added, part));
      copy_layout(gpu, memory, result);
    }
  }
  if (bias && !plan.adds_bias) add_channels(gpu.launch(), bias, target);
  copy_layout(gpu, target, to);
  if (residual && !plan.adds_residual) gpu.run(ops::add(to, residual, to));
}

void convolution_of_parts(CudaBackend& gpu, const ops::Convolution& op, int parts) {
  if (op.x.size(0) == 0) return;
  CudnnConvolution problem = problem_of(ConvolutionPass::forward, op.sizes(), op.x, op.y, parts);
  problem.bias = bool(op.bias);
  problem.residual = bool(op.residual);
  convolve(gpu, problem, op.weight, op.x, op.y, parts, op.bias, op.residual);
}

void input_gradient_of_parts(CudaBackend& gpu, const ops::ConvolutionBackwardInput& op, int parts) {
  if (op.dx.size(0) == 0) return;
  convolve(gpu, problem_of(ConvolutionPass::backward_input, op.sizes(), op.dx, op.dy, parts), op.weight,
           op.dy, op.dx, parts);
}

/// One call of cuDNN for each part, because a sum over images is that of one part. One kernel brings all sums
/// into dweight's layout and type.
void weight_gradient_of_parts(CudaBackend& gpu, const ops::ConvolutionBackwardWeight& op, int parts) {
  if (op.x.size(0) == 0) {
    if (!op.accumulate) gpu.fill(op.dweight, 0);
    return;
  }
  const std::int64_t elements = op.dweight.numel() / parts;
  const Tensor flat = op.dweight.reshape({parts, elements});
  const std::span<const std::int64_t> all = op.dweight.shape().extents();
  const Shape one(all.last(static_cast<std::size_t>(op.x.shape().rank())));
  const Tensor dweight = as_images(op.dweight, op.x.shape().rank() == 5);
  const ops::ConvolutionBackwardWeight first{images_of_part(op.x, 0, parts), images_of_part(op.dy, 0, parts),
                                             op.geometry, flat.rows(0, 1).reshape(one)};
  const CudnnConvolution problem =
      problem_of(ConvolutionPass::backward_weight, first.sizes(), op.x, op.dy, 1);
  const ConvolutionPlan& plan = gpu.convolutions().plan(problem);
  const bool last = plan.channels_last;
  const Tensor x = in_layout(gpu, op.x, last), dy = in_layout(gpu, op.dy, last);
  // cuDNN's results, each aligned.
  const auto unit = static_cast<std::int64_t>(alignment_bytes / bytes_of(op.x.dtype()));
  const std::int64_t stride = (elements + unit - 1) / unit * unit;
  const bool direct = !transposes(dweight, last) && !op.accumulate && op.x.dtype() == DType::float32 &&
                      is_aligned(op.dweight) && (parts == 1 || stride == elements);
  const Tensor sums = direct ? flat : gpu.empty({parts, stride}, op.x.dtype());
  for (int part = 0; part < parts; ++part) {
    const Tensor images = in_layout(gpu, images_of_part(x, part, parts), last),
                 upstream = in_layout(gpu, images_of_part(dy, part, parts), last),
                 workspace = gpu.scratch(static_cast<std::int64_t>(plan.workspace_bytes), DType::uint8);
    gpu.convolutions().run(
        plan, {.x = images.raw(), .weight = sums.rows(part, part + 1).raw(), .y = upstream.raw()},
        workspace.raw());
  }
  if (!direct) unpack_weights(gpu.launch(), sums, dweight, last, op.accumulate);
}

void pack_weights_of(CudaBackend& gpu, const ops::PackWeights& op) { pack_weights(gpu.launch(), op.weights); }

void add_channels_of(CudaBackend& gpu, const ops::AddChannels& op) {
  add_channels(gpu.launch(), op.bias, op.y);
}

}  // namespace

Convolutions& CudaBackend::convolutions() {
  if (!convolutions_) convolutions_ = std::make_unique<Convolutions>(index_, pool_.stream());
  return *convolutions_;
}

void enter_convolution(CudaBackend& gpu) {
  gpu.enter<&pack_weights_of, &add_channels_of>();
  gpu.enter_parts<&convolution_of_parts, &input_gradient_of_parts, &weight_gradient_of_parts>();
}

}  // namespace lockstep::kernels
