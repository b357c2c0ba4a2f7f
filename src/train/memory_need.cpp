#include "train/memory_need.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/resources.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/optim/registry.h"
#include "train/workload.h"

namespace lockstep::train {
namespace {

std::string amount(double bytes) {
  const double mib = bytes / (1 << 20);
  return mib < 10240 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

}  // namespace

MemoryNeed memory_need(const Config& config, const ModelState& model, const data::Dataset& data, int ranks,
                       Device device) {
  MemoryNeed need;
  double trained = 0;
  for (const Param* const param : model.params) {
    const auto bytes = static_cast<double>(param->value.bytes());
    need.parameters += bytes;
    if (param->trainable) trained += bytes;
  }
  for (const Buffer* const buffer : model.buffers)
    need.parameters += static_cast<double>(buffer->value.bytes());
  const auto bytes_of_samples = [&](const Shape& shape, DType dtype) {
    return static_cast<double>(shape.numel()) * static_cast<double>(bytes_of(dtype));
  };
  const double sample_bytes =
      bytes_of_samples(data.x_shape(), data.x_dtype()) + bytes_of_samples(data.y_shape(), DType::int64);
  need.inputs = sample_bytes * static_cast<double>(config.train.global_batch) / ranks;
  if (device != Device::cpu()) return need;
  const auto profiles = static_cast<double>(config.ema.rates.size() + config.ema.sigma_rel.size());
  const double parts = config.ddp.sharded_optimizer ? ranks : 1;
  need.gradients = trained;
  need.optimizer =
      static_cast<double>(optim::elements_of_state(config.optimizer, model)) * sizeof(float) / parts;
  need.averages = profiles * need.parameters / parts;
  return need;
}

void check_memory(const MemoryNeed& need, comm::HostGroup& world) {
  comm::run_on_all(world, [&] {
    const std::optional<std::uint64_t> available = available_memory_bytes();
    const comm::Topology& topology = world.topology();
    const int node = topology.node_of_rank[static_cast<std::size_t>(world.rank())];
    const std::int64_t ranks = std::ranges::count(topology.node_of_rank, node);
    const double needed = need.sum() * static_cast<double>(ranks);
    if (!available || needed <= static_cast<double>(*available)) return;
    throw UsageError(
        "this run needs at least {} on {} ({} of {}: parameters {}, gradients {}, optimizer {}, EMA {}, "
        "a "
        "batch of inputs {}), which has {} left; make the model or train.global_batch smaller, start fewer "
        "ranks "
        "there, or set ddp.sharded_optimizer = true",
        amount(needed), topology.host_names[static_cast<std::size_t>(node)], pluralized(ranks, "rank"),
        amount(need.sum()), amount(need.parameters), amount(need.gradients), amount(need.optimizer),
        amount(need.averages), amount(need.inputs), amount(static_cast<double>(*available)));
  });
}

}  // namespace lockstep::train
