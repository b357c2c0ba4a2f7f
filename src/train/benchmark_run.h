// A standard workload in training on made-up data, and medians over steps and ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/models/model.h"
#include "lockstep/optim/optimizer.h"
#include "train/benchmark.h"

namespace lockstep::train {

/// Steps after which plan, memory and caches have settled.
constexpr std::int64_t settling_steps = 4;

class WorkloadRun {
 public:
  /// The batch of a rank is cut into so many shards; they must divide it (UsageError).
  /// `overrides` of its configuration are as those of --set. `transport`, whose memory is on
  /// the backend's device, and `backend` must outlive this. Collective.
  WorkloadRun(const StandardWorkload& workload, comm::GradientTransport& transport, kernels::Backend& backend,
              ddp::Options options = {}, int shards_a_rank = 1,
              const std::vector<std::string>& overrides = {});

  struct Times {
    double step_ms = 0;      ///< optimizer included
    double backward_ms = 0;  ///< from the start of the step to the end of its backward
    double exposed_comm_ms = 0;
  };
  Times step();

  const Config& config() const { return config_; }
  const ddp::DataParallel& replicas() const { return *replicas_; }

 private:
  /// The same tensors serve every step.
  struct MadeUpBatch {
    std::int64_t step = 0;
    std::vector<data::Shard> shards;
    auto begin() const { return shards.begin(); }
    auto end() const { return shards.end(); }
  };
  static data::Shard make_up(const models::ModelConfig& model, std::int64_t image_pixels,
                             std::int64_t samples, int shard);

  Config config_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<ddp::DataParallel> replicas_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  MadeUpBatch batch_;
};

/// UsageError, naming the subject of lockstep bench, if there are no steps to time.
void check_steps(std::int64_t steps, std::string_view subject);

/// Element by element the greatest over all ranks, which all bring equally many. Collective.
std::vector<double> greatest_of_ranks(comm::HostGroup& world, const std::vector<double>& mine);

}  // namespace lockstep::train
