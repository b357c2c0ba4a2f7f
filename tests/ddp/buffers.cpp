// Buffers: what a model keeps beside its parameters is the same on every rank, also after it has been
// re-assigned.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "lockstep/optim/sgd.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(buffers, *ranks(1, 2, 3, 4))

struct Normed : nn::Module {
  explicit Normed(std::uint64_t seed = 0) : nn::Module(seed) {}
  nn::Linear in{*this, "in", 5, 7};
  nn::BatchNorm2d norm{*this, "norm", 7, {.momentum = 0.3f}};
  nn::Linear out{*this, "out", 7, 4};
  Var forward(const Var& x) { return out(relu(norm(in(x)))); }
};

Tensor filled(std::int64_t elements, float value) {
  const Tensor tensor = Tensor::empty({elements});
  std::fill_n(tensor.data<float>(), elements, value);
  return tensor;
}

/// A run of the model on some ranks; between_steps may change the model.
struct Run {
  Run(comm::GradientTransport& transport, int shards, ddp::Options options = {})
      : replicas(model, transport, *backend,
                 [&] {
                   options.shards = shards;
                   options.bucket_mb = options.first_bucket_mb = tiny_mb;
                   return options;
                 }()),
        sgd(replicas, {.lr = 0.05}) {}
  void step(std::uint64_t step) {
    replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
      return mse(model.forward(tape.constant(shard.x)), shard.y);
    });
    sgd.step();
  }
  Normed model;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas;
  optim::Sgd sgd;
};

BOOST_AUTO_TEST_CASE(every_rank_starts_from_the_buffers_of_rank_0_re_assigned_ones_too) {
  Normed model;
  const ModelState state = model;  // taken before the re-assignment
  const auto own = static_cast<float>(world().rank() + 1);
  model.norm.running_mean.value = filled(7, 10 * own);
  *model.norm.num_batches_tracked.value.data<std::int64_t>() = 5 + world().rank();
  const auto backend = kernels::make_cpu_backend();
  const ddp::DataParallel replicas(state, world(), *backend);
  BOOST_TEST(model.norm.running_mean.value.data<float>()[6] == 10);
  BOOST_TEST(*model.norm.num_batches_tracked.value.data<std::int64_t>() == 5);
}

BOOST_AUTO_TEST_CASE(running_statistics_are_those_of_all_shards_on_every_rank) {
  const int shards = 2 * world().size() + 1;
  const auto alone = comm::make_self_communicator();
  Run many(world(), shards, {.check_every = 1}), one(*alone, shards);
  for (std::uint64_t step = 0; step < 4; ++step) {
    many.step(step);
    one.step(step);
    check_same_state(many.model, one.model);
  }
}

BOOST_AUTO_TEST_CASE(a_buffer_re_assigned_between_steps_is_the_one_that_counts) {
  const int shards = world().size() + 1;
  const auto alone = comm::make_self_communicator();
  Run many(world(), shards, {.check_every = 1}), one(*alone, shards);
  for (std::uint64_t step = 0; step < 6; ++step) {
    if (step % 2 == 1) {
      for (Run* const run : {&many, &one}) {
        run->model.norm.running_mean.value = filled(7, 0.25f * static_cast<float>(step));
        run->model.norm.running_var.value = filled(7, 2);
      }
    }
    many.step(step);
    one.step(step);
    check_same_state(many.model, one.model);
  }
  BOOST_TEST(many.model.norm.running_var.value.data<float>()[0] != 2);  // it was updated since
}

BOOST_AUTO_TEST_CASE(a_re_assigned_buffer_that_differs_between_ranks_is_found_by_the_next_check) {
  if (world().size() < 3) return;  // among two nobody knows which is right
  Run run(world(), world().size(), {.check_every = 2});
  run.step(0);
  run.model.norm.running_mean.value = filled(7, world().rank() == 1 ? 1.5f : 1.0f);
  run.step(1);
  const std::string text = same_error(ExitCode::training, [&] { run.step(2); });
  BOOST_TEST(contains(text, "norm.running_mean on rank 1"));
}

BOOST_AUTO_TEST_CASE(two_forwards_before_one_backward_see_the_same_buffers) {
  // As a discriminator is trained: real and made-up samples, one backward.
  const auto twice = [](Normed& model, Tape& tape, const ToyShard& shard) {
    const std::int64_t half = shard.x.size(0) / 2;
    const Loss real = mse(model.forward(tape.constant(shard.x.rows(0, half))), shard.y.rows(0, half));
    const Loss made =
        mse(model.forward(tape.constant(shard.x.rows(half, 2 * half))), shard.y.rows(half, 2 * half));
    return real + made;
  };
  const int shards = world().size() + 1;
  const auto alone = comm::make_self_communicator();
  Run many(world(), shards), one(*alone, shards);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (Run* const run : {&many, &one}) {
      run->replicas.step(toy_batch(step, run->replicas),
                         [&](Tape& tape, const ToyShard& shard) { return twice(run->model, tape, shard); });
      run->sgd.step();
    }
    check_same_state(many.model, one.model);
  }
  BOOST_TEST(*many.model.norm.num_batches_tracked.value.data<std::int64_t>() == 3);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
