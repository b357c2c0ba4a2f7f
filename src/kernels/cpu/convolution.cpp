// Convolutions: oneDNN's plan for each problem, conversions between channel blocks where an algorithm needs
// another, and the run of Winograd's products or of the plan.
#include "kernels/cpu/convolution.h"

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/native_bfloat16.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/winograd.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

using Memory = dnnl::memory;

/// In bf16 only the channels-last layout is fast.
std::optional<Memory::format_tag> activation_tag(int block, std::int64_t channels,
                                                 const ConvolutionProblem& problem) {
  using Tag = Memory::format_tag;
  const auto tag = [volumes = problem.sizes.volumes](Tag of_images, Tag of_volumes) {
    return volumes ? of_volumes : of_images;
  };
  const Tag last = tag(Tag::nhwc, Tag::ndhwc);
  if (problem.bf16) return block == channels ? std::optional(last) : std::nullopt;
  if (block == 1) return tag(Tag::nchw, Tag::ncdhw);
  if (block == channels && block != native_channel_block()) return last;
  if (block == 4) return tag(Tag::nChw4c, Tag::nCdhw4c);
  if (block == 8) return tag(Tag::nChw8c, Tag::nCdhw8c);
  if (block == 16) return tag(Tag::nChw16c, Tag::nCdhw16c);
  return std::nullopt;
}

/// Excludes oneDNN's reference loops, a hundred times slower, and its matrix products over unrolled images:
/// two to three times slower, and with several threads an image's bits depend on the batch. Also oneDNN 3's
/// code for plain images ("ncsp"), which converts them in every pass to a layout that the caller can use, and
/// its code for SVE of 512 bits, which in oneDNN 3.7 writes beyond its results.
bool is_direct(std::string_view name) {
  return name.substr(0, 3) != "ref" && name.find("gemm") == name.npos && name.find("ncsp") == name.npos &&
         name.find("sve_512") == name.npos;
}

std::int64_t floats_of(const Memory::desc& desc) {
  return static_cast<std::int64_t>((desc.get_size() + sizeof(float) - 1) / sizeof(float));
}

}  // namespace

int native_channel_block() { return onednn_has_avx512() ? 16 : 8; }

void BoundPrimitive::add_argument(int name, const Memory::desc& desc, const dnnl::engine& engine) {
  memories_[count_] = Memory(desc, engine, DNNL_MEMORY_NONE);
  arguments_[count_] = {name, memories_[count_].get()};
  ++count_;
}

void BoundPrimitive::bind(std::size_t index, const void* data) {
  const dnnl_status_t status =
      dnnl_memory_set_data_handle(arguments_[index].memory, const_cast<void*>(data));  // inputs are only read
  if (status != dnnl_success)
    throw FailureError("oneDNN cannot use memory (status {})", static_cast<int>(status));
}

void BoundPrimitive::run(const dnnl::stream& stream) {
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(count_), arguments_.data());
  if (status != dnnl_success)
    throw FailureError("a oneDNN primitive failed (status {})", static_cast<int>(status));
}

struct ConvolutionPlan::Attempt {
  dnnl::primitive primitive;
  std::string implementation;  ///< a copy: in oneDNN 3 its text ends with its descriptor
  int x_block = 1, y_block = 1;
  std::int64_t images = 0;
  Memory::desc x, weight, plain_weight, bias, y, scratchpad;

  explicit operator bool() const { return static_cast<bool>(primitive); }
};

