// What the blocks of gpt and vit have in common.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/recompute.h"

namespace lockstep::models {

/// The residual stream x + branch, which the next layer norm adds. An absent branch (Var{}) counts as zero.
struct Residual {
  Var x, branch;  ///< the stream; the branch to add to it
};

/// block(input). With `recompute` only the stream is kept until the backward, and the branch is therefore
/// added at once.
template <class Block>
Residual run_block(Block& block, const Residual& input, bool recompute) {
  if (!recompute) return block(input);
  const auto sum = [&block, x = input.x] {
    const Residual after = block(Residual{x, {}});
    return after.x + after.branch;
  };
  return {recomputed(input.x.tape(), sum), {}};
}

}  // namespace lockstep::models
