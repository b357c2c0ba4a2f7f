// The check of replicas: one flipped bit anywhere is found at the next check, by all ranks, by name.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "lockstep/optim/adamw.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(replica_check, *ranks(1, 2, 3, 4))

struct TwoBuffers {
  Buffer mean{"mean", Tensor::zeros({3})}, counter{"counter", Tensor::zeros({}, DType::int64)};
};

/// A run with a frozen parameter and two buffers, checked every third step.
struct Run : TwoBuffers, ToyRun {
  explicit Run(ddp::Options options = {.check_every = 3}, comm::GradientTransport& transport = world())
      : ToyRun(
            [&] {
              options.bucket_mb = 0.0002;
              options.first_bucket_mb = tiny_mb;
              return options;
            }(),
            {.transport = &transport,
             .change =
                 [this](ModelState& state) {
                   state.params[2]->trainable = false;
                   state.buffers = {&mean, &counter};
                 }}),
        adamw(replicas, {.lr = 0.01}) {}
  void step(std::uint64_t step) {
    ToyRun::step(step);
    adamw.step();
  }
  /// On this rank alone.
  static void flip(const Tensor& tensor, std::size_t byte) {
    auto* const bytes = static_cast<unsigned char*>(tensor.raw());
    bytes[byte % tensor.bytes()] ^= 1;
  }
  optim::AdamW adamw;
};

/// Who is named when `rank` differs: with two ranks nobody knows which is right, and the other is compared
/// with rank 0.
std::string named(int rank) { return "rank " + std::to_string(world().size() == 2 ? 1 : rank); }

BOOST_AUTO_TEST_CASE(what_is_printed_at_start_says_how_often_replicas_are_compared) {
  BOOST_TEST(
      contains(Run({.check_every = 500}).replicas.describe(), "replicas are compared every 500 steps"));
  BOOST_TEST(contains(Run({.check_every = 1}).replicas.describe(), "replicas are compared every step"));
  BOOST_TEST(!contains(Run({.check_every = 0}).replicas.describe(), "compared"));
}

BOOST_AUTO_TEST_CASE(replicas_that_are_alike_pass_every_check) {
  for (const std::int64_t every : {1, 2, 5}) {
    Run run({.check_every = every});
    for (std::uint64_t step = 0; step < 11; ++step) run.step(step);
    run.replicas.check_replicas();
  }
}

BOOST_AUTO_TEST_CASE(ranks_at_different_steps_are_told_so_where_a_check_is_due_on_some) {
  if (world().size() == 1) return;
  Run run({.check_every = 2});
  run.step(0);
  same_error(ExitCode::usage, [&] { run.step(world().rank() == 0 ? 2 : 3); });
}

BOOST_AUTO_TEST_CASE(one_flipped_bit_is_found_at_the_next_check_by_all_ranks) {
  if (world().size() == 1) return;
  for (int victim = 0; victim < world().size(); ++victim) {
    for (const std::string name : {"in.weight", "in.bias", "tied.weight", "out.bias", "mean", "counter"}) {
      Run run;
      for (std::uint64_t step = 0; step < 4; ++step) run.step(step);
      const Tensor& tensor = name == "mean"      ? run.mean.value
                             : name == "counter" ? run.counter.value
                                                 : run.net[name].value;
      if (world().rank() == victim) Run::flip(tensor, 5);
      // The parameters of the first layers change what all compute, but not how ranks differ.
      run.step(4);
      run.step(5);
      const std::string text = same_error(ExitCode::training, [&] { run.step(6); });
      BOOST_TEST(contains(text, "the replicas differ: "));
      BOOST_TEST(contains(text, name + " on " + named(victim)), text);
    }
  }
}

BOOST_AUTO_TEST_CASE(only_what_differs_is_named) {
  if (world().size() == 1) return;
  Run run;
  run.step(0);
  if (world().rank() == 1) Run::flip(run.net["out.weight"].value, 17);
  const std::string text = same_error(ExitCode::training, [&] { run.replicas.check_replicas(); });
  BOOST_TEST(contains(text, "the replicas differ: out.weight on rank 1; resume"));
}

BOOST_AUTO_TEST_CASE(several_ranks_and_many_tensors_are_told_apart) {
  if (world().size() < 4) return;
  Run run;
  run.step(0);
  const int rank = world().rank();
  if (rank == 2) Run::flip(run.net["in.weight"].value, 0);
  if (rank == 3) Run::flip(run.net["in.weight"].value, 0);  // the same bit: two against two
  if (rank == 1) Run::flip(run.net["in.bias"].value, 0);
  const std::string text = same_error(ExitCode::training, [&] { run.replicas.check_replicas(); });
  BOOST_TEST(contains(text, "in.weight on ranks 2, 3"));
  BOOST_TEST(contains(text, "in.bias on rank 1"));
  if (rank == 1) {
    for (const char* const name : {"tied.weight", "out.weight", "out.bias"})
      Run::flip(run.net[name].value, 0);
  }
  BOOST_TEST(
      contains(same_error(ExitCode::training, [&] { run.replicas.check_replicas(); }), " ... and 1 more"));
}

BOOST_AUTO_TEST_CASE(a_difference_in_zeros_and_nans_counts_bit_by_bit) {
  if (world().size() == 1) return;
  Run run;
  if (world().rank() == 1) run.mean.value.data<float>()[1] = -0.0f;
  same_error(ExitCode::training, [&] { run.replicas.check_replicas(); });
  run.mean.value.data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  run.replicas.check_replicas();  // alike on all ranks, whatever it is
}

BOOST_AUTO_TEST_CASE(nothing_is_compared_unless_asked_and_never_in_the_first_step) {
  Counting communicator(world());
  Run never({.check_every = 0}, communicator), every({.check_every = 1}, communicator);
  for (std::uint64_t step = 0; step < 3; ++step) {
    communicator.others = 0;
    never.step(step);
    // After the first step the plan is agreed, too.
    BOOST_TEST(communicator.others == (step == 0 ? 2 : 1));
    communicator.others = 0;
    every.step(step);
    // One rank compares with nobody.
    BOOST_TEST(communicator.others == (step == 0 || world().size() > 1 ? 2 : 1));
  }
}

BOOST_AUTO_TEST_CASE(replicas_made_alike_again_go_on) {
  if (world().size() == 1) return;
  Run run;
  run.step(0);
  if (world().rank() == 1) Run::flip(run.net["in.bias"].value, 3);
  same_error(ExitCode::training, [&] { run.step(3); });
  if (world().rank() == 1) Run::flip(run.net["in.bias"].value, 3);
  run.step(3);
  run.step(6);
}

BOOST_AUTO_TEST_CASE(a_negative_interval_is_refused) {
  Net net;
  const auto backend = kernels::make_cpu_backend();
  BOOST_TEST(
      contains(same_error(ExitCode::usage,
                          [&] { ddp::DataParallel(net.state(), world(), *backend, {.check_every = -1}); }),
               "ddp.check_every: \"-1\""));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
