#include "train/run/benchmark.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/backend.h"
#include "train/components.h"
#include "train/run/resume.h"

namespace lockstep::train {
std::int64_t samples_of_shard(const StandardWorkload& workload, int shards_per_rank, int micro_batches) {
  if (shards_per_rank < 1 || workload.batch_per_rank % shards_per_rank != 0)
    throw UsageError("{} samples of {} cannot be divided into {} equal parts; --shards must divide them",
                     workload.batch_per_rank, workload.name, shards_per_rank);
  const std::int64_t samples = workload.batch_per_rank / shards_per_rank;
  if (micro_batches < 1 || micro_batches > samples)
    throw UsageError("--micro-batches {}: a shard of {} has {}; see lockstep bench step --help",
                     micro_batches, workload.name, pluralized(samples, "sample"));
  return samples;
}

Batch made_up_shard(const models::Model& model, std::int64_t image_pixels, std::int64_t samples, int shard) {
  const Random random({1, purpose_of("benchmark"), 0, static_cast<std::uint32_t>(shard)});
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
  const Shape x = data::batch_shape(samples, model.sample_shape(image_pixels));
  const bool reads_text = model.context() > 0;
  return Batch(shard, {{"x", reads_text ? integers(x, model.classes()) : normals(x)},
                       {"y", integers(reads_text ? x : Shape{samples}, model.classes())}});
}

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
      {"gpt-gpu", 16,
       "[model]\nname = gpt\nlayers = 12\nheads = 12\nchannels = 768\ncontext = 1024\nvocab = 50304\n"
       "[optimizer]\nname = adamw\nlr = 6e-4\nweight_decay = 0.1\n"},
      {"resnet-gpu", 128,
       "[model]\nname = resnet\nstem = 7x7\nblocks = 2 2 2 2\nwidth = 64\nin_channels = 3\nclasses = 1000\n"
       "[optimizer]\nname = sgd\nlr = 0.1\nmomentum = 0.9\n",
       224},
      {"resnet50-gpu", 128,
       "[model]\nname = resnet\nstem = 7x7\nblock = bottleneck\nblocks = 3 4 6 3\nwidth = 64\n"
       "in_channels = 3\nclasses = 1000\n"
       "[optimizer]\nname = sgd\nlr = 0.1\nmomentum = 0.9\n",
       224},
      {"unet-cpu", 8,
       "[model]\nname = unet\nimage_size = 32\nin_channels = 3\nmodel_channels = 64\nout_channels = 3\n"
       "num_res_blocks = 2\nattention_resolutions = 2\nchannel_mult = 1 2 2\nnum_heads = 4\n"
       "use_scale_shift_norm = true\n"
       "[optimizer]\nname = adamw\nlr = 1e-4\nweight_decay = 0\n"},
      // The network of jobs/diffusion-cifar.ini, without a learned variance.
      {"unet-gpu", 128,
       "[model]\nname = unet\nimage_size = 32\nin_channels = 3\nmodel_channels = 128\nout_channels = 3\n"
       "num_res_blocks = 3\nattention_resolutions = 2 4\nchannel_mult = 1 2 2 2\nnum_heads = 4\n"
       "use_scale_shift_norm = true\ndropout = 0.3\n"
       "[optimizer]\nname = adamw\nlr = 1e-4\nweight_decay = 0\n"},
      // Improved-diffusion's network for ImageNet at 64 x 64, without a learned variance.
      {"unet64-gpu", 64,
       "[model]\nname = unet\nimage_size = 64\nin_channels = 3\nmodel_channels = 128\nout_channels = 3\n"
       "num_res_blocks = 3\nattention_resolutions = 4 8\nchannel_mult = 1 2 3 4\nnum_heads = 4\n"
       "use_scale_shift_norm = true\n"
       "[optimizer]\nname = adamw\nlr = 1e-4\nweight_decay = 0\n"},
  };
  return workloads;
}

const StandardWorkload& workload_named(const std::string& name) {
  std::vector<std::string> names;
  for (const StandardWorkload& workload : standard_workloads()) {
    if (workload.name == name) return workload;
    names.push_back(workload.name);
  }
  throw UsageError("unknown workload '{}'; one of {}", name, fmt::join(names, ", "));
}

