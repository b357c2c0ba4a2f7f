// The workloads of lockstep bench: standard ones on synthetic data, and the user's own runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tasks/task.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/data_sets.h"

namespace lockstep::train {

/// A model, an optimizer and a batch per rank. Published speeds use these.
struct StandardWorkload {
  std::string name;
  std::int64_t batch_per_rank = 0;
  std::string config;              ///< sections [model] and [optimizer]
  std::int64_t image_pixels = 32;  ///< height and width of images
};

const std::vector<StandardWorkload>& standard_workloads();
/// Throws UsageError on an unknown name, naming the known ones.
const StandardWorkload& workload_named(const std::string& name);

/// The division of a rank's batch. UsageError, naming the flags of lockstep bench step, if it is impossible.
std::int64_t samples_of_shard(const StandardWorkload& workload, int shards_per_rank, int micro_batches);

/// Synthetic samples for the model, the same at every call: fields x and y.
Batch made_up_shard(const models::Model& model, std::int64_t image_pixels, std::int64_t samples, int shard);

/// Steps that are not measured: shards at once are compared, plan, memory and caches are steady, and a graph
/// is captured after them.
constexpr std::int64_t warm_up_steps = 8;

/// A workload that trains, one step a call.
class WorkloadRun {
 public:
  /// Each rank's batch is cut into `shards_per_rank` shards; UsageError if that is not possible. `overrides`
  /// of the configuration are like those of --set. `transport`, whose memory is on the backend's device, and
  /// `backend` must outlive this object. Collective.
  WorkloadRun(const StandardWorkload& workload, comm::GradientTransport& transport, kernels::Backend& backend,
              ddp::Options options = {}, int shards_per_rank = 1,
              const std::vector<std::string>& overrides = {});
  /// The run of a configuration; every step uses the first batch of its data. Saves nothing. Collective;
  /// throws like the start of a training.
  WorkloadRun(const Config& config, Session& session, DType compute);

  struct Times {
    double step_ms = 0;      ///< optimizer included
    double backward_ms = 0;  ///< from the start of the step to the end of its backward
    double exposed_comm_ms = 0;
  };
  Times step();

  const Config& config() const { return config_; }
  const ddp::DataParallel& replicas() const { return *replicas_; }
  const DataSets& data() const { return *data_; }  ///< of a run

 private:
  /// Every step uses the same tensors.
  struct RepeatedBatch {
    std::int64_t step = 0;
    std::vector<Batch> shards;
    auto begin() const { return shards.begin(); }
    auto end() const { return shards.end(); }
  };

  /// Moves the model to the backend, and makes what trains it, by config().ddp. Collective.
  void make_replicas(comm::GradientTransport& transport, kernels::Backend& backend);

  Config config_;
  std::unique_ptr<DataSets> data_;  // of a run
  std::unique_ptr<Model> model_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<ddp::DataParallel> replicas_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<data::Loader> loader_;  // of a run
  RepeatedBatch batch_;
};

/// UsageError, naming the subject of lockstep bench, if the number of steps is out of range.
void check_steps(std::int64_t steps, std::string_view subject);

/// What a benchmark measures, by name: a figure a step or round.
class Figures {
 public:
  void add(const std::string& name, double figure) { figures_[name].push_back(figure); }
  /// From a barrier to the end of this rank's action, in ms. Collective.
  template <class Action>
  void time(comm::HostGroup& world, const std::string& name, const Action& action) {
    world.barrier();
    const Stopwatch watch;
    action();
    add(name, watch.elapsed_ms());
  }
  /// Replaces each figure by the greatest of all ranks, which have equally many of each. Collective.
  void take_max(comm::HostGroup& world);

  const std::vector<double>& operator[](const std::string& name) const { return figures_.at(name); }
  double median(const std::string& name) const { return lockstep::median(figures_.at(name)); }

 private:
  std::map<std::string, std::vector<double>> figures_;
};

}  // namespace lockstep::train
