// DataParallel objects come and go over one model: wrapped again, with fewer ranks, with more, the run goes
// on.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "lockstep/optim/sgd.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(lifetime, *ranks(1, 2, 3, 4))

constexpr int shards = 6;

/// Steps [first, end) of a run with this model on these ranks.
void train(Net& net, comm::GradientTransport& transport, std::uint64_t first, std::uint64_t end) {
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(
      net.state(), transport, *backend,
      {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = shards, .unused = ddp::Unused::allow});
  optim::Sgd sgd(replicas, {.lr = 0.001});  // small enough not to diverge
  for (std::uint64_t step = first; step < end; ++step) {
    replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
      // At times the tied layer has no gradient on any rank.
      return step % 3 == 1 ? shallow(net, tape, shard) : plain_loss(net, tape, shard);
    });
    sgd.step();
  }
}

/// The model after an undisturbed run on one process.
std::unique_ptr<Net> undisturbed(std::uint64_t steps, std::uint64_t seed = 1) {
  auto net = std::make_unique<Net>(seed);
  train(*net, *comm::make_self_communicator(), 0, steps);
  return net;
}

BOOST_AUTO_TEST_CASE(a_model_wrapped_again_goes_on_as_if_it_had_not_been) {
  Net net;
  for (std::uint64_t step = 0; step < 6; step += 2) {
    train(net, world(), step, step + 2);
    for (const Param& param : net.params) BOOST_TEST(!param.gradient, param.name);
  }
  check_same_state(net.state(), undisturbed(6)->state());
}

BOOST_AUTO_TEST_CASE(two_models_train_side_by_side_on_one_communicator) {
  ToyRun first(tiny({.shards = shards})), second(tiny({.shards = shards}), {.seed = 2});
  for (std::uint64_t step = 0; step < 2; ++step) {
    first.step(step);
    second.step(step + 7);
    check_gradients(first.net, reference(step, shards));
    check_gradients(second.net, reference(step + 7, shards, 1, plain_loss, 2));
  }
}

BOOST_AUTO_TEST_CASE(a_run_that_loses_a_rank_and_gets_it_back_ends_with_the_same_bits) {
  Net net;
  train(net, world(), 0, 2);
  const bool stays = world().size() == 1 || world().rank() + 1 < world().size();
  {
    const auto part = world().split(stays ? 0 : 1, world().rank());
    if (stays) train(net, *part, 2, 5);
  }
  train(net, world(), 5, 7);  // the rank that was away gets the values of rank 0
  check_same_state(net.state(), undisturbed(7)->state());
}

BOOST_AUTO_TEST_CASE(the_halves_of_a_split_train_models_of_their_own) {
  const int half = world().rank() % 2;
  const auto part = world().split(half, world().rank());
  const auto seed = static_cast<std::uint64_t>(half + 1);
  Net net(seed);
  train(net, *part, 0, 3);
  check_same_state(net.state(), undisturbed(3, seed)->state());
}

BOOST_AUTO_TEST_CASE(values_come_from_whoever_is_rank_0_of_the_communicator) {
  for (int source = 0; source < world().size(); ++source) {
    const auto turned = world().split(0, world().rank() == source ? -1 : world().rank());
    BOOST_TEST((turned->rank() == 0) == (world().rank() == source));
    Net net(static_cast<std::uint64_t>(world().rank() + 1));
    const auto backend = kernels::make_cpu_backend();
    const ddp::DataParallel replicas(net.state(), *turned, *backend, {.shards = shards});
    check_same_state(net.state(), Net(static_cast<std::uint64_t>(source + 1)).state());
  }
}

BOOST_AUTO_TEST_CASE(a_model_whose_step_failed_can_be_wrapped_again_at_once) {
  Net net;
  {
    const auto backend = kernels::make_cpu_backend();
    ddp::DataParallel replicas(net.state(), world(), *backend, {.shards = shards});
    same_error(ExitCode::data, [&] {
      replicas.step(toy_batch(0, replicas), [&](Tape& tape, const ToyShard& shard) {
        if (shard.index == shards - 1) throw DataError("no such sample");
        return plain_loss(net, tape, shard);
      });
    });
  }
  train(net, world(), 0, 2);
  check_same_state(net.state(), undisturbed(2)->state());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
