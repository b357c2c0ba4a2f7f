#include "train/run/log_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/text.h"
#include "kernels/gpus.h"
#include "train/components.h"
#include "train/device.h"
#include "train/threads.h"

namespace lockstep::train {
namespace {

/// The memory of the rank with the most.
void log_memory(Session& session, const Config& config, const optim::Optimizer& optimizer,
                const optim::Ema* ema) {
  comm::HostGroup& world = session.world();
  optim::StateBytes bytes = optimizer.state_bytes();
  if (ema) {
    const optim::StateBytes ema_bytes = ema->state_bytes();
    bytes.held += ema_bytes.held;
    bytes.whole += ema_bytes.whole;
  }
  std::vector<std::size_t> of_rank(static_cast<std::size_t>(world.size()));
  world.all_gather(&bytes.held, sizeof bytes.held, of_rank.data());
  const auto mib = [](std::size_t count) { return static_cast<double>(count) / (1 << 20); };
  session.log().info("optimizer and EMA memory: {:.2f} MiB a rank{}",
                     mib(*std::max_element(of_rank.begin(), of_rank.end())),
                     config.ddp.sharded_optimizer ? fmt::format(" (of {:.2f} MiB)", mib(bytes.whole)) : "");
}

/// Logs the first node with more threads than cores.
void log_oversubscription(Session& session) {
  const comm::Topology& topology = session.world().topology();
  const std::vector<RankCores> cores = cores_of_ranks(session.world());
  if (session.backend().device() != Device::cpu()) return;
  for (int node = 0; node < topology.nodes(); ++node) {
    const auto found = oversubscription(cores, topology, node, session.backend().threads());
    if (!found) continue;
    session.log().info("note: {}; {}", found->text, found->remedy);
    return;
  }
}

/// "avx512_core with 2 threads a rank", "NVIDIA H200 (sm_90)".
std::string describe(const kernels::Backend& backend, DType compute) {
  const std::string precision =
      compute == DType::float32 ? "" : fmt::format(", {}", precision_text(compute, backend));
  if (backend.device() != Device::cpu())
    return fmt::format("{} ({}){}", kernels::name_of(backend.device()), backend.instruction_set(), precision);
  return fmt::format("{} with {} a rank{}", backend.instruction_set(),
                     pluralized(backend.threads(), "thread"), precision);
}

}  // namespace

std::vector<std::string> notes_on_sums(const Config& config, comm::GradientTransport& transport,
                                       const Device& device) {
  std::vector<std::string> notes;
  const bool on_gpus = device != Device::cpu();
  if (on_gpus && transport.group().size() > 1 && !config.train.reproducible)
    notes.emplace_back(
        "NCCL sums in an order that depends on the number of ranks: the same bits at the same number of "
        "ranks "
        "only; train.reproducible = true gives the same bits at any number of ranks");
  if (config.ddp.comm_dtype == DType::float32) return notes;
  const char* const dtype = config.ddp.comm_dtype == DType::float16 ? "fp16" : "bf16";
  if (!transport.rounds(config.ddp.comm_dtype))
    notes.push_back(fmt::format("ddp.reduce_dtype = {} has no effect: no gradients are sent {}", dtype,
                                on_gpus ? "by a single rank" : "between nodes, as there is one"));
  else if (on_gpus)
    notes.push_back(fmt::format(
        "gradients are sent between GPUs as {}: the same bits at the same number of ranks only", dtype));
  else
    notes.push_back(
        fmt::format("gradients are sent between nodes as {}: the same bits on the same nodes only", dtype));
  return notes;
}

std::string replaced_names(const Config& config, const std::string& format) {
  std::string names;
  const auto add = [&](std::string_view key, const auto* type) {
    if (type && type->replaces_built_in)
      names += fmt::format("{}{} = {}", names.empty() ? "" : ", ", key, type->name);
  };
  add(model_name_key, config.model.type);
  add(task_name_key, config.task.type);
  add(optimizer_name_key, config.optimizer.algorithm.type);
  add(data_format_key, config.registries->data.configure(format).type);
  return names;
}

void log_start(Session& session, const Config& config, models::Model& model, const DataSets& data,
               const ddp::DataParallel& replicas, const optim::Optimizer& optimizer, const optim::Ema* ema) {
  const Log& log = session.log();
  const comm::HostGroup& world = session.world();
  log.info("{} ({}) on {}, {}, {}", config.model.name(), models::summary(model.state()),
           pluralized(world.size(), "rank"), pluralized(world.topology().nodes(), "node"),
           describe(session.backend(), replicas.options().compute));
  log_oversubscription(session);
  if (const std::string own = replaced_names(config, data.format()); !own.empty())
    log.info("note: {}: the program's own, not the built-in one", own);
  log.info("{} samples to train on, {} to evaluate on; {} a step, {:.1f} epochs in all", data.train().size(),
           data.eval() ? data.eval()->size() : 0, config.train.global_batch,
           static_cast<double>(config.train.steps) * static_cast<double>(config.train.global_batch) /
               static_cast<double>(data.train().size()));
  if (config.train.global_batch > data.train().size()) {
    log.info("note: train.global_batch is larger than the data: a step sees samples more than once");
  }
  log.info("{}", replicas.describe());
  log_memory(session, config, optimizer, ema);
  if (model.state().meets_across_ranks)
    log.info(
        "note: layers that communicate (model.batch_norm = sync) give the same bits at the same number of "
        "ranks only");
  constexpr std::int64_t few_snapshots = 8;
  if (!config.ema.sigma_rel.empty() && config.checkpoint.every >= 0 &&
      (config.checkpoint.every == 0 || config.train.steps / config.checkpoint.every < few_snapshots)) {
    log.info(
        "note: EMA weights of other widths are made from snapshots, one for each checkpoint: lower "
        "checkpoint.every to have at least {} of them",
        few_snapshots);
  }
  const bool may_choose = config.train.eval_every > 0 && config.train.eval_every < config.train.steps;
  if (config.checkpoint.every == 0 && (config.checkpoint.store.keep_best.empty() || !may_choose)) {
    log.info(
        "note: checkpoint.every = 0: nothing is saved before the end; a run that fails earlier loses all its "
        "steps");
  }
  if (!config.checkpoint.store.keep_best.empty() && !may_choose)
    log.info(
        "note: checkpoint.keep_best can choose the last step only: no other is evaluated; set "
        "train.eval_every");
  for (const std::string& note : notes_on_sums(config, session.transport(), session.backend().device()))
    log.info("note: {}", note);
}

}  // namespace lockstep::train
