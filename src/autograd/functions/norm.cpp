// Layer norm, RMS norm and group norm.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "autograd/functions/support.h"
#include "lockstep/ops/elementwise.h"
#include "ops/batch_norm.h"
#include "ops/norm.h"
#include "ops/strided_copy.h"

namespace lockstep {

namespace {

void require_fit(const char* function, const Var& x, const Var& weight, const Var& bias) {
  if (x.shape().rank() >= 1 && weight.shape() == Shape{x.shape()[-1]} && bias.shape() == weight.shape())
    return;
  throw UsageError("{}: an input of shape {} does not fit weight {} and bias {}", function,
                   to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()));
}

/// Records y = layer norm of x, computed already, with mean and inv_std of the rows.
Var record_layer_norm(const Tensor& y, const Var& x, const Var& weight, const Var& bias, const Tensor& mean,
                      const Tensor& inv_std) {
  return x.tape().record(
      y, {&x, &weight, &bias},
      [x, weight, bias = bias.without_value(), mean, inv_std](Tape& t, const Tensor& dy) {
        const Tensor residual_grad = t.gradient_so_far(x), dx = empty_like(t.backend(), x.value());
        write_gradients(t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
          t.run_by_shard(ops::LayerNormBackward{dy, x.value(), weight.value(), mean, inv_std, residual_grad,
                                                dx, dweight, dbias, accumulate});
        });
        t.set_gradient(x, dx);
      });
}

}  // namespace

Var layer_norm(const Var& input, const Var& weight, const Var& bias, float eps) {
  const Var x = plain(input);
  require_fit("layer_norm", x, weight, bias);
  kernels::Backend& backend = x.tape().backend();
  const Tensor y = empty_like(backend, x.value());
  const std::int64_t rows = as_rows(x.value()).size(0);
  const Tensor mean = backend.empty({rows}), inv_std = backend.empty({rows});
  backend.run(ops::LayerNorm{x.value(), {}, weight.value(), bias.value(), eps, {}, y, mean, inv_std});
  return record_layer_norm(y, x, weight, bias, mean, inv_std);
}

SumAndNorm add_layer_norm(const Var& a_input, const Var& b_input, const Var& weight, const Var& bias,
                          float eps) {
  const Var a = plain(a_input), b = plain(b_input);
  if (!(a.shape() == b.shape()))
    throw UsageError("add_layer_norm: the shapes {} and {} differ", to_string(a.shape()),
                     to_string(b.shape()));
  require_fit("add_layer_norm", a, weight, bias);
  kernels::Backend& backend = a.tape().backend();
  const Tensor sum = empty_like(backend, a.value()), y = empty_like(backend, a.value());
  const std::int64_t rows = as_rows(sum).size(0);
  const Tensor mean = backend.empty({rows}), inv_std = backend.empty({rows});
  backend.run(ops::LayerNorm{a.value(), b.value(), weight.value(), bias.value(), eps, sum, y, mean, inv_std});
  const Var x = record_sum(sum, a, b);
  return {x, record_layer_norm(y, x, weight, bias, mean, inv_std)};
}

Var rms_norm(const Var& input, const Var& weight, float eps) {
  const Var x = plain(input);
  if (x.shape().rank() < 1 || !(weight.shape() == Shape{x.shape()[-1]}))
    throw UsageError("rms_norm: an input of shape {} does not fit weight {}", to_string(x.shape()),
                     to_string(weight.shape()));
  kernels::Backend& backend = x.tape().backend();
  const Tensor y = empty_like(backend, x.value());
  const Tensor inv_rms = backend.empty({as_rows(x.value()).size(0)});
  backend.run(ops::RmsNorm{x.value(), weight.value(), eps, y, inv_rms});
  return x.tape().record(y, {&x, &weight}, [x, weight, inv_rms](Tape& t, const Tensor& dy) {
    const Tensor residual_grad = t.gradient_so_far(x), dx = empty_like(t.backend(), x.value());
    const auto write = [&](const Tensor& dweight, bool accumulate) {
      t.run_by_shard(ops::RmsNormBackward{dy, x.value(), weight.value(), inv_rms, residual_grad, dx, dweight,
                                          accumulate});
    };
    weight.needs_gradient() ? t.write_gradient(weight, write) : write({}, false);
    t.set_gradient(x, dx);
  });
}

