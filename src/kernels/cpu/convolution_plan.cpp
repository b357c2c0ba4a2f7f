#include "kernels/cpu/convolution_plan.h"

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::kernels {
namespace {

using Memory = dnnl::memory;

/// In bf16 only the channels-last layout is fast.
std::optional<Memory::format_tag> activation_tag(int block, std::int64_t channels, bool bf16) {
  using Tag = Memory::format_tag;
  if (bf16) return block == channels ? std::optional(Tag::nhwc) : std::nullopt;
  if (block == 1) return Tag::nchw;
  if (block == channels && block != native_channel_block()) return Tag::nhwc;
  if (block == 4) return Tag::nChw4c;
  if (block == 8) return Tag::nChw8c;
  if (block == 16) return Tag::nChw16c;
  return std::nullopt;
}

/// Neither oneDNN's reference loops, a hundred times slower, nor its matrix products over unrolled images:
/// two to three times slower, and with several threads an image's bits there depend on the batch.
bool is_direct(const char* implementation) {
  const std::string_view name(implementation);
  return name.substr(0, 3) != "ref" && name.find("gemm") == std::string_view::npos;
}

std::int64_t floats_of(const Memory::desc& desc) {
  return static_cast<std::int64_t>((desc.get_size() + sizeof(float) - 1) / sizeof(float));
}

}  // namespace

int native_channel_block() {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core ? 16 : 8;
}

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
  const char* implementation = "";
  int x_block = 1, y_block = 1;
  Memory::desc x, weight, bias, y, scratchpad;

  explicit operator bool() const { return static_cast<bool>(primitive); }
};

ConvolutionPlan::Attempt ConvolutionPlan::attempt(const ConvolutionProblem& problem,
                                                  const dnnl::engine& engine, int x_block, int y_block) {
  const auto x_tag = activation_tag(x_block, problem.in_channels, problem.bf16);
  const auto y_tag = activation_tag(y_block, problem.out_channels, problem.bf16);
  if (!x_tag || !y_tag) return {};
  const auto floats = Memory::data_type::f32;
  const auto type = problem.bf16 ? Memory::data_type::bf16 : floats;
  const std::int64_t group_in = problem.in_channels / problem.geometry.groups,
                     group_out = problem.out_channels / problem.geometry.groups;
  const Memory::dims weight_dims = problem.geometry.groups == 1
                                       ? Memory::dims{problem.out_channels, problem.in_channels,
                                                      problem.kernel_height, problem.kernel_width}
                                       : Memory::dims{problem.geometry.groups, group_out, group_in,
                                                      problem.kernel_height, problem.kernel_width};
  const Memory::desc x({problem.images, problem.in_channels, problem.height, problem.width}, type, *x_tag);
  const Memory::desc y({problem.images, problem.out_channels, problem.out_height, problem.out_width}, type,
                       *y_tag);
  const Memory::desc weight(weight_dims, type, Memory::format_tag::any);
  const Memory::desc gradient(weight_dims, floats, Memory::format_tag::any);
  const Memory::desc bias =
      problem.bias ? Memory::desc({problem.out_channels}, floats, Memory::format_tag::x) : Memory::desc();
  const auto pair = [](const ops::HeightWidth& of, int less = 0) {
    return Memory::dims{of.height - less, of.width - less};
  };
  const Memory::dims strides = pair(problem.geometry.stride), padding = pair(problem.geometry.padding),
                     dilates = pair(problem.geometry.dilation, 1);  // oneDNN counts the places between
  const auto algorithm = dnnl::algorithm::convolution_direct;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  Attempt made;
  made.x_block = x_block;
  made.y_block = y_block;
  const auto keep = [&](const auto& desc, const auto& primitive) {
    made.primitive = primitive;
    made.implementation = desc.impl_info_str();
    made.scratchpad = desc.scratchpad_desc();
  };
  const dnnl::convolution_forward::primitive_desc forward(
      dnnl::convolution_forward::desc(dnnl::prop_kind::forward_training, algorithm, x, weight, bias, y,
                                      strides, dilates, padding, padding),
      attributes, engine, true);
  if (!forward) return {};
  made.x = x;
  made.y = y;
  made.bias = bias;
  if (problem.pass == ConvolutionPass::forward) {
    made.weight = forward.weights_desc();
    keep(forward, dnnl::convolution_forward(forward));
  } else if (problem.pass == ConvolutionPass::backward_input) {
    const dnnl::convolution_backward_data::primitive_desc backward(
        dnnl::convolution_backward_data::desc(algorithm, x, weight, y, strides, dilates, padding, padding),
        attributes, engine, forward, true);
    if (!backward) return {};
    made.weight = backward.weights_desc();
    keep(backward, dnnl::convolution_backward_data(backward));
  } else {
    const dnnl::convolution_backward_weights::primitive_desc backward(
        dnnl::convolution_backward_weights::desc(algorithm, x, gradient, y, strides, dilates, padding,
                                                 padding),
        attributes, engine, forward, true);
    if (!backward) return {};
    made.weight = backward.diff_weights_desc();
    keep(backward, dnnl::convolution_backward_weights(backward));
  }
  return made;
}

