#include "lockstep/ops/random.h"

#include <array>

#include "lockstep/ops/check.h"

namespace lockstep::ops {

void Dropout::check() const {
  if (!(p >= 0.0f && p < 1.0f)) throw UsageError("dropout: p = {} is not in [0, 1)", p);
  require_alike(name, "y", y, x);
}

void Draw::check() const {
  static constexpr std::array types{DType::float32, DType::int64, DType::uint8, DType::int64};
  const DType needed = types[static_cast<std::size_t>(distribution)];
  if (y.dtype() != needed)
    throw UsageError("draw: y is {}, but these numbers are {}", to_string(y.dtype()), to_string(needed));
  if (distribution == Distribution::integer && !(parameter >= 1 && parameter < 0x1p32))
    throw UsageError("draw: integers in [0, {}): the bound must be from 1 to 2^32 - 1", parameter);
  if (distribution == Distribution::weighted && (!sums || sums.numel() == 0))
    throw UsageError("draw: weighted numbers need the sums of the weights");
}

}  // namespace lockstep::ops
