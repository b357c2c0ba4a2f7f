// Batch norm by a shard's statistics, by those of several ranks, or by the running ones.
#include <algorithm>
#include <cmath>

#include "autograd/functions/support.h"

namespace lockstep {
namespace {

/// Moments are rows of float64: per channel the sum, per channel the sum of squares, the count.
struct Moments {
  Tensor record;  ///< float64 [2 C + 1]
  std::int64_t channels;

  double* sums() const { return record.data<double>(); }
  double* squares() const { return sums() + channels; }
  double& count() const { return sums()[2 * channels]; }
};

/// Sums of float64 vectors over the ranks, added in rank order, so that every rank has the same bits.
Tensor summed_over_ranks(kernels::Backend& backend, comm::Communicator& communicator, const Tensor& mine) {
  const std::int64_t elements = mine.numel();
  const Tensor all = backend.empty({communicator.size(), elements}, DType::float64);
  communicator.all_gather(mine.raw(), mine.bytes(), all.raw());
  const Tensor total = backend.empty(mine.shape(), DType::float64);
  double* const out = total.data<double>();
  for (std::int64_t i = 0; i < elements; ++i) out[i] = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const double* const row = all.data<double>() + rank * elements;
    for (std::int64_t i = 0; i < elements; ++i) out[i] += row[i];
  }
  return total;
}

/// About `centre`, float32 [C].
Moments moments_of(kernels::Backend& backend, const Tensor& x, const Tensor& centre) {
  const std::int64_t channels = x.size(1);
  Moments moments{backend.empty({2 * channels + 1}, DType::float64), channels};
  backend.channel_moments(x, centre, moments.record.rows(0, 2 * channels).reshape({2, channels}));
  moments.count() = channels == 0 ? 0 : static_cast<double>(x.numel() / channels);
  return moments;
}

/// Mean and inverse deviation of a batch, and how many elements per channel they are over.
struct Statistics {
  Tensor mean, inv_std;  ///< float32 [C]
  double count = 0;
};

/// True where the moments lie so far from their centre that their squares hide the variance: their float32
/// parts carry a relative error of 1e-7 of (distance^2 + variance).
bool far_from_centre(const Moments& total, float eps) {
  constexpr double squared_distance_limit = 16;  // in variances
  const double n = total.count();
  for (std::int64_t c = 0; c < total.channels; ++c) {
    const double distance = total.sums()[c] / n;
    const double variance = total.squares()[c] / n - distance * distance;
    if (!(distance * distance <= squared_distance_limit * (variance + eps))) return true;
  }
  return false;
}

Statistics statistics_of(kernels::Backend& backend, const Moments& total, const Tensor& centre, float eps) {
  Statistics statistics{backend.empty({total.channels}), backend.empty({total.channels}), total.count()};
  for (std::int64_t c = 0; c < total.channels; ++c) {
    const double distance = total.sums()[c] / total.count();
    const double variance = std::max(0.0, total.squares()[c] / total.count() - distance * distance);
    statistics.mean.data<float>()[c] = static_cast<float>(centre.data<float>()[c] + distance);
    statistics.inv_std.data<float>()[c] = static_cast<float>(1 / std::sqrt(variance + eps));
  }
  return statistics;
}

/// The same moments about another centre: sum (x - b) = sum (x - a) + n (a - b), and so the squares.
void move_centre(const Moments& moments, const Tensor& from, const Tensor& to) {
  const double n = moments.count();
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double shift = static_cast<double>(from.data<float>()[c]) - to.data<float>()[c];
    moments.squares()[c] += 2 * shift * moments.sums()[c] + n * shift * shift;
    moments.sums()[c] += n * shift;
  }
}

Statistics running_statistics(kernels::Backend& backend, const BatchNormOptions& options) {
  const std::int64_t channels = options.running_mean.numel();
  Statistics statistics{backend.empty({channels}), backend.empty({channels})};
  backend.copy(options.running_mean, statistics.mean);
  for (std::int64_t c = 0; c < channels; ++c) {
    const double variance = options.running_var.data<float>()[c];
    statistics.inv_std.data<float>()[c] = static_cast<float>(1 / std::sqrt(variance + options.eps));
  }
  return statistics;
}