ConvolutionPlan::Attempt ConvolutionPlan::attempt(const ConvolutionProblem& problem,
                                                  const dnnl::engine& engine, int x_block, int y_block) {
  const ops::ConvolutionSizes& s = problem.sizes;
  const auto x_tag = activation_tag(x_block, s.in_channels, problem);
  const auto y_tag = activation_tag(y_block, s.out_channels, problem);
  if (!x_tag || !y_tag) return {};
  const auto floats = Memory::data_type::f32;
  const auto type = problem.bf16 ? Memory::data_type::bf16 : floats;
  const std::int64_t group_in = s.in_channels / s.geometry.groups,
                     group_out = s.out_channels / s.geometry.groups;
  const auto with_positions = [&](Memory::dims dims, std::int64_t depth, std::int64_t height,
                                  std::int64_t width) {
    if (s.volumes) dims.push_back(depth);
    dims.insert(dims.end(), {height, width});
    return dims;
  };
  const Memory::dims weight_dims =
      with_positions(s.geometry.groups == 1 ? Memory::dims{s.out_channels, s.in_channels}
                                            : Memory::dims{s.geometry.groups, group_out, group_in},
                     s.kernel_depth, s.kernel_height, s.kernel_width);
  const Memory::desc x(with_positions({s.images, s.in_channels}, s.depth, s.height, s.width), type, *x_tag);
  const Memory::desc y(with_positions({s.images, s.out_channels}, s.out_depth, s.out_height, s.out_width),
                       type, *y_tag);
  const Memory::desc weight(weight_dims, type, Memory::format_tag::any);
  const Memory::desc gradient(weight_dims, floats, Memory::format_tag::any);
  const Memory::desc bias =
      problem.bias ? Memory::desc({s.out_channels}, floats, Memory::format_tag::x) : Memory::desc();
  const auto each = [&](const ops::Directions& of, int less = 0) {
    return with_positions({}, of.depth - less, of.height - less, of.width - less);
  };
  const Memory::dims strides = each(s.geometry.stride), padding = each(s.geometry.padding),
                     dilates = each(s.geometry.dilation, 1);  // oneDNN counts the positions in between
  const auto algorithm = dnnl::algorithm::convolution_direct;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  Attempt result;
  result.images = s.images;
  using Tag = Memory::format_tag;
  const Tag plain_tag =
      s.geometry.groups == 1 ? (s.volumes ? Tag::oidhw : Tag::oihw) : (s.volumes ? Tag::goidhw : Tag::goihw);
  result.plain_weight =
      Memory::desc(weight_dims, problem.pass == ConvolutionPass::backward_weight ? floats : type, plain_tag);
  result.x_block = x_block;
  result.y_block = y_block;
  const auto keep = [&](const auto& desc, const auto& primitive) {
    result.primitive = primitive;
    result.implementation = desc.impl_info_str();
    result.scratchpad = desc.scratchpad_desc();
  };
  const auto forward =
      describe<dnnl::convolution_forward>(engine, attributes,
                                          std::tuple(dnnl::prop_kind::forward_training, algorithm, x, weight,
                                                     bias, y, strides, dilates, padding, padding));
  if (!forward) return {};
  result.x = x;
  result.y = y;
  result.bias = bias;
  if (problem.pass == ConvolutionPass::forward) {
    result.weight = forward.weights_desc();
    keep(forward, dnnl::convolution_forward(forward));
  } else if (problem.pass == ConvolutionPass::backward_input) {
    const auto backward = describe<dnnl::convolution_backward_data>(
        engine, attributes, std::tuple(algorithm, x, weight, y, strides, dilates, padding, padding), forward);
    if (!backward) return {};
    result.weight = backward.weights_desc();
    keep(backward, dnnl::convolution_backward_data(backward));
  } else {
    const auto backward = describe<dnnl::convolution_backward_weights>(
        engine, attributes, std::tuple(algorithm, x, gradient, y, strides, dilates, padding, padding),
        forward);
    if (!backward) return {};
    result.weight = backward.diff_weights_desc();
    keep(backward, dnnl::convolution_backward_weights(backward));
  }
  return result;
}

ConvolutionPlan::Attempt ConvolutionPlan::best_attempt(const ConvolutionProblem& problem,
                                                       const dnnl::engine& engine, int threads) {
  if (problem.bf16) {
    const Attempt result = attempt(problem, engine, problem.x_block, problem.y_block);
    return result && is_direct(result.implementation) ? result : Attempt{};
  }
  const int native = native_channel_block();
  const std::array<int, 2> caller_blocks{problem.x_block, problem.y_block};
  std::array<std::array<int, 2>, 3> block_pairs{{caller_blocks, {native, native}, {1, native}}};
  if (problem.x_block == 1 && problem.sizes.in_channels < native) std::swap(block_pairs[1], block_pairs[2]);
  for (const auto& [x_block, y_block] : block_pairs) {
    const Attempt result = attempt(problem, engine, x_block, y_block);
    if (result && is_direct(result.implementation)) return result;
  }
  // Groups of few channels have no direct kernel. One image at a time keeps its bits independent of the
  // batch.
  ConvolutionProblem part = problem;
  if (threads > 1 && problem.pass != ConvolutionPass::backward_weight) part.sizes.images = 1;
  return attempt(part, engine, 1, 1);
}

