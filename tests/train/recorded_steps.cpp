// Steps that are recorded and replayed (train.cuda_graph) are the steps they stand for: on a real GPU.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>

#include "checkpoint/sample.h"
#include "comm/nccl/on_gpu.h"
#include "kernels/gpus.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/random.h"
#include "lockstep/train/evaluate.h"
#include "support/mentions.h"
#include "support/ranks.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(recorded_steps, *ranks(1, 2, 3))

Place on_gpu(bool reproducible = true) {
  Place place(kernels::make_cuda_backend(own_gpu()));
  place.transport = comm::make_nccl_transport(
      world(), {.device = own_gpu(), .stream = place.backend->stream(), .reproducible = reproducible});
  return place;
}

constexpr std::int64_t steps = 9, replayed_from = 5;  // met at steps 1 and 2, recorded at 3 and 4

const std::string plain_gpt = "name = gpt\nlayers = 2\nheads = 2\nchannels = 16\ncontext = 8\nvocab = 256\n";

/// By one rank alone, what everybody gets; by several, what has to be asked for.
ddp::Graph wish() { return world().size() == 1 ? ddp::Graph::automatic : ddp::Graph::always; }

train::Config recorded(train::Config config) {
  config.ddp.graph = wish();
  return config;
}

using Values = std::vector<std::pair<std::string, Tensor>>;

void check_same(DeviceRun& found, DeviceRun& wanted) {
  BOOST_TEST(found.losses() == wanted.losses(), boost::test_tools::per_element());
  const Values a = found.values(), b = wanted.values();
  BOOST_REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    BOOST_TEST(std::memcmp(a[i].second.raw(), b[i].second.raw(), b[i].second.bytes()) == 0, a[i].first);
}

void check_replays(const DeviceRun& run, std::int64_t replays) {
  const ddp::CapturedSteps& so_far = const_cast<DeviceRun&>(run).replicas().captured_steps();
  BOOST_TEST(so_far.refused == "");
  BOOST_TEST(so_far.captures == 2);
  BOOST_TEST(so_far.launches == replays);
}

void check_recorded_is_plain(const train::Config& config, bool reproducible = true,
                             std::int64_t end = steps) {
  Place gpu = on_gpu(reproducible);
  DeviceRun found(recorded(config), gpu), wanted(config, gpu);
  found.run_to(end);
  wanted.run_to(end);
  check_same(found, wanted);
  check_replays(found, end - 3);
}

std::string refusal(const train::Config& config) {
  Place gpu = on_gpu();
  std::string text;
  try {
    DeviceRun run(config, gpu);
    run.run_to(steps);
  } catch (const UsageError& error) {
    text = error.what();
  }
  return text;
}

BOOST_AUTO_TEST_CASE(an_mlp_has_the_bits_of_plain_steps) {
  check_recorded_is_plain(device_config(mlp));
  check_recorded_is_plain(device_config(mlp), false);  // in NCCL's own order
}

BOOST_AUTO_TEST_CASE(a_gpt_has_the_bits_of_plain_steps) { check_recorded_is_plain(device_config(plain_gpt)); }

BOOST_AUTO_TEST_CASE(a_gpt_in_bf16_has_the_bits_of_plain_steps) {
  train::Config config = device_config(plain_gpt);
  config.train.precision = "bf16";
  check_recorded_is_plain(config);
}

/// Of so many layers whose weights fill a bucket each.
std::string deep_mlp(int layers) {
  std::string sizes = "6";
  for (int layer = 1; layer < layers; ++layer) sizes += " 20";
  return "name = mlp\nsizes = " + sizes + " 5\n";
}

/// Its events are counted in works of a stream, of which a ring holds 64 at first.
void check_many_buckets(int layers, std::size_t buckets, bool reproducible = true) {
  constexpr std::int64_t few_steps = 6;
  Place gpu = on_gpu(reproducible);
  const train::Config config = device_config(deep_mlp(layers));
  DeviceRun found(recorded(config), gpu), wanted(config, gpu);
  found.run_to(few_steps);
  wanted.run_to(few_steps);
  BOOST_TEST(found.replicas().bucket_times().size() == buckets);
  check_same(found, wanted);
  check_replays(found, few_steps - 3);
}

BOOST_AUTO_TEST_CASE(a_model_of_80_buckets_has_the_bits_of_plain_steps) { check_many_buckets(80, 80); }

BOOST_AUTO_TEST_CASE(a_model_of_80_buckets_has_the_bits_of_plain_steps_in_nccl_s_order) {
  check_many_buckets(80, 80, false);
}

BOOST_AUTO_TEST_CASE(a_model_of_64_buckets_has_the_bits_of_plain_steps) { check_many_buckets(64, 64); }

BOOST_AUTO_TEST_CASE(a_resnet_has_the_bits_of_plain_steps_and_its_statistics) {
  check_recorded_is_plain(device_config(resnet));
}

