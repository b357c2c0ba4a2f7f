// Training whose values are on a device gives the bits of the CPU, and touches nothing there by a pointer:
// the device is one whose memory is closed to programs (support/fake_device.h).
#include "train/on_a_device.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>

#include "checkpoint/sample.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/train/evaluate.h"
#include "support/mentions.h"
#include "train/infer/generate.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(on_a_device, *ranks(1, 2, 3, 4))

using Values = std::vector<std::pair<std::string, Tensor>>;

void check_same_bits(const Values& found, const Values& wanted) {
  BOOST_REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    BOOST_TEST(found[i].first == wanted[i].first);
    const Tensor &a = found[i].second, &b = wanted[i].second;
    BOOST_TEST((a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0), found[i].first);
  }
}

void check_trains_alike(const train::Config& config) {
  Place cpu = on_cpu(), device = on_fake_device();
  DeviceRun there(config, device), here(config, cpu);
  check_same_bits(there.values(), here.values());  // initial values, too
  there.run_to(4);
  here.run_to(4);
  BOOST_TEST(there.losses() == here.losses(), boost::test_tools::per_element());
  check_same_bits(there.values(), here.values());
}

BOOST_AUTO_TEST_CASE(an_mlp_has_the_bits_of_the_cpu) { check_trains_alike(device_config(mlp)); }

BOOST_AUTO_TEST_CASE(pieces_of_shards_have_the_bits_of_the_cpu) {
  train::Config config = device_config(mlp, "[ddp]\ncheck_every = 1\n");
  config.ddp.micro_batches = 2;
  check_trains_alike(config);
}

BOOST_AUTO_TEST_CASE(a_gpt_with_dropout_has_the_bits_of_the_cpu) { check_trains_alike(device_config(gpt)); }

BOOST_AUTO_TEST_CASE(sgd_has_the_bits_of_the_cpu) {
  check_trains_alike(device_config(mlp, "name = sgd\nmomentum = 0.9\n"));
}

BOOST_AUTO_TEST_CASE(muon_has_the_bits_of_the_cpu) {
  for (const char* const more : {"", "[ddp]\nsharded_optimizer = true\n"})
    check_trains_alike(device_config(gpt, std::string("name = muon\n") + more));
}

BOOST_AUTO_TEST_CASE(bf16_has_the_bits_of_the_cpu) {
  for (const std::string& model : {mlp, gpt}) {
    train::Config config = device_config(model);
    config.train.precision = "bf16";
    config.ddp.micro_batches = 2;
    check_trains_alike(config);
  }
}

BOOST_AUTO_TEST_CASE(a_sharded_optimizer_has_the_bits_of_the_cpu) {
  check_trains_alike(device_config(gpt, "[ddp]\nsharded_optimizer = true\n"));
}

BOOST_AUTO_TEST_CASE(a_step_that_clips_reads_the_device_once) {
  for (const char* const more : {"", "[ddp]\nsharded_optimizer = true\n"}) {
    for (const std::string& model : {mlp, gpt}) {
      Place device = on_fake_device();
      DeviceRun run(device_config(model, more), device);
      run.run_to(1);  // the plan that it makes again is moved by way of the CPU
      for (int step = 2; step <= 4; ++step) {
        const int before = reads_of(*device.backend);
        run.run_to(step);
        BOOST_TEST(reads_of(*device.backend) - before == 1, model << more << "step " << step);
      }
    }
  }
}

