// Saves the snapshots, and mixes EMA weights of other widths from them.
#include "checkpoint/profile_snapshots.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <unordered_map>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/run_files.h"
#include "checkpoint/save.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/optim/ema.h"

namespace lockstep::checkpoint {
namespace {

/// Neighbours are at least 1/32 of their step apart, so 22 stay each time the number of steps doubles.
constexpr std::int64_t density = 32;

StateDict snapshot_of(const StateDict& checkpoint) {
  StateDict snapshot{checkpoint.position, {}, checkpoint.config, checkpoint.provenance};
  snapshot.backend = checkpoint.backend;
  std::set<std::string_view> averaged;
  for (const Section& section : checkpoint.sections) {
    if (!is_profile_group(section.path)) continue;
    Section& kept = snapshot.sections.emplace_back(Section{section.path, {}, section.attributes});
    for (const NamedTensor& tensor : section.tensors) {
      if (!tensor.averaged) continue;
      kept.tensors.push_back(tensor);
      averaged.insert(tensor.name);
    }
  }
  if (snapshot.sections.empty()) return snapshot;
  for (const Section& section : checkpoint.sections) {
    if (is_data_group(section.path)) snapshot.sections.push_back(section);
    if (section.path != "model") continue;
    Section buffers{"model", {}, {}};
    for (const NamedTensor& tensor : section.tensors) {
      if (!averaged.contains(tensor.name)) buffers.tensors.push_back(tensor);
    }
    if (!buffers.tensors.empty()) snapshot.sections.push_back(std::move(buffers));
  }
  return snapshot;
}

}  // namespace

bool is_profile_group(std::string_view path) { return path.starts_with("ema/sigma_rel="); }

ProfileSnapshots::ProfileSnapshots(RunDirectory& run_directory, comm::HostGroup& world)
    : run_directory_(run_directory), world_(world), log_(world.rank()) {
  comm::run_on_all(world_, [&] {
    if (world_.rank() == 0 && !run_directory_.is_read_only()) remove_drafts(run_directory_.ema_path(), log_);
  });
}

std::unique_ptr<FileWriter> ProfileSnapshots::begin(const StateDict& checkpoint, const SaveOptions& options) {
  const StateDict snapshot = snapshot_of(checkpoint);
  if (snapshot.sections.empty()) return nullptr;
  comm::run_on_all(world_, [&] {
    if (world_.rank() != 0) return;
    run_directory_.check_held();
    make_directories(run_directory_.ema_path());
  });
  return std::make_unique<FileWriter>(
      run_directory_.ema_path() + "/" + name_of_step(checkpoint.position.step), snapshot, world_, options);
}

void ProfileSnapshots::thin(std::int64_t newest_step) {
  std::vector<std::int64_t> steps = steps_in(run_directory_.ema_path());
  std::reverse(steps.begin(), steps.end());
  std::int64_t before = -1;
  for (const std::int64_t step : steps) {
    if (before < 0 || step >= newest_step || density * (step - before) >= before) {
      before = step;
      continue;
    }
    try {
      remove_file(run_directory_.ema_path() + "/" + name_of_step(step));
    } catch (const Error& error) {
      log_.warning("an old profile snapshot stays: {}", error.what());
    }
  }
}

void ProfileSnapshots::drop_after(std::int64_t step) {
  comm::run_on_all(world_, [&] {
    if (world_.rank() != 0 || run_directory_.is_read_only()) return;
    std::vector<std::int64_t> later = steps_in(run_directory_.ema_path());
    std::erase_if(later, [&](std::int64_t other) { return other <= step; });
    if (later.empty()) return;
    run_directory_.check_held();
    log_.info("{}: snapshots after step {} are removed: {}, up to step {}", run_directory_.ema_path(), step,
              later.size(), later.front());
    for (const std::int64_t other : later) remove_file(run_directory_.ema_path() + "/" + name_of_step(other));
  });
}

namespace {

/// The largest accepted profile error of a mixture.
constexpr double max_error = 0.1;

/// A stored average: one group of one snapshot.
struct Stored {
  std::size_t snapshot;
  std::string group;
  double sigma_rel;
  std::int64_t updates;
};

template <class Value>
Value attribute_of(const FileIndex& index, const GroupEntry& group, std::string_view name) {
  for (const auto& [key, value] : group.attributes) {
    if (const Value* const found = std::get_if<Value>(&value); found && key == name) return *found;
  }
  throw DataError("{}: /{} lacks the attribute '{}'", index.path, group.path, name);
}

std::vector<Stored> stored_in(const std::vector<FileIndex>& snapshots) {
  std::vector<Stored> stored;
  for (std::size_t s = 0; s < snapshots.size(); ++s) {
    for (const GroupEntry& group : snapshots[s].groups) {
      if (!is_profile_group(group.path)) continue;
      stored.push_back({s, group.path, attribute_of<double>(snapshots[s], group, "sigma_rel"),
                        attribute_of<std::int64_t>(snapshots[s], group, "updates")});
    }
  }
  if (stored.empty() || stored.back().snapshot + 1 != snapshots.size())
    throw DataError("{}: holds no power-function averages", snapshots.back().path);
  // Profiles are functions of the time since averages began.
  const auto began = [&](const Stored& one) { return snapshots[one.snapshot].position.step - one.updates; };
  for (const Stored& one : stored) {
    if (began(one) == began(stored.back())) continue;
    throw DataError(
        "{}: its averages began after step {}, those of {} after step {}: remove the snapshots of other runs",
        snapshots[one.snapshot].path, began(one), snapshots.back().path, began(stored.back()));
  }
  return stored;
}

void check_is_run(const std::string& run) {
  std::error_code ignored;
  if (!exists(run)) throw UsageError("{}: there is no such run directory", run);
  if (!std::filesystem::is_directory(run, ignored))
    throw UsageError("{}: is a file; give the run directory", run);
  if (!steps_in(run).empty())
    throw UsageError("{}: is within a run directory; give the run directory: {}", run, directory_of(run));
  for (const char* const part : {"/ema", "/checkpoints", "/config.ini"})
    if (exists(run + part)) return;
  throw UsageError("{}: is not a run directory: it has no ema, checkpoints or config.ini", run);
}

/// Steps of the snapshots to use, oldest first.
std::vector<std::int64_t> steps_to_use(const std::string& run, std::optional<std::int64_t> step,
                                       comm::HostGroup& world) {
  comm::run_on_all(world, [&] { check_is_run(run); });
  const std::string directory = run + "/ema";
  std::vector<std::int64_t> steps = steps_in(directory, world);
  std::reverse(steps.begin(), steps.end());
  if (steps.empty()) {
    throw UsageError(
        "{}: there are no profile snapshots; a run keeps them that is started with ema.sigma_rel, such as "
        "0.05 0.10",
        directory);
  }
  if (!step) return steps;
  const auto found = std::lower_bound(steps.begin(), steps.end(), *step);
  if (found == steps.end() || *found != *step) {
    std::string nearest;
    if (found != steps.begin()) nearest = fmt::format("{}", *(found - 1));
    if (found != steps.end()) nearest += fmt::format("{}{}", nearest.empty() ? "" : " and ", *found);
    throw UsageError("{}: there is no snapshot of step {}; nearest: {} (of {}, steps {} to {})", directory,
                     *step, nearest, steps.size(), steps.front(), steps.back());
  }
  steps.erase(found + 1, steps.end());
  return steps;
}

/// The indexes of the snapshots. A run that is still training prunes snapshots: if a listed one is gone
/// before it is read, this lists the directory again; snapshots that were read stay open. After many attempts
/// it leaves out missing ones, except for the newest.
std::vector<FileIndex> snapshots_to_use(const std::string& run, std::optional<std::int64_t> step,
                                        comm::HostGroup& world) {
  constexpr int max_lists = 16;
  std::map<std::int64_t, FileIndex> read;
  for (int lists = 1;; ++lists) {
    const std::vector<std::int64_t> steps = steps_to_use(run, step, world);
    bool all_read = true;
    for (const std::int64_t one : steps) {
      if (read.contains(one)) continue;
      const std::string path = run + "/ema/" + name_of_step(one);
      try {
        read.emplace(one, read_index(path, world));
      } catch (const DataError&) {
        const bool still_listed = one == steps.back() || lists < max_lists;
        if (from_rank_0(world, [&] { return exists(path); }) || lists >= 2 * max_lists) throw;
        all_read = all_read && !still_listed;
      }
    }
    if (!all_read) continue;
    std::vector<FileIndex> snapshots;
    for (const std::int64_t one : steps) {
      if (const auto found = read.find(one); found != read.end())
        snapshots.push_back(std::move(found->second));
    }
    return snapshots;
  }
}

/// "0.04 to 0.14, 0.25": widths that mixtures of the stored averages can approximate.
std::string reachable(const optim::EmaReconstruction& reconstruction, std::int64_t updates) {
  std::string text;
  double first = 0, last = 0;
  const auto close = [&] {
    if (first == 0) return;
    text += fmt::format("{}{:.2f}", text.empty() ? "" : ", ", first);
    if (last > first) text += fmt::format(" to {:.2f}", last);
    first = 0;
  };
  for (int hundredths = 1; hundredths < 28; ++hundredths) {
    const double width = hundredths / 100.0;
    const auto target = optim::response_of(optim::EmaProfile::power(width), updates);
    if (reconstruction.mixture_for(target).error > max_error) {
      close();
      continue;
    }
    if (first == 0) first = width;
    last = width;
  }
  close();
  return text;
}

optim::EmaMixture mixture_of(const std::vector<Stored>& stored, const optim::EmaProfile& profile,
                             const std::string& directory) {
  std::vector<optim::PowerResponse> responses;
  for (const Stored& one : stored)
    responses.push_back(optim::response_of(optim::EmaProfile::power(one.sigma_rel), one.updates));
  const optim::EmaReconstruction reconstruction(std::move(responses));
  const std::int64_t updates = stored.back().updates;
  optim::EmaMixture mixture = reconstruction.mixture_for(optim::response_of(profile, updates));
  if (mixture.error <= max_error) return mixture;
  const std::string instead = reachable(reconstruction, updates);
  throw UsageError(
      "{}: sigma_rel = {} is impossible: the profile error of the closest mixture of {} is {:.0f} %, more "
      "than {:.0f} %; {}, or keep more snapshots (checkpoint.every) of more widths (ema.sigma_rel)",
      directory, profile.parameter(), pluralized(stored.size(), "stored average"), 100 * mixture.error,
      100 * max_error, instead.empty() ? "choose a width that was tracked" : "possible widths: " + instead);
}

/// A tensor of the output file.
struct Target {
  std::string name;
  bool averaged;
  Tensor tensor;
};

std::vector<Target> targets_of(const FileIndex& last, const std::string& group) {
  std::vector<Target> targets;
  for (const TensorEntry& entry : last.tensors) {
    if (entry.group != group && entry.group != "model") continue;
    const bool averaged = entry.group == group;
    if (averaged && entry.dtype != DType::float32)
      throw DataError("{}: {} is {}, not float32", last.path, entry.path(), to_string(entry.dtype));
    targets.push_back({entry.name, averaged, Tensor::empty(entry.shape, entry.dtype)});
  }
  return targets;
}

/// The tensors of one snapshot, by path.
using Entries = std::unordered_map<std::string, const TensorEntry*>;

Entries entries_of(const FileIndex& index) {
  Entries entries;
  for (const TensorEntry& entry : index.tensors) entries.emplace(entry.path(), &entry);
  return entries;
}

const TensorEntry& entry_for(const Target& target, const std::string& group, const Entries& entries,
                             const FileIndex& index) {
  const auto found = entries.find("/" + group + "/" + target.name);
  if (found != entries.end() && found->second->shape == target.tensor.shape() &&
      found->second->dtype == target.tensor.dtype())
    return *found->second;
  throw DataError("{}: /{}/{} is missing or has another shape than in later snapshots", index.path, group,
                  target.name);
}

/// Fills the targets for which mine(index) is true.
template <class Mine>
void mix(const std::vector<FileIndex>& snapshots, const std::vector<Stored>& stored,
         const std::vector<double>& weights, const std::vector<Target>& targets, const Mine& mine) {
  std::vector<std::vector<double>> sums(targets.size());
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (mine(t) && targets[t].averaged) sums[t].resize(static_cast<std::size_t>(targets[t].tensor.numel()));
  }
  for (std::size_t s = 0; s < snapshots.size(); ++s) {
    const FileIndex& index = snapshots[s];
    const bool last = s + 1 == snapshots.size();
    const Entries entries = entries_of(index);
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (!mine(t)) continue;
      if (!targets[t].averaged) {
        if (last)
          BlockReader(*index.file, entry_for(targets[t], "model", entries, index),
                      static_cast<std::byte*>(targets[t].tensor.raw()))
              .finish();
        continue;
      }
      for (std::size_t i = 0; i < stored.size(); ++i) {
        if (stored[i].snapshot != s || weights[i] == 0) continue;
        double* sum = sums[t].data();
        BlockReader reader(*index.file, entry_for(targets[t], stored[i].group, entries, index));
        for (auto bytes = reader.next(); !bytes.empty(); bytes = reader.next()) {
          for (std::size_t e = 0; e < bytes.size() / sizeof(float); ++e)
            *sum++ += weights[i] * static_cast<double>(element_at<float>(bytes, e));
        }
        reader.finish();
      }
    }
  }
  for (std::size_t t = 0; t < targets.size(); ++t) {
    std::transform(sums[t].begin(), sums[t].end(),
                   sums[t].empty() ? nullptr : targets[t].tensor.data<float>(),
                   [](double sum) { return static_cast<float>(sum); });
  }
}

}  // namespace

