// What throws on some rank in a step: the same error on every rank, nobody left waiting, the next step works.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <stdexcept>

#include "ddp/toy.h"
#include "support/forwarding.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(failure, *ranks(1, 2, 3, 4))

BOOST_AUTO_TEST_CASE(in_every_mode_an_error_in_the_loss_of_one_rank_is_thrown_by_all) {
  const auto check = [](int shards, ddp::Mode mode) {
    ToyRun run(tiny({.shards = shards, .mode = mode}));
    for (int bad = 0; bad < shards; ++bad) {
      const std::string text = same_error(ExitCode::data, [&] {
        run.step(0, [&](Net& net, Tape& tape, const ToyShard& shard) {
          if (shard.index == bad) throw DataError("sample {} cannot be read", bad);
          return plain_loss(net, tape, shard);
        });
      });
      BOOST_TEST(text == by(run.replicas.shard_map().owner(bad)) + "sample " + std::to_string(bad) +
                             " cannot be read");
      for (const Param& param : run.net.params) BOOST_TEST(!param.gradient, param.name);
      run.check_step(static_cast<std::uint64_t>(bad + 1));
    }
  };
  for (const ddp::Mode mode : all_modes) {
    for (const int shards : {4, 7}) check(shards, mode);
  }
}

BOOST_AUTO_TEST_CASE(a_loss_that_is_not_finite_is_an_error_that_names_the_step_and_applies_nothing) {
  ToyRun run(tiny({.shards = 4}));
  run.check_step(0);
  const auto bad_step = [&] {
    run.step(6, [&](Net& net, Tape& tape, const ToyShard& shard) {
      if (shard.index != 2) return plain_loss(net, tape, shard);
      const Tensor targets = Tensor::empty(shard.y.shape());
      std::fill_n(targets.data<float>(), targets.numel(), std::numeric_limits<float>::quiet_NaN());
      return net.loss(tape, shard.x, targets);
    });
  };
  const std::string text = same_error(ExitCode::training, bad_step);
  const char* const where =
      world().size() == 1   ? "lower optimizer.lr, set optimizer.clip, or look at the data"
      : world().size() == 2 ? "it is finite but for shards 2 to 3: look at its samples first"
                            : "it is finite but for shard 2: look at its samples first";
  BOOST_TEST(text == std::string("step 7: the loss is nan; ") + where);
  for (const Param& param : run.net.params) BOOST_TEST(!param.gradient, param.name);
  run.check_step(7);
}

BOOST_AUTO_TEST_CASE(an_error_in_the_middle_of_a_backward_is_thrown_by_all) {
  const int shards = 5;
  ToyRun run(tiny({.shards = shards}));
  for (int bad = 0; bad < shards; ++bad) {
    const std::string text = same_error(ExitCode::training, [&] {
      run.step(0, watched([bad](int shard) {
                 if (shard == bad) throw TrainingError("the backward of in.weight broke");
               }));
    });
    BOOST_TEST(text == by(run.replicas.shard_map().owner(bad)) + "the backward of in.weight broke");
    run.check_step(static_cast<std::uint64_t>(bad + 1));
  }
}

BOOST_AUTO_TEST_CASE(an_error_of_the_batch_itself_is_thrown_by_all) {
  struct Broken : ToyBatch {
    auto begin() const {
      if (world().rank() == world().size() - 1) throw DataError("digits.h5 is truncated");
      return shards.begin();
    }
  };
  ToyRun run(tiny({.shards = 4}));
  const std::string text = same_error(ExitCode::data, [&] {
    run.replicas.step(Broken{toy_batch(0, run.replicas)},
                      [&](Tape& tape, const ToyShard& shard) { return plain_loss(run.net, tape, shard); });
  });
  BOOST_TEST(text == by(world().size() - 1) + "digits.h5 is truncated");
  run.check_step(1);
}

BOOST_AUTO_TEST_CASE(of_several_errors_that_of_the_lowest_rank_is_thrown) {
  ToyRun run(tiny({.shards = 4}));
  const std::string text = same_error(ExitCode::training, [&] {
    run.step(0, [&](Net&, Tape&, const ToyShard&) -> Loss {
      if (world().rank() == 0) throw TrainingError("no luck on rank 0");
      throw DataError("no luck on rank {}", world().rank());
    });
  });
  BOOST_TEST(contains(text, "no luck on rank 0"));
  run.check_step(1);
}

BOOST_AUTO_TEST_CASE(an_exception_of_another_library_becomes_an_error_on_all) {
  ToyRun run(tiny({.shards = 4}));
  const std::string text = same_error(ExitCode::failure, [&] {
    run.step(0, [&](Net& net, Tape& tape, const ToyShard& shard) {
      if (shard.index == 3) throw std::runtime_error("from elsewhere");
      return plain_loss(net, tape, shard);
    });
  });
  BOOST_TEST(contains(text, "from elsewhere"));
  run.check_step(1);
}