/// Convolutions of a plain layout have other last bits than those of the CPU's own.
BOOST_AUTO_TEST_CASE(images_and_batch_norm_of_one_or_all_ranks_train) {
  for (const char* const norm : {"batch_norm = plain\n", "batch_norm = sync\n"}) {
    const train::Config config = device_config(resnet + norm);
    Place cpu = on_cpu(), device = on_fake_device();
    DeviceRun there(config, device), here(config, cpu);
    there.run_to(3);
    here.run_to(3);
    for (std::size_t i = 0; i < here.losses().size(); ++i)
      BOOST_TEST(std::abs(there.losses()[i] - here.losses()[i]) < 1e-3 * here.losses()[i]);
    const Values found = there.values(), wanted = here.values();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i].first.ends_with("num_batches_tracked")) continue;
      BOOST_TEST(*found[i].second.data<std::int64_t>() == *wanted[i].second.data<std::int64_t>());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_replica_that_differs_is_found) {
  if (world().size() == 1) return;
  Place device = on_fake_device();
  DeviceRun run(device_config(mlp), device);
  run.run_to(1);
  run.replicas().check_replicas();
  const ModelState state = run.model();
  if (world().rank() == 1) device.backend->fill(state.params[0]->value, 3);
  BOOST_CHECK_EXCEPTION(run.replicas().check_replicas(), TrainingError, mentions(state.params[0]->name));
}

BOOST_AUTO_TEST_CASE(a_model_that_lies_elsewhere_is_refused_by_name) {
  Place device = on_fake_device();
  const auto model = train::build_model(device_config(mlp));
  BOOST_CHECK_EXCEPTION(ddp::DataParallel(*model, device.sums(), *device.backend), UsageError,
                        mentions("net.0.weight is on cpu"));
}

BOOST_AUTO_TEST_CASE(a_model_comes_back_from_a_device_as_it_went) {
  Place device = on_fake_device();
  const train::Config config = device_config(mlp);
  const auto model = model_on(config, *device.backend), other = train::build_model(config);
  const auto cpu = kernels::make_cpu_backend();
  model->to(*cpu);
  const ModelState state = *model, wanted = *other;
  BOOST_TEST(!state.backend);
  for (std::size_t i = 0; i < state.params.size(); ++i)
    BOOST_TEST(std::memcmp(state.params[i]->value.raw(), wanted.params[i]->value.raw(),
                           wanted.params[i]->value.bytes()) == 0);
}

/// Its file, and one of a run on the CPU that holds the same values.
struct TwoFiles {
  static constexpr std::int64_t steps = 2;
  TwoFiles(const train::Config& config, bool async)
      : device(on_fake_device()), cpu(on_cpu()), there(config, device), here(config, cpu) {
    there.run_to(steps);
    here.run_to(steps);
    checkpoint::Store store(folder.file("device"), world(), {.async = async});
    device_file = store.save_state_dict(steps, there.contents());
    store.finish();
    checkpoint::Store cpu_store(folder.file("cpu"), world());
    cpu_file = cpu_store.save_state_dict(steps, here.contents());
  }
  SharedFolder folder{world()};
  Place device, cpu;
  DeviceRun there, here;
  std::string device_file, cpu_file;
};

void check_files(const train::Config& config, bool async) {
  TwoFiles files(config, async);
  const checkpoint::FileIndex found = checkpoint::read_index(files.device_file, world());
  const checkpoint::FileIndex wanted = checkpoint::read_index(files.cpu_file, world());
  BOOST_TEST(found.digest == wanted.digest);

  // From the CPU's file on the device, and the other way round, and on.
  Place device = on_fake_device(), cpu = on_cpu();
  DeviceRun there(config, device), here(config, cpu);
  const checkpoint::StateDict there_contents = there.contents(), here_contents = here.contents();
  checkpoint::load_file(files.cpu_file, there_contents, world());
  checkpoint::load_file(files.device_file, here_contents, world());
  check_same_bits(there.values(), files.here.values());
  for (DeviceRun* const run : {&there, &here, &files.here}) run->run_to(TwoFiles::steps + 2);
  check_same_bits(there.values(), files.here.values());
  check_same_bits(here.values(), files.here.values());
}

