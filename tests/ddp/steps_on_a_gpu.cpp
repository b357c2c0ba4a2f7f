// Data-parallel steps on a GPU: the behaviours that the CPU's tests show, where a GPU could differ. Training
// in such steps is in training_on_a_gpu.cpp.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "ddp/gpu.h"
#include "ddp/training.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(steps_on_a_gpu, *ranks(1, 2, 3, 4))

BOOST_AUTO_TEST_CASE(gradients_have_the_bits_of_the_serial_sum_for_any_shards_on_any_ranks) {
  Gpu gpu;
  for (const int shards : {world().size(), world().size() + 1, 7, 12}) {
    for (const int pieces : {1, 2}) {
      GpuRun run(
          gpu, {.bucket_mb = 0.0002, .first_bucket_mb = tiny_mb, .shards = shards, .micro_batches = pieces});
      const std::uint64_t first_hash = run.replicas.plan().hash();
      for (std::uint64_t step = 0; step < 3; ++step) run.check_step(step);
      BOOST_TEST(run.replicas.plan().hash() != first_hash);
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_and_losses_are_those_of_the_cpu_within_rounding) {
  for (const bool reproducible : {false, true}) {
    Gpu gpu(reproducible);
    for (const int shards : {world().size(), world().size() + 1, 7}) {
      GpuRun run(gpu, {.shards = shards});
      ToyRun here({.shards = shards});
      for (std::uint64_t step = 0; step < 3; ++step) {
        const ddp::StepResult found = run.step(step);
        const ddp::StepResult wanted = here.step(step);
        BOOST_TEST(found.count == wanted.count);
        BOOST_TEST(found.loss_sum == wanted.loss_sum, boost::test_tools::tolerance(1e-5));
        for (std::size_t p = 0; p < here.net.params.size(); ++p)
          check_close(elements(run.net.params[p].gradient, gpu.backend.get()),
                      elements(here.net.params[p].gradient), here.net.params[p].name);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_simple_modes_give_the_same_bits) {
  Gpu gpu;
  for (const ddp::Mode mode : {ddp::Mode::flat, ddp::Mode::per_parameter}) {
    GpuRun run(gpu, {.shards = world().size() + 1, .micro_batches = 2, .mode = mode});
    for (std::uint64_t step = 0; step < 3; ++step) run.check_step(step);
  }
}

// --- which parameters have gradients

BOOST_AUTO_TEST_CASE(a_parameter_without_gradient_is_named_on_every_rank_and_the_next_step_works) {
  Gpu gpu;
  GpuRun run(gpu, {.shards = 4});
  const std::string text = same_error(ExitCode::usage, [&] { run.step(0, shallow); });
  BOOST_TEST(contains(text, "tied.weight in no shard"));
  for (const Param& param : run.net.params) BOOST_TEST(!param.gradient, param.name);
  run.check_step(1);
}

BOOST_AUTO_TEST_CASE(control_flow_may_differ_between_ranks_shards_and_steps) {
  Gpu gpu;
  GpuRun run(gpu, {.bucket_mb = tiny_mb, .shards = 7, .unused = ddp::Unused::allow});
  for (std::uint64_t step = 0; step < 4; ++step) {
    run.check_step(step, [step](Net& net, Tape& tape, const ToyShard& shard) {
      return (static_cast<std::uint64_t>(shard.index) + step) % 7 == 3 ? plain_loss(net, tape, shard)
                                                                       : shallow(net, tape, shard);
    });
  }
  run.step(4, shallow);
  BOOST_TEST(!run.net["tied.weight"].gradient);
}

BOOST_AUTO_TEST_CASE(frozen_parameters_get_no_gradient) {
  Gpu gpu;
  ToyRun run({.shards = 4}, {.transport = gpu.sums.get(),
                             .backend = gpu.backend,
                             .change = [](ModelState& state) { state.params[2]->trainable = false; }});
  run.step(0);
  BOOST_TEST(!run.net["tied.weight"].gradient);
  const Gradients wanted = reference_on(*gpu.backend, 0, 4);
  for (const std::size_t p : {0, 1, 3, 4})
    BOOST_TEST(same_bits(elements(run.net.params[p].gradient, gpu.backend.get()), wanted[p]),
               run.net.params[p].name);
}

// --- steps that fail

BOOST_AUTO_TEST_CASE(an_error_in_the_loss_of_one_rank_is_thrown_by_all_and_the_next_step_works) {
  const int shards = 5;
  Gpu gpu;
  GpuRun run(gpu, {.bucket_mb = tiny_mb, .shards = shards});
  for (int bad = 0; bad < shards; ++bad) {
    const std::string text = same_error(ExitCode::data, [&] {
      run.step(0, [&](Net& net, Tape& tape, const ToyShard& shard) {
        if (shard.index == bad) throw DataError("sample {} cannot be read", bad);
        return plain_loss(net, tape, shard);
      });
    });
    BOOST_TEST(text ==
               by(run.replicas.shard_map().owner(bad)) + "sample " + std::to_string(bad) + " cannot be read");
    run.check_step(static_cast<std::uint64_t>(bad + 1));
  }
}

/// Classes instead of shard.y; of shard `bad` one that there is not.
LossOf classified(int bad) {
  return [bad](Net& net, Tape& tape, const ToyShard& shard) {
    const Tensor classes = Tensor::zeros({shard.x.size(0)}, DType::int64);
    if (shard.index == bad) classes.data<std::int64_t>()[2] = 400 + bad;
    Var h =
        relu(linear(tape.constant(shard.x), tape.parameter(net.params[0]), tape.parameter(net.params[1])));
    h = net.with_nothing(tape, linear(h, tape.parameter(net.params[2])));
    return cross_entropy(linear(h, tape.parameter(net.params[3]), tape.parameter(net.params[4])),
                         kernels::on_device(classes, tape.backend()));
  };
}

BOOST_AUTO_TEST_CASE(what_a_device_finds_in_its_data_behind_the_program_is_thrown_by_all) {
  const int shards = 5;
  Gpu gpu;
  GpuRun run(gpu, {.bucket_mb = tiny_mb, .shards = shards});
  for (int bad = 0; bad < shards; ++bad) {
    const std::string text = same_error(ExitCode::data, [&] { run.step(0, classified(bad)); });
    BOOST_TEST(text.starts_with(by(run.replicas.shard_map().owner(bad))), text);
    BOOST_TEST(contains(text, std::to_string(400 + bad)), text);
    for (const Param& param : run.net.params) BOOST_TEST(!param.gradient, param.name);
    run.check_step(static_cast<std::uint64_t>(bad + 1), classified(-1));
  }
}

BOOST_AUTO_TEST_CASE(what_a_device_finds_does_not_hide_what_the_program_threw_before) {
  Gpu gpu;
  GpuRun run(gpu, {.shards = 4});
  const std::string text = same_error(ExitCode::training, [&] {
    run.step(0, [&](Net& net, Tape& tape, const ToyShard& shard) -> Loss {
      classified(shard.index)(net, tape, shard);
      throw TrainingError("no luck");
    });
  });
  BOOST_TEST(contains(text, "no luck"));
  run.check_step(1);
}

// --- how gradients travel

BOOST_AUTO_TEST_CASE(every_bucket_but_the_last_is_asked_for_before_backward_ends) {
  class Recording final : public Forwarding {
   public:
    using Forwarding::Forwarding;
    int started = 0;
    comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
      ++started;
      return Forwarding::start_tree_sum(sum, map);
    }
  };
  constexpr int filled_buckets = 5;  // "nothing" has no elements
  Gpu gpu;
  Recording sums(world(), *gpu.sums);
  GpuRun run(gpu, {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = 7}, sums);
  const int last = run.replicas.shard_map().block(world().rank()).end() - 1;
  for (std::uint64_t step = 0; step < 3; ++step) {
    sums.started = 0;
    run.step(step, watched([&](int shard) {
               BOOST_TEST(sums.started == (shard == last ? filled_buckets - 1 : 0));
             }));
    BOOST_TEST(sums.started == filled_buckets);
  }
}

BOOST_AUTO_TEST_CASE(sums_that_travel_as_bf16_are_rounded_and_the_same_on_all_ranks) {
  for (const bool reproducible : {false, true}) {
    Gpu gpu(reproducible);
    GpuRun run(gpu, {.shards = world().size() + 1, .comm_dtype = DType::bfloat16});
    run.step(0);
    const Gradients exact = reference_on(*gpu.backend, 0, world().size() + 1);
    for (std::size_t p = 0; p < exact.size(); ++p) {
      const std::vector<float> found = elements(run.net.params[p].gradient, gpu.backend.get());
      check_close(found, exact[p], run.net.params[p].name, 0.02f);
      std::vector<float> first = found;
      world().broadcast(first.data(), first.size() * sizeof(float), 0);
      BOOST_TEST(same_bits(found, first), run.net.params[p].name);
      if (p == 0) BOOST_TEST(same_bits(found, exact[p]) == (world().size() == 1));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sum_that_float16_cannot_hold_is_an_error_on_all_ranks) {
  if (world().size() == 1) return;  // nothing travels
  Gpu gpu;
  GpuRun run(gpu, {.comm_dtype = DType::float16});
  const std::string text = same_error(ExitCode::training, [&] {
    run.step(0, [](Net& net, Tape& tape, const ToyShard& shard) {
      Loss loss = plain_loss(net, tape, shard);
      loss.sum = scale(loss.sum, 1e6f);
      return loss;
    });
  });
  BOOST_TEST(contains(text, "float16"));
}

// --- what must be where

BOOST_AUTO_TEST_CASE(a_model_that_lies_elsewhere_is_refused_by_name) {
  Gpu gpu;
  Net net;
  const std::string text =
      same_error(ExitCode::usage, [&] { ddp::DataParallel(net.state(), *gpu.sums, *gpu.backend); });
  BOOST_TEST(contains(text, "in.weight is on cpu"));
}

BOOST_AUTO_TEST_CASE(every_rank_starts_from_the_values_of_rank_0) {
  Gpu gpu;
  Net net(static_cast<std::uint64_t>(world().rank() + 1)), first(1);
  net.to(*gpu.backend);
  Buffer counter{"counter", kernels::on_device(Tensor::zeros({3}, DType::int64), *gpu.backend)};
  gpu.backend->fill(counter.value, 40 + world().rank());
  ModelState state = net.state();
  state.buffers.push_back(&counter);
  ddp::DataParallel replicas(state, *gpu.sums, *gpu.backend);
  for (std::size_t p = 0; p < first.params.size(); ++p)
    BOOST_TEST(same_bits(elements(net.params[p].value, gpu.backend.get()), elements(first.params[p].value)));
  const Tensor here = kernels::on_cpu(counter.value, gpu.backend.get());
  for (int i = 0; i < 3; ++i) BOOST_TEST(here.data<std::int64_t>()[i] == 40);
}

BOOST_AUTO_TEST_CASE(a_steady_step_asks_the_driver_for_no_memory) {
  for (const bool reproducible : {false, true}) {
    Gpu gpu(reproducible);
    GpuRun run(gpu, {.bucket_mb = tiny_mb, .shards = 7, .micro_batches = 2});
    std::size_t before = 0;
    for (std::uint64_t number = 1; number <= 7; ++number) {
      if (number == 4) before = gpu.backend->reserved_bytes();
      run.step(number);
    }
    BOOST_TEST(gpu.backend->reserved_bytes() == before);
    BOOST_TEST(before > 0u);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
