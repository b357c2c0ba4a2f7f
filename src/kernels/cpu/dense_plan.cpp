#include "kernels/cpu/dense_plan.h"

#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::kernels {
namespace {

using Memory = dnnl::memory;
using Tag = Memory::format_tag;

bool is_fast(const char* implementation) { return !std::string_view(implementation).starts_with("ref"); }

}  // namespace

template <class PrimitiveDesc, class Primitive>
void DensePlan::keep(const PrimitiveDesc& desc, const Primitive& primitive) {
  implementation_ = desc.impl_info_str();
  scratchpad_bytes_ = static_cast<std::int64_t>(desc.scratchpad_desc().get_size());
  product_ = BoundPrimitive(primitive);
}

void DensePlan::pack(const Memory::desc& plain, const Memory::desc& wanted, const dnnl::engine& engine) {
  if (wanted == plain) return;
  packed_bytes_ = static_cast<std::int64_t>(wanted.get_size());
  packing_ = BoundPrimitive(dnnl::reorder(dnnl::reorder::primitive_desc(engine, plain, engine, wanted)));
  packing_.add_argument(DNNL_ARG_FROM, plain, engine);
  packing_.add_argument(DNNL_ARG_TO, wanted, engine);
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
    const dnnl::inner_product_forward::primitive_desc desc(
        dnnl::inner_product_forward::desc(dnnl::prop_kind::forward_inference, inner, any, bias, outer),
        attributes, engine, true);
    if (!desc || !is_fast(desc.impl_info_str())) return;
    keep(desc, dnnl::inner_product_forward(desc));
    used_weight = desc.weights_desc();
    scratchpad = desc.scratchpad_desc();
  } else if (pass == DensePass::backward_input) {
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(outer, any, inner), attributes, engine, true);
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
    const Memory::desc turned({out, rows}, type, Tag::ba);
    used_weight = Memory::desc({out, in}, floats, Tag::ab);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(turned, inner, used_weight), attributes,
                                            engine, true);
    if (!desc || !is_fast(desc.impl_info_str())) return;
    keep(desc, dnnl::matmul(desc));
    scratchpad = desc.scratchpad_desc();
    product_.add_argument(DNNL_ARG_WEIGHTS, inner, engine);
    product_.add_argument(DNNL_ARG_DST, used_weight, engine);
    product_.add_argument(DNNL_ARG_SRC, turned, engine);
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

std::size_t DenseCache::Hash::operator()(const DenseProblem& p) const noexcept {
  return hash_of(p.pass, p.rows, p.in, p.out, p.bias, p.accumulate, p.bf16);
}

DensePlan& DenseCache::plan(const DenseProblem& problem, const dnnl::engine& engine) {
  const auto found = plans.find(problem);
  if (found != plans.end()) return *found->second;
  try {
    return *plans.emplace(problem, std::make_unique<DensePlan>(problem, engine)).first->second;
  } catch (const dnnl::error& error) {
    throw FailureError("oneDNN cannot prepare a product of {} rows of {} by {}: {}", problem.rows, problem.in,
                       problem.out, error.what());
  }
}

}  // namespace lockstep::kernels
