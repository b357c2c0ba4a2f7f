// A small training run on the CPU or on a device, and all that it holds.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tasks/built_in.h"
#include "lockstep/train/evaluate.h"
#include "support/fake_device.h"
#include "support/pairs.h"
#include "support/world.h"
#include "train/components.h"
#include "train/run/task_state.h"

namespace lockstep::test {

/// Where a run computes.
struct Place {
  explicit Place(std::unique_ptr<kernels::Backend> of, bool fake = false)
      : backend(std::move(of)), transport(fake ? make_fake_transport(world(), *backend) : nullptr) {}
  comm::GradientTransport& sums() {
    if (transport) return *transport;
    return world();
  }

  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<comm::GradientTransport> transport;
};
inline Place on_cpu() { return Place(kernels::make_cpu_backend()); }
inline Place on_fake_device() { return Place(make_fake_device(), true); }

inline std::unique_ptr<models::Model> model_on(const train::Config& config, kernels::Backend& backend) {
  auto model = train::build_model(config);
  model->to(backend);
  return model;
}

/// Random, by step and shard; for images or a classifier of vectors, or tokens.
inline Batch made_up_shard(const models::Model& model, std::int64_t step, int index, std::int64_t samples) {
  const Random random(
      {7, purpose_of("shard"), static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(index)});
  const auto numbers = [&](Shape shape) {
    const Tensor tensor = Tensor::empty(shape);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
    return tensor;
  };
  const auto classes = [&](Shape shape, std::int64_t count, std::uint64_t from) {
    const Tensor tensor = Tensor::empty(shape, DType::int64);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<std::int64_t>()[i] =
          random.below(from + static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(count));
    return tensor;
  };
  const Shape x = data::batch_shape(samples, model.sample_shape(8));
  const bool reads_text = model.context() > 0;
  return Batch(index, {{"x", reads_text ? classes(x, model.classes(), 0) : numbers(x)},
                       {"y", classes(reads_text ? x : Shape{samples}, model.classes(), 1 << 20)}});
}

/// Evaluated as a classification.
inline train::EvaluationResult evaluated(Model& model, Tape& tape, const data::Dataset& data,
                                         comm::HostGroup& world) {
  tasks::Classification task({});
  task.check(model, data);
  return train::evaluate({.model = model, .task = task, .tape = tape, .world = world}, data);
}

/// To evaluate `mlp` on: random, by sample.
class Vectors final : public Pairs {
 public:
  Vectors() : Pairs("vectors", 90, {6}, 5) {}

 private:
  void read_pairs(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const override {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Random random({3, purpose_of("vectors"), static_cast<std::uint64_t>(samples[i]), 0});
      for (std::size_t k = 0; k < 6; ++k) x.data<float>()[i * 6 + k] = random.normal(k);
      y.data<std::int64_t>()[i] = samples[i] % 5;
    }
  }
};

class DeviceRun {
 public:
  DeviceRun(const train::Config& config, Place& place)
      : config_(config),
        backend_(*place.backend),
        model_(model_on(config, backend_)),
        replicas_(*model_, place.sums(), backend_,
                  {.bucket_mb = 0.001,
                   .first_bucket_mb = 0.0005,
                   .shards = config.ddp.shards,
                   .micro_batches = config.ddp.micro_batches,
                   .shards_at_once = config.ddp.shards_at_once,
                   .sharded_optimizer = config.ddp.sharded_optimizer,
                   .check_every = config.ddp.check_every,
                   .compute = config.train.precision == "bf16" ? DType::bfloat16 : DType::float32,
                   .graph = config.ddp.graph}),
        task_(config.task.name() == "diffusion" ? train::make_task(config) : nullptr),
        optimizer_(config.optimizer.make(replicas_)),
        ema_(train::build_ema(config, *model_, backend_, replicas_.partition())) {
    optimizer_->attach(*ema_);
    if (task_) numbers_.emplace(*task_, world(), replicas_.shard_map(), config.train.global_batch);
  }