ConvolutionPlan::ConvolutionPlan(const ConvolutionProblem& problem, const dnnl::engine& engine, int threads)
    : pass_(problem.pass), bias_(problem.bias) {
  const ops::ConvolutionSizes& s = problem.sizes;
  const Attempt best = best_attempt(problem, engine, threads);
  if (!best && problem.bf16) return;
  if (!best) {
    throw FailureError("oneDNN has no convolution of {} channels to {} in {} groups", s.in_channels,
                       s.out_channels, s.geometry.groups);
  }
  x_block_ = best.x_block;
  y_block_ = best.y_block;
  implementation_ = best.implementation;
  runs_ = s.images / best.images;
  x_bytes_ = best.x.get_size();
  y_bytes_ = best.y.get_size();
  scratchpad_floats_ = floats_of(best.scratchpad);

  const bool input_gradient = pass_ == ConvolutionPass::backward_input;
  const bool weight_gradient = pass_ == ConvolutionPass::backward_weight;
  convolution_ = BoundPrimitive(best.primitive);
  convolution_.add_argument(input_gradient ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, best.x, engine);
  convolution_.add_argument(weight_gradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, best.weight, engine);
  convolution_.add_argument(pass_ == ConvolutionPass::forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, best.y,
                            engine);
  convolution_.add_argument(DNNL_ARG_SCRATCHPAD, best.scratchpad, engine);
  if (bias_) convolution_.add_argument(DNNL_ARG_BIAS, best.bias, engine);

  if (best.weight == best.plain_weight) return;
  packed_floats_ = floats_of(best.weight);
  const Memory::desc& from = weight_gradient ? best.weight : best.plain_weight;
  const Memory::desc& to = weight_gradient ? best.plain_weight : best.weight;
  packing_ = BoundPrimitive(dnnl::reorder(dnnl::reorder::primitive_desc(engine, from, engine, to)));
  packing_.add_argument(DNNL_ARG_FROM, from, engine);
  packing_.add_argument(DNNL_ARG_TO, to, engine);
}

void ConvolutionPlan::run(const dnnl::stream& stream, void* x, void* weight, const float* bias, void* y,
                          float* packed, float* scratchpad) {
  if (packing_ && pass_ != ConvolutionPass::backward_weight) {
    packing_.bind(0, weight);
    packing_.bind(1, packed);
    packing_.run(stream);
  }
  convolution_.bind(1, packing_ ? packed : weight);
  convolution_.bind(3, scratchpad);
  if (bias_) convolution_.bind(4, bias);
  for (std::int64_t run = 0; run < runs_; ++run) {
    convolution_.bind(0, static_cast<std::byte*>(x) + static_cast<std::size_t>(run) * x_bytes_);
    convolution_.bind(2, static_cast<std::byte*>(y) + static_cast<std::size_t>(run) * y_bytes_);
    convolution_.run(stream);
  }
  if (packing_ && pass_ == ConvolutionPass::backward_weight) {
    packing_.bind(0, packed);
    packing_.bind(1, weight);
    packing_.run(stream);
  }
}

std::size_t ConvolutionProblem::hash() const {
  return hash_of(pass, sizes.hash(), x_block, y_block, bias, bf16);
}

ConvolutionPlan& ConvolutionCache::plan(const ConvolutionProblem& problem, const dnnl::engine& engine,
                                        int threads) {
  return *get(problem, [&] {
    try {
      return std::make_unique<ConvolutionPlan>(problem, engine, threads);
    } catch (const dnnl::error& error) {
      throw FailureError("oneDNN cannot prepare a convolution of {} channels to {}: {}",
                         problem.sizes.in_channels, problem.sizes.out_channels, error.what());
    }
  });
}

namespace {

void require_plain(const char* operation, const Tensor& weight) {
  if (weight.channel_block() == 1) return;
  throw UsageError("{} on a CPU: the weight is stored in channel blocks of {}; it must be plain", operation,
                   weight.channel_block());
}

}  // namespace

ConvolutionProblem convolution_problem(const ops::Convolution& op) {
  require_plain(op.name, op.weight);
  return {.pass = ConvolutionPass::forward,
          .sizes = op.sizes(),
          .x_block = op.x.channel_block(),
          .y_block = op.y.channel_block(),
          .bias = static_cast<bool>(op.bias)};
}

ConvolutionProblem convolution_problem(const ops::ConvolutionBackwardInput& op) {
  require_plain(op.name, op.weight);
  return {.pass = ConvolutionPass::backward_input,
          .sizes = op.sizes(),
          .x_block = op.dx.channel_block(),
          .y_block = op.dy.channel_block()};
}

ConvolutionProblem convolution_problem(const ops::ConvolutionBackwardWeight& op) {
  return {.pass = ConvolutionPass::backward_weight,
          .sizes = op.sizes(),
          .x_block = op.x.channel_block(),
          .y_block = op.dy.channel_block()};
}

