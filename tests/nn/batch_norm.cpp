// Batch norm: running statistics over shards, statistics over ranks, and hard inputs.
#include "lockstep/nn/norm.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>

#include "lockstep/base/random.h"
#include "support/meetings.h"
#include "support/mentions.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(batch_norm, *ranks(1, 2, 3, 4))

constexpr std::int64_t channels = 5, places = 6;

/// N(offset, 1).
Tensor batch(std::int64_t rows, double offset, std::uint64_t seed) {
  const Random random({.seed = seed, .purpose = purpose_of("batch")});
  Tensor x = Tensor::empty({rows, channels, 2, 3});
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] = static_cast<float>(offset + random.normal(static_cast<std::uint64_t>(i)));
  return x;
}

/// Mean and unbiased variance of one channel, in float64.
std::pair<double, double> moments(const Tensor& x, std::int64_t channel) {
  const auto at = [&](std::int64_t n, std::int64_t place) {
    return double{x.data<float>()[(n * channels + channel) * places + place]};
  };
  const std::int64_t rows = x.size(0);
  double sum = 0, squares = 0;
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t place = 0; place < places; ++place) sum += at(n, place);
  const double count = static_cast<double>(rows * places), mean = sum / count;
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t place = 0; place < places; ++place) squares += std::pow(at(n, place) - mean, 2);
  return {mean, squares / (count - 1)};
}

/// Adds the statistics of several passes, as a step over several shards does.
class SummingSink final : public GradientSink {
 public:
  explicit SummingSink(kernels::Backend& backend) : backend_(backend) {}
  GradientView gradient_view(Param& param) override {
    const bool first = !param.gradient;
    if (first) param.gradient = backend_.empty(param.value.shape());
    return {param.gradient, !first};
  }
  void ready(Param&) override {}
  GradientView gradient_view(Statistic& statistic) override {
    const bool first = !total;
    if (first) total = backend_.empty({statistic.elements()}, DType::float64);
    return {total, !first};
  }
  void contributed(Statistic&) override { ++contributions; }

  Tensor total;
  int contributions = 0;

 private:
  kernels::Backend& backend_;
};

struct Fixture {
  nn::Module root;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  SummingSink sink{*backend};
  Meetings communicator{world()};
  Tape tape{*backend};

  Pass pass(bool training = true, bool record = true) {
    return {.training = training, .record = record, .sink = &sink, .layer_transport = &communicator};
  }
};

BOOST_FIXTURE_TEST_SUITE(batch_norm, Fixture)

BOOST_AUTO_TEST_CASE(running_statistics_are_those_of_all_shards_together) {
  nn::BatchNorm2d layer(root, "m", channels, {.momentum = 0.25f});
  const Tensor all = batch(6, 1.5, 1);
  std::int64_t begin = 0;
  for (const std::int64_t rows : {3, 1, 0, 2}) {
    tape.begin(pass());
    layer(tape.constant(all.rows(begin, begin + rows)));
    begin += rows;
  }
  BOOST_TEST(sink.contributions == 4);
  root.state().statistics.at(0)->apply(*backend, sink.total);
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto [mean, variance] = moments(all, c);
    BOOST_TEST(layer.running_mean.value.data<float>()[c] == 0.25 * mean, boost::test_tools::tolerance(1e-6));
    BOOST_TEST(layer.running_var.value.data<float>()[c] == 0.75 + 0.25 * variance,
               boost::test_tools::tolerance(1e-6));
  }
  BOOST_TEST(*layer.num_batches_tracked.value.data<std::int64_t>() == 1);
}

BOOST_AUTO_TEST_CASE(nothing_changes_where_no_shard_had_an_element) {
  nn::BatchNorm2d layer(root, "m", channels);
  tape.begin(pass());
  const Var y = layer(tape.constant(batch(0, 0, 1)));
  BOOST_TEST(y.value().numel() == 0);
  root.state().statistics.at(0)->apply(*backend, sink.total);
  BOOST_TEST(layer.running_mean.value.data<float>()[0] == 0);
  BOOST_TEST(layer.running_var.value.data<float>()[0] == 1);
  BOOST_TEST(*layer.num_batches_tracked.value.data<std::int64_t>() == 0);
}

