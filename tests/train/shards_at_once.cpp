// Passes that compute several shards, on the CPU.
#include "train/shards_at_once.h"

#include "support/mentions.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(shards_at_once, *ranks(1, 2))

BOOST_AUTO_TEST_CASE(every_task_has_the_bits_of_single_shards) {
  for (const AtOnceCase& what : at_once_cases())
    for (const char* const precision : {"fp32", "bf16"}) check_at_once(on_cpu, what, precision, {2, 4, 8});
}

BOOST_AUTO_TEST_CASE(groups_of_unequal_sizes_have_the_bits_of_single_shards) {
  for (const AtOnceCase& what : at_once_cases()) {
    check_at_once(on_cpu, what, "fp32", {2}, ddp::Graph::never, 3);
    check_at_once(on_cpu, what, "fp32", {4}, ddp::Graph::never, 6);
  }
}

struct Shards {
  std::int64_t step = 0;
  std::vector<Batch> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

/// Of this rank's 4 shards; the last has `last` samples.
Shards shards_of(const ddp::DataParallel& replicas, const models::Model& model, std::int64_t step,
                 std::int64_t last) {
  Shards batch{.step = step, .shards = {}};
  const comm::ShardRange mine = replicas.shard_map().block(world().rank());
  for (int shard = mine.first; shard < mine.end(); ++shard)
    batch.shards.push_back(made_up_shard(model, step, shard, shard + 1 == mine.end() ? last : 3));
  return batch;
}

BOOST_AUTO_TEST_CASE(a_step_whose_shards_differ_in_shape_has_single_shards_and_the_next_several) {
  const train::Config config = device_config(mlp);
  const auto backend = kernels::make_cpu_backend();
  std::vector<std::vector<double>> losses;
  for (const int at_once : {1, 4}) {
    const auto model = model_on(config, *backend);
    ddp::DataParallel replicas(*model, world(), *backend,
                               {.shards = 4 * world().size(), .shards_at_once = at_once});
    int passes = 0;
    const auto loss_of = [&](Tape& tape, const Batch& shard) {
      ++passes;
      return cross_entropy(model->forward(tape, shard), shard["y"]);
    };
    std::vector<double>& of_run = losses.emplace_back();
    for (const std::int64_t last : {3, 3, 5, 3}) {
      const auto step = static_cast<std::int64_t>(of_run.size());
      passes = 0;
      of_run.push_back(replicas.step(shards_of(replicas, *model, step, last), loss_of).mean_loss());
      for (const Param* const param : ModelState(*model).params)
        for (std::int64_t i = 0; i < param->gradient.numel(); ++i)
          of_run.back() += static_cast<double>(i % 7) * static_cast<double>(param->gradient.data<float>()[i]);
      if (step > 0) BOOST_TEST(passes == (at_once == 1 || last == 5 ? 4 : 1));
    }
    Shards cut = shards_of(replicas, *model, 4, 3);
    cut.shards.resize(2);
    BOOST_CHECK_EXCEPTION(replicas.step(cut, loss_of), UsageError,
                          [](const Error& error) { return contains(error.what(), "ended"); });
  }
  BOOST_TEST(losses[0] == losses[1], boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(shards_that_differ_while_both_ways_are_compared_run_alone) {
  const train::Config config = device_config(mlp);
  const auto backend = kernels::make_cpu_backend();
  std::vector<std::vector<double>> losses;
  for (const int at_once : {1, 4}) {
    const auto model = model_on(config, *backend);
    ddp::DataParallel replicas(*model, world(), *backend,
                               {.shards = 4 * world().size(), .shards_at_once = at_once});
    float factor = 0;  // gradients of zero are compared again in the next step
    const auto loss_of = [&](Tape& tape, const Batch& shard) {
      return factor * cross_entropy(model->forward(tape, shard), shard["y"]);
    };
    std::vector<double>& of_run = losses.emplace_back();
    for (const std::int64_t last : {3, 5, 3, 3}) {
      const auto step = static_cast<std::int64_t>(of_run.size());
      of_run.push_back(replicas.step(shards_of(replicas, *model, step, last), loss_of).mean_loss());
      factor = 1;
    }
    BOOST_TEST(replicas.shards_at_once().shards == at_once);
  }
  BOOST_TEST(losses[0] == losses[1], boost::test_tools::per_element());
}

/// What became of passes over 4 shards in steps whose last shard has so many samples; the loss gets the
/// number of samples of its pass.
ddp::ShardsAtOnce after_steps(std::initializer_list<std::int64_t> last_samples,
                              const std::function<Loss(const Loss&, std::int64_t)>& changed) {
  const auto backend = kernels::make_cpu_backend();
  const auto model = model_on(device_config(mlp), *backend);
  ddp::DataParallel replicas(*model, world(), *backend, {.shards = 4 * world().size(), .shards_at_once = 4});
  std::int64_t step = 0;
  for (const std::int64_t last : last_samples)
    replicas.step(shards_of(replicas, *model, step++, last), [&](Tape& tape, const Batch& shard) {
      return changed(cross_entropy(model->forward(tape, shard), shard["y"]), shard.samples());
    });
  return replicas.shards_at_once();
}

BOOST_AUTO_TEST_CASE(a_first_step_whose_shards_differ_is_no_refusal_but_all_first_steps_are) {
  const auto as_it_is = [](const Loss& loss, std::int64_t) { return loss; };
  BOOST_TEST(after_steps({5, 3, 3}, as_it_is).shards == 4);
  const ddp::ShardsAtOnce never = after_steps({5, 5, 5, 5, 3}, as_it_is);
  BOOST_TEST(never.shards == 1);
  BOOST_TEST(contains(never.refused, "differ in a field's shape"));
}

BOOST_AUTO_TEST_CASE(other_bits_of_several_shards_and_losses_that_cannot_read_several_keep_to_single_shards) {
  const ddp::ShardsAtOnce other = after_steps(
      {3, 3}, [](const Loss& loss, std::int64_t samples) { return (samples > 3 ? 1.0001f : 1.0f) * loss; });
  BOOST_TEST(other.shards == 1);
  BOOST_TEST(contains(other.refused, "differs from that of single shards"));
  const ddp::ShardsAtOnce thrown = after_steps({3, 3}, [](const Loss& loss, std::int64_t samples) {
    if (samples > 3) throw std::runtime_error("made for three samples");
    return loss;
  });
  BOOST_TEST(thrown.shards == 1);
  BOOST_TEST(contains(thrown.refused, "made for three samples"));
}

/// The reason of a run of `shards` shards a rank, 4 of them at once.
std::string refusal(train::Config config, int shards = 4) {
  config.ddp.shards = shards * world().size();
  config.train.global_batch = 2 * config.ddp.shards;
  config.ddp.shards_at_once = 4;
  Place cpu = on_cpu();
  DeviceRun run(config, cpu);
  run.run_to(2);
  BOOST_TEST(run.replicas().shards_at_once().shards == 1);
  return run.replicas().shards_at_once().refused;
}

BOOST_AUTO_TEST_CASE(micro_batches_and_layers_that_meet_keep_to_single_shards_and_say_so) {
  train::Config config = device_config(mlp);
  config.ddp.micro_batches = 2;
  BOOST_TEST(contains(refusal(config), "train.micro_batches"));
  BOOST_TEST(contains(refusal(device_config(resnet + "batch_norm = sync\n")), "batch_norm = sync"));
}

BOOST_AUTO_TEST_CASE(one_shard_a_rank_is_no_refusal) { BOOST_TEST(refusal(device_config(mlp), 1) == ""); }

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
