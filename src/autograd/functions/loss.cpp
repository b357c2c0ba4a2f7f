// Losses: sums with the weight that divides them.
#include "lockstep/ops/loss.h"
#include "autograd/functions/support.h"

namespace lockstep {
namespace {

Tensor new_total(kernels::Backend& backend) { return backend.empty({2}, DType::float64); }

/// The sum of a total, as a backward's start.
Tensor scalar_sum(kernels::Backend& backend, const Tensor& total) {
  const Tensor sum = backend.empty({});
  backend.copy(total.rows(0, 1).reshape({}), sum);
  return sum;
}

}  // namespace

ops::WeightedSum Loss::read() const {
  if (!total) return {};
  double values[2];
  sum.tape().backend().copy(total, Tensor::view(values, {2}, DType::float64));
  return {values[0], values[1]};
}

Loss operator+(const Loss& a, const Loss& b) {
  if (!a.total || !b.total) return {a.sum + b.sum, a.total ? a.total : b.total};
  kernels::Backend& backend = a.sum.tape().backend();
  const Tensor total = new_total(backend);
  backend.copy(a.total, total);
  backend.run(ops::Accumulate{total, b.total});
  return {a.sum + b.sum, total};
}

void backward(const Loss& loss, float factor) {
  if (!loss.sum.needs_gradient()) return;
  Tape& tape = loss.sum.tape();
  const Tensor start = tape.backend().empty({});
  tape.backend().fill(start, factor);
  tape.backward(loss.sum, start);
}

Loss cross_entropy(const Var& given, const Tensor& targets, const ops::CrossEntropyOptions& options) {
  const Var logits = plain(given);
  if (logits.shape().rank() < 1 || as_rows(logits.value()).size(0) != targets.numel())
    throw UsageError("cross_entropy: logits of shape {} need one target per row, not targets of shape {}",
                     to_string(logits.shape()), to_string(targets.shape()));
  Tape& tape = logits.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor target_rows = targets.reshape({targets.numel()});
  const Tensor log_sum_exp = backend.empty({targets.numel()});
  const Tensor total = new_total(backend);
  backend.run(ops::CrossEntropy{as_rows(logits.value()), target_rows, options, log_sum_exp, total});
  const Var sum =
      tape.record(scalar_sum(backend, total), {&logits},
                  [logits, target_rows, options, log_sum_exp](Tape& t, const Tensor& dy) {
                    if (!logits.needs_gradient()) return;
                    // The largest activation of a language model: nobody else's logits become their gradient.
                    const bool ours = logits.value().is_only_handle();
                    const Tensor dlogits = ours ? logits.value() : empty_like(t.backend(), logits.value());
                    t.backend().run(ops::CrossEntropyBackward{as_rows(logits.value()), target_rows, options,
                                                              log_sum_exp, dy, as_rows(dlogits)});
                    t.give(logits, dlogits);
                  });
  return {sum, total};
}

Loss mse(const Var& given, const Tensor& target) {
  const Var x = plain(given);
  if (!(x.shape() == target.shape()))
    throw UsageError("mse: the input has shape {}, the target {}", to_string(x.shape()),
                     to_string(target.shape()));
  Tape& tape = x.tape();
  const Tensor total = new_total(tape.backend());
  Tensor wanted = target;
  if (target.dtype() != x.value().dtype()) {
    wanted = tape.backend().empty(target.shape(), x.value().dtype());
    tape.backend().copy(target, wanted);
  }
  tape.backend().run(ops::squared_error(x.value(), wanted, total));
  const Var sum =
      tape.record(scalar_sum(tape.backend(), total), {&x}, [x, wanted](Tape& t, const Tensor& dy) {
        give_new(t, x, [&](const Tensor& dx) {
          t.backend().run(ops::squared_error_backward(x.value(), wanted, dy, dx));
        });
      });
  return {sum, total};
}

}  // namespace lockstep
