// Convolutions: conversions between channel blocks where the way taken wants another, and the run of
// Winograd's products or of oneDNN's cached plan.
#include "lockstep/ops/convolution.h"
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/convolution_plan.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/native_bfloat16.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/winograd.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

ConvolutionPlan& plan_of(CpuBackend& cpu, const ConvolutionProblem& problem) {
  return cpu.convolutions().plan(problem, cpu.engine(), cpu.threads());
}

/// `tensor` itself if it is in that channel block, or memory of its shape that is.
Tensor room_in_block(Backend& backend, const Tensor& tensor, int block) {
  return tensor.channel_block() == block ? tensor : backend.empty(tensor.shape(), DType::float32, block);
}

Tensor input_in_block(Backend& backend, const Tensor& tensor, int block) {
  const Tensor converted = room_in_block(backend, tensor, block);
  if (tensor.channel_block() != block) backend.run(ops::ToLayout{tensor, converted});
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
    backend.run(ops::ToLayout{x_side, x});
  if (problem.pass == ConvolutionPass::forward && !y_side.shares_memory_with(y))
    backend.run(ops::ToLayout{y_side, y});
}

template <class Operation>
ConvolutionProblem problem_of(ConvolutionPass pass, const Operation& op, const Tensor& x, const Tensor& y) {
  const ops::ConvolutionSizes sizes = op.sizes();
  return {.pass = pass,
          .images = sizes.images,
          .in_channels = sizes.in_channels,
          .height = sizes.height,
          .width = sizes.width,
          .out_channels = sizes.out_channels,
          .out_height = sizes.out_height,
          .out_width = sizes.out_width,
          .kernel_height = sizes.kernel_height,
          .kernel_width = sizes.kernel_width,
          .geometry = op.geometry,
          .x_block = x.channel_block(),
          .y_block = y.channel_block()};
}

}  // namespace

ConvolutionProblem convolution_problem(const ops::Convolution& op) {
  ConvolutionProblem problem = problem_of(ConvolutionPass::forward, op, op.x, op.y);
  problem.bias = static_cast<bool>(op.bias);
  return problem;
}
ConvolutionProblem convolution_problem(const ops::ConvolutionBackwardInput& op) {
  return problem_of(ConvolutionPass::backward_input, op, op.dx, op.dy);
}
ConvolutionProblem convolution_problem(const ops::ConvolutionBackwardWeight& op) {
  return problem_of(ConvolutionPass::backward_weight, op, op.x, op.dy);
}

void convolution(CpuBackend& cpu, const ops::Convolution& op) {
  const ConvolutionProblem problem = convolution_problem(op);
  float* weights = op.weight.data<float>();
  const float* const biases = op.bias ? op.bias.data<float>() : nullptr;
  if (problem.images == 0) return;
  if (WinogradConvolution::fits(problem)) return run_winograd(cpu, problem, op.x, weights, biases, op.y);
  ConvolutionPlan& plan = plan_of(cpu, problem);
  const Tensor from = input_in_block(cpu, op.x, plan.x_block());
  const Tensor to = room_in_block(cpu, op.y, plan.y_block());
  const Tensor packed = cpu.scratch(plan.packed_floats()), scratchpad = cpu.scratch(plan.scratchpad_floats());
  plan.run(cpu.stream_of_dnnl(), from.data<float>(), weights, biases, to.data<float>(), packed.data<float>(),
           scratchpad.data<float>());
  if (!to.shares_memory_with(op.y)) cpu.run(ops::ToLayout{to, op.y});
}

void convolution_backward_input(CpuBackend& cpu, const ops::ConvolutionBackwardInput& op) {
  const ConvolutionProblem problem = convolution_problem(op);
  float* weights = op.weight.data<float>();
  if (problem.images == 0) return;
  if (WinogradConvolution::fits(problem)) return run_winograd(cpu, problem, op.dx, weights, nullptr, op.dy);
  ConvolutionPlan& plan = plan_of(cpu, problem);
  const Tensor from = input_in_block(cpu, op.dy, plan.y_block());
  const Tensor to = room_in_block(cpu, op.dx, plan.x_block());
  const Tensor packed = cpu.scratch(plan.packed_floats()), scratchpad = cpu.scratch(plan.scratchpad_floats());
  plan.run(cpu.stream_of_dnnl(), to.data<float>(), weights, nullptr, from.data<float>(), packed.data<float>(),
           scratchpad.data<float>());
  if (!to.shares_memory_with(op.dx)) cpu.run(ops::ToLayout{to, op.dx});
}

void convolution_backward_weight(CpuBackend& cpu, const ops::ConvolutionBackwardWeight& op) {
  const ConvolutionProblem problem = convolution_problem(op);
  float* gradient = op.dweight.data<float>();
  const std::int64_t count = op.dweight.numel();
  if (problem.images == 0) {
    if (!op.accumulate) std::fill_n(gradient, count, 0.0f);
    return;
  }
  if (WinogradConvolution::fits(problem))
    return run_winograd(cpu, problem, op.x, gradient, nullptr, op.dy, op.accumulate);
  ConvolutionPlan& plan = plan_of(cpu, problem);
  const Tensor from = input_in_block(cpu, op.x, plan.x_block());
  const Tensor dy_from = input_in_block(cpu, op.dy, plan.y_block());
  const Tensor made = op.accumulate ? cpu.scratch(count) : op.dweight;
  const Tensor packed = cpu.scratch(plan.packed_floats()), scratchpad = cpu.scratch(plan.scratchpad_floats());
  plan.run(cpu.stream_of_dnnl(), from.data<float>(), made.data<float>(), nullptr, dy_from.data<float>(),
           packed.data<float>(), scratchpad.data<float>());
  if (!op.accumulate) return;
  const float* __restrict addend = made.data<float>();
  float* __restrict sum = gradient;
  for (std::int64_t i = 0; i < count; ++i) sum[i] += addend[i];
}

void add_channels(CpuBackend& cpu, const ops::AddChannels& op) {
  const ChannelForm form = channel_form(op.y);
  const float* bias = op.bias.data<float>();
  float* to = op.y.data<float>();
  const std::int64_t runs_per_thread = 8192 / std::max<std::int64_t>(1, form.run()) + 1;
  parallel_items(cpu.threads(), form.runs(), runs_per_thread, [&](std::int64_t run) {
    for (std::int64_t tile_index = 0; tile_index < tiles_per_block(form); ++tile_index) {
      ChannelTile tile = tile_of(form, run % form.blocks, tile_index);
      tile.first += run * form.run();
      const Columns32 shift = columns_of(form, tile, [&](std::int64_t c) { return bias[c]; });
      for_rows(tile, [&](std::int64_t at, auto width) {
        for (int column = 0; column < width; ++column)
          to[at + column] += shift[static_cast<std::size_t>(column)];
      });
    }
  });
}

void enter_convolution(CpuBackend& cpu) {
  enter_product<&convolution>(cpu);
  enter_product<&convolution_backward_input>(cpu);
  enter_product<&convolution_backward_weight>(cpu);
  cpu.enter<&add_channels>(Computes::in_float32);
}

}  // namespace lockstep::kernels
