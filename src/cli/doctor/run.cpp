// Checks of a run: its requirements, whether ranks and nodes are alike and share files, and whether lockstep
// train would start it.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/text.h"
#include "cli/doctor/checks.h"
#include "ddp/gradient_buffer.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/reduction_tree.h"
#include "train/components.h"
#include "train/run/environment_fingerprint.h"
#include "train/run/resume.h"
#include "train/run/trainer.h"

namespace lockstep::cli::checks {
namespace {

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const std::string& host_of(const comm::HostGroup& world, std::size_t rank) {
  const comm::Topology& topology = world.topology();
  return topology.host_names[static_cast<std::size_t>(topology.node_of_rank[rank])];
}

/// "absent", "free" (unlocked) or "held". Waits up to 2 s: shared file systems show new files with a delay.
std::string lock_state(const std::string& path) {
  int file = -1;
  for (const double deadline_s = monotonic_s() + 2; (file = ::open(path.c_str(), O_RDWR | O_CLOEXEC)) < 0;) {
    if (monotonic_s() > deadline_s) return "absent";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const bool locked = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  ::close(file);
  return locked ? "free" : "held";
}

Result binding_of_node(const Context& context, int node) {
  const comm::Topology& topology = context.world.topology();
  if (const auto found = train::oversubscription(context.cores, topology, node, context.needed.threads))
    return {found->by_binding ? Verdict::problem : Verdict::note, found->text, found->remedy, ""};
  const std::string& host = topology.host_names[static_cast<std::size_t>(node)];
  const std::string each = train::threads_each(context.needed.threads);
  std::set<CoreSet> masks;
  std::map<CoreSet, CoreSet> threads_of_core;  // of ranks with one hardware thread each
  std::vector<std::string> rank_texts;
  std::size_t ranks = 0;
  for (std::size_t rank = 0; rank < context.cores.size(); ++rank) {
    if (context.cores[rank].node != node) continue;
    ++ranks;
    const CoreSet& mine = context.cores[rank].hardware_threads;
    masks.insert(mine);
    if (rank_texts.size() < 8) rank_texts.push_back(fmt::format("rank {}: {}", rank, to_text(mine)));
    if (mine.size() != 1) continue;
    CoreSet& shared = threads_of_core[context.cores[rank].cores];
    shared.insert(*mine.begin());
    if (shared.size() > 1)
      return note(fmt::format("{}: ranks share the core of hardware threads {}", host, to_text(shared)),
                  "bind each rank to whole cores (srun --hint=nomultithread), and measure both ways");
  }
  if (masks.size() == 1 && ranks > 1)
    return ok(fmt::format("{}: {} ranks with {}, all on cores {}, not bound to single ones", host, ranks,
                          each, to_text(*masks.begin())));
  return ok(fmt::format("{}: {}{} ({})", host, fmt::join(rank_texts, ", "),
                        ranks > rank_texts.size() ? ", ..." : "", each));
}

}  // namespace

Requirements requirements(const Context& context) {
  const train::Config& config = *context.config;
  const auto model = train::build_meta_model(config);
  std::uint64_t parameter_bytes = 0;
  for (const Param* const param : model->state().params)
    parameter_bytes += static_cast<std::uint64_t>(param->value.numel()) * sizeof(float);
  const comm::Topology& topology = context.world.topology();
  const int here = topology.node_of_rank[static_cast<std::size_t>(context.world.rank())];
  const comm::ShardMap shards(train::shards_of(config, context.world), context.world.size());
  Requirements needed;
  for (int rank = 0; rank < context.world.size(); ++rank) {
    if (topology.node_of_rank[static_cast<std::size_t>(rank)] != here) continue;
    const int buffers = ddp::AccumulationSchedule(shards.shards(), shards.block(rank)).buffers();
    needed.gradient_bytes += parameter_bytes * static_cast<std::uint64_t>(buffers);
  }
  const auto state_elements =
      static_cast<std::uint64_t>(optim::elements_of_state(config.optimizer.algorithm, model->state()));
  const std::uint64_t averages = config.ema.rates.size() + config.ema.sigma_rel.size();
  needed.checkpoint_bytes = parameter_bytes * (1 + averages) + state_elements * sizeof(float);
  needed.checkpoints =
      std::max(1, config.checkpoint.store.keep) + (config.checkpoint.store.keep_best.empty() ? 0 : 1);
  needed.threads = config.train.threads > 0 ? config.train.threads
                                            : train::choose_threads(context.cores, topology).threads;
  return needed;
}

Result configuration(const Context& context, Session& session) {
  std::string text;
  const auto describe = [&](const train::Config& resolved) {
    text = fmt::format("lockstep train would start: {} on {}",
                       pluralized(train::shards_of(resolved, context.world), "shard"),
                       pluralized(context.world.size(), "rank"));
  };
  try {
    train::dry_run(session, *context.config, {.directory = context.run}, describe);
  } catch (const Error& error) {
    return problem(error.what(),
                   "fix the configuration, the data or the number of ranks: lockstep train does not start");
  }
  return ok(std::move(text));
}

Results ranks_alike(const Context& context) {
  if (context.world.size() == 1) return {};
  train::Fingerprint entries = train::program_fingerprint();
  if (context.config)
    std::ranges::move(train::configuration_fingerprint(*context.config), std::back_inserter(entries));
  const train::FingerprintEntry instructions = train::instruction_set_entry();
  entries.push_back(instructions);
  Results results;
  for (const train::Difference& difference : train::differences(context.world, entries)) {
    const std::string text = difference.describe(context.world.topology());
    results.push_back(difference.name == instructions.name
                          ? note(text, "use identical nodes: other instruction sets give other bits")
                          : problem(text, "install the same on every node: lockstep train does not start"));
  }
  if (results.empty())
    results.push_back(ok(
        context.config
            ? "same program, libraries, configuration, data and instruction set"
            : "same program, libraries and instruction set (--config also compares configuration and data)"));
  return results;
}

Results binding(const Context& context) {
  const comm::Topology& topology = context.world.topology();
  Results results;
  for (int node = 0; node < topology.nodes(); ++node) {
    Result found = binding_of_node(context, node);
    if (node == 0 || found.verdict != Verdict::ok) results.push_back(std::move(found));
  }
  if (!context.needed.bind)
    results.push_back(ok("training does not bind threads (train.bind or LOCKSTEP_BIND = none)"));
  for (int node = 0; context.needed.bind && node < topology.nodes(); ++node) {
    const train::NodeBinding found = train::binding_of(context.cores, topology, node, context.needed.threads);
    if (found.text.empty() || (node > 0 && found.bound)) continue;
    const std::string text = "when training on the CPU, " + found.text;
    results.push_back(found.bound ? ok(text)
                                  : note(text, "lower train.threads, or give each rank its own cores"));
  }
  return results;
}

Results threads(const Context& context) {
  const train::ThreadChoice choice = train::choose_threads(context.cores, context.world.topology());
  return {ok(fmt::format("{} per rank; train.threads = 0 chooses {} ({})", context.needed.threads,
                         choice.threads, choice.reason))};
}

Results clocks(const Context& context) {
  comm::HostGroup& world = context.world;
  if (world.topology().nodes() == 1) return {};
  constexpr int rounds = 9;
  std::vector<std::vector<double>> ahead_s(static_cast<std::size_t>(world.size()));
  for (int round = 0; round < rounds; ++round) {
    world.barrier();
    const double now_s = wall_clock_s();
    std::vector<double> all_s(ahead_s.size());
    world.all_gather(&now_s, sizeof now_s, all_s.data());
    for (std::size_t rank = 0; rank < all_s.size(); ++rank) ahead_s[rank].push_back(all_s[rank] - all_s[0]);
  }
  std::size_t worst = 0;
  double skew_s = 0;
  for (std::size_t rank = 0; rank < ahead_s.size(); ++rank) {
    const double s = median(ahead_s[rank]);
    if (std::abs(s) > std::abs(skew_s)) std::tie(skew_s, worst) = std::tuple(s, rank);
  }
  const std::string text = fmt::format("{} is {:.1f} s {} of {}", host_of(world, worst), std::abs(skew_s),
                                       skew_s > 0 ? "ahead" : "behind", host_of(world, 0));
  if (std::abs(skew_s) >= 60)
    return {
        problem(text, "synchronize the clocks (chrony, ntpd): Slurm rejects credentials with a wrong time")};
  if (std::abs(skew_s) >= 1)
    return {note(text, "synchronize the clocks (chrony, ntpd): times in the logs disagree")};
  return {ok(fmt::format("within {:.0f} ms on {} nodes", std::ceil(std::abs(skew_s) * 1e3),
                         world.topology().nodes()))};
}

Results shared_directory(const Context& context) {
  comm::HostGroup& world = context.world;
  const comm::Topology& topology = world.topology();
  if (topology.nodes() == 1) return {};
  const auto rank = static_cast<std::size_t>(world.rank());
  // Rank 0 creates and locks a file; the first rank of every other node looks for it.
  std::string name;
  int file = -1;
  if (rank == 0) {
    name = fmt::format(".lockstep-doctor-{}-{}-{:.6f}", host_of(world, 0), getpid(), wall_clock_s());
    file = ::open((context.existing + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ::flock(file, LOCK_EX | LOCK_NB) != 0) name.clear();
  }
  name = world.all_gather_texts(name)[0];
  const bool looks = !name.empty() && rank != 0 && topology.local_rank_of_rank[rank] == 0;
  const std::vector<std::string> states =
      world.all_gather_texts(looks ? lock_state(context.existing + "/" + name) : "");
  if (file >= 0) {
    ::close(file);
    ::unlink((context.existing + "/" + name).c_str());
  }
  if (name.empty()) return {};  // the check "run directory" reports it
  std::vector<std::string> absent, unlocked;
  for (std::size_t other = 0; other < states.size(); ++other) {
    if (states[other] == "absent") absent.push_back(host_of(world, other));
    if (states[other] == "free") unlocked.push_back(host_of(world, other));
  }
  if (!absent.empty())
    return {
        problem(fmt::format("{}: a file that {} writes is not visible on {}", context.run, host_of(world, 0),
                            fmt::join(absent, ", ")),
                "put the run on a file system that all nodes share: all ranks write one checkpoint file")};
  if (!unlocked.empty())
    return {note(
        fmt::format("{}: a lock that {} holds is not visible on {}", context.run, host_of(world, 0),
                    fmt::join(unlocked, ", ")),
        "do not start two jobs in one run directory: the lock that refuses the second one does not work")};
  return {ok(fmt::format("{}: files and locks are visible on all nodes", context.run))};
}

}  // namespace lockstep::cli::checks
