#include "lockstep/train/benchmark.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/names.h"
#include "lockstep/base/random.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/train/workload.h"

namespace lockstep::train {
namespace {

constexpr std::int64_t unmeasured_steps = 4;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// One shard of random inputs; the same tensors serve every step.
struct MadeUpBatch {
  std::int64_t step = 0;
  std::vector<data::Shard> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

MadeUpBatch make_up(const models::ModelConfig& model, std::int64_t samples, int shard) {
  const Random random({1, purpose_of("benchmark"), 0, static_cast<std::uint32_t>(shard)});
  MadeUpBatch batch;
  data::Shard made{.index = shard, .x = {}, .y = {}};
  const auto integers = [&](Shape shape, std::int64_t bound) {
    const Tensor tensor = Tensor::empty(shape, DType::int64);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      tensor.data<std::int64_t>()[i] =
          random.below(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(bound));
    }
    return tensor;
  };
  const auto normals = [&](Shape shape) {
    const Tensor tensor = Tensor::empty(shape);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
    return tensor;
  };
  if (model.name == "gpt") {
    made.x = integers({samples, model.context}, model.vocab);
    made.y = integers({samples, model.context}, model.vocab);
  } else if (model.name == "resnet") {
    constexpr std::int64_t image_pixels = 32;
    made.x = normals({samples, model.in_channels, image_pixels, image_pixels});
    made.y = integers({samples}, model.classes);
  } else {
    made.x = normals({samples, model.sizes.front()});
    made.y = integers({samples}, model.sizes.back());
  }
  batch.shards.push_back(made);
  return batch;
}

const StandardWorkload& workload_named(const std::string& name) {
  std::vector<std::string> names;
  for (const StandardWorkload& workload : standard_workloads()) {
    if (workload.name == name) return workload;
    names.push_back(workload.name);
  }
  throw UsageError("unknown workload '{}'; one of {}", name, fmt::join(names, ", "));
}

}  // namespace

const std::vector<StandardWorkload>& standard_workloads() {
  static const std::vector<StandardWorkload> workloads{
      {"gpt-cpu", 8,
       "[model]\nname = gpt\nlayers = 4\nheads = 4\nchannels = 256\ncontext = 128\nvocab = 256\n"
       "[optimizer]\nname = adamw\nlr = 1e-3\nweight_decay = 0.1\n"},
      {"resnet-cpu", 32,
       "[model]\nname = resnet\nblocks = 2 2 2\nwidth = 32\nin_channels = 3\nclasses = 10\n"
       "[optimizer]\nname = sgd\nlr = 0.01\nmomentum = 0.9\n"},
      {"mlp-wide", 32,
       "[model]\nname = mlp\nsizes = 1024 4096 4096 1024\n"
       "[optimizer]\nname = sgd\nlr = 0.01\n"},
  };
  return workloads;
}

StepTimes time_steps(Session& session, const std::string& name, std::int64_t steps) {
  if (steps < 1) throw UsageError("--steps must be at least 1");
  const StandardWorkload& workload = workload_named(name);
  comm::Communicator& world = session.world();
  const std::int64_t global_batch = workload.batch_per_rank * world.size();
  const Config config = parse_config(fmt::format("{}[train]\nsteps = 1\nglobal_batch = {}\nshards = {}\n",
                                                 workload.config, global_batch, world.size()),
                                     "workload " + name);
  const auto model = build_model(config);
  ddp::DataParallel replicas(*model, world, session.backend(), {.shards = world.size()});
  const auto optimizer = build_optimizer(config, replicas);
  MadeUpBatch batch = make_up(config.model, workload.batch_per_rank, world.rank());

  std::vector<double> step_ms, exposed_ms;
  for (; batch.step < unmeasured_steps + steps; ++batch.step) {
    const Stopwatch watch;
    const ddp::StepResult result = replicas.step(batch, [&](Tape& tape, const data::Shard& shard) {
      return cross_entropy(model->forward(tape, shard.x), shard.y);
    });
    optimizer->step();
    if (batch.step < unmeasured_steps) continue;
    step_ms.push_back(watch.elapsed_ms());
    exposed_ms.push_back(result.exposed_comm_ms);
  }

  // The slowest rank decides how long a step took.
  const auto slowest = [&](std::vector<double>& mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(world.size()));
    world.all_gather(mine.data(), mine.size() * sizeof(double), all.data());
    for (std::size_t i = 0; i < all.size(); ++i)
      mine[i % mine.size()] = std::max(mine[i % mine.size()], all[i]);
    return median(mine);
  };
  StepTimes times{.model = name, .precision = config.train.precision, .ranks = world.size(), .steps = steps};
  times.step_ms = slowest(step_ms);
  times.exposed_comm_ms = slowest(exposed_ms);
  times.samples_per_second = static_cast<double>(global_batch) * 1e3 / times.step_ms;
  return times;
}

}  // namespace lockstep::train