namespace {

/// Runs a pass, which writes y, x or the weight, and reads the others. accumulate: for a weight gradient.
void run(CpuBackend& cpu, ConvolutionProblem problem, const Tensor& x, const Tensor& weight,
         const Tensor& bias, const Tensor& y, bool accumulate = false) {
  const ConvolutionPass pass = problem.pass;
  if (problem.sizes.images == 0) {
    if (pass == ConvolutionPass::backward_weight && !accumulate) cpu.fill(weight, 0);
    return;
  }
  const bool by_winograd = WinogradConvolution::fits(problem);
  ConvolutionPlan* const plan =
      by_winograd ? nullptr : &cpu.convolutions().plan(problem, cpu.engine(), cpu.threads());

  // The tensor, or another one in a channel block that the convolution supports.
  const auto in_block = [&](const Tensor& tensor, int block, bool is_read) {
    if (tensor.channel_block() == block) return tensor;
    const Tensor converted = cpu.empty(tensor.shape(), DType::float32, block);
    if (is_read) cpu.run(ops::ToLayout{tensor, converted});
    return converted;
  };
  const auto winograd_block = [](const Tensor& tensor) {
    return WinogradConvolution::block_for(tensor.size(1), tensor.channel_block());
  };
  const Tensor x_side =
      in_block(x, plan ? plan->x_block() : winograd_block(x), pass != ConvolutionPass::backward_input);
  const Tensor y_side =
      in_block(y, plan ? plan->y_block() : winograd_block(y), pass != ConvolutionPass::forward);
  const float* const biases = bias ? bias.data<float>() : nullptr;

  if (plan) {
    const bool adds = pass == ConvolutionPass::backward_weight && accumulate;
    const Tensor gradient = adds ? cpu.empty(weight.shape()) : weight;
    const Tensor packed = cpu.scratch(plan->packed_floats()),
                 scratchpad = cpu.scratch(plan->scratchpad_floats());
    plan->run(cpu.stream_of_dnnl(), x_side.data<float>(), gradient.data<float>(), biases,
              y_side.data<float>(), packed.data<float>(), scratchpad.data<float>());
    if (adds) cpu.run(ops::Accumulate{weight, gradient});
  } else {
    problem.x_block = x_side.channel_block();
    problem.y_block = y_side.channel_block();
    const WinogradConvolution winograd(problem, cpu.threads());
    const Tensor scratch = cpu.scratch(winograd.scratch_floats());
    winograd.run(x_side.data<float>(), weight.data<float>(), biases, y_side.data<float>(), accumulate,
                 scratch.data<float>());
  }
  if (pass == ConvolutionPass::backward_input && !x_side.shares_memory_with(x))
    cpu.run(ops::ToLayout{x_side, x});
  if (pass == ConvolutionPass::forward && !y_side.shares_memory_with(y)) cpu.run(ops::ToLayout{y_side, y});
}

}  // namespace

void convolution(CpuBackend& cpu, const ops::Convolution& op) {
  run(cpu, convolution_problem(op), op.x, op.weight, op.bias, op.y);
}

/// The residual is added to the rounded result.
void convolution_plus_residual(CpuBackend& cpu, const ops::Convolution& op) {
  ops::Convolution alone = op;
  alone.residual = {};
  product<&convolution, ops::Convolution>(cpu, alone);
  if (op.residual) cpu.run(ops::add(op.y, op.residual, op.y));
}

void convolution_backward_input(CpuBackend& cpu, const ops::ConvolutionBackwardInput& op) {
  run(cpu, convolution_problem(op), op.dx, op.weight, {}, op.dy);
}

void convolution_backward_weight(CpuBackend& cpu, const ops::ConvolutionBackwardWeight& op) {
  run(cpu, convolution_problem(op), op.x, op.dweight, {}, op.dy, op.accumulate);
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
      const Columns32 shift = columns_of(form, tile, bias);
      for_rows(tile, [&](std::int64_t at, auto width) {
        for (int column = 0; column < width; ++column)
          to[at + column] += shift[static_cast<std::size_t>(column)];
      });
    }
  });
}

void enter_convolution(CpuBackend& cpu) {
  cpu.enter<&convolution_plus_residual>();
  enter_product<&convolution_backward_input>(cpu);
  enter_product<&convolution_backward_weight>(cpu);
  cpu.enter<&add_channels>(Computes::in_float32);
}

}  // namespace lockstep::kernels
