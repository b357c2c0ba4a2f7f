// A steady step of PowerSGD asks the system for no memory.
#include <boost/test/unit_test.hpp>

#include "ddp/steady_steps.h"
#include "ddp/toy.h"
#include "lockstep/ddp/power_sgd.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(power_sgd_steady, *ranks(1, 2, 3, 4))

BOOST_AUTO_TEST_CASE(a_steady_step_with_power_sgd_allocates_nothing) {
  for (const bool warm_start : {true, false}) {
    Net net;
    ModelState state = net.state();
    state.params.pop_back();  // the one without elements
    const auto backend = kernels::make_cpu_backend();
    ddp::DataParallel replicas(
        state, world(), *backend,
        {.bucket_mb = tiny_mb,
         .first_bucket_mb = tiny_mb,
         .shards = 7,
         .hook = std::make_shared<ddp::PowerSgd>(ddp::PowerSgdOptions{
             .rank = 2, .start_step = 2, .min_compression = 0.1, .warm_start = warm_start})});
    ToyBatch batch = toy_batch(0, replicas);
    const auto loss_of = [&](Tape& tape, const ToyShard& shard) {
      Var h = relu(linear(tape.constant(shard.x), tape.use(net.params[0]), tape.use(net.params[1])));
      h = relu(linear(h, tape.use(net.params[2])));
      return mse(linear(h, tape.use(net.params[3]), tape.use(net.params[4])), shard.y);
    };
    BOOST_TEST(steady_allocations(*backend, [&](std::uint64_t step) {
                 batch.step = step;
                 replicas.step(batch, loss_of);
               }) == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
