#include "kernels/cpu/native_bfloat16.h"

#include <string_view>

#include "kernels/cpu/onednn.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

using Memory = dnnl::memory;
using Tag = Memory::format_tag;

bool is_fast(const char* implementation) { return !std::string_view(implementation).starts_with("ref"); }

}  // namespace

template <class PrimitiveDesc, class Primitive>
void DensePlan::keep(const PrimitiveDesc& desc, const Primitive& primitive) {
  scratchpad_bytes_ = static_cast<std::int64_t>(desc.scratchpad_desc().get_size());
  product_ = BoundPrimitive(primitive);
}

void DensePlan::pack(const Memory::desc& plain, const Memory::desc& packed, const dnnl::engine& engine) {
  if (packed == plain) return;
  packed_bytes_ = static_cast<std::int64_t>(packed.get_size());
  packing_ = BoundPrimitive(dnnl::reorder(dnnl::reorder::primitive_desc(engine, plain, engine, packed)));
  packing_.add_argument(DNNL_ARG_FROM, plain, engine);
  packing_.add_argument(DNNL_ARG_TO, packed, engine);
}

DensePlan::DensePlan(const DenseProblem& problem, const dnnl::engine& engine) : bias_(problem.bias) {
  const auto [pass, rows, in, out, has_bias, accumulate, bf16] = problem;
  const auto floats = Memory::data_type::f32, type = bf16 ? Memory::data_type::bf16 : floats;
  const Memory::desc inner({rows, in}, type, Tag::ab), outer({rows, out}, type, Tag::ab),
      weight({out, in}, type, Tag::ab), any({out, in}, type, Tag::any),
      bias = has_bias ? Memory::desc({out}, floats, Tag::x) : Memory::desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  Memory::desc used_weight = weight, scratchpad;

  if (pass == DensePass::forward) {
    const auto desc = describe<dnnl::inner_product_forward>(
        engine, attributes, std::tuple(dnnl::prop_kind::forward_inference, inner, any, bias, outer));
    if (!desc || !is_fast(desc.impl_info_str())) return;
    keep(desc, dnnl::inner_product_forward(desc));
    used_weight = desc.weights_desc();
    scratchpad = desc.scratchpad_desc();
  } else if (pass == DensePass::backward_input) {
    const auto desc = describe<dnnl::matmul>(engine, attributes, std::tuple(outer, any, inner));
    if (!desc || !is_fast(desc.impl_info_str())) return;
    keep(desc, dnnl::matmul(desc));
    used_weight = desc.weights_desc();
    scratchpad = desc.scratchpad_desc();
  } else {
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const Memory::desc transposed({out, rows}, type, Tag::ba);
    used_weight = Memory::desc({out, in}, floats, Tag::ab);
    const auto desc = describe<dnnl::matmul>(engine, attributes, std::tuple(transposed, inner, used_weight));
    if (!desc || !is_fast(desc.impl_info_str())) return;
    keep(desc, dnnl::matmul(desc));
    scratchpad = desc.scratchpad_desc();
    product_.add_argument(DNNL_ARG_WEIGHTS, inner, engine);
    product_.add_argument(DNNL_ARG_DST, used_weight, engine);
    product_.add_argument(DNNL_ARG_SRC, transposed, engine);
    product_.add_argument(DNNL_ARG_SCRATCHPAD, scratchpad, engine);
    return;
  }
  const bool forward = pass == DensePass::forward;
  product_.add_argument(forward ? DNNL_ARG_SRC : DNNL_ARG_DST, inner, engine);
  product_.add_argument(DNNL_ARG_WEIGHTS, used_weight, engine);
  product_.add_argument(forward ? DNNL_ARG_DST : DNNL_ARG_SRC, outer, engine);
  product_.add_argument(DNNL_ARG_SCRATCHPAD, scratchpad, engine);
  if (has_bias) product_.add_argument(DNNL_ARG_BIAS, bias, engine);
  pack(weight, used_weight, engine);
}

void DensePlan::run(const dnnl::stream& stream, const void* inner, const void* weight, const float* bias,
                    const void* outer, void* packed, void* scratchpad) {
  if (packing_) {
    packing_.bind(0, weight);
    packing_.bind(1, packed);
    packing_.run(stream);
  }
  product_.bind(0, inner);
  product_.bind(1, packing_ ? packed : weight);
  product_.bind(2, outer);
  product_.bind(3, scratchpad);
  if (bias_) product_.bind(4, bias);
  product_.run(stream);
}

std::size_t DenseProblem::hash() const { return hash_of(pass, rows, in, out, bias, accumulate, bf16); }

