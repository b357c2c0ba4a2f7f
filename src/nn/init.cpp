#include "lockstep/nn/init.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/random.h"

namespace lockstep::nn {

void initialize(Param& param, const Init& init, std::uint64_t seed) {
  float* const values = param.value.data<float>();
  const std::int64_t count = param.value.numel();
  if (init.kind == Init::Kind::constant) {
    std::fill_n(values, count, init.scale);
    return;
  }
  const Random random({.seed = seed, .purpose = purpose_of("init:" + param.name)});
  for (std::int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<std::uint64_t>(i);
    values[i] = init.kind == Init::Kind::uniform ? init.scale * (2 * random.uniform(element) - 1)
                                                 : init.scale * random.normal(element);
  }
}

Init fan_in_uniform(std::int64_t fan_in) {
  return Init::uniform(fan_in > 0 ? 1 / std::sqrt(static_cast<float>(fan_in)) : 0);
}

}  // namespace lockstep::nn