BOOST_AUTO_TEST_CASE(pieces_and_parts_that_are_computed_again_have_the_bits_of_plain_steps) {
  train::Config config = device_config(plain_gpt + "recompute = true\n", "[ddp]\ncheck_every = 2\n");
  config.ddp.micro_batches = 2;
  check_recorded_is_plain(config);
}

BOOST_AUTO_TEST_CASE(several_shards_a_rank_have_the_bits_of_plain_steps) {
  train::Config config = device_config(mlp);
  config.ddp.shards = 3 * world().size() + 1;
  config.train.global_batch = 2 * config.ddp.shards;
  check_recorded_is_plain(config);
}

BOOST_AUTO_TEST_CASE(a_replayed_step_does_not_run_the_model) {
  Place gpu = on_gpu();
  DeviceRun run(recorded(device_config(mlp)), gpu);
  run.run_to(replayed_from);
  const int asked = run.losses_asked();
  BOOST_TEST(asked > 0);
  run.run_to(steps);
  BOOST_TEST(run.losses_asked() == asked);
}

BOOST_AUTO_TEST_CASE(a_replayed_step_tells_its_times) {
  Place gpu = on_gpu();
  DeviceRun run(recorded(device_config(mlp)), gpu);
  run.run_to(steps);
  BOOST_TEST(run.last().compute_ms > 0);
  BOOST_TEST(run.last().exposed_comm_ms >= 0);
  for (const ddp::BucketTime& bucket : run.replicas().bucket_times())
    BOOST_TEST(bucket.done_ms >= bucket.start_ms);
}

void check_evaluations_and_checkpoints(const std::string& precision) {
  const SharedFolder folder(world());
  const Vectors data;
  train::Config config = device_config(mlp);
  config.train.precision = precision;
  Place gpu = on_gpu();
  DeviceRun found(recorded(config), gpu), wanted(config, gpu);
  for (std::int64_t end = 2; end <= steps + 2; ++end) {
    for (DeviceRun* const run : {&found, &wanted}) {
      run->run_to(end);
      const auto swapped = run->ema().swap_in("0.9");
      evaluated(run->model(), run->replicas().tape(), data, world());
    }
    if (end % 3 == 0) checkpoint::save_file(folder.file("a.h5"), found.contents(), world());
  }
  check_same(found, wanted);
  check_replays(found, steps + 2 - 3);
}

BOOST_AUTO_TEST_CASE(evaluations_and_checkpoints_come_between_replayed_steps) {
  check_evaluations_and_checkpoints("fp32");
  check_evaluations_and_checkpoints("bf16");
}

/// Values in other memory: nothing that was made of them before is taken for theirs.
void move_parameters(DeviceRun& run, kernels::Backend& backend) {
  const ModelState state = run.model();
  for (Param* const param : state.params) {
    const Tensor elsewhere = backend.empty(param->value.shape());
    backend.copy(param->value, elsewhere);
    param->value = elsewhere;
  }
}

void check_values_written_by_operations(const std::vector<std::string>& frozen) {
  Place gpu = on_gpu();
  train::Config config = device_config(plain_gpt);
  config.train.precision = "bf16";
  config.train.frozen = frozen;
  DeviceRun replayed(recorded(config), gpu), wanted(config, gpu);
  config.ddp.graph = ddp::Graph::never;
  DeviceRun plain(config, gpu);
  for (std::int64_t end = 1; end <= steps + 2; ++end) {
    for (DeviceRun* const run : {&replayed, &plain, &wanted}) {
      if (run == &wanted) move_parameters(*run, *gpu.backend);
      run->run_to(end);
      if (end != replayed_from + 2) continue;
      const ModelState state = run->model();
      for (Param* const param : state.params) gpu.backend->run(ops::scale(param->value, 0.5F, param->value));
    }
  }
  check_same(replayed, wanted);
  check_same(plain, wanted);
  check_replays(replayed, steps + 2 - 3);
}

BOOST_AUTO_TEST_CASE(steps_in_bf16_read_the_values_of_optimizers_and_of_other_operations) {
  check_values_written_by_operations({});
  check_values_written_by_operations({"*mlp*"});  // which no optimizer writes
}

BOOST_AUTO_TEST_CASE(a_replayed_step_finds_wrong_data_and_the_next_goes_on) {
  Place gpu = on_gpu();
  const train::Config config = device_config(mlp);
  DeviceRun found(recorded(config), gpu), wanted(config, gpu);
  for (DeviceRun* const run : {&found, &wanted}) {
    run->run_to(replayed_from);
    run->spoil_next(77);
    BOOST_CHECK_EXCEPTION(run->run_to(steps), Error,
                          [](const Error& error) { return contains(error.what(), "77"); });
    run->run_to(steps);
  }
  check_same(found, wanted);
}

