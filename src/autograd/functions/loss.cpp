// Losses: sums, with the count that divides them.
#include "lockstep/ops/loss.h"

#include <vector>

#include "autograd/functions/support.h"
#include "lockstep/ops/gather.h"
#include "ops/matmul.h"
#include "ops/reduction.h"
#include "ops/strided_copy.h"

namespace lockstep {
namespace {

Tensor new_total(Tape& tape) { return tape.backend().empty(tape.of_each_shard({2}), DType::float64); }

/// The sum of a total in float32, a scalar for each shard, from which backward starts.
Tensor sum_of(Tape& tape, const Tensor& total) {
  kernels::Backend& backend = tape.backend();
  const Tensor sum = backend.empty(tape.of_each_shard({}));
  if (total.shape().rank() == 1) {
    backend.copy(total.rows(0, 1).reshape({}), sum);
  } else {
    const ops::StridedView both(backend.in_type(total, DType::float32));
    backend.run(ops::StridedCopy{both.narrowed(1, 0, 1), ops::StridedView(sum.reshape({total.size(0), 1}))});
  }
  return sum;
}

/// `factor`, a scalar for each shard, so that it broadcasts to rows of this shape.
Tensor of_rows(const Tape& tape, const Tensor& factor, const Shape& shape) {
  const std::int64_t shards = tape.pass().shards;
  if (shards == 1) return factor;
  Shape each{shape[0]};
  while (each.rank() < shape.rank()) each.append(1);
  const Tensor all = tape.backend().empty(each);
  const Shape by_shard{shards, each[0] / shards};
  tape.backend().run(ops::StridedCopy{ops::StridedView(factor.reshape({shards, 1})).expanded(by_shard),
                                      ops::StridedView(all.reshape(by_shard))});
  return all;
}

/// The sum of two losses; a Loss{} adds nothing. join(tape, total, a's total, b's total) writes the total.
template <class Join>
Loss joined(const Loss& a, const Loss& b, const Join& join) {
  if (!a.sum.value()) return b;
  if (!b.sum.value()) return a;
  if (!a.total && !b.total) return {a.sum + b.sum, {}};
  if (!a.total || !b.total)
    throw UsageError("loss: one of two losses has a count, the other has none; use loss_of(sum, count)");
  Tape& tape = a.sum.tape();
  const Tensor total = new_total(tape);
  join(tape, total, a.total, b.total);
  return {a.sum + b.sum, total};
}

/// [N, 1, ...]: one number for each sample of x.
Shape shape_of_samples(const Shape& x) {
  Shape shape{x[0]};
  while (shape.rank() < x.rank()) shape.append(1);
  return shape;
}

/// Sets the count of a total, of each shard, to the number of elements of x in the steps that count.
void count_steps(Tape& tape, const Tensor& lengths, const Shape& x, const Tensor& total) {
  const Tensor elements = tape.backend().empty({x[0], x[1]}), counts = new_total(tape);  // of each step
  const std::int64_t steps = elements.numel();
  tape.backend().fill(elements, steps > 0 ? static_cast<double>(x.numel() / steps) : 0);
  tape.backend().run(ops::KeepSteps{elements, lengths, 0, false, elements});
  tape.run_by_shard(ops::Reduce<ops::Itself>{{}, {elements}, counts});
  const Tensor from = counts.reshape({counts.numel()}), to = total.reshape({total.numel()});
  for (std::int64_t at = 0; at < to.numel(); at += 2)
    tape.backend().copy(from.rows(at, at + 1), to.rows(at + 1, at + 2));
}

/// The sum over the elements of loss(element, target).
template <class ElementLoss>
Loss of_elements(const char* function, const ElementLoss& loss, const Var& input, const Tensor& target,
                 const PerSample& per_sample) {
  const Var x = plain(input);
  if (!(x.shape() == target.shape()))
    throw UsageError("{}: the input has shape {}, the target {}", function, to_string(x.shape()),
                     to_string(target.shape()));
  const bool by_sample = per_sample.weights || per_sample.values || per_sample.lengths;
  if (per_sample.values && per_sample.lengths)
    throw UsageError("{}: the losses of samples are not known if lengths say which steps count", function);
  if (by_sample && x.shape().rank() == 0)
    throw UsageError("{}: a scalar has no samples, so it takes no per-sample weights or values", function);
  if (per_sample.weights && per_sample.weights.dtype() != DType::float32)
    throw UsageError("{}: the weights are {}, not float32", function, to_string(per_sample.weights.dtype()));
  if (per_sample.weights && !(per_sample.weights.shape() == Shape{x.shape()[0]}))
    throw UsageError("{}: the weights have shape {}, not [{}], one for each sample", function,
                     to_string(per_sample.weights.shape()), x.shape()[0]);
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor targets = backend.in_type(target, DType::float32), total = new_total(tape);
  const Tensor weights =
      per_sample.weights ? per_sample.weights.reshape(shape_of_samples(x.shape())) : Tensor();

  constexpr bool has_term = requires { typename ElementLoss::Term; };
  if constexpr (has_term) {
    if (!by_sample)
      tape.run_by_shard(ops::Reduce<typename ElementLoss::Term>{
          {}, {backend.in_type(x.value(), DType::float32), targets}, total});
  }
  if (by_sample || !has_term) {
    const Tensor terms = backend.empty(x.shape());
    backend.run(ops::Map<ops::LossTerm<ElementLoss>>{{loss}, {x.value(), targets}, terms});
    if (per_sample.lengths) backend.run(ops::KeepSteps{terms, per_sample.lengths, 0, false, terms, function});
    if (per_sample.values) {
      const Tensor means = backend.empty({x.shape()[0]});
      const auto count = static_cast<double>(x.shape()[0] == 0 ? 1 : x.value().numel() / x.shape()[0]);
      backend.run(
          ops::ReduceAxes<ops::Total>{terms, means.reshape(shape_of_samples(x.shape())), false, 1.0 / count});
      *per_sample.values = means;
    }
    if (weights) backend.run(ops::Map<ops::Product>{{}, {terms, weights}, terms});
    tape.run_by_shard(ops::Reduce<ops::Itself>{{}, {terms}, total});
  }
  if (per_sample.lengths) count_steps(tape, per_sample.lengths, x.shape(), total);
  const Var sum = tape.record(
      sum_of(tape, total), {&x},
      [x, targets, loss, weights, lengths = per_sample.lengths](Tape& t, const Tensor& dy) {
        add_new_gradient(t, x, [&](const Tensor& dx) {
          Tensor factor = of_rows(t, dy, x.shape());
          if (weights) {
            const Tensor of_sums = std::exchange(factor, t.backend().empty(weights.shape()));
            t.backend().run(ops::Map<ops::Product>{{}, {weights, of_sums}, factor});
          }
          t.backend().run(ops::Map<ops::LossSlope<ElementLoss>>{{loss}, {x.value(), targets, factor}, dx});
          if (lengths) t.backend().run(ops::KeepSteps{dx, lengths, 0, false, dx});
        });
      });
  return {sum, total};
}

}  // namespace

ops::CountedSum Loss::read() const {
  if (!total) return {};
  std::vector<double> values(static_cast<std::size_t>(total.numel()));
  sum.tape().backend().copy(total, Tensor::view(values.data(), total.shape(), DType::float64));
  ops::CountedSum all;
  for (std::size_t i = 0; i < values.size(); i += 2) all = {all.sum + values[i], all.count + values[i + 1]};
  return all;
}

Loss operator+(const Loss& a, const Loss& b) {
  return joined(a, b, [](Tape& tape, const Tensor& total, const Tensor& of_a, const Tensor& of_b) {
    tape.run_by_shard(ops::CombineTotals{of_a, 1, of_b, total});
  });
}

Loss append(const Loss& a, const Loss& b) {
  return joined(a, b, [](Tape& tape, const Tensor& total, const Tensor& of_a, const Tensor& of_b) {
    tape.backend().copy(of_a, total);
    tape.backend().run(ops::Accumulate{total, of_b});
  });
}

Loss loss_of(const Var& sum, double count) {
  Tape& tape = sum.tape();
  if (!(sum.shape() == tape.of_each_shard({})))
    throw UsageError("loss_of: the sum has shape {}; it must be a scalar{}", to_string(sum.shape()),
                     tape.pass().shards == 1 ? "" : " for each shard (loss_of_samples)");
  if (!(count >= 0)) throw UsageError("loss_of: the count is {}; it must be at least 0", count);
  const Tensor total = new_total(tape);
  tape.run_by_shard(ops::Reduce<ops::Itself>{{}, {sum.value()}, total, count / tape.pass().shards});
  return {sum, total};
}

Loss loss_of_samples(const Var& losses) {
  if (losses.shape().rank() != 1)
    throw UsageError("loss_of_samples: the losses have shape {}; one for each sample is needed",
                     to_string(losses.shape()));
  Tape& tape = losses.tape();
  const Tensor y = tape.backend().empty(tape.of_each_shard({}), losses.value().dtype());
  tape.run_by_shard(ops::ReduceAxes<ops::Total>{losses.value(), y});
  const Var sum = tape.record(y, {&losses}, [x = losses.without_value()](Tape& t, const Tensor& dy) {
    add_new_gradient(t, x, [&](const Tensor& dx) {
      t.backend().run(ops::Map<ops::Scaled>{{1}, {of_rows(t, dy, x.shape())}, dx});
    });
  });
  return loss_of(sum, static_cast<double>(losses.shape()[0]));
}

Loss operator*(float factor, const Loss& loss) {
  if (!loss.total) return {scale(loss.sum, factor), {}};
  Tape& tape = loss.sum.tape();
  const Tensor total = new_total(tape);
  tape.run_by_shard(ops::CombineTotals{loss.total, factor, {}, total});
  return {scale(loss.sum, factor), total};
}

void backward(const Loss& loss, float factor) {
  if (!loss.sum.needs_gradient()) return;
  Tape& tape = loss.sum.tape();
  const Tensor start = tape.backend().empty(loss.sum.shape());
  tape.backend().fill(start, factor);
  tape.backward(loss.sum, start);
}

Loss cross_entropy(Var logits, const Tensor& targets, const ops::CrossEntropyOptions& options) {
  if (logits.value().channel_block() != 1) logits = plain(logits);
  if (logits.shape().rank() < 1 || as_rows(logits.value()).size(0) != targets.numel())
    throw UsageError("cross_entropy: logits of shape {} need one target per row, not targets of shape {}",
                     to_string(logits.shape()), to_string(targets.shape()));
  Tape& tape = logits.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor target_rows = targets.reshape({targets.numel()});
  const Tensor total = new_total(tape);
  // Logits are the largest activation of a language model. If nothing else reads them, the gradient
  // overwrites them.
  if (logits.needs_gradient() && logits.value().is_only_handle()) {
    tape.run_by_shard(ops::CrossEntropyInPlace{as_rows(logits.value()), target_rows, options, total});
    const Var sum = tape.record(sum_of(tape, total), {&logits}, [logits](Tape& t, const Tensor& dy) {
      t.run_by_shard(ops::ScaleUnlessOne{logits.value(), dy});
      t.add_gradient(logits, logits.value());
    });
    return {sum, total};
  }
  const Tensor log_sum_exp = backend.empty({targets.numel()});
  tape.run_by_shard(ops::CrossEntropy{as_rows(logits.value()), target_rows, options, log_sum_exp, total});
  const Var sum = tape.record(
      sum_of(tape, total), {&logits}, [logits, target_rows, options, log_sum_exp](Tape& t, const Tensor& dy) {
        if (!logits.needs_gradient()) return;
        const bool in_place = logits.value().is_only_handle();
        const Tensor dlogits = in_place ? logits.value() : empty_like(t.backend(), logits.value());
        t.run_by_shard(ops::CrossEntropyBackward{as_rows(logits.value()), target_rows, options, log_sum_exp,
                                                 dy, as_rows(dlogits)});
        t.add_gradient(logits, dlogits);
      });
  return {sum, total};
}

Loss linear_cross_entropy(const Var& x, const Var& weight, const Tensor& targets,
                          const ops::CrossEntropyOptions& options) {
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const DType dtype = x.value().dtype();
  const std::int64_t classes = weight.shape()[0], columns = backend.fast_columns(classes, dtype);
  if (columns == classes || !weight.needs_gradient() || x.value().channel_block() != 1)
    return cross_entropy(linear(x, weight, {}), targets, options);
  const Tensor rows = as_rows(x.value());
  if (rows.size(1) != weight.shape()[1] || rows.size(0) != targets.numel())
    throw UsageError("linear_cross_entropy: an input of shape {}, weight {} and targets {} do not fit",
                     to_string(x.shape()), to_string(weight.shape()), to_string(targets.shape()));
  const Tensor padded = backend.empty({columns, rows.size(1)}, dtype),
               logits = backend.empty({rows.size(0), columns}, dtype), total = new_total(tape);
  backend.copy(weight.value(), padded.rows(0, classes));
  backend.fill(padded.rows(classes, columns), 0);
  tape.run_by_shard(ops::linear(rows, padded, {}, logits));
  tape.run_by_shard(
      ops::CrossEntropyInPlace{logits, targets.reshape({targets.numel()}), options, total, classes});
  const Var sum =
      tape.record(sum_of(tape, total), {&x, &weight},
                  [x, weight = weight.without_value(), padded, logits, classes](Tape& t, const Tensor& dy) {
                    t.run_by_shard(ops::ScaleUnlessOne{logits, dy});
                    t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
                      const Tensor all = t.backend().empty(t.of_each_shard(padded.shape()));
                      t.run_by_shard(ops::linear_backward_weight(as_rows(x.value()), logits, all));
                      const std::int64_t all_columns = padded.size(0), shards = t.pass().shards;
                      const Tensor from = all.reshape({shards * all_columns, all.size(-1)}),
                                   to = dweight.reshape({shards * classes, all.size(-1)});
                      for (std::int64_t i = 0; i < shards; ++i) {
                        const Tensor used = from.rows(i * all_columns, i * all_columns + classes),
                                     gradient = to.rows(i * classes, (i + 1) * classes);
                        if (accumulate)
                          t.backend().run(ops::Accumulate{gradient, used});
                        else
                          t.backend().copy(used, gradient);
                      }
                    });
                    add_new_gradient(t, x, [&](const Tensor& dx) {
                      t.run_by_shard(ops::linear_backward_input(logits, padded, as_rows(dx)));
                    });
                  });
  return {sum, total};
}

Loss mse(const Var& x, const Tensor& target, const PerSample& per_sample) {
  return of_elements("mse", ops::SquaredError{}, x, target, per_sample);
}

Loss l1(const Var& x, const Tensor& target, const PerSample& per_sample) {
  return of_elements("l1", ops::AbsoluteError{}, x, target, per_sample);
}

Loss smooth_l1(const Var& x, const Tensor& target, float beta, const PerSample& per_sample) {
  if (!(beta >= 0)) throw UsageError("smooth_l1: beta = {} is below 0", beta);
  if (beta == 0) return of_elements("smooth_l1", ops::AbsoluteError{}, x, target, per_sample);
  return of_elements("smooth_l1", ops::SmoothAbsoluteError{beta}, x, target, per_sample);
}

Loss bce_with_logits(const Var& x, const Tensor& target, const PerSample& per_sample) {
  return of_elements("bce_with_logits", ops::BinaryCrossEntropy{}, x, target, per_sample);
}

}  // namespace lockstep