BOOST_AUTO_TEST_CASE(a_checkpoint_is_the_same_file_and_a_run_moves_between_devices) {
  check_files(device_config(gpt), false);
}
BOOST_AUTO_TEST_CASE(so_it_is_when_saved_beside_training) { check_files(device_config(gpt), true); }
BOOST_AUTO_TEST_CASE(so_it_is_with_a_sharded_optimizer) {
  check_files(device_config(mlp, "[ddp]\nsharded_optimizer = true\n"), true);
}

BOOST_AUTO_TEST_CASE(weights_alone_are_loaded_on_a_device) {
  TwoFiles files(device_config(mlp), false);
  Place device = on_fake_device();
  const auto model = model_on(device_config(mlp), *device.backend);
  device.backend->fill(model->state().params[0]->value, 7);
  checkpoint::load_weights(files.cpu_file, *model, world());
  const ModelState found = *model, wanted = files.here.model();
  for (std::size_t i = 0; i < found.params.size(); ++i) {
    const Tensor value = kernels::on_cpu(found.params[i]->value, device.backend.get());
    BOOST_TEST(std::memcmp(value.raw(), wanted.params[i]->value.raw(), value.bytes()) == 0);
  }
}

BOOST_AUTO_TEST_CASE(shadows_swapped_in_lie_on_the_device) {
  Place device = on_fake_device();
  DeviceRun run(device_config(mlp, "[ddp]\nsharded_optimizer = true\n"), device);
  run.run_to(2);
  {
    const auto swapped = run.ema().swap_in("0.9");
    for (const Param* const param : run.model().state().params)
      BOOST_TEST((param->value.device() == device.backend->device()));
  }
  run.run_to(3);
}

BOOST_AUTO_TEST_CASE(an_evaluation_finds_the_same) {
  const Vectors data;
  const train::Config config = device_config(mlp);
  Place device = on_fake_device(), cpu = on_cpu();
  const auto there = model_on(config, *device.backend), here = model_on(config, *cpu.backend);
  Tape there_tape(*device.backend), here_tape(*cpu.backend);
  const train::EvaluationResult found = evaluated(*there, there_tape, data, world());
  BOOST_TEST(found.metrics.size() == 2U);
  BOOST_TEST((found.metrics == evaluated(*here, here_tape, data, world()).metrics));
}

BOOST_AUTO_TEST_CASE(a_text_goes_on_the_same) {
  const train::Config config = device_config(gpt);
  Place device = on_fake_device(), cpu = on_cpu();
  const auto there = model_on(config, *device.backend), here = model_on(config, *cpu.backend);
  const std::vector<train::Tokens> starts{{97, 32, 115}, {98}, {1, 2, 3, 4, 5}};
  BOOST_TEST((train::generate(*there, *device.backend, starts, 0, {.tokens = 12}) ==
              train::generate(*here, *cpu.backend, starts, 0, {.tokens = 12})));
}

BOOST_AUTO_TEST_CASE(a_loader_brings_batches_to_the_device) {
  const Vectors data;
  const auto device = make_fake_device();
  const data::LoaderOptions options{.global_batch = 24, .shards = 4, .seed = 5};
  data::LoaderOptions to_device = options;
  to_device.backend = device.get();
  data::Loader there(data, to_device, world()), here(data, options, world());
  for (const std::int64_t step : {0, 1, 2, 7, 8, 3, 4}) {
    const data::StepBatch &found = there.at(step), &wanted = here.at(step);
    BOOST_REQUIRE(found.shards.size() == wanted.shards.size());
    for (std::size_t s = 0; s < found.shards.size(); ++s) {
      const Tensor x = kernels::on_cpu(found.shards[s]["x"], device.get());
      const Tensor y = kernels::on_cpu(found.shards[s]["y"], device.get());
      BOOST_TEST((found.shards[s]["x"].device() == device->device()));
      BOOST_TEST(std::memcmp(x.raw(), wanted.shards[s]["x"].raw(), x.bytes()) == 0);
      BOOST_TEST(std::memcmp(y.raw(), wanted.shards[s]["y"].raw(), y.bytes()) == 0);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