void contribute(GradientSink& sink, Statistic& statistic, const Moments& moments) {
  const GradientSlot slot = sink.slot(statistic);
  double* const out = slot.memory.data<double>();
  const std::int64_t elements = moments.record.numel();
  for (std::int64_t i = 0; i < elements; ++i)
    out[i] = slot.accumulate ? out[i] + moments.sums()[i] : moments.sums()[i];
  sink.contributed(statistic);
}

Statistics batch_statistics(Tape& tape, const Tensor& x, const BatchNormOptions& options,
                            comm::Communicator* communicator) {
  kernels::Backend& backend = tape.backend();
  const auto over_ranks = [&](const Moments& mine) {
    return communicator ? Moments{summed_over_ranks(backend, *communicator, mine.record), mine.channels}
                        : mine;
  };
  Moments mine = moments_of(backend, x, options.running_mean);
  Moments total = over_ranks(mine);
  Statistics statistics = total.count() > 0 ? statistics_of(backend, total, options.running_mean, options.eps)
                                            : running_statistics(backend, options);
  // Every rank sees the same total, so all of them look again or none.
  if (total.count() > 0 && far_from_centre(total, options.eps)) {
    const Tensor centre = statistics.mean;
    mine = moments_of(backend, x, centre);
    total = over_ranks(mine);
    statistics = statistics_of(backend, total, centre, options.eps);
    move_centre(mine, centre, options.running_mean);
  }
  if (tape.pass().record && tape.pass().sink && options.statistic)
    contribute(*tape.pass().sink, *options.statistic, mine);
  return statistics;
}

/// float32 gradient (+)= float64 sums of one row.
void write_gradient(const double* sums, const Tensor& gradient, bool accumulate) {
  float* const out = gradient.data<float>();
  for (std::int64_t c = 0; c < gradient.numel(); ++c)
    out[c] = accumulate ? out[c] + static_cast<float>(sums[c]) : static_cast<float>(sums[c]);
}

}  // namespace

Var batch_norm(const Var& x, const Var& weight, const Var& bias, const BatchNormOptions& options) {
  const int rank = x.shape().rank();
  if ((rank != 2 && rank != 4) || !(weight.shape() == Shape{x.shape()[1]}) ||
      !(bias.shape() == weight.shape()) || !(options.running_mean.shape() == weight.shape()) ||
      !(options.running_var.shape() == weight.shape()))
    throw UsageError(
        "batch_norm: an input of shape {} does not fit weight {}, bias {} and running statistics {}",
        to_string(x.shape()), to_string(weight.shape()), to_string(bias.shape()),
        to_string(options.running_mean.shape()));
  Tape& tape = x.tape();
  kernels::Backend& backend = tape.backend();
  const Pass& pass = tape.pass();
  comm::Communicator* const communicator = pass.training && pass.record ? options.communicator : nullptr;
  const Statistics statistics = pass.training ? batch_statistics(tape, x.value(), options, communicator)
                                              : running_statistics(backend, options);
  const Tensor y = empty_like(backend, x.value());
  backend.batch_norm(x.value(), statistics.mean, statistics.inv_std, weight.value(), bias.value(), y);
  return tape.record(
      y, {&x, &weight, &bias},
      [x, weight, bias = bias.without_value(), statistics, communicator](Tape& t, const Tensor& dy) {
        kernels::Backend& b = t.backend();
        const std::int64_t channels = weight.shape()[0];
        Tensor sums = b.empty({2, channels}, DType::float64);
        b.batch_norm_backward_sums(dy, x.value(), statistics.mean, statistics.inv_std, sums);
        t.into(bias, [&](const Tensor& dbias, bool accumulate) {
          write_gradient(sums.data<double>(), dbias, accumulate);
        });
        t.into(weight, [&](const Tensor& dweight, bool accumulate) {
          write_gradient(sums.data<double>() + channels, dweight, accumulate);
        });
        // Collective: whether the input needs a gradient is the same on every rank.
        if (communicator && x.needs_gradient()) sums = summed_over_ranks(b, *communicator, sums);
        give_new(t, x, [&](const Tensor& dx) {
          b.batch_norm_backward_input(dy, x.value(), statistics.mean, statistics.inv_std, weight.value(),
                                      sums, statistics.count, dx);
        });
      });
}

}  // namespace lockstep