BOOST_AUTO_TEST_CASE(dropout_has_the_bits_of_plain_steps) {
  for (const char* const more : {"", "recompute = true\n"}) {
    train::Config config = device_config(gpt + more);
    config.ddp.micro_batches = 2;
    check_recorded_is_plain(config);
  }
}

BOOST_AUTO_TEST_CASE(diffusion_has_the_bits_of_plain_steps) {
  const std::string unet =
      "name = unet\nimage_size = 2\nin_channels = 1\nmodel_channels = 32\nnum_res_blocks = 1\n"
      "channel_mult = 1\nnum_classes = 5\ndropout = 0.3\nout_channels = ";
  const std::string cosine = "[diffusion]\nschedule = cosine\n";
  constexpr std::int64_t few_steps = 6;
  for (const std::string& more : {"1\n" + cosine + "steps = 9\nclass_dropout = 0.4\nmin_snr = 5\n",
                                  "1\n" + cosine + "steps = 2\ntime = loss_second_moment\npredict = v\n",
                                  "2\n" + cosine + "steps = 9\nvariance = learned_range\n"}) {
    BOOST_TEST_CONTEXT(more) {
      train::Config config = device_config(unet + more);
      config.ddp.micro_batches = 2;
      check_recorded_is_plain(config, true, few_steps);
    }
  }
}

BOOST_AUTO_TEST_CASE(memory_of_a_graph_that_a_refused_capture_took_stays_with_the_graph) {
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(own_gpu());
  constexpr std::int64_t elements = 5000;
  const auto refused = [&](const auto& body) {
    const auto capture = gpu->capture_graph(0);
    body();
    BOOST_CHECK_THROW((void)capture->finish(), UsageError);
  };
  std::unique_ptr<kernels::Graph> graph;
  {
    const auto capture = gpu->capture_graph(0);
    gpu->fill(gpu->empty({elements}), 1);
    graph = capture->finish();
  }
  Tensor outlives;
  refused([&] { outlives = gpu->empty({elements}); });
  const void* const of_graph = outlives.raw();
  refused([&] { outlives = {}; });
  BOOST_TEST(gpu->empty({elements}).raw() != of_graph);
}

BOOST_AUTO_TEST_CASE(random_numbers_of_another_step_are_refused) {
  const std::unique_ptr<kernels::Backend> gpu = kernels::make_cuda_backend(own_gpu());
  const Tensor y = gpu->empty({4});
  const auto capture = gpu->capture_graph(3);
  gpu->run(ops::Draw{.key = {.step = 3}, .y = y});
  BOOST_CHECK_EXCEPTION(gpu->run(ops::Draw{.key = {.step = 2}, .y = y}), UsageError,
                        mentions("step 2 are drawn in step 3"));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_recorded_is_refused_by_name) {
  const auto with_true = [](train::Config config) {
    config.ddp.graph = ddp::Graph::always;
    return config;
  };
  BOOST_TEST(contains(refusal(with_true(device_config(mlp, "[ddp]\nsharded_optimizer = true\n"))),
                      "ddp.sharded_optimizer"));
  BOOST_TEST(contains(refusal(with_true(device_config(resnet + "batch_norm = sync\n"))), "model.batch_norm"));
  Place cpu = on_cpu();
  BOOST_CHECK_EXCEPTION(DeviceRun(with_true(device_config(mlp)), cpu), UsageError,
                        [](const UsageError& error) { return contains(error.what(), "only a GPU's steps"); });
}

BOOST_AUTO_TEST_CASE(several_ranks_record_only_when_they_are_asked_to) {
  if (world().size() == 1) return;
  train::Config config = device_config(mlp);
  config.ddp.graph = ddp::Graph::automatic;
  Place gpu = on_gpu();
  DeviceRun run(config, gpu);
  run.run_to(steps);
  BOOST_TEST(run.replicas().captured_steps().captures == 0);
  BOOST_TEST(contains(run.replicas().captured_steps().refused, "train.cuda_graph = true"));
}

BOOST_AUTO_TEST_CASE(parameters_that_move_are_recorded_anew) {
  Place gpu = on_gpu();
  train::Config config = device_config(mlp);
  config.train.precision = "bf16";
  DeviceRun found(recorded(config), gpu), wanted(config, gpu);
  for (DeviceRun* const run : {&found, &wanted}) {
    run->run_to(replayed_from + 1);
    const ModelState state = run->model();
    Tensor& value = state.params.front()->value;
    const Tensor elsewhere = gpu.backend->empty(value.shape());
    gpu.backend->copy(value, elsewhere);
    value = elsewhere;
    run->run_to(replayed_from + 6);
  }
  check_same(found, wanted);
  BOOST_TEST(found.replicas().captured_steps().captures == 4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
