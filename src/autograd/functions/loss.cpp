// Losses: sums with the weight that divides them.
#include "autograd/functions/support.h"

namespace lockstep {
namespace {

Tensor scalar(kernels::Backend& backend, double value) {
  const Tensor tensor = backend.empty({});
  backend.fill(tensor, static_cast<float>(value));
  return tensor;
}

}  // namespace

void backward(const Loss& loss, float factor) {
  if (!loss.sum.needs_gradient()) return;
  Tape& tape = loss.sum.tape();
  tape.backward(loss.sum, scalar(tape.backend(), factor));
}

Loss cross_entropy(const Var& given, const Tensor& targets, const kernels::CrossEntropy& options) {
  const Var logits = plain(given);
  if (logits.shape().rank() < 1 || as_rows(logits.value()).size(0) != targets.numel())
    throw UsageError("cross_entropy: logits of shape {} need one target per row, not targets of shape {}",
                     to_string(logits.shape()), to_string(targets.shape()));
  Tape& tape = logits.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor target_rows = targets.reshape({targets.numel()});
  const Tensor log_sum_exp = backend.empty({targets.numel()});
  const kernels::WeightedSum total =
      backend.cross_entropy(as_rows(logits.value()), target_rows, options, log_sum_exp);
  const Var sum =
      tape.record(scalar(backend, total.sum), {&logits},
                  [logits, target_rows, options, log_sum_exp](Tape& t, const Tensor& dy) {
                    give_new(t, logits, [&](const Tensor& dlogits) {
                      t.backend().cross_entropy_backward(as_rows(logits.value()), target_rows, options,
                                                         log_sum_exp, *dy.data<float>(), as_rows(dlogits));
                    });
                  });
  return {sum, total};
}

Loss mse(const Var& given, const Tensor& target) {
  const Var x = plain(given);
  if (!(x.shape() == target.shape()))
    throw UsageError("mse: the input has shape {}, the target {}", to_string(x.shape()),
                     to_string(target.shape()));
  Tape& tape = x.tape();
  const kernels::WeightedSum total = tape.backend().squared_error(x.value(), target);
  const Var sum =
      tape.record(scalar(tape.backend(), total.sum), {&x}, [x, target](Tape& t, const Tensor& dy) {
        give_new(t, x, [&](const Tensor& dx) {
          t.backend().squared_error_backward(x.value(), target, *dy.data<float>(), dx);
        });
      });
  return {sum, total};
}

}  // namespace lockstep
