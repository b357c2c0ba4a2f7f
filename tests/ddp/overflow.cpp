// Gradients that travel as float16, wherever the transport rounds them: between machines, or between GPUs.
#include <boost/test/unit_test.hpp>

#include "ddp/toy.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(overflow, *ranks(1, 2, 3, 4))

BOOST_AUTO_TEST_CASE(a_sum_that_float16_cannot_hold_is_an_error_where_sums_are_rounded_to_it) {
  for (const bool sharded : {false, true}) {
    Net net;
    const auto backend = kernels::make_cpu_backend();
    ddp::DataParallel replicas(net.state(), world(), *backend,
                               {.comm_dtype = DType::float16, .sharded_optimizer = sharded});
    const auto large_step = [&] {
      replicas.step(toy_batch(0, replicas), [&](Tape& tape, const ToyShard& shard) {
        Loss loss = plain_loss(net, tape, shard);
        loss.sum = scale(loss.sum, 1e6F);
        return loss;
      });
    };
    if (world().rounds(DType::float16)) {
      BOOST_TEST(contains(same_error(ExitCode::training, large_step), "float16"));
    } else {
      large_step();
    }
  }
}

BOOST_AUTO_TEST_CASE(nothing_is_rounded_that_travels_in_float32_or_not_at_all) {
  BOOST_TEST(!world().rounds(DType::float32));
  BOOST_TEST((world().size() > 1 || !world().rounds(DType::bfloat16)));
  ToyRun run({.comm_dtype = DType::bfloat16});
  run.step(0);
  const bool exact = same_bits(elements(run.net.params[0].gradient), reference(0, world().size())[0]);
  BOOST_TEST(exact == !world().rounds(DType::bfloat16));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