Var group_norm(const Var& input, int groups, const Var& weight, const Var& bias, float eps) {
  if (input.shape().rank() != 5) require_rank("group_norm", input, 4);
  const Var x = plain(input);
  const std::int64_t channels = x.shape()[1];
  if (groups < 1 || channels % groups != 0)
    throw UsageError("group_norm: {} groups do not divide {} channels", groups, channels);
  if (!(weight.shape() == Shape{channels}) || !(bias.shape() == weight.shape()))
    throw UsageError("group_norm: an input of shape {} does not fit weight {} and bias {}",
                     to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()));
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Tensor y = empty_like(backend, x.value());
  const Tensor mean = backend.empty({x.shape()[0], groups}), inv_std = backend.empty({x.shape()[0], groups});
  backend.run(ops::GroupNorm{x.value(), groups, weight.value(), bias.value(), eps, y, mean, inv_std});
  return tape.record(
      y, {&x, &weight, &bias},
      [x, weight, bias = bias.without_value(), groups, mean, inv_std](Tape& t, const Tensor& dy) {
        const Tensor dx = empty_like(t.backend(), x.value());
        write_gradients(t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
          t.run_by_shard(ops::GroupNormBackward{dy, x.value(), groups, weight.value(), mean, inv_std, dx,
                                                dweight, dbias, accumulate});
        });
        t.add_gradient(x, dx);
      });
}

Var adaptive_group_norm(const Var& x, int groups, const Var& weight, const Var& bias, float eps,
                        const AdaptiveNorm& how) {
  if (x.shape().rank() != 5) require_rank(ops::AdaptiveGroupNorm::name, x, 4);
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Shape statistics{x.shape()[0], std::max(0, groups)};
  const Tensor y = empty_like(backend, x.value()), mean = backend.empty(statistics),
               inv_std = backend.empty(statistics);
  const float p = tape.pass().training ? how.dropout : 0;
  const RandomKey key = dropout_key(tape.pass(), how.dropout_purpose);
  tape.run_by_shard(ops::AdaptiveGroupNorm{x.value(), how.addend.value(), groups, weight.value(),
                                           bias.value(), how.scale_shift.value(), eps, how.silu, y, mean,
                                           inv_std, p, key});
  return tape.record(y, {&x, &weight, &bias, &how.addend, &how.scale_shift},
                     [x, weight, bias, groups, eps, how, mean, inv_std, p, key](Tape& t, const Tensor& dy) {
                       kernels::Backend& b = t.backend();
                       const auto gradient_of = [&b](const Var& input) {
                         return input.value() ? empty_like(b, input.value()) : Tensor();
                       };
                       const Tensor dx = gradient_of(x), daddend = gradient_of(how.addend),
                                    dscale_shift = gradient_of(how.scale_shift);
                       write_gradients(
                           t, weight, bias, [&](const Tensor& dweight, const Tensor& dbias, bool accumulate) {
                             t.run_by_shard(ops::AdaptiveGroupNormBackward{dy,
                                                                           x.value(),
                                                                           how.addend.value(),
                                                                           groups,
                                                                           weight.value(),
                                                                           bias.value(),
                                                                           how.scale_shift.value(),
                                                                           eps,
                                                                           how.silu,
                                                                           mean,
                                                                           inv_std,
                                                                           t.gradient_so_far(x),
                                                                           dx,
                                                                           daddend,
                                                                           dscale_shift,
                                                                           dweight,
                                                                           dbias,
                                                                           accumulate,
                                                                           p,
                                                                           key});
                           });
                       t.set_gradient(x, dx);
                       t.add_gradient(how.addend, daddend);
                       t.add_gradient(how.scale_shift, dscale_shift);
                     });
}

