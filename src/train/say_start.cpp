#include "train/say_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lockstep/ddp/hooks.h"

namespace lockstep::train {
namespace {

/// Of the rank that holds most.
void say_memory(Session& session, const Config& config, const optim::Optimizer& optimizer,
                const optim::Ema* ema) {
  comm::Communicator& world = session.world();
  optim::StateBytes bytes = optimizer.state_bytes();
  if (ema) {
    const optim::StateBytes averages = ema->state_bytes();
    bytes.held += averages.held;
    bytes.whole += averages.whole;
  }
  std::vector<std::size_t> of_rank(static_cast<std::size_t>(world.size()));
  world.all_gather(&bytes.held, sizeof bytes.held, of_rank.data());
  const auto mib = [](std::size_t count) { return static_cast<double>(count) / (1 << 20); };
  session.log().info("optimizer and EMA memory: {:.2f} MiB a rank{}",
                     mib(*std::max_element(of_rank.begin(), of_rank.end())),
                     config.ddp.sharded_optimizer ? fmt::format(" (of {:.2f} MiB)", mib(bytes.whole)) : "");
}

}  // namespace

void say_start(Session& session, const Config& config, models::Model& model, const DataSets& data,
               const ddp::DataParallel& replicas, const optim::Optimizer& optimizer, const optim::Ema* ema) {
  const Log& log = session.log();
  const comm::Communicator& world = session.world();
  log.info("{} ({}) on {} rank{}, {} machine{}, {} with {} thread{} a rank", config.model.name,
           models::summary(model.state()), world.size(), world.size() == 1 ? "" : "s",
           world.topology().nodes(), world.topology().nodes() == 1 ? "" : "s",
           session.backend().instruction_set(), session.backend().threads(),
           session.backend().threads() == 1 ? "" : "s");
  log.info("{} samples to train on, {} to evaluate on; {} a step, {:.1f} epochs in all", data.train().size(),
           data.eval() ? data.eval()->size() : 0, config.train.global_batch,
           static_cast<double>(config.train.steps * config.train.global_batch) /
               static_cast<double>(data.train().size()));
  if (config.train.global_batch > data.train().size()) {
    log.info("note: train.global_batch is larger than the data: a step sees samples more than once");
  }
  log.info("{}", replicas.describe());
  say_memory(session, config, optimizer, ema);
  if (config.model.batch_norm == "sync" && config.model.name == "resnet") {
    log.info("note: model.batch_norm = sync gives the same bits at the same number of ranks only");
  }
  if (const auto& hook = replicas.options().hook)
    log.info("{}; note: the same bits at the same number of ranks only", hook->summary());
  constexpr std::int64_t few_snapshots = 8;
  if (!config.ema.sigma_rel.empty() &&
      (config.checkpoint.every == 0 || config.train.steps / config.checkpoint.every < few_snapshots)) {
    log.info(
        "note: averages of other widths are made from snapshots, one a checkpoint: lower checkpoint.every "
        "for at least {} of them",
        few_snapshots);
  }
  const std::int64_t every = config.checkpoint.every, eval_every = config.train.eval_every;
  if (!config.checkpoint.keep_best.empty() && every > 0 &&
      (eval_every == 0 || std::lcm(every, eval_every) > config.train.steps)) {
    log.info(
        "note: checkpoint.keep_best has only the last step to judge: no other checkpoint is evaluated; let "
        "train.eval_every divide checkpoint.every");
  }
  if (config.ddp.reduce_dtype != "fp32") {
    log.info("note: gradients travel between machines as {}: the same bits on the same machines only{}",
             config.ddp.reduce_dtype,
             world.topology().nodes() == 1 ? "; with one machine nothing travels, so it has no effect" : "");
  }
}

}  // namespace lockstep::train