  /// Steps up to (not including) `end`, from where it is.
  void run_to(std::int64_t end) {
    for (; optimizer_->steps() < end;) {
      StepBatch batch{optimizer_->steps(), {}};
      std::vector<Batch>& slot = slots_[static_cast<std::size_t>(batch.step) % slots_.size()];
      const comm::ShardRange mine = replicas_.shard_map().block(world().rank());
      for (int shard = mine.first; shard < mine.end(); ++shard) {
        const Batch made =
            made_up_shard(*model_, batch.step, shard, config_.train.global_batch / config_.ddp.shards);
        if (static_cast<int>(slot.size()) < mine.count)
          slot.push_back(
              made.map([this](const Tensor& field) { return backend_.empty(field.shape(), field.dtype()); }));
        const Batch& there = slot[static_cast<std::size_t>(shard - mine.first)];
        for (const char* const field : {"x", "y"}) kernels::transfer(made[field], there[field], &backend_);
        batch.shards.push_back(there);
      }
      if (spoiled_ != 0 && mine.count > 0)
        backend_.copy(Tensor::view(&spoiled_, {1}, DType::int64),
                      batch.shards[0]["y"].reshape({batch.shards[0]["y"].numel()}).rows(0, 1));
      spoiled_ = 0;
      const auto loss_of = [&](Tape& tape, const Batch& shard, const ddp::MicroBatch& piece) {
        ++losses_asked_;
        const Batch samples = piece.rows(shard);
        if (task_) return (*task_)(tape, *model_, samples);
        return cross_entropy(model_->forward(tape, samples), samples["y"]);
      };
      const optim::StepOptions update{.lr = {}, .clip = config_.optimizer.clip};
      last_ = replicas_.step(batch, loss_of, optimizer_->measurement_for(update));
      losses_.push_back(last_.mean_loss());
      if (numbers_) numbers_->agree();
      optimizer_->step(update);
    }
  }

  /// The next step's first target is this.
  void spoil_next(std::int64_t target) { spoiled_ = target; }

  checkpoint::StateDict contents() {
    checkpoint::StateDict all;
    add(all, *model_);
    add(all, *optimizer_);
    add(all, *ema_);
    return all;
  }
  /// Elements of everything, whole and on the CPU, by name. Collective.
  std::vector<std::pair<std::string, Tensor>> values() {
    std::vector<std::pair<std::string, Tensor>> all;
    const auto take = [&](const std::string& name, const Tensor& tensor) {
      const Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype());
      copy_elements(kernels::on_cpu(tensor, &backend_), copy);
      all.emplace_back(name, copy);
    };
    const ModelState state = *model_;
    for (const Param* const param : state.params) {
      param->wait_ready();
      take(param->name, param->value);
    }
    for (const Buffer* const buffer : state.buffers) take(buffer->name, buffer->value);
    for (const optim::Slot& slot : optimizer_->slots())
      for (const optim::Slot::Entry& entry : slot.entries) take(slot.name + " " + entry.name, entry.tensor);
    for (const optim::EmaTensor& shadow : ema_->tensors())
      take("ema/" + shadow.rate + " " + shadow.name, shadow.tensor);
    return all;
  }

  models::Model& model() { return *model_; }
  ddp::DataParallel& replicas() { return replicas_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::Ema& ema() { return *ema_; }
  const std::vector<double>& losses() const { return losses_; }
  int losses_asked() const { return losses_asked_; }  ///< of the model
  const ddp::StepResult& last() const { return last_; }

 private:
  struct StepBatch {
    std::int64_t step = 0;
    std::vector<Batch> shards;
    auto begin() const { return shards.begin(); }
    auto end() const { return shards.end(); }
  };
  train::Config config_;
  kernels::Backend& backend_;
  std::unique_ptr<models::Model> model_;
  ddp::DataParallel replicas_;
  std::unique_ptr<Task> task_;  // null: classification
  std::optional<train::TaskNumbers> numbers_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Ema> ema_;
  std::array<std::vector<Batch>, 2> slots_;  // as a loader's
  std::vector<double> losses_;
  int losses_asked_ = 0;
  std::int64_t spoiled_ = 0;
  ddp::StepResult last_;
};

/// shards = 0 stands for one more than there are ranks.
inline train::Config device_config(const std::string& model, const std::string& more = "") {
  const int shards = world().size() + 1;
  return train::parse_config(fmt::format("[model]\n{}\n[train]\nsteps = 4\nglobal_batch = {}\nshards = "
                                         "{}\ncuda_graph = false\n[ema]\nrates = 0.5 0.9\n"
                                         "[optimizer]\nlr = 0.01\nweight_decay = 0.1\nclip = 0.5\n{}",
                                         model, 4 * shards, shards, more),
                             "test");
}
inline const std::string mlp = "name = mlp\nsizes = 6 130 5\n";
inline const std::string gpt =
    "name = gpt\nlayers = 2\nheads = 2\nchannels = 16\ncontext = 8\nvocab = 256\ndropout = 0.1\n";
inline const std::string resnet = "name = resnet\nblocks = 1 1\nwidth = 4\nin_channels = 3\nclasses = 5\n";

}  // namespace lockstep::test
