#include "lockstep/optim/groups.h"

#include <cmath>
#include <cstddef>

#include "lockstep/base/error.h"
#include "lockstep/base/names.h"

namespace lockstep::optim {
namespace {

void check_factor(double factor, std::string_view which, const ParamGroup& group) {
  if (!std::isfinite(factor) || factor < 0)
    throw UsageError("parameter group '{}': {} {} is not a finite number of at least 0", group.pattern, which,
                     factor);
}

}  // namespace

Decay decay_named(std::string_view name) {
  if (name == "matrices") return Decay::matrices;
  if (name == "all") return Decay::all;
  throw UsageError("'{}' is no decay rule: use matrices or all", name);
}

std::vector<ParamFactors> factors_of(std::span<Param* const> params, Decay decay,
                                     std::span<const ParamGroup> groups) {
  for (const ParamGroup& group : groups) {
    check_factor(group.lr_factor, "learning-rate factor", group);
    check_factor(group.decay_factor, "decay factor", group);
  }
  std::vector<bool> taken(groups.size(), false);
  std::vector<ParamFactors> factors;
  factors.reserve(params.size());
  for (const Param* const param : params) {
    const bool decays = decay == Decay::all || param->value.shape().rank() >= 2;
    ParamFactors found{.lr = 1, .decay = decays ? 1.0 : 0.0};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!matches_pattern(groups[g].pattern, param->name)) continue;
      taken[g] = true;
      found.lr = groups[g].lr_factor;
      found.decay *= groups[g].decay_factor;
      break;
    }
    factors.push_back(found);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (taken[g]) continue;
    for (const Param* const param : params)
      if (matches_pattern(groups[g].pattern, param->name))
        throw UsageError(
            "parameter group '{}' has no effect: earlier groups take every parameter it matches ('{}' is "
            "one)",
            groups[g].pattern, param->name);
    throw UsageError("parameter group '{}' matches no parameter of the model", groups[g].pattern);
  }
  return factors;
}

}  // namespace lockstep::optim
