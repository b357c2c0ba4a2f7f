// A run saved by any number of ranks is loaded by any other, and by a plain model, and continues.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "checkpoint/sample.h"
#include "ddp/training.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/ema.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(saved, *ranks(1, 2, 3, 4))

constexpr int shards = 5;
constexpr std::uint64_t saved_after = 3, steps = 6;

struct Training : ToyRun {
  Training(comm::GradientTransport& transport, std::uint64_t seed)
      : ToyRun({.bucket_mb = 0.0002, .shards = shards}, {.seed = seed, .transport = &transport}),
        adamw(replicas, {.lr = 0.01, .weight_decay = 0.1}),
        ema(net.state(), *backend, {0.5, 0.9}) {}
  void run(std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t step = first; step < end; ++step) {
      this->step(step);
      adamw.step({.clip = 1});
      ema.update();
    }
  }
  checkpoint::StateDict contents() {
    checkpoint::StateDict all;
    add(all, net.state());
    add(all, adamw);
    add(all, ema);
    return all;
  }
  optim::AdamW adamw;
  optim::Ema ema;
};

struct Saved {
  Saved() {
    straight.run(0, saved_after);
    checkpoint::save_file(file, straight.contents(), world());
    straight.run(saved_after, steps);
  }
  SharedFolder folder{world()};
  std::string file = folder.file("run.h5");
  Training straight{world(), 1};
};

BOOST_FIXTURE_TEST_CASE(every_rank_loads_and_goes_on_as_if_never_interrupted, Saved) {
  // Other values on every rank: loading must replace them all.
  Training resumed(world(), static_cast<std::uint64_t>(world().rank() + 2));
  checkpoint::load_file(file, resumed.contents(), world());
  resumed.run(saved_after, steps);
  BOOST_TEST(resumed.adamw.steps() == static_cast<std::int64_t>(steps));
  BOOST_TEST(same_bytes(resumed.contents(), straight.contents()));
}

BOOST_FIXTURE_TEST_CASE(fewer_ranks_go_on_with_the_same_bits, Saved) {
  const bool stays = world().size() == 1 || world().rank() + 1 < world().size();
  const auto part = world().split(stays ? 0 : 1, world().rank());
  if (stays) {
    Training resumed(*part, 9);
    checkpoint::load_file(file, resumed.contents(), *part);
    resumed.run(saved_after, steps);
    BOOST_TEST(same_bytes(resumed.contents(), straight.contents()));
  }
  world().barrier();
}

BOOST_FIXTURE_TEST_CASE(a_plain_model_loads_the_weights_under_its_own_names, Saved) {
  const auto alone = comm::make_self_communicator();
  Training until_saved(*alone, 1);
  until_saved.run(0, saved_after);
  Net plain(7);
  checkpoint::load_weights(file, plain.state(), *alone);
  check_same_state(plain.state(), until_saved.net.state());

  // And it is trained on without any DataParallel.
  const auto backend = kernels::make_cpu_backend();
  LocalGradients gradients(plain.state(), *backend);
  Tape tape(*backend);
  tape.begin({.sink = &gradients});
  const ToyShard samples = toy_shard(9, 9);
  backward(plain_loss(plain, tape, samples));
  tape.finish_backward();
  for (const Param& param : plain.params) BOOST_TEST(bool(param.gradient), param.name);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
