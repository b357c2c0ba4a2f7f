#include "lockstep/nn/init.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/random.h"

namespace lockstep::nn {

void initialize(Param& param, const Init& init, std::uint64_t seed) {
  float* const values = param.value.data<float>();
  if (!values) return;  // a meta tensor
  const std::int64_t count = param.value.numel();
  if (init.kind == Init::Kind::constant) {
    std::fill_n(values, count, init.scale);
    return;
  }
  const Random random({.seed = seed, .purpose = purpose_of("init:" + param.name)});
  if (init.kind == Init::Kind::normal) {
    for (std::int64_t i = 0; i < count; ++i)
      values[i] = init.scale * random.normal(static_cast<std::uint64_t>(i));
    return;
  }
  for (std::int64_t i = 0; i < count; i += 4) {  // four elements share a block: random.uniform(i ...)
    const auto words = random.block(static_cast<std::uint64_t>(i) / 4);
    for (std::int64_t j = i; j < std::min(count, i + 4); ++j)
      values[j] = init.scale * (2 * Random::to_uniform(words[static_cast<std::size_t>(j - i)]) - 1);
  }
}

Init fan_in_uniform(std::int64_t fan_in) {
  return Init::uniform(fan_in > 0 ? 1 / std::sqrt(static_cast<float>(fan_in)) : 0);
}

}  // namespace lockstep::nn