WorkloadRun::WorkloadRun(const StandardWorkload& workload, comm::GradientTransport& transport,
                         kernels::Backend& backend, ddp::Options options, int shards_per_rank,
                         const std::vector<std::string>& overrides)
    : config_(parse_config(fmt::format("{}[train]\nsteps = 1\nglobal_batch = {}\nshards = {}\n",
                                       workload.config, workload.batch_per_rank * transport.group().size(),
                                       transport.group().size() * shards_per_rank),
                           "workload " + workload.name, overrides)),
      model_(build_model(config_)),
      task_(make_task(config_)) {
  options.shards = config_.ddp.shards;
  options.shards_at_once = config_.ddp.shards_at_once;
  config_.ddp = std::move(options);
  make_replicas(transport, backend);
  const std::int64_t samples = samples_of_shard(workload, shards_per_rank, config_.ddp.micro_batches);
  const comm::ShardRange mine = replicas_->shard_map().block(transport.group().rank());
  Batch all;  // shards are adjacent, as the loader's are
  for (int shard = mine.first; shard < mine.end(); ++shard) {
    const Batch made = made_up_shard(*model_, workload.image_pixels, samples, shard);
    if (shard == mine.first)
      all = made.map([&](const Tensor& field) {
        return backend.empty(field.shape().with(0, mine.count * samples), field.dtype());
      });
    const std::int64_t first = (shard - mine.first) * samples;
    Batch own = all.rows(first, first + samples);
    own.index = shard;
    for (std::size_t field = 0; field < made.tensors().size(); ++field)
      backend.copy(made.tensors()[field], own.tensors()[field]);
    batch_.shards.push_back(own);
  }
}

WorkloadRun::WorkloadRun(const Config& config, Session& session, DType compute) : config_(config) {
  comm::HostGroup& world = session.world();
  list_folders(config_, world);
  comm::run_on_all(world, [&] {
    check_shards(config_, world);
    data_ = std::make_unique<DataSets>(config_, *build_meta_model(config_));
    task_ = make_task(config_);
    model_ = build_model(config_);
    check_data(*model_, *task_, data_->train());
  });
  data_->hold_on_node(world, config_);
  data_->measure(world);
  config_.ddp.shards = shards_of(config_, world);
  config_.ddp.compute = compute;
  make_replicas(session.transport(), session.backend());
  loader_ = std::make_unique<data::Loader>(data_->train(), loader_options(config_, *data_, session), world);
  comm::run_on_all(world, [&] {
    const std::span<const Batch> shards = loader_->at(0).shards;
    batch_.shards.assign(shards.begin(), shards.end());
  });
}

void WorkloadRun::make_replicas(comm::GradientTransport& transport, kernels::Backend& backend) {
  model_->to(backend);
  replicas_ = std::make_unique<ddp::DataParallel>(*model_, transport, backend, config_.ddp);
  optimizer_ = config_.optimizer.make(*replicas_);
}

WorkloadRun::Times WorkloadRun::step() {
  const Stopwatch watch;
  const ddp::StepResult result =
      replicas_->step(batch_, [&](Tape& tape, const Batch& shard, const ddp::MicroBatch& part) {
        return (*task_)(tape, *model_, part.rows(shard));
      });
  optimizer_->step();
  ++batch_.step;
  return {.step_ms = watch.elapsed_ms(),
          .backward_ms = result.compute_ms,
          .exposed_comm_ms = result.exposed_comm_ms};
}

void check_steps(std::int64_t steps, std::string_view subject) {
  constexpr std::int64_t max_steps = 100'000'000;  // whose times fit into memory
  if (steps < 1)
    throw UsageError("--steps {}: must be at least 1; see lockstep bench {} --help", steps, subject);
  if (steps > max_steps)
    throw UsageError("--steps {}: must be at most {}; see lockstep bench {} --help", steps, max_steps,
                     subject);
}

void Figures::take_max(comm::HostGroup& world) {
  for (auto& [name, mine] : figures_) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(world.size()));
    world.all_gather(mine.data(), mine.size() * sizeof(double), all.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      double& max = mine[i % mine.size()];
      max = std::max(max, all[i]);
    }
  }
}

}  // namespace lockstep::train