ConvolutionPlan::Attempt ConvolutionPlan::best_attempt(const ConvolutionProblem& problem,
                                                       const dnnl::engine& engine, int threads) {
  if (problem.bf16) {
    const Attempt made =
        attempt(problem, engine, static_cast<int>(problem.x_block), static_cast<int>(problem.y_block));
    return made && is_direct(made.implementation) ? made : Attempt{};
  }
  const int native = native_channel_block();
  const std::array<int, 2> given{static_cast<int>(problem.x_block), static_cast<int>(problem.y_block)};
  std::array<std::array<int, 2>, 3> block_pairs{{given, {native, native}, {1, native}}};
  if (problem.x_block == 1 && problem.in_channels < native) std::swap(block_pairs[1], block_pairs[2]);
  for (const auto& [x_block, y_block] : block_pairs) {
    const Attempt made = attempt(problem, engine, x_block, y_block);
    if (made && is_direct(made.implementation)) return made;
  }
  // Groups of few channels end here.
  ConvolutionProblem part = problem;
  if (threads > 1 && problem.pass != ConvolutionPass::backward_weight) part.images = 1;
  return attempt(part, engine, 1, 1);
}

ConvolutionPlan::ConvolutionPlan(const ConvolutionProblem& problem, const dnnl::engine& engine, int threads)
    : pass_(problem.pass), bias_(problem.bias) {
  const Attempt best = best_attempt(problem, engine, threads);
  if (!best && problem.bf16) return;
  if (!best) {
    throw FailureError("oneDNN has no convolution of {} channels to {} in {} groups", problem.in_channels,
                       problem.out_channels, problem.geometry.groups);
  }
  x_block_ = best.x_block;
  y_block_ = best.y_block;
  implementation_ = best.implementation;
  runs_ = problem.images / best.x.dims()[0];
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

  const Memory::desc plain(
      best.weight.dims(), best.weight.data_type(),
      problem.geometry.groups == 1 ? Memory::format_tag::oihw : Memory::format_tag::goihw);
  if (best.weight == plain) return;
  packed_floats_ = floats_of(best.weight);
  const Memory::desc& from = weight_gradient ? best.weight : plain;
  const Memory::desc& to = weight_gradient ? plain : best.weight;
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

std::size_t ConvolutionCache::Hash::operator()(const ConvolutionProblem& p) const noexcept {
  const auto& [stride, padding, groups, dilation] = p.geometry;
  return hash_of(p.pass, p.images, p.in_channels, p.height, p.width, p.out_channels, p.kernel_height,
                 p.kernel_width, stride.height, stride.width, padding.height, padding.width, groups,
                 dilation.height, dilation.width, p.x_block, p.y_block, p.bias, p.bf16);
}

ConvolutionPlan& ConvolutionCache::plan(const ConvolutionProblem& problem, const dnnl::engine& engine,
                                        int threads) {
  const auto found = plans.find(problem);
  if (found != plans.end()) return *found->second;
  try {
    return *plans.emplace(problem, std::make_unique<ConvolutionPlan>(problem, engine, threads)).first->second;
  } catch (const dnnl::error& error) {
    throw FailureError("oneDNN cannot prepare a convolution of {} channels to {}: {}", problem.in_channels,
                       problem.out_channels, error.what());
  }
}

}  // namespace lockstep::kernels