namespace {

/// Row i, which is all of the tensor if the pass has one shard.
Tensor of_shard(const Tape& tape, const Tensor& each, int i) {
  if (tape.pass().shards == 1) return each;
  const Tensor row = each.rows(i, i + 1);
  return row.reshape(Shape(row.shape().extents().subspan(1)));
}

/// The statistics that a pass normalises with, for each shard.
struct Statistics {
  Tensor mean, inv_std;  ///< float32 [C]
  Tensor count;          ///< [1], elements per channel; absent for running statistics
};

/// Sets the statistics of each shard by its moments about `centre`, or, without moments, by the running ones.
void set_statistics(Tape& tape, const Tensor& total, const Tensor& centre, const BatchNormOptions& options,
                    const Statistics& to) {
  tape.run_by_shard(
      ops::BatchStatistics{total, centre, options.running_var, options.eps, to.mean, to.inv_std});
}

void contribute(kernels::Backend& backend, GradientSink& sink, Statistic& statistic, const Tensor& moments) {
  const GradientView view = sink.gradient_view(statistic);
  view.accumulate ? backend.run(ops::Accumulate{view.memory, moments}) : backend.copy(moments, view.memory);
  sink.contributed(statistic);
}

/// Checks only before a run's first update: a later error would stop runs that have trained before, or whose
/// last batch of an epoch is smaller. Ranks that share statistics see the same count, so all of them throw.
void check_more_than_one_value(Tape& tape, const Tensor& x, const Tensor& total, bool shared) {
  if (tape.pass().step > 0 || x.size(1) == 0) return;
  double values = static_cast<double>(x.numel() / x.size(1));
  if (shared) {
    const kernels::Transfer count{total.rows(total.numel() - 1, total.numel()),
                                  Tensor::view(&values, {1}, DType::float64)};
    tape.backend().read({&count, 1});
  }
  if (values == 1)
    throw UsageError(
        "batch norm over one value a channel: its variance is 0, and the output is the bias whatever the "
        "input; "
        "give each shard (or micro-batch) two samples or more, or larger images");
}

/// Takes the moments of a shard again, about its mean, if those about the running mean lack digits. Returns
/// the total of the ranks that share them, who see the same: either all of them compute again or none.
Tensor with_digits(Tape& tape, const Tensor& x, const BatchNormOptions& options, const Tensor& mine,
                   const Tensor& total, const Tensor& mean, const Tensor& inv_std,
                   comm::GradientTransport* transport) {
  kernels::Backend& backend = tape.backend();
  bool lack_digits = false;
  backend.run(ops::MomentsLackDigits{total, options.eps, &lack_digits});
  if (!lack_digits) return total;
  const Tensor centre = backend.empty(mean.shape());
  backend.copy(mean, centre);
  backend.run(ops::ChannelMoments{x, centre, mine});
  const Tensor again = transport ? tape.sum_over_ranks(*transport, mine) : mine;
  backend.run(ops::BatchStatistics{again, centre, options.running_var, options.eps, mean, inv_std});
  // Without other ranks `again` is `mine`; only its count is read after this.
  backend.run(ops::MoveCentre{mine, centre, options.running_mean});
  return again;
}

/// transport: of ranks that share their statistics, with one shard in each pass; or null.
Statistics batch_statistics(Tape& tape, const Tensor& x, const BatchNormOptions& options,
                            comm::GradientTransport* transport, Statistics to) {
  kernels::Backend& backend = tape.backend();
  const Pass& pass = tape.pass();
  const std::int64_t samples = x.size(0) / pass.shards, moments = 2 * x.size(1);
  const Tensor mine = backend.empty(tape.of_each_shard({moments + 1}), DType::float64);
  tape.run_by_shard(ops::ChannelMoments{x, options.running_mean, mine});
  Tensor total = transport ? tape.sum_over_ranks(*transport, mine) : mine;
  check_more_than_one_value(tape, x.rows(0, samples), total, transport != nullptr);
  set_statistics(tape, total, options.running_mean, options, to);
  if (pass.shards == 1) {
    total = with_digits(tape, x, options, mine, total, to.mean, to.inv_std, transport);
    to.count = total.rows(moments, moments + 1);
  } else {
    for (int i = 0; i < pass.shards; ++i)
      with_digits(tape, x.rows(i * samples, (i + 1) * samples), options, of_shard(tape, mine, i),
                  of_shard(tape, mine, i), of_shard(tape, to.mean, i), of_shard(tape, to.inv_std, i),
                  nullptr);
    to.count = backend.empty({pass.shards, 1}, DType::float64);
    backend.fill(to.count,
                 static_cast<double>(x.numel() / std::max<std::int64_t>(1, x.size(1)) / pass.shards));
  }
  if (pass.record && pass.sink && options.statistic)
    contribute(backend, *pass.sink, *options.statistic, mine);
  return to;
}

/// float32 gradient (+)= row `row` of float64 sums [2, C], for each shard.
void write_sums(Tape& tape, const Tensor& sums, int row, const Tensor& gradient, bool accumulate) {
  kernels::Backend& backend = tape.backend();
  if (tape.pass().shards == 1 || accumulate) {  // what is added is not rounded before
    for (int i = 0; i < tape.pass().shards; ++i) {
      const Tensor to = of_shard(tape, gradient, i);
      const Tensor own = of_shard(tape, sums, i).rows(row, row + 1).reshape(to.shape());
      accumulate ? backend.run(ops::Accumulate{to, own}) : backend.copy(own, to);
    }
    return;
  }
  const ops::StridedView rounded(backend.in_type(sums, DType::float32));
  const Shape one_row{gradient.size(0), 1, gradient.size(1)};
  backend.run(ops::StridedCopy{rounded.narrowed(1, row, 1), ops::StridedView(gradient.reshape(one_row))});
}

/// Checked arguments and their statistics.
struct Normalisation {
  Var x, weight, bias;
  Statistics by;
  comm::GradientTransport* transport;  ///< of the ranks that share the statistics; may be null

