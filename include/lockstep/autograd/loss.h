// Loss: a sum and the count that divides it, so that the mean over the global batch is a true mean at any
// number of ranks.
#pragma once

#include "lockstep/autograd/tape.h"
#include "lockstep/ops/loss.h"

namespace lockstep {

/// What a pass minimises.
struct Loss {
  Var sum;  ///< scalar float32, one for each shard of the pass (Tape::of_each_shard): backward starts here
  /// float64 [2] on the tape's device, for each shard: the same sum, and the count (samples, tokens or
  /// elements). Absent: zeros.
  Tensor total;

  /// Reads the total, of all shards; waits for the device.
  ops::CountedSum read() const;
};

/// The loss of a sum over samples (a scalar, for each shard of the pass) and the number of samples, which
/// divides it.
Loss loss_of(const Var& sum, double count);
/// The loss whose terms are `losses`, one number for each sample: [N]. A pass of several shards
/// (ddp::Options::shards_at_once) needs it where loss_of(sum(losses), N) is the same for one.
Loss loss_of_samples(const Var& losses);
/// Two losses over the same samples, as in `ce + 0.1f * aux`: sums are added, the count stays. UsageError
/// that names both counts unless they are equal (on a GPU at the next read). A Loss{} adds nothing.
Loss operator+(const Loss& a, const Loss& b);
/// The sum times a factor; the count stays.
Loss operator*(float factor, const Loss& loss);
inline Loss operator*(const Loss& loss, float factor) { return factor * loss; }
/// The loss over two sample sets: adds sums and counts.
Loss append(const Loss& a, const Loss& b);

/// Runs the backward from a loss: gradients of factor * sum.
void backward(const Loss& loss, float factor = 1);

}  // namespace lockstep
