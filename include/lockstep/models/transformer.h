// What the blocks of gpt and vit have in common.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/recompute.h"

namespace lockstep::models {

/// The residual stream x + branch, which the next layer norm adds. An absent branch (Var{}) counts as zero.
struct Residual {
  Var x, branch;  ///< the stream; the branch to add to it
};

/// block(input, more...). With `recompute` only the stream is kept until the backward, and the branch is
/// therefore added at once.
template <class Block, class... More>
Residual run_block(Block& block, const Residual& input, bool recompute, const More&... more) {
  if (!recompute) return block(input, more...);
  const auto sum = [&block, x = input.x, more...] {
    const Residual after = block(Residual{x, {}}, more...);
    return after.x + after.branch;
  };
  return {recomputed(input.x.tape(), sum), {}};
}

}  // namespace lockstep::models
