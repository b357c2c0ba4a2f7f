// Convolutions: checks, conversions between channel blocks where the way taken wants another, and the run of
// Winograd's products or of oneDNN's cached plan.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/convolution_plan.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/winograd.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

ConvolutionPlan& plan_of(std::shared_ptr<ConvolutionCache>& cache, const ConvolutionProblem& problem,
                         const dnnl::engine& engine, int threads) {
  if (!cache) cache = std::make_shared<ConvolutionCache>();
  return cache->plan(problem, engine, threads);
}

/// `tensor` itself if it is in that channel block, or memory of its shape that is.
Tensor room_in_block(Backend& backend, const Tensor& tensor, int block) {
  return tensor.channel_block() == block ? tensor : backend.empty(tensor.shape(), DType::float32, block);
}

Tensor input_in_block(Backend& backend, const Tensor& tensor, int block) {
  const Tensor converted = room_in_block(backend, tensor, block);
  if (tensor.channel_block() != block) backend.to_layout(tensor, converted);
  return converted;
}

/// A problem that fits; `weight` is read or, in its pass, written.
void run_winograd(Backend& backend, ConvolutionProblem problem, const Tensor& x, float* weight,
                  const float* bias, const Tensor& y, bool accumulate = false) {
  const auto side = [&](const Tensor& tensor, bool written) {
    const int block = WinogradConvolution::block_for(tensor.size(1), tensor.channel_block());
    return written ? room_in_block(backend, tensor, block) : input_in_block(backend, tensor, block);
  };
  const Tensor x_side = side(x, problem.pass == ConvolutionPass::backward_input),
               y_side = side(y, problem.pass == ConvolutionPass::forward);
  problem.x_block = x_side.channel_block();
  problem.y_block = y_side.channel_block();
  const WinogradConvolution winograd(problem, backend.threads());
  const Tensor scratch = backend.empty({winograd.scratch_floats()});
  winograd.run(x_side.data<float>(), weight, bias, y_side.data<float>(), accumulate, scratch.data<float>());
  if (problem.pass == ConvolutionPass::backward_input && !x_side.shares_memory_with(x))
    backend.to_layout(x_side, x);
  if (problem.pass == ConvolutionPass::forward && !y_side.shares_memory_with(y)) backend.to_layout(y_side, y);
}

}  // namespace

ConvolutionProblem convolution_problem(const char* operation, ConvolutionPass pass, const Tensor& x,
                                       const Tensor& weight, const Convolution& geometry, const char* y_name,
                                       const Tensor& y) {
  const ConvolutionSizes sizes = convolution_sizes(operation, x, weight, geometry, y_name, y);
  ConvolutionProblem problem;
  problem.pass = pass;
  problem.images = sizes.images;
  problem.in_channels = sizes.in_channels;
  problem.height = sizes.height;
  problem.width = sizes.width;
  problem.out_channels = sizes.out_channels;
  problem.out_height = sizes.out_height;
  problem.out_width = sizes.out_width;
  problem.kernel_height = sizes.kernel_height;
  problem.kernel_width = sizes.kernel_width;
  problem.stride = geometry.stride;
  problem.padding = geometry.padding;
  problem.groups = geometry.groups;
  problem.x_block = x.channel_block();
  problem.y_block = y.channel_block();
  return problem;
}

void CpuBackend::convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const Convolution& geometry, const Tensor& y) {
  prepare();
  constexpr const char* operation = "convolution";
  ConvolutionProblem problem =
      convolution_problem(operation, ConvolutionPass::forward, x, weight, geometry, "y", y);
  problem.bias = static_cast<bool>(bias);
  floats(operation, "x", x);
  float* weights = floats(operation, "weight", weight);
  floats(operation, "y", y);
  const float* biases = nullptr;
  if (bias) {
    require_shape(operation, "bias", bias, {problem.out_channels});
    biases = floats(operation, "bias", bias);
  }
  if (problem.images == 0) return;
  if (WinogradConvolution::fits(problem)) return run_winograd(*this, problem, x, weights, biases, y);
  ConvolutionPlan& plan = plan_of(convolutions_, problem, engine_, threads_);
  const Tensor from = input_in_block(*this, x, plan.x_block());
  const Tensor to = room_in_block(*this, y, plan.y_block());
  const Tensor packed = scratch(plan.packed_floats()), scratchpad = scratch(plan.scratchpad_floats());
  plan.run(stream_, from.data<float>(), weights, biases, to.data<float>(), packed.data<float>(),
           scratchpad.data<float>());
  if (!to.shares_memory_with(y)) to_layout(to, y);
}

void CpuBackend::convolution_backward_input(const Tensor& dy, const Tensor& weight,
                                            const Convolution& geometry, const Tensor& dx) {
  prepare();
  constexpr const char* operation = "convolution_backward_input";
  const ConvolutionProblem problem =
      convolution_problem(operation, ConvolutionPass::backward_input, dx, weight, geometry, "dy", dy);
  floats(operation, "dy", dy);
  float* weights = floats(operation, "weight", weight);
  floats(operation, "dx", dx);
  if (problem.images == 0) return;
  if (WinogradConvolution::fits(problem)) return run_winograd(*this, problem, dx, weights, nullptr, dy);
  ConvolutionPlan& plan = plan_of(convolutions_, problem, engine_, threads_);
  const Tensor from = input_in_block(*this, dy, plan.y_block());
  const Tensor to = room_in_block(*this, dx, plan.x_block());
  const Tensor packed = scratch(plan.packed_floats()), scratchpad = scratch(plan.scratchpad_floats());
  plan.run(stream_, to.data<float>(), weights, nullptr, from.data<float>(), packed.data<float>(),
           scratchpad.data<float>());
  if (!to.shares_memory_with(dx)) to_layout(to, dx);
}

void CpuBackend::convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                             const Tensor& dweight, bool accumulate) {
  prepare();
  constexpr const char* operation = "convolution_backward_weight";
  const ConvolutionProblem problem =
      convolution_problem(operation, ConvolutionPass::backward_weight, x, dweight, geometry, "dy", dy);
  floats(operation, "x", x);
  floats(operation, "dy", dy);
  float* gradient = floats(operation, "dweight", dweight);
  const std::int64_t count = dweight.numel();
  if (problem.images == 0) {
    if (!accumulate) std::fill_n(gradient, count, 0.0f);
    return;
  }
  if (WinogradConvolution::fits(problem))
    return run_winograd(*this, problem, x, gradient, nullptr, dy, accumulate);
  ConvolutionPlan& plan = plan_of(convolutions_, problem, engine_, threads_);
  const Tensor from = input_in_block(*this, x, plan.x_block());
  const Tensor dy_from = input_in_block(*this, dy, plan.y_block());
  const Tensor made = accumulate ? scratch(count) : dweight;
  const Tensor packed = scratch(plan.packed_floats()), scratchpad = scratch(plan.scratchpad_floats());
  plan.run(stream_, from.data<float>(), made.data<float>(), nullptr, dy_from.data<float>(),
           packed.data<float>(), scratchpad.data<float>());
  if (!accumulate) return;
  const float* __restrict addend = made.data<float>();
  float* __restrict sum = gradient;
  for (std::int64_t i = 0; i < count; ++i) sum[i] += addend[i];
}

}  // namespace lockstep::kernels