EmaReconstructionReport reconstruct_ema(const std::string& run_directory, double sigma_rel,
                                        std::optional<std::int64_t> step, const std::string& out,
                                        comm::HostGroup& world) {
  const comm::NamedCall call(world, "calls reconstruct_ema");
  const optim::EmaProfile profile = optim::EmaProfile::power(sigma_rel);
  std::string run = run_directory;
  while (run.size() > 1 && run.ends_with('/')) run.pop_back();
  const std::string directory = run + "/ema";
  const std::vector<FileIndex> snapshots = snapshots_to_use(run, step, world);
  const FileIndex& last = snapshots.back();
  const std::vector<Stored> stored = stored_in(snapshots);
  const optim::EmaMixture mixture = mixture_of(stored, profile, directory);
  const std::vector<Target> targets = targets_of(last, stored.back().group);

  const auto owner = [&](std::size_t target) { return static_cast<int>(target) % world.size(); };
  comm::run_on_all(world, [&] {
    mix(snapshots, stored, mixture.weights, targets,
        [&](std::size_t target) { return owner(target) == world.rank(); });
  });
  for (std::size_t t = 0; t < targets.size(); ++t)
    world.broadcast(targets[t].tensor.raw(), targets[t].tensor.bytes(), owner(t));

  EmaReconstructionReport report{.group = "ema/" + profile.name(),
                                 .step = last.position.step,
                                 .error = mixture.error,
                                 .sources = {},
                                 .snapshots = static_cast<std::int64_t>(snapshots.size()),
                                 .first_step = snapshots.front().position.step};
  std::set<std::string> sources;
  for (const Stored& one : stored) sources.insert(one.group);
  report.sources.assign(sources.begin(), sources.end());

  Section section{report.group, {}, {{"sigma_rel", sigma_rel, {}}, {"updates", stored.back().updates, {}}}};
  for (const Target& target : targets) section.tensors.push_back({target.name, target.tensor});
  StateDict state_dict{last.position, {section}, last.config, provenance_of(world)};
  comm::run_on_all(world, [&] { add_meaning(last, state_dict.sections, state_dict.provenance); });
  state_dict.provenance["parent_checkpoint"] = last.path;
  state_dict.provenance["ema_sources"] = fmt::format(
      "{} of {} in {}, steps {} to {}; profile error {:.2g}", fmt::join(report.sources, ", "),
      pluralized(report.snapshots, "snapshot"), directory, report.first_step, report.step, report.error);
  save_file(out, state_dict, world);
  return report;
}

}  // namespace lockstep::checkpoint
