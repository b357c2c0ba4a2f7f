// Parameter groups: learning rate and weight decay by name pattern and by shape.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/autograd/param.h"

namespace lockstep::optim {

/// Which parameters weight decay reaches. Biases and norm scales are one-dimensional.
enum class Decay {
  matrices,  ///< those of two or more dimensions
  all,
};

/// "matrices", "all". Throws UsageError on another name.
Decay decay_named(std::string_view name);

/// Factors on the learning rate and the weight decay of the parameters whose whole name matches `pattern`
/// ('*': any run of characters, '?': one).
struct ParamGroup {
  std::string pattern = {};
  double lr_factor = 1;
  double decay_factor = 1;
};

/// What the groups and the decay rule come to for one parameter.
struct ParamFactors {
  double lr = 1;
  double decay = 1;  ///< 0: no weight decay
};

/// Factors of each parameter, in the order given. The first group that matches a name counts. Throws
/// UsageError naming a group that no parameter falls into, or whose factors are negative or not finite.
std::vector<ParamFactors> factors_of(std::span<Param* const> params, Decay decay,
                                     std::span<const ParamGroup> groups);

}  // namespace lockstep::optim