  ops::ChannelNorm norm() const { return {by.mean, by.inv_std, weight.value(), bias.value()}; }
};

Normalisation normalisation_of(const char* function, const Var& x, const Var& weight, const Var& bias,
                               const BatchNormOptions& options) {
  const int rank = x.shape().rank();
  if ((rank != 2 && rank != 4 && rank != 5) || !(weight.shape() == Shape{x.shape()[1]}) ||
      !(bias.shape() == weight.shape()) || !(options.running_mean.shape() == weight.shape()) ||
      !(options.running_var.shape() == weight.shape()))
    throw UsageError("{}: an input of shape {} does not fit weight {}, bias {} and running statistics {}",
                     function, to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()),
                     to_string(options.running_mean.shape()));
  Tape& tape = x.tape();
  const Pass& pass = tape.pass();
  const bool by_batch = pass.training && !options.frozen;
  comm::GradientTransport* const transport = by_batch && pass.record ? options.transport : nullptr;
  // A recomputed segment neither communicates again nor counts its samples twice.
  const auto [mean, inv_std, count] = tape.once<3>([&]() -> std::array<Tensor, 3> {
    kernels::Backend& backend = tape.backend();
    const Shape each = tape.of_each_shard({x.shape()[1]});
    Statistics to{backend.empty(each), backend.empty(each), {}};
    if (by_batch)
      to = batch_statistics(tape, x.value(), options, transport, to);
    else
      set_statistics(tape, {}, options.running_mean, options, to);
    return {to.mean, to.inv_std, to.count};
  });
  return {x, weight, bias, {mean, inv_std, count}, transport};
}

