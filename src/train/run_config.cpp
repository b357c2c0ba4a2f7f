#include "train/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "lockstep/base/log.h"
#include "train/threads.h"
#include "train/workload.h"

namespace lockstep::train {
namespace {

void check_same_run(const Config& stored, const Config& asked, const std::string& directory) {
  const std::vector<std::string> changes = forbidden_changes(stored, asked);
  if (changes.empty()) return;
  throw UsageError(
      "{0}: holds a run of another configuration; start a new one from its weights (--run OTHER --resume "
      "{0}/checkpoints/latest), or undo: {1}",
      directory, fmt::join(changes, "; "));
}

/// Steps and epochs stand next to each other in what a run has stored: the ones are what the others came to
/// when it began.
void settle_steps(TrainConfig& asked, const TrainConfig* stored, std::int64_t steps_of_epochs) {
  const bool of_the_run = stored && asked.epochs > 0 && asked.epochs == stored->epochs;
  if (asked.epochs > 0 && asked.steps > 0 && !(of_the_run && asked.steps == stored->steps))
    throw UsageError(
        "train.epochs = {:g} and train.steps = {} are both given; give one of them (a run's config.ini has "
        "both: "
        "remove its epochs)",
        asked.epochs, asked.steps);
  if (asked.epochs > 0) asked.steps = of_the_run ? stored->steps : steps_of_epochs;
}

void check_decay(const Config& config) {
  if (config.optimizer.decay_steps <= config.train.steps) return;
  throw UsageError(
      "optimizer.decay_steps = {}: the run has {} only (train.steps, or what train.epochs come to); give at "
      "most "
      "as many",
      config.optimizer.decay_steps, pluralized(config.train.steps, "step"));
}

}  // namespace

void settle(Config& config, checkpoint::RunDirectory& run, const RunOptions& options, std::int64_t samples,
            const comm::HostGroup& world) {
  const std::optional<std::string> text = run.stored_config();
  const bool from_file = options.resume != "auto" && options.resume != "never";
  if (from_file && !text && !config.train.init.empty() && config.train.init != options.resume) {
    Log(world.rank())
        .info("--resume {0}: the run starts from {0}, not from train.init = {1}", options.resume,
              config.train.init);
  }
  if (from_file) config.train.init = options.resume;
  if (text) {
    const Config stored = parse_stored_config(*text, run.config_path());
    if (from_file && stored.train.init != options.resume) {
      throw UsageError("{}: holds a run already; --resume FILE starts a new one: choose another --run",
                       run.path());
    }
    settle_steps(config.train, &stored.train, steps_of(config, samples));
    if (config.train.init.empty()) config.train.init = stored.train.init;
    if (config.train.shards == 0) config.train.shards = stored.train.shards;
    if (config.train.threads == 0) config.train.threads = stored.train.threads;
    if (config.checkpoint.every == CheckpointConfig::auto_every)
      config.checkpoint.every = stored.checkpoint.every;
    check_same_run(stored, config, run.path());
    for (const KeyChange& change : changes(stored, config))
      Log(world.rank()).info("changed: {} = {} (was {})", change.key, change.now, change.before);
  } else {
    settle_steps(config.train, nullptr, steps_of(config, samples));
    if (config.train.shards == 0) config.train.shards = world.size();
  }
  check_decay(config);
  check_shards(config, world);
}

void settle_threads(Config& config, Session& session) {
  const bool on_cpu = session.backend().device() == Device::cpu();
  if (config.train.threads == 0) {
    const ThreadChoice choice = choose_threads(cores_of_ranks(session.world()), session.world().topology());
    config.train.threads = choice.threads;
    if (on_cpu)
      session.log().info("{} a rank, from now on ({})", pluralized(choice.threads, "thread"), choice.reason);
  }
  if (!on_cpu) return;
  if (session.backend().threads() != config.train.threads)
    session.use_backend(Device::cpu(), {.threads = config.train.threads});
  if (binding_wanted(session.world(), config.train.bind))
    bind_threads(session.world(), session.log(), config.train.threads);
}

}  // namespace lockstep::train