BOOST_AUTO_TEST_CASE(a_mean_far_from_the_running_one_costs_no_accuracy) {
  for (const bool sync : {false, true}) {
    nn::Module model;
    nn::BatchNorm2d layer(model, "m", channels, {.momentum = 1, .sync = sync});
    const Tensor x = batch(8, 1000, 2);  // the same on every rank
    sink.total = {};
    tape.begin(pass());
    const Tensor y = layer(tape.constant(x)).value();
    model.state().statistics.at(0)->apply(*backend, sink.total);
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto [mean, unbiased] = moments(x, c);
      const double variance = unbiased * (8 * places - 1) / (8 * places);
      BOOST_TEST(layer.running_var.value.data<float>()[c] == unbiased, boost::test_tools::tolerance(1e-5));
      for (std::int64_t place = 0; place < places; ++place) {
        const double wanted = (x.data<float>()[c * places + place] - mean) / std::sqrt(variance + 1e-5);
        // The mean itself is float32: 1000 * 2^-24 of a deviation.
        BOOST_TEST(std::abs(y.data<float>()[c * places + place] - wanted) < 1e-4);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(one_value_a_channel_is_an_error_of_a_new_run_that_names_the_layer) {
  nn::BatchNorm2d layer(root, "m", channels);
  nn::SyncBatchNorm sync(root, "sync", channels);
  const Tensor one = batch(1, 0, 1).reshape({places, channels}).rows(0, 1), none = one.rows(0, 0);
  const auto refused = [&](auto& norm, const Pass& pass) {
    tape.begin(pass);
    BOOST_CHECK_EXCEPTION(norm(tape.constant(one)), UsageError,
                          mentions(norm.path() + ": batch norm over one value a channel"));
  };
  refused(layer, pass());
  refused(layer, pass(true, false));
  refused(sync, pass(true, false));  // of this rank alone
  Pass later = pass();
  later.step = 1;  // a run of before, or the last batch of an epoch
  for (const Pass& allowed : {pass(false, true), pass(false, false), later}) {
    tape.begin(allowed);
    BOOST_CHECK_NO_THROW(layer(tape.constant(one)));
  }
  tape.begin(pass());
  BOOST_CHECK_NO_THROW(layer(tape.constant(none)));
  // One value on the last rank alone: an error on every rank. On each: as many as there are ranks.
  const bool last = world().rank() == world().size() - 1;
  tape.begin(pass());
  BOOST_CHECK_EXCEPTION(sync(tape.constant(last ? one : none)), UsageError, mentions("sync: batch norm"));
  if (world().size() == 1) return refused(sync, pass());
  tape.begin(pass());
  BOOST_CHECK_NO_THROW(sync(tape.constant(one)));
}

BOOST_AUTO_TEST_CASE(a_constant_channel_is_normalised_to_its_bias) {
  nn::BatchNorm2d layer(root, "m", channels);
  Tensor x = Tensor::empty({3, channels, 2, 3});
  std::fill_n(x.data<float>(), x.numel(), 4096.0f);
  std::fill_n(layer.bias.value.data<float>(), channels, 0.5f);
  tape.begin(pass());
  const Tensor y = layer(tape.constant(x)).value();
  for (std::int64_t i = 0; i < y.numel(); ++i) BOOST_TEST(y.data<float>()[i] == 0.5f);
}

BOOST_AUTO_TEST_CASE(only_recorded_training_passes_of_a_sync_layer_communicate) {
  nn::SyncBatchNorm sync(root, "sync", channels);
  nn::BatchNorm2d plain(root, "plain", channels);
  const Tensor x = batch(2, 0, 3);
  for (const Pass& quiet : {pass(false, true), pass(false, false), pass(true, false)}) {
    tape.begin(quiet);
    sync(tape.constant(x));
  }
  tape.begin(pass());
  plain(tape.constant(x));
  BOOST_TEST(communicator.count == 0);
  tape.begin(pass());
  const Var input = tape.input(x), y = sync(input);
  BOOST_TEST(communicator.count == 1);
  tape.backward(y, x);
  BOOST_TEST(communicator.count == 2);
}

BOOST_AUTO_TEST_CASE(a_sync_layer_without_a_communicator_is_a_plain_one) {
  nn::SyncBatchNorm sync(root, "sync", channels);
  nn::BatchNorm2d plain(root, "plain", channels);
  const Tensor x = batch(4, 1, static_cast<std::uint64_t>(world().rank()));
  tape.begin({.sink = &sink});
  const Tensor a = sync(tape.constant(x)).value(), b = plain(tape.constant(x)).value();
  for (std::int64_t i = 0; i < a.numel(); ++i) BOOST_TEST(a.data<float>()[i] == b.data<float>()[i]);
}

BOOST_AUTO_TEST_CASE(ranks_of_a_sync_layer_compute_what_one_rank_would) {
  // Rank r has r rows (rank 0 none), so that counts differ.
  const std::int64_t rank = world().rank(), rows = world().size() * (world().size() - 1) / 2;
  if (rows == 0) return;
  const Tensor x = batch(rows, 2, 4), dy = batch(rows, 0, 5);
  const std::int64_t begin = rank * (rank - 1) / 2, end = begin + rank;

  nn::SyncBatchNorm together(root, "together", channels);
  nn::BatchNorm2d alone(root, "alone", channels);
  tape.begin(pass());
  const Var whole = tape.input(x), y_alone = alone(whole);
  tape.backward(y_alone, dy);
  const Tensor dx_alone = tape.gradient(whole);
  const Tensor y_kept = y_alone.value();

  tape.begin(pass());
  const Var mine = tape.input(x.rows(begin, end)), y = together(mine);
  tape.backward(y, dy.rows(begin, end));
  const auto close = [&](const Tensor& found, const Tensor& wanted) {
    const float* const a = found.data<float>();
    const float* const b = wanted.data<float>();
    for (std::int64_t i = 0; i < found.numel(); ++i)
      BOOST_TEST(std::abs(a[i] - b[i]) < 1e-5f * (1 + std::abs(b[i])));
  };
  close(y.value(), y_kept.rows(begin, end));
  close(tape.gradient(mine), dx_alone.rows(begin, end));
}

BOOST_AUTO_TEST_CASE(frozen_statistics_normalise_training_passes_and_stay_whether_synchronized_or_not) {
  for (const bool sync : {false, true}) {
    nn::Module model;
    nn::BatchNorm2d layer(model, "m", channels, {.sync = sync});
    layer.running_mean.value.data<float>()[1] = 3;
    layer.running_var.value.data<float>()[1] = 4;
    nn::freeze_statistics(model);
    const Tensor x = batch(2, 1, 6);
    communicator.count = sink.contributions = 0;
    tape.begin(pass(false, false));
    const Tensor evaluated = layer(tape.constant(x)).value();
    tape.begin(pass());
    const Var input = tape.input(x), y = layer(input);
    tape.backward(y, x);
    tape.finish_backward();
    for (std::int64_t i = 0; i < x.numel(); ++i)
      BOOST_TEST(y.value().data<float>()[i] == evaluated.data<float>()[i]);
    const float* const dx = tape.gradient(input).data<float>();
    BOOST_TEST(dx[places] == x.data<float>()[places] / std::sqrt(4 + 1e-5),
               boost::test_tools::tolerance(1e-6));
    BOOST_TEST(!!layer.weight.gradient);  // it trains
    BOOST_TEST(communicator.count == 0);
    BOOST_TEST(sink.contributions == 0);
    BOOST_TEST(model.state().statistics.empty());
    BOOST_TEST(!model.state().meets_across_ranks);
    layer.weight.gradient = layer.bias.gradient = {};
  }
}

BOOST_AUTO_TEST_CASE(frozen_statistics_take_one_value_a_channel) {
  nn::BatchNorm2d layer(root, "m", channels, {.frozen_statistics = true});
  tape.begin(pass());
  BOOST_CHECK_NO_THROW(layer(tape.constant(batch(1, 0, 1).reshape({places, channels}).rows(0, 1))));
}

BOOST_AUTO_TEST_CASE(freezing_statistics_of_a_model_without_batch_norm_is_an_error) {
  BOOST_CHECK_EXCEPTION(nn::freeze_statistics(root), UsageError, mentions("the model has no batch norm"));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
