// A sharded optimizer: each rank updates a partition of the parameters, and nothing else is different.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <numeric>

#include "base/clock.h"
#include "comm/mpi_calls.h"
#include "ddp/plain_sums.h"
#include "ddp/wide.h"
#include "support/forwarding.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(sharded, *ranks(1, 2, 3, 4))

using Run = WideRun;

/// Steps of both, with the same norms; then everything is the same.
void check_same_steps(Run& whole, Run& parts, std::uint64_t steps = 5) {
  for (std::uint64_t step = 0; step < steps; ++step) BOOST_TEST(whole.step(step) == parts.step(step));
  check_same(whole, parts);
}

BOOST_AUTO_TEST_CASE(every_algorithm_and_mode_gives_the_bits_of_whole_updates) {
  for (const Algorithm algorithm : all_algorithms) {
    Run whole(wide_options(false), algorithm);
    for (std::uint64_t step = 0; step < 5; ++step) whole.step(step);
    for (const ddp::Mode mode : all_modes) {
      ddp::Options options = wide_options(true);
      options.mode = mode;
      Run parts(options, algorithm);
      for (std::uint64_t step = 0; step < 5; ++step) parts.step(step);
      check_same(whole, parts);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_state_of_an_undivided_matrix_is_held_by_one_rank) {
  Run parts(wide_options(true), Algorithm::adamw_undivided);
  for (const optim::Slot& slot : parts.optimizer->held_slots()) {
    if (slot.name == "step") continue;
    for (const optim::Slot::Entry& entry : slot.entries) {
      if (!parts.model.params[entry.part->param].undivided) continue;
      const std::int64_t all = entry.part->shape.numel(), mine = entry.tensor.numel();
      BOOST_TEST((mine == 0 || mine == all));
      std::vector<std::int64_t> of_rank(static_cast<std::size_t>(world().size()));
      world().all_gather(&mine, sizeof mine, of_rank.data());
      BOOST_TEST(std::accumulate(of_rank.begin(), of_rank.end(), std::int64_t{0}) == all, entry.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(any_size_of_buckets_and_pieces_gives_the_bits_of_whole_updates) {
  for (const double bucket_mb : {tiny_mb, 25.0}) {
    ddp::Options options = wide_options(false);
    options.micro_batches = 2;
    options.bucket_mb = options.first_bucket_mb = bucket_mb;
    Run whole(options);
    options.sharded_optimizer = true;
    Run parts(options);
    check_same_steps(whole, parts);
  }
}

BOOST_AUTO_TEST_CASE(a_model_far_smaller_than_the_ranks_blocks_trains_the_same) {
  const auto train = [](bool sharded) {
    Net net;
    const auto backend = kernels::make_cpu_backend();
    ddp::DataParallel replicas(net.state(), world(), *backend, {.shards = 5, .sharded_optimizer = sharded});
    optim::AdamW adamw(replicas);
    for (std::uint64_t step = 0; step < 4; ++step) {
      replicas.step(toy_batch(step, replicas),
                    [&](Tape& tape, const ToyShard& shard) { return net.loss(tape, shard.x, shard.y); });
      adamw.step({.clip = 1});
    }
    Gradients values;
    for (const Param& param : net.params) {
      param.wait_ready();
      values.push_back(elements(param.value));
    }
    return values;
  };
  BOOST_TEST((train(true) == train(false)));
}

/// Every rank on a machine of its own, as far as the transport knows; small pieces.
BOOST_AUTO_TEST_CASE(ranks_on_different_machines_get_the_bits_of_whole_updates) {
  std::vector<int> node_of_rank(static_cast<std::size_t>(world().size()));
  for (const int ranks_a_node : {1, 2}) {
    for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank)
      node_of_rank[rank] = static_cast<int>(rank) / ranks_a_node;
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (!initialised) return;  // alone
    const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, node_of_rank, {.chunk_bytes = 4096});
    Run whole(wide_options(false)), parts(wide_options(true), Algorithm::adamw, *nodes);
    check_same_steps(whole, parts);
  }
}

BOOST_AUTO_TEST_CASE(a_hook_gives_whole_sums_of_which_each_rank_reads_its_part) {
  ddp::Options options = wide_options(true);
  options.hook = std::make_shared<PlainSums>();
  Run whole(wide_options(false)), parts(options);
  check_same_steps(whole, parts);
}

BOOST_AUTO_TEST_CASE(sums_are_there_for_the_owned_elements) {
  Run whole(wide_options(false)), parts(wide_options(true));
  for (Run* const run : {&whole, &parts})
    run->replicas.step(toy_batch(0, run->replicas),
                       [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                         return run->model.loss(tape, shard, piece);
                       });
  const Partition& partition = *parts.replicas.partition();
  BOOST_TEST(!whole.replicas.partition());
  for (std::size_t p = 0; p < parts.model.params.size(); ++p) {
    const Tensor &mine = parts.model.params[p].gradient, &all = whole.model.params[p].gradient;
    BOOST_REQUIRE(bool(mine) == bool(all));
    if (mine) BOOST_TEST(same_bits(elements(partition.part(p, mine)), elements(partition.part(p, all))));
  }
}

BOOST_AUTO_TEST_CASE(memory_for_optimizer_and_averages_is_divided_by_the_ranks) {
  Run whole(wide_options(false)), parts(wide_options(true));
  const auto bytes = [](const Run& run) {
    const optim::StateBytes slots = run.optimizer->state_bytes(), shadows = run.ema.state_bytes();
    return optim::StateBytes{slots.held + shadows.held, slots.whole + shadows.whole};
  };
  const optim::StateBytes all = bytes(whole), mine = bytes(parts);
  BOOST_TEST(all.held == all.whole);
  BOOST_TEST(mine.whole == all.whole);
  // All ranks together hold each element once, and no rank more than its part (two slots of trainable
  // parameters, two averages of all) and the counts of updates.
  const std::size_t counts = 7 * sizeof(std::int64_t);
  std::vector<std::size_t> of_rank(static_cast<std::size_t>(world().size()));
  world().all_gather(&mine.held, sizeof mine.held, of_rank.data());
  std::size_t sum = counts, part = counts;
  for (const std::size_t held : of_rank) sum += held - counts;
  BOOST_TEST(sum == all.held);
  for (std::size_t p = 0; p < parts.model.params.size(); ++p)
    part += (parts.model.params[p].trainable ? 4u : 2u) * sizeof(float) *
            static_cast<std::size_t>(parts.replicas.partition()->mine(p).count);
  BOOST_TEST(mine.held == part);
}

BOOST_AUTO_TEST_CASE(the_model_keeps_its_values_when_data_parallel_goes) {
  Wide model;
  const auto backend = kernels::make_cpu_backend();
  std::vector<std::vector<float>> trained;
  {
    ddp::DataParallel replicas(model.state(), world(), *backend, wide_options(true));
    optim::Sgd sgd(replicas);
    for (std::uint64_t step = 0; step < 2; ++step) {
      replicas.step(toy_batch(step, replicas),
                    [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                      return model.loss(tape, shard, piece);
                    });
      if (step == 1) trained = model.values();
      sgd.step();
    }
  }  // with parameters on their way
  const auto kept = model.values();
  BOOST_TEST((kept != trained));
  for (const Param& param : model.params) {
    BOOST_TEST(!param.pending_values);
    BOOST_TEST(!param.gradient);
  }
  Run whole(wide_options(false), Algorithm::sgd);
  Wide reference;
  ddp::DataParallel replicas(reference.state(), world(), *backend, wide_options(false));
  optim::Sgd sgd(replicas);
  for (std::uint64_t step = 0; step < 2; ++step) {
    replicas.step(toy_batch(step, replicas),
                  [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                    return reference.loss(tape, shard, piece);
                  });
    sgd.step();
  }
  BOOST_TEST((kept == reference.values()));
}

BOOST_AUTO_TEST_CASE(after_a_step_that_failed_training_goes_on_with_the_same_bits) {
  Run whole(wide_options(false)), parts(wide_options(true));
  for (std::uint64_t step = 0; step < 4; ++step) {
    whole.step(step);
    const auto failing = [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) -> Loss {
      if (shard.index == 3) throw DataError("shard 3 cannot be read");
      return parts.model.loss(tape, shard, piece);
    };
    const std::string text =
        same_error(ExitCode::data, [&] { parts.replicas.step(toy_batch(step, parts.replicas), failing); });
    BOOST_TEST(contains(text, "shard 3 cannot be read"));
    parts.step(step);
  }
  check_same(whole, parts);
}

BOOST_AUTO_TEST_CASE(after_an_error_that_is_caught_while_parameters_are_on_their_way_training_starts_again) {
  Net net;
  const auto backend = kernels::make_cpu_backend();
  const auto train = [&](int steps) {
    ddp::DataParallel replicas(net.state(), world(), *backend,
                               {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .sharded_optimizer = true});
    optim::AdamW adamw(replicas);
    for (int step = 0; step < steps; ++step) {
      replicas.step(toy_batch(static_cast<std::uint64_t>(step), replicas),
                    [&](Tape& tape, const ToyShard& shard) { return plain_loss(net, tape, shard); });
      adamw.step();
    }
    throw DataError("the same on every rank");
  };
  for (const int steps : {1, 3, 2}) BOOST_CHECK_THROW(train(steps), DataError);
  std::vector<char> all(static_cast<std::size_t>(world().size()));
  const char mine = 1;
  world().all_gather(&mine, 1, all.data());  // the communicator still works
  BOOST_TEST(std::count(all.begin(), all.end(), 1) == world().size());
}

BOOST_AUTO_TEST_CASE(a_model_wrapped_again_before_its_first_wrapper_goes_keeps_one_value_on_all_ranks) {
  Net net;
  const auto backend = kernels::make_cpu_backend();
  const ddp::Options options{.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .sharded_optimizer = true};
  auto replicas = std::make_unique<ddp::DataParallel>(net.state(), world(), *backend, options);
  const auto step = [&](std::uint64_t number) {
    optim::AdamW adamw(*replicas);
    replicas->step(toy_batch(number, *replicas),
                   [&](Tape& tape, const ToyShard& shard) { return plain_loss(net, tape, shard); });
    adamw.step();
  };
  step(0);
  replicas =
      std::make_unique<ddp::DataParallel>(net.state(), world(), *backend, options);  // the new one first
  for (const Param& param : net.params) BOOST_TEST((param.pending_values != nullptr));
  step(1);
  replicas->check_replicas();
}

BOOST_AUTO_TEST_CASE(a_value_in_other_memory_is_refused_before_the_step) {
  Run run(wide_options(true));
  run.step(0);
  run.step(1);
  const std::string text = same_error(ExitCode::usage, [&] {
    const auto evaluation = run.ema.swap_in("0.5");
    run.step(2);
  });
  BOOST_TEST(contains(text, "in.weight"));
  BOOST_TEST(contains(text, "swapped in"));
  run.step(2);  // EMA weights are out again
}

BOOST_AUTO_TEST_CASE(evaluation_and_comparison_between_steps_see_whole_values) {
  Run whole(wide_options(false)), parts(wide_options(true));
  const auto evaluate = [](Run& run) {
    run.replicas.tape().begin({.training = false, .record = false});
    return run.model.loss(run.replicas.tape(), toy_shard(99, 0), {}).read().sum;
  };
  for (std::uint64_t step = 0; step < 4; ++step) {
    whole.step(step);
    parts.step(step);
    if (step % 2 == 0) BOOST_TEST(evaluate(whole) == evaluate(parts));
    parts.replicas.check_replicas();
    const auto in_whole = whole.ema.swap_in("0.9"), in_parts = parts.ema.swap_in("0.9");
    BOOST_TEST(evaluate(whole) == evaluate(parts));
  }
}

/// Watches gathers of parameters, and can hold up waiting for them.
class Watching final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  comm::Work start_all_gather(const comm::TreeSum& vector, const comm::Slices& slices) override {
    const comm::Work work = Forwarding::start_all_gather(vector, slices);
    if (vector.dtype != DType::float32) return work;  // the norm's blocks
    ++started;
    newest = work;
    return work;
  }
  void order_after(comm::Work work) override {
    if (work == newest) {
      const Stopwatch watch;
      while (watch.elapsed_ms() < hold_up_ms) Forwarding::progress();
    }
    waited_for_newest = waited_for_newest || work == newest;
    Forwarding::order_after(work);
  }
  int started = 0;
  comm::Work newest = 0;
  bool waited_for_newest = false;
  double hold_up_ms = 0;
};

BOOST_AUTO_TEST_CASE(parameters_leave_bucket_by_bucket_and_are_waited_for_when_they_are_used) {
  Watching watching(world());
  Run run(wide_options(true), Algorithm::sgd, watching);
  for (std::uint64_t step = 0; step < 4; ++step) run.step(step);
  run.replicas.step(toy_batch(4, run.replicas),
                    [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                      return run.model.loss(tape, shard, piece);
                    });
  watching.started = 0;
  watching.waited_for_newest = false;
  run.optimizer->step();
  const auto buckets = run.replicas.plan().buckets();
  BOOST_TEST(buckets.size() > 2u);
  BOOST_TEST(watching.started ==
             std::count_if(buckets.begin(), buckets.end(), [](const auto& b) { return b.bytes > 0; }));
  BOOST_TEST(!watching.waited_for_newest);
  run.model.params[0].wait_ready();
  run.model.params[7].wait_ready();
  BOOST_TEST(watching.waited_for_newest);
}

BOOST_AUTO_TEST_CASE(waiting_for_parameters_counts_as_exposed_communication) {
  Watching watching(world());
  Run run(wide_options(true), Algorithm::sgd, watching);
  for (std::uint64_t step = 0; step < 3; ++step) run.step(step);
  watching.hold_up_ms = 25;
  const ddp::StepResult result = run.replicas.step(
      toy_batch(3, run.replicas), [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
        return run.model.loss(tape, shard, piece);
      });
  BOOST_TEST(result.exposed_comm_ms >= 25);
}

BOOST_AUTO_TEST_CASE(ranks_that_disagree_about_sharding_are_told) {
  if (world().size() == 1) return;
  Wide model;
  const auto backend = kernels::make_cpu_backend();
  const std::string text = same_error(ExitCode::usage, [&] {
    ddp::DataParallel(model.state(), world(), *backend, wide_options(world().rank() == 0));
  });
  BOOST_TEST(contains(text, "sharded_optimizer"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
