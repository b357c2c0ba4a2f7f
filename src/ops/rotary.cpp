#include "lockstep/ops/rotary.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {

void Rotary::check() const {
  if (x.shape().rank() != 4 || x.size(3) % 2 != 0)
    throw UsageError("{}: x has shape {}, not [batch, heads, time, width] with an even width", name,
                     to_string(x.shape()));
  if (!(base > 0)) throw UsageError("{}: the base is {}; it must be positive", name, base);
  require_shape(name, "y", y, x.shape());
}

}  // namespace lockstep::ops