BOOST_AUTO_TEST_CASE(an_error_in_the_first_step_leaves_the_plan_to_be_made_after_the_next) {
  ToyRun run(tiny({.shards = 4}));
  const std::vector<int> before = run.replicas.plan().order();
  same_error(ExitCode::data, [&] {
    run.step(0, [&](Net&, Tape&, const ToyShard&) -> Loss { throw DataError("nothing to read"); });
  });
  BOOST_TEST((run.replicas.plan().order() == before));
  run.check_step(0);
  BOOST_TEST((run.replicas.plan().order() != before));
}

BOOST_AUTO_TEST_CASE(ranks_at_different_steps_are_told_both_numbers) {
  if (world().size() == 1) return;
  ToyRun run(tiny({.shards = 4}));
  const std::uint64_t step = world().rank() == world().size() - 1 ? 8 : 7;
  const std::string text = same_error(ExitCode::usage, [&] { run.step(step); });
  BOOST_TEST(contains(text, "is at step 8 but rank 0 at step 7"));
  run.check_step(9);
}

BOOST_AUTO_TEST_CASE(a_batch_of_other_shards_than_this_ranks_is_refused) {
  ToyRun run(tiny({.shards = 5}));
  const auto step_over = [&](comm::ShardRange block) {
    run.replicas.step(toy_batch(0, block),
                      [&](Tape& tape, const ToyShard& shard) { return plain_loss(run.net, tape, shard); });
  };
  const comm::ShardRange block = run.replicas.shard_map().block(world().rank());
  BOOST_TEST(contains(same_error(ExitCode::usage,
                                 [&] {
                                   step_over({block.first, block.count - 1});
                                 }),
                      "the batch of step 0 ended after"));
  BOOST_TEST(contains(same_error(ExitCode::usage,
                                 [&] {
                                   step_over({block.first, block.count + 1});
                                 }),
                      "the batch of step 0 holds shard"));
  BOOST_TEST(contains(same_error(ExitCode::usage,
                                 [&] {
                                   step_over({block.first + 1, block.count});
                                 }),
                      "the batch of step 0 holds shard"));
  run.check_step(1);
}

BOOST_AUTO_TEST_CASE(a_loss_that_is_not_finite_is_reported_where_that_is_asked_for) {
  ToyRun run({.shards = 4, .allow_non_finite_loss = true});
  const ddp::StepResult result = run.step(0, [&](Net& net, Tape& tape, const ToyShard& shard) {
    Loss loss = plain_loss(net, tape, shard);
    if (shard.index == 3) loss.total.data<double>()[0] = std::numeric_limits<double>::infinity();
    return loss;
  });
  BOOST_TEST(result.loss_sum == std::numeric_limits<double>::infinity());
}

BOOST_AUTO_TEST_CASE(a_parameter_that_is_not_of_the_model_is_refused_by_name) {
  ToyRun run(tiny({.shards = 4}));
  Param stranger = make_param("stranger", {4, 7});
  const std::string text = same_error(ExitCode::usage, [&] {
    run.step(0, [&](Net& net, Tape& tape, const ToyShard& shard) {
      const Var h = relu(linear(tape.constant(shard.x), tape.parameter(net.params[0])));
      return mse(linear(h, tape.parameter(stranger)), shard.y);
    });
  });
  BOOST_TEST(contains(text, "stranger was not in the model, or not trainable"));
  run.replicas.tape().begin({});  // lets go of the stranger
}

BOOST_AUTO_TEST_CASE(gradients_go_with_the_memory_they_are_views_of) {
  Net net;
  const auto backend = kernels::make_cpu_backend();
  {
    ddp::DataParallel replicas(net.state(), world(), *backend, {.shards = 4});
    replicas.step(toy_batch(0, replicas),
                  [&](Tape& tape, const ToyShard& shard) { return plain_loss(net, tape, shard); });
    BOOST_TEST(bool(net.params[0].gradient));
  }
  BOOST_TEST(!net.params[0].gradient);
}

BOOST_AUTO_TEST_CASE(an_error_is_told_although_the_transport_fails_after_it) {
  class Breaking final : public Forwarding {
   public:
    using Forwarding::Forwarding;
    bool broken = false;
    comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
      if (broken) throw FailureError("the transport is broken");
      return Forwarding::start_tree_sum(sum, map);
    }
  } transport(world());
  ToyRun run({}, {.transport = &transport});
  const auto step = [&] {
    run.step(0, [&](Net&, Tape&, const ToyShard&) -> Loss {
      transport.broken = true;
      throw DataError("the sample cannot be read");
    });
  };
  BOOST_CHECK_EXCEPTION(step(), DataError, [](const DataError& error) {
    return std::string(error.what()) == "the sample cannot be read";
  });
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
