// Batch norm by a shard's statistics, by those of several ranks, or by the running ones.
#include <array>

#include "autograd/functions/support.h"
#include "lockstep/ops/batch_norm.h"

namespace lockstep {
namespace {

/// Moments about `centre`, float32 [C], and their count: float64 [2 C + 1].
Tensor moments_of(kernels::Backend& backend, const Tensor& x, const Tensor& centre) {
  const std::int64_t channels = x.size(1);
  const Tensor total = backend.empty({2 * channels + 1}, DType::float64);
  backend.run(ops::ChannelMoments{x, centre, total.rows(0, 2 * channels).reshape({2, channels})});
  backend.fill(total.rows(2 * channels, 2 * channels + 1),
               channels == 0 ? 0 : static_cast<double>(x.numel() / channels));
  return total;
}

/// What a pass normalises by.
struct Statistics {
  Tensor mean, inv_std;  ///< float32 [C]
  Tensor count;          ///< how many elements per channel they are over; none: they are the running ones
};

/// Of moments about `centre`, or, where there are none, the running ones.
Statistics statistics_of(kernels::Backend& backend, const Tensor& total, const Tensor& centre,
                         const BatchNormOptions& options) {
  const std::int64_t channels = centre.numel();
  Statistics statistics{backend.empty({channels}), backend.empty({channels}), {}};
  backend.run(ops::BatchStatistics{total, centre, options.running_var, options.eps, statistics.mean,
                                   statistics.inv_std});
  if (total) statistics.count = total.rows(2 * channels, 2 * channels + 1);
  return statistics;
}

void contribute(kernels::Backend& backend, GradientSink& sink, Statistic& statistic, const Tensor& moments) {
  const GradientSlot slot = sink.slot(statistic);
  slot.accumulate ? backend.run(ops::Accumulate{slot.memory, moments}) : backend.copy(moments, slot.memory);
  sink.contributed(statistic);
}

Statistics batch_statistics(Tape& tape, const Tensor& x, const BatchNormOptions& options,
                            comm::GradientTransport* communicator) {
  kernels::Backend& backend = tape.backend();
  const auto over_ranks = [&](const Tensor& mine) {
    return communicator ? tape.sum_over_ranks(*communicator, mine) : mine;
  };
  Tensor mine = moments_of(backend, x, options.running_mean);
  Tensor total = over_ranks(mine);
  Statistics statistics = statistics_of(backend, total, options.running_mean, options);
  // Every rank sees the same total, so all of them look again or none.
  bool lack_digits = false;
  backend.run(ops::MomentsLackDigits{total, options.eps, &lack_digits});
  if (lack_digits) {
    const Tensor centre = statistics.mean;
    mine = moments_of(backend, x, centre);
    total = over_ranks(mine);
    statistics = statistics_of(backend, total, centre, options);
    // Alone, `total` is `mine`: the count is all that is read of it from here on.
    backend.run(ops::MoveCentre{mine, centre, options.running_mean});
  }
  if (tape.pass().record && tape.pass().sink && options.statistic)
    contribute(backend, *tape.pass().sink, *options.statistic, mine);
  return statistics;
}

/// float32 gradient (+)= float64 sums.
void write_gradient(kernels::Backend& backend, const Tensor& sums, const Tensor& gradient, bool accumulate) {
  accumulate ? backend.run(ops::Accumulate{gradient, sums}) : backend.copy(sums, gradient);
}

/// Checked arguments, and the statistics by which they are normalised.
struct Normalisation {
  Var x, weight, bias;
  Statistics by;
  comm::GradientTransport* communicator;  ///< of the ranks that share the statistics; or none