Tensor empty_sums(Tape& tape, const Normalisation& of) {
  return tape.backend().empty(tape.of_each_shard({2, of.weight.shape()[0]}), DType::float64);
}

/// Adds the sums of a backward (`mine`) to the gradients of weight and bias, and computes the gradient of x.
/// relu: as in ops::BatchNormBackwardInput.
void add_gradients(Tape& tape, const Normalisation& of, const Tensor& dy, bool relu, const Tensor& mine) {
  tape.write_gradient(
      of.bias, [&](const Tensor& dbias, bool accumulate) { write_sums(tape, mine, 0, dbias, accumulate); });
  tape.write_gradient(of.weight, [&](const Tensor& dweight, bool accumulate) {
    write_sums(tape, mine, 1, dweight, accumulate);
  });
  // Collective: whether the input needs a gradient is the same on every rank.
  const Tensor sums = of.transport && of.x.needs_gradient() ? tape.sum_over_ranks(*of.transport, mine) : mine;
  add_new_gradient(tape, of.x, [&](const Tensor& dx) {
    tape.run_by_shard(ops::BatchNormBackwardInput{dy, of.x.value(), of.norm(), relu, sums, of.by.count, dx});
  });
}

void backward(Tape& tape, const Normalisation& of, const Tensor& dy, bool relu) {
  const Tensor mine = empty_sums(tape, of);
  tape.run_by_shard(ops::BatchNormBackwardSums{dy, of.x.value(), of.norm(), relu, mine});
  add_gradients(tape, of, dy, relu, mine);
}

}  // namespace

Var batch_norm(const Var& x, const Var& weight, const Var& bias, const BatchNormOptions& options) {
  Normalisation of = normalisation_of("batch_norm", x, weight, bias, options);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.run_by_shard(ops::BatchNorm{.x = x.value(), .norm = of.norm(), .y = y});
  of.bias = bias.without_value();
  return tape.record(y, {&x, &weight, &bias},
                     [of](Tape& t, const Tensor& dy) { backward(t, of, dy, false); });
}

Var batch_norm_relu(const Var& x, const Var& weight, const Var& bias, const Var& shortcut_input,
                    const BatchNormOptions& options) {
  const bool has_shortcut = static_cast<bool>(shortcut_input.value());
  if (has_shortcut && !(shortcut_input.shape() == x.shape()))
    throw UsageError("batch_norm_relu: the shortcut has shape {}, the input {}",
                     to_string(shortcut_input.shape()), to_string(x.shape()));
  const Var shortcut =
      has_shortcut ? to_channel_block(shortcut_input, x.value().channel_block()) : shortcut_input;
  const Normalisation of = normalisation_of("batch_norm_relu", x, weight, bias, options);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.run_by_shard(ops::BatchNorm{x.value(), of.norm(), shortcut.value(), true, y});
  return tape.record(y, {&x, &weight, &bias, &shortcut},
                     [of, shortcut = shortcut.without_value(), has_shortcut, y](Tape& t, const Tensor& dy,
                                                                                const Tensor& second_grad) {
                       // Without a shortcut and a second gradient, only the two passes need the gradient
                       // after the ReLU, and they compute it again from dy.
                       if (!has_shortcut && !second_grad) return backward(t, of, dy, true);
                       const Tensor gated = empty_like(t.backend(), dy), mine = empty_sums(t, of);
                       t.run_by_shard(ops::BatchNormGatedBackwardSums{
                           dy, second_grad, y, of.x.value(), of.by.mean, of.by.inv_std, gated, mine});
                       t.add_gradient(shortcut, gated);
                       add_gradients(t, of, gated, false, mine);
                     });
}

}  // namespace lockstep
