#include "lockstep/nn/norm.h"

namespace lockstep::nn {

LayerNorm::LayerNorm(Module& parent, std::string_view name, std::int64_t width, float eps)
    : Layer(parent, name),
      weight(*this, "weight", {width}, Init::constant(1)),
      bias(*this, "bias", {width}, Init::constant(0)),
      eps_(eps) {}

Var LayerNorm::forward(const Var& x) { return layer_norm(x, x.tape().use(weight), x.tape().use(bias), eps_); }

SumAndNorm LayerNorm::forward(const Var& x, const Var& branch) {
  if (!branch.value()) return {x, forward(x)};
  return add_layer_norm(x, branch, x.tape().use(weight), x.tape().use(bias), eps_);
}

RMSNorm::RMSNorm(Module& parent, std::string_view name, std::int64_t width, float eps)
    : Layer(parent, name), eps_(eps), weight(*this, "weight", {width}, Init::constant(1)) {}

Var RMSNorm::forward(const Var& x) { return rms_norm(x, x.tape().use(weight), eps_); }

GroupNorm::GroupNorm(Module& parent, std::string_view name, int groups, std::int64_t channels, float eps)
    : Layer(parent, name),
      groups_(groups),
      eps_(eps),
      weight(*this, "weight", {channels}, Init::constant(1)),
      bias(*this, "bias", {channels}, Init::constant(0)) {
  if (groups < 1 || channels % groups != 0)
    throw UsageError("{}: {} groups do not divide {} channels", path(), groups, channels);
}

Var GroupNorm::forward(const Var& x) {
  return group_norm(x, groups_, x.tape().use(weight), x.tape().use(bias), eps_);
}

}  // namespace lockstep::nn
