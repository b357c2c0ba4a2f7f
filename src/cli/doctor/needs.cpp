#include "cli/doctor/needs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "kernels/gpus.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/optim/registry.h"
#include "train/device.h"
#include "train/precision.h"
#include "train/workload.h"

namespace lockstep::cli::checkup {

Needs needs_of(const train::Config& config, const comm::HostGroup& world) {
  std::uint64_t parameter_bytes = 0;
  const auto model = train::build_model(config);
  for (const Param* const param : model->state().params)
    parameter_bytes += static_cast<std::uint64_t>(param->value.numel()) * sizeof(float);

  const comm::Topology& topology = world.topology();
  const int here = topology.node_of_rank[static_cast<std::size_t>(world.rank())];
  const comm::ShardMap shards(train::shards_of(config, world), world.size());
  Needs needs;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (topology.node_of_rank[static_cast<std::size_t>(rank)] != here) continue;
    needs.gradient_bytes += parameter_bytes * std::max<std::size_t>(1, shards.subtrees(rank).size());
  }
  const auto state_bytes =
      static_cast<std::uint64_t>(optim::elements_of_state(config.optimizer, model->state())) * sizeof(float);
  const std::uint64_t averages = config.ema.rates.size() + config.ema.sigma_rel.size();
  needs.checkpoint_bytes = parameter_bytes * (1 + averages) + state_bytes;
  needs.checkpoints = std::max(1, config.checkpoint.keep) + (config.checkpoint.keep_best.empty() ? 0 : 1);
  needs.threads = config.train.threads;
  return needs;
}

Finding data(const train::Config& config) {
  try {
    const train::DataSets data(config, train::build_model(config)->classes());
    const std::int64_t held_out = data.eval() ? data.eval()->size() : 0;
    return {
        "data", Verdict::ok,
        fmt::format("{} to train on, {} to evaluate on", pluralized(data.train().size(), "sample"), held_out),
        ""};
  } catch (const Error& error) {
    return {"data", Verdict::problem, error.what(),
            "correct the file, or what data.* of the configuration names"};
  }
}

Finding precision(const train::Config* config) {
  const char* const subject = "precision";
  const std::string why_slow = kernels::make_cpu_backend(1)->why_slow_in_bf16();
  if (why_slow.empty()) return {subject, Verdict::ok, "fp32, and bf16 on this processor's own units", ""};
  const std::string fp32_only = "fp32 on CPUs; bf16 would be slower: " + why_slow;
  if (!config || config->train.precision == "fp32") return {subject, Verdict::ok, fp32_only, ""};
  if (config->train.device != "cpu" && !kernels::find_gpus().visible.empty())
    return {subject, Verdict::ok, "bf16 on GPUs", ""};
  try {
    const train::RankPrecision here{.why_slow = why_slow, .host = {}};
    return {subject, Verdict::note,
            train::choose_precision(config->train.precision, config->train.bf16_fallback, {&here, 1}).remark,
            "use processors with AVX512-BF16 or AMX, or train.precision = fp32"};
  } catch (const UsageError& error) {
    return {subject, Verdict::problem, error.what(),
            "use processors with AVX512-BF16 or AMX, or see lockstep train --help-keys"};
  }
}

Finding device(const train::Config& config) {
  const char* const subject = "device";
  const kernels::Gpus gpus = kernels::find_gpus();
  const train::RankDevices here{.gpus = static_cast<int>(gpus.visible.size()),
                                .problem = gpus.problem,
                                .remedy = gpus.remedy,
                                .host = "this machine"};
  try {
    const bool on_cpus =
        train::choose_device(config.train.device, gpus.built, {&here, 1}, "").kind == Device::Kind::cpu;
    if (on_cpus && config.train.cuda_graph == "true")
      return {subject, Verdict::problem, "train.cuda_graph = true, but it would compute on CPUs",
              "choose train.cuda_graph = auto"};
    return {subject, Verdict::ok, on_cpus ? "trains on CPUs" : "trains on GPUs", ""};
  } catch (const UsageError& error) {
    return {subject, Verdict::problem, error.what(), "change train.device, or start it where GPUs are"};
  }
}

Finding shards(const train::Config& config, const comm::HostGroup& world) {
  try {
    train::check_shards(config, world);
    return {"shards", Verdict::ok,
            fmt::format("{} on {}", pluralized(train::shards_of(config, world), "shard"),
                        pluralized(world.size(), "rank")),
            ""};
  } catch (const UsageError& error) {
    return {"shards", Verdict::problem, error.what(), "change train.shards, train.global_batch or the ranks"};
  }
}

}  // namespace lockstep::cli::checkup