  ops::ChannelNorm norm() const { return {by.mean, by.inv_std, weight.value(), bias.value()}; }
};

Normalisation normalisation_of(const char* function, const Var& x, const Var& weight, const Var& bias,
                               const BatchNormOptions& options) {
  const int rank = x.shape().rank();
  if ((rank != 2 && rank != 4) || !(weight.shape() == Shape{x.shape()[1]}) ||
      !(bias.shape() == weight.shape()) || !(options.running_mean.shape() == weight.shape()) ||
      !(options.running_var.shape() == weight.shape()))
    throw UsageError("{}: an input of shape {} does not fit weight {}, bias {} and running statistics {}",
                     function, to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()),
                     to_string(options.running_mean.shape()));
  Tape& tape = x.tape();
  const Pass& pass = tape.pass();
  comm::GradientTransport* const communicator = pass.training && pass.record ? options.communicator : nullptr;
  // A part that is computed again does not meet the other ranks again, nor count its samples twice.
  const auto [mean, inv_std, count] = tape.once<3>([&]() -> std::array<Tensor, 3> {
    const Statistics found = pass.training ? batch_statistics(tape, x.value(), options, communicator)
                                           : statistics_of(tape.backend(), {}, options.running_mean, options);
    return {found.mean, found.inv_std, found.count};
  });
  return {x, weight, bias, {mean, inv_std, count}, communicator};
}

Tensor empty_sums(kernels::Backend& backend, const Normalisation& of) {
  return backend.empty({2, of.weight.shape()[0]}, DType::float64);
}

/// Hands the sums of a backward from dy on as gradients of weight and bias, and gives x its own. relu: as of
/// ops::BatchNormBackwardInput.
void give_gradients(Tape& tape, const Normalisation& of, const Tensor& dy, bool relu, const Tensor& mine) {
  kernels::Backend& backend = tape.backend();
  const Shape channels = of.weight.shape();
  tape.into(of.bias, [&](const Tensor& dbias, bool accumulate) {
    write_gradient(backend, mine.rows(0, 1).reshape(channels), dbias, accumulate);
  });
  tape.into(of.weight, [&](const Tensor& dweight, bool accumulate) {
    write_gradient(backend, mine.rows(1, 2).reshape(channels), dweight, accumulate);
  });
  // Collective: whether the input needs a gradient is the same on every rank.
  const Tensor sums =
      of.communicator && of.x.needs_gradient() ? tape.sum_over_ranks(*of.communicator, mine) : mine;
  give_new(tape, of.x, [&](const Tensor& dx) {
    backend.run(ops::BatchNormBackwardInput{dy, of.x.value(), of.norm(), relu, sums, of.by.count, dx});
  });
}

void backward(Tape& tape, const Normalisation& of, const Tensor& dy, bool relu) {
  const Tensor mine = empty_sums(tape.backend(), of);
  tape.backend().run(ops::BatchNormBackwardSums{dy, of.x.value(), of.norm(), relu, mine});
  give_gradients(tape, of, dy, relu, mine);
}

}  // namespace

Var batch_norm(const Var& x, const Var& weight, const Var& bias, const BatchNormOptions& options) {
  Normalisation of = normalisation_of("batch_norm", x, weight, bias, options);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.backend().run(ops::BatchNorm{.x = x.value(), .norm = of.norm(), .y = y});
  of.bias = bias.without_value();
  return tape.record(y, {&x, &weight, &bias},
                     [of](Tape& t, const Tensor& dy) { backward(t, of, dy, false); });
}

Var batch_norm_relu(const Var& x, const Var& weight, const Var& bias, const Var& shortcut_given,
                    const BatchNormOptions& options) {
  const bool has_shortcut = static_cast<bool>(shortcut_given.value());
  if (has_shortcut && !(shortcut_given.shape() == x.shape()))
    throw UsageError("batch_norm_relu: the shortcut has shape {}, the input {}",
                     to_string(shortcut_given.shape()), to_string(x.shape()));
  const Var shortcut =
      has_shortcut ? to_channel_block(shortcut_given, x.value().channel_block()) : shortcut_given;
  const Normalisation of = normalisation_of("batch_norm_relu", x, weight, bias, options);
  Tape& tape = x.tape();
  const Tensor y = empty_like(tape.backend(), x.value());
  tape.backend().run(ops::BatchNorm{x.value(), of.norm(), shortcut.value(), true, y});
  return tape.record(y, {&x, &weight, &bias, &shortcut},
                     [of, shortcut = shortcut.without_value(), has_shortcut, y](Tape& t, const Tensor& dy,
                                                                                const Tensor& beside) {
                       // Without a shortcut, and with all of dy in one place, nobody needs what the ReLU lets
                       // through but the two passes, which find it from dy again.
                       if (!has_shortcut && !beside) return backward(t, of, dy, true);
                       kernels::Backend& b = t.backend();
                       const Tensor gated = empty_like(b, dy), mine = empty_sums(b, of);
                       b.run(ops::BatchNormGatedBackwardSums{dy, beside, y, of.x.value(), of.by.mean,
                                                             of.by.inv_std, gated, mine});
                       t.give(shortcut, gated);
                       give_gradients(t, of, gated, false, mine);
                     });
}

}  // namespace lockstep
