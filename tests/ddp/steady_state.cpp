// From step 4 on a step asks the system for no memory: every allocation of our code and every pool growth is
// counted.
#include <boost/test/unit_test.hpp>

#include "ddp/toy.h"
#include "lockstep/optim/adamw.h"
#include "support/allocations.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(steady_state, *ranks(1, 2, 3, 4))

/// Allocations inside steps 4 to 7.
long allocations_of_steps(ddp::Unused unused, bool use_all) {
  Net net;
  ToyStatistic sum;
  ModelState state = net.state();
  state.params.pop_back();  // the one without elements
  state.statistics = {&sum};
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(
      state, world(), *backend,
      {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = 7, .micro_batches = 2, .unused = unused});
  const ToyBatch batch = toy_batch(0, replicas);
  const auto loss_of = [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
    const GradientView view = tape.pass().sink->gradient_view(sum);
    std::fill_n(view.memory.data<double>(), 3, 1.0);
    tape.pass().sink->contributed(sum);
    Var h = relu(linear(tape.constant(piece.rows(shard.x)), tape.parameter(net.params[0]),
                        tape.parameter(net.params[1])));
    if (use_all || shard.index % 2 == 0) h = relu(linear(h, tape.parameter(net.params[2])));
    return mse(linear(h, tape.parameter(net.params[3]), tape.parameter(net.params[4])), piece.rows(shard.y));
  };
  return steady_allocations(*backend, 3, 7, [&](std::uint64_t) { replicas.step(batch, loss_of); }).own;
}

BOOST_AUTO_TEST_CASE(a_steady_step_allocates_nothing) {
  BOOST_TEST(allocations_of_steps(ddp::Unused::error, true) == 0);
}

BOOST_AUTO_TEST_CASE(a_steady_step_with_unused_parameters_allocates_nothing) {
  BOOST_TEST(allocations_of_steps(ddp::Unused::allow, false) == 0);
}

BOOST_AUTO_TEST_CASE(a_steady_step_of_a_sharded_optimizer_allocates_nothing) {
  Param in = make_param("in", {131, 5}), middle = make_param("middle", {131, 131}),
        out = make_param("out", {4, 131});
  const ModelState state{.params = {&in, &middle, &out}, .buffers = {}, .statistics = {}};
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(
      state, world(), *backend,
      {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = 7, .sharded_optimizer = true});
  optim::AdamW adamw(replicas);
  optim::Ema ema(state, *backend, {0.5, 0.9}, {.partition = replicas.partition()});
  adamw.attach(ema);
  const ToyBatch batch = toy_batch(0, replicas);
  const auto loss_of = [&](Tape& tape, const ToyShard& shard) {
    return mse(linear(linear(linear(tape.constant(shard.x), tape.parameter(in)), tape.parameter(middle)),
                      tape.parameter(out)),
               shard.y);
  };
  const Allocations made = steady_allocations(*backend, 3, 7, [&](std::uint64_t number) {
    const optim::StepOptions update{.lr = {}, .clip = 0.01};
    replicas.step(batch, loss_of, number % 2 == 1 ? adamw.measurement_for(update) : nullptr);
    adamw.step(update);
    if (number == 6) {
      for (const Param* const param : state.params) param->wait_ready();
    }
  });
  BOOST_TEST(made.own == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
