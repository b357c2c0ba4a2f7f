// Training in data-parallel steps on a GPU: optimizers, averages, SyncBatchNorm, and what compares replicas.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "ddp/gpu.h"
#include "ddp/sync_batch_norm.h"
#include "ddp/wide.h"
#include "lockstep/optim/ema.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(training_on_a_gpu, *ranks(1, 2, 3, 4))

constexpr std::uint64_t steps = 4;

BOOST_AUTO_TEST_CASE(a_sharded_optimizer_gives_the_bits_of_whole_updates) {
  Gpu gpu;
  for (const Algorithm algorithm : all_algorithms) {
    WideRun whole(wide_options(false), algorithm, *gpu.sums, gpu.backend);
    std::vector<double> norms;
    for (std::uint64_t step = 0; step < steps; ++step) norms.push_back(whole.step(step));
    for (const ddp::Mode mode : {ddp::Mode::overlapped, ddp::Mode::flat}) {
      ddp::Options options = wide_options(true);
      options.mode = mode;
      WideRun parts(options, algorithm, *gpu.sums, gpu.backend);
      for (std::uint64_t step = 0; step < steps; ++step) BOOST_TEST(parts.step(step) == norms[step]);
      check_same(whole, parts);
      parts.replicas.check_replicas();
    }
  }
}

BOOST_AUTO_TEST_CASE(a_model_keeps_its_values_when_its_flat_buffer_goes) {
  Gpu gpu;
  WideRun whole(wide_options(false), Algorithm::sgd, *gpu.sums, gpu.backend);
  for (std::uint64_t step = 0; step < 2; ++step) whole.step(step);
  Wide model;
  model.to(*gpu.backend);
  {
    ddp::DataParallel replicas(model.state(), *gpu.sums, *gpu.backend, wide_options(true));
    const auto sgd = make_optimizer(Algorithm::sgd, replicas);
    for (std::uint64_t step = 0; step < 2; ++step) {
      replicas.step(toy_batch(step, replicas),
                    [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                      return model.loss(tape, on_device(shard, *gpu.backend), piece);
                    });
      sgd->step({.clip = 0.5});
    }
  }  // with parameters on their way
  for (const Param& param : model.params) {
    BOOST_TEST((param.value.device() == gpu.backend->device()));
    BOOST_TEST(!param.pending_values);
  }
  BOOST_TEST((model.values(gpu.backend.get()) == whole.model.values(gpu.backend.get())));
}

BOOST_AUTO_TEST_CASE(clipped_updates_and_averages_are_those_of_the_cpu_within_rounding) {
  Gpu gpu(false);
  for (const Algorithm algorithm : all_algorithms) {
    for (const bool sharded : {false, true}) {
      WideRun there(wide_options(sharded), algorithm, *gpu.sums, gpu.backend),
          here(wide_options(sharded), algorithm);
      for (std::uint64_t step = 0; step < steps; ++step) {
        const double norm = here.step(step);
        BOOST_TEST(norm > 0.5);  // clipped
        BOOST_TEST(there.step(step) == norm, boost::test_tools::tolerance(1e-4));
      }
      // AdamW's first steps are of equal size whatever a gradient's.
      const float tolerance = algorithm == Algorithm::sgd ? 1e-5f : 1e-3f;
      const auto found = there.model.values(gpu.backend.get()), wanted = here.model.values();
      for (std::size_t p = 0; p < wanted.size(); ++p)
        check_close(found[p], wanted[p], here.model.params[p].name, tolerance);
      const auto averages = there.ema.tensors(), others = here.ema.tensors();
      BOOST_REQUIRE(averages.size() == others.size());
      for (std::size_t i = 0; i < others.size(); ++i)
        check_close(elements(averages[i].tensor, gpu.backend.get()), elements(others[i].tensor),
                    others[i].name, tolerance);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_same_bits_come_at_every_world_size) {
  Gpu gpu;
  WideRun together(wide_options(false), Algorithm::adamw, *gpu.sums, gpu.backend);
  const auto self = comm::make_self_communicator();
  const auto one = comm::make_nccl_transport(
      *self, {.device = own_gpu(), .stream = gpu.backend->stream(), .reproducible = true, .share_gpu = true});
  WideRun alone(wide_options(false), Algorithm::adamw, *one, gpu.backend);
  for (std::uint64_t step = 0; step < steps; ++step) BOOST_TEST(together.step(step) == alone.step(step));
  check_same(together, alone);
}

BOOST_AUTO_TEST_CASE(ranks_with_unequal_batches_share_their_statistics) {
  Gpu gpu;
  const auto rows_of = [](int rank) { return 5 + 3 * rank; };
  check_training<Dense>(*gpu.sums, rows_of, 0, gpu.backend);
  check_training<Images>(*gpu.sums, rows_of, 0, gpu.backend);
}

BOOST_AUTO_TEST_CASE(ranks_without_samples_take_part_in_statistics) {
  Gpu gpu;
  for (const int with : {0, world().size() - 1}) {
    const auto rows_of = [with](int rank) { return rank == with ? 5 : 0; };
    check_training<Dense>(*gpu.sums, rows_of, 0, gpu.backend);
    check_training<Images>(*gpu.sums, rows_of, 0, gpu.backend);
  }
}

BOOST_AUTO_TEST_CASE(one_flipped_bit_is_found_and_named_by_all_ranks) {
  if (world().size() == 1) return;
  Gpu gpu;
  const int victim = world().size() - 1;
  for (const std::string name : {"in.weight", "tied.weight", "mean"}) {
    Net net;
    net.to(*gpu.backend);
    net["tied.weight"].trainable = false;
    Buffer mean{"mean", kernels::on_device(Tensor::zeros({3}), *gpu.backend)};
    ModelState state = net.state();
    state.buffers.push_back(&mean);
    ddp::DataParallel replicas(state, *gpu.sums, *gpu.backend, {.check_every = 2});
    optim::AdamW adamw(replicas);
    const auto step = [&](std::uint64_t number) {
      replicas.step(toy_batch(number, replicas), [&](Tape& tape, const ToyShard& shard) {
        return plain_loss(net, tape, on_device(shard, *gpu.backend));
      });
      adamw.step();
    };
    for (std::uint64_t number = 0; number < 3; ++number) step(number);
    if (world().rank() == victim) {
      const Tensor& tensor = name == "mean" ? mean.value : net[name].value;
      const Tensor here = kernels::on_cpu(tensor, gpu.backend.get());
      static_cast<unsigned char*>(here.raw())[5] ^= 1;
      kernels::transfer(here, tensor, gpu.backend.get());
    }
    step(3);
    const std::string text = same_error(ExitCode::training, [&] { step(4); });
    BOOST_TEST(contains(text, name + " on rank " + std::to_string(victim)), text);
  }
}

BOOST_AUTO_TEST_CASE(steady_updates_ask_the_driver_for_no_memory) {
  for (const bool sharded : {false, true}) {
    Gpu gpu;
    WideRun run(wide_options(sharded), Algorithm::adamw, *gpu.sums, gpu.backend);
    std::size_t before = 0;
    for (std::uint64_t number = 0; number < 8; ++number) {
      if (number == 4) before = gpu.backend->reserved_bytes();
      run.step(number);
    }
    BOOST_TEST(gpu.backend->reserved_bytes() == before);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