DensePlan& DenseCache::plan(const DenseProblem& problem, const dnnl::engine& engine) {
  return *get(problem, [&] {
    try {
      return std::make_unique<DensePlan>(problem, engine);
    } catch (const dnnl::error& error) {
      throw FailureError("oneDNN cannot prepare a product of {} rows of {} by {}: {}", problem.rows,
                         problem.in, problem.out, error.what());
    }
  });
}

namespace {

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DType::bfloat16; }

}  // namespace

NativeBfloat16::NativeBfloat16(CpuBackend& backend)
    : backend_(backend), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

Tensor NativeBfloat16::bytes(std::int64_t count) { return backend_.empty({count}, DType::uint8); }

/// The weight itself if it is bf16.
Tensor NativeBfloat16::rounded(const Tensor& weight) {
  if (weight.dtype() == DType::bfloat16) return weight;
  const Tensor copy = backend_.empty(weight.shape(), DType::bfloat16);
  backend_.copy(weight, copy);
  return copy;
}

bool NativeBfloat16::run(const DenseProblem& problem, const Tensor& inner, const Tensor& weight,
                         const Tensor& bias, const Tensor& outer) {
  if (problem.rows == 0 || problem.in == 0 || problem.out == 0) return false;
  DensePlan& plan = dense_.plan(problem, engine_);
  if (!plan.usable()) return false;
  const Tensor packed = bytes(plan.packed_bytes()), scratchpad = bytes(plan.scratchpad_bytes());
  plan.run(stream_, inner.raw(), weight.raw(), bias ? bias.data<float>() : nullptr, outer.raw(), packed.raw(),
           scratchpad.raw());
  return true;
}

/// Runs a single product as a dense layer's: of [rows, in], [out, in] and [rows, out], any two give the
/// third.
bool NativeBfloat16::run(const ops::MatMul& op) {
  const ops::MatMulSizes sizes = op.sizes();
  const bool of_rows = op.transposed == ops::Transposed::a;
  if (!is_bf16(op.a) || is_bf16(op.y) == of_rows || sizes.each.count() * sizes.summed.count() != 1 ||
      (op.accumulate && !of_rows))
    return false;
  if (op.bias && (is_bf16(op.bias) || op.transposed != ops::Transposed::b)) return false;
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k;
  const Tensor b = rounded(op.b);
  switch (op.transposed) {
    case ops::Transposed::none:
      return run({.pass = DensePass::backward_input, .rows = m, .in = n, .out = k, .bf16 = true}, op.y, b, {},
                 op.a);
    case ops::Transposed::b:
      return run({.pass = DensePass::forward,
                  .rows = m,
                  .in = k,
                  .out = n,
                  .bias = static_cast<bool>(op.bias),
                  .bf16 = true},
                 op.a, b, op.bias, op.y);
    case ops::Transposed::a:
      return run({.pass = DensePass::backward_weight,
                  .rows = k,
                  .in = n,
                  .out = m,
                  .accumulate = op.accumulate,
                  .bf16 = true},
                 b, op.y, {}, op.a);
  }
  return false;
}

bool NativeBfloat16::run(ConvolutionProblem problem, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, const Tensor& y) {
  if (problem.sizes.images == 0) return false;
  problem.bf16 = true;
  ConvolutionPlan& plan = convolutions_.plan(problem, engine_, backend_.threads());
  if (!plan.usable()) return false;
  const Tensor packed = backend_.empty({plan.packed_floats()}, DType::float32),
               scratchpad = backend_.empty({plan.scratchpad_floats()}, DType::float32);
  plan.run(stream_, x.raw(), weight.raw(), bias ? bias.data<float>() : nullptr, y.raw(), packed.data<float>(),
           scratchpad.data<float>());
  return true;
}

bool NativeBfloat16::run(const ops::Convolution& op) {
  return is_bf16(op.x) && run(convolution_problem(op), op.x, rounded(op.weight), op.bias, op.y);
}

bool NativeBfloat16::run(const ops::ConvolutionBackwardInput& op) {
  return is_bf16(op.dy) && run(convolution_problem(op), op.dx, rounded(op.weight), {}, op.dy);
}

bool NativeBfloat16::run(const ops::ConvolutionBackwardWeight& op) {
  if (!is_bf16(op.x)) return false;
  const ConvolutionProblem problem = convolution_problem(op);
  if (!op.accumulate) return run(problem, op.x, op.dweight, {}, op.dy);
  const Tensor gradient = backend_.empty(op.dweight.shape());
  if (!run(problem, op.x, gradient, {}, op.dy)) return false;
  backend_.run(ops::Accumulate{op.dweight, gradient});
  return true;
}

}  // namespace lockstep::kernels
