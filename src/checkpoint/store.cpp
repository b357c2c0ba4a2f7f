#include "lockstep/checkpoint/store.h"

#include <fmt/format.h>

#include <sstream>
#include <vector>

#include "checkpoint/load_steps.h"
#include "checkpoint/profile_snapshots.h"
#include "checkpoint/step_files.h"
#include "checkpoint/storage.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/provenance.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// A checkpoint made with other shards, seed or batch would go on elsewhere in the stream, silently.
void check_stream(const FileIndex& index, const Stream& stream) {
  const Position& stored = index.position;
  const auto refuse = [&](std::string_view what, auto was, auto is) {
    throw UsageError(
        "{}: was made with {} {}, this run has {}; resume with the same, or start a new run from its weights",
        index.path, what, was, is);
  };
  if (stream.shards != 0 && stored.shards != 0 && stored.shards != stream.shards)
    refuse("shards", stored.shards, stream.shards);
  if (stream.shards != 0 && stored.shards != 0 && stored.seed != stream.seed)
    refuse("seed", stored.seed, stream.seed);
  const std::int64_t samples = stored.step * stream.samples_per_step;
  if (stream.samples_per_step != 0 && stored.samples != 0 && stored.samples != samples) {
    refuse("a global batch that makes samples", stored.samples, samples);
  }
}

/// Bits of results depend on these; a resume under others is allowed but said.
std::vector<std::string> changed_surroundings(const FileIndex& index, const Provenance& now) {
  std::vector<std::string> warnings;
  for (const char* what : {"instruction_set", "threads"}) {
    const auto then = index.provenance.find(what), here = now.find(what);
    if (then != index.provenance.end() && here != now.end() && then->second != here->second) {
      warnings.push_back(
          fmt::format("{} was written with {} {}, this run has {}: results may differ in the last bits",
                      index.path, what, then->second, here->second));
    }
  }
  return warnings;
}

/// Removes what a save that was cut off left behind.
std::unique_ptr<ProfileSnapshots> start(RunDirectory& run_directory, comm::Communicator& communicator) {
  comm::together(communicator, [&] {
    if (communicator.rank() == 0) remove_drafts(run_directory.checkpoints_path(), Log());
  });
  return std::make_unique<ProfileSnapshots>(run_directory, communicator);
}

}  // namespace

Position Stream::at(std::int64_t step) const {
  const std::int64_t samples = step * samples_per_step;
  return {step, samples_per_epoch > 0 ? samples / samples_per_epoch : 0, samples, shards, seed};
}

Store::Store(const std::string& run_directory, comm::Communicator& communicator, StoreOptions options)
    : own_run_directory_(std::make_unique<RunDirectory>(run_directory, communicator)),
      run_directory_(*own_run_directory_),
      directory_(run_directory_.checkpoints_path()),
      communicator_(communicator),
      options_(std::move(options)),
      log_(communicator.rank()),
      snapshots_(start(run_directory_, communicator)) {}

Store::Store(RunDirectory& run_directory, comm::Communicator& communicator, StoreOptions options)
    : run_directory_(run_directory),
      directory_(run_directory.checkpoints_path()),
      communicator_(communicator),
      options_(std::move(options)),
      log_(communicator.rank()),
      snapshots_(start(run_directory_, communicator)) {}

Store::~Store() = default;

std::string Store::save_contents(std::int64_t step, Contents contents) {
  contents.position = options_.stream.at(step);
  contents.config = options_.config;
  Provenance provenance = provenance_of(communicator_);
  provenance.merge(contents.provenance);
  for (const auto& [name, value] : options_.provenance) provenance[name] = value;
  if (!current_path_.empty()) provenance["parent_checkpoint"] = current_path_;
  contents.provenance = std::move(provenance);

  const std::string name = name_of_step(step), path = directory_ + "/" + name;
  const auto check_held = [&] { run_directory_.check_held(); };
  // First: whoever resumes from a checkpoint finds its snapshot.
  snapshots_->save(contents);
  save_file(path, contents, communicator_, {.mark = run_directory_.mark(), .check_may_write = check_held});
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    check_held();
    publish(name);
    prune(step);
    snapshots_->thin(step);
  });
  current_path_ = path;
  return path;
}

void Store::publish(const std::string& name) {
  if (!replace_link(directory_ + "/latest", name)) return;
  sync_directory(directory_);
}

void Store::prune(std::int64_t step) {
  if (options_.keep <= 0) return;
  int kept = 0;
  for (const std::int64_t other : steps_in(directory_)) {
    // Later steps are of a course that this run has left; they are no reason to drop what it has just
    // written.
    if (other > step || ++kept <= options_.keep) continue;
    try {
      remove_file(directory_ + "/" + name_of_step(other));
    } catch (const Error& error) {
      log_.warning("an old checkpoint stays: {}", error.what());
    }
  }
}

std::int64_t Store::resume_contents(const Contents& contents) {
  std::string broken;
  const auto skip = [&](const DataError& error) {
    if (communicator_.rank() == 0)
      log_.warning("a checkpoint is broken, trying the one before: {}", error.what());
    broken += (broken.empty() ? "" : "; ") + std::string(error.what());
  };
  for (const std::int64_t step : steps_in(directory_, communicator_)) {
    const std::string path = directory_ + "/" + name_of_step(step);
    FileIndex index;
    try {
      index = read_index(path, communicator_);
    } catch (const DataError& error) {
      skip(error);
      continue;
    }
    Request request;
    LoadPlan plan;
    comm::together(communicator_, [&] {
      check_stream(index, options_.stream);
      request = request_for(index, contents, communicator_);
      plan = plan_load(index, request, {.strict = options_.strict, .narrow = options_.narrow});
    });
    try {
      read_tensors(index, plan.pairs, communicator_);
    } catch (const DataError& error) {
      skip(error);
      continue;
    }
    comm::together(communicator_, [&] { finish_load(plan, request.contents); });
    Provenance now = provenance_of(communicator_);
    for (const auto& [name, value] : options_.provenance) now[name] = value;
    for (std::string& warning : changed_surroundings(index, now)) plan.warnings.push_back(std::move(warning));
    if (communicator_.rank() == 0) {
      for (const std::string& warning : plan.warnings) log_.warning("{}", warning);
    }
    snapshots_->drop_after(index.position.step);
    current_path_ = path;
    return index.position.step;
  }
  if (!broken.empty()) throw DataError("{}: no checkpoint is whole: {}", directory_, broken);
  snapshots_->drop_after(0);
  return 0;
}

std::optional<FileIndex> Store::newest() {
  std::string broken;
  for (const std::int64_t step : steps_in(directory_, communicator_)) {
    try {
      return read_index(directory_ + "/" + name_of_step(step), communicator_);
    } catch (const DataError& error) {
      broken += (broken.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!broken.empty()) throw DataError("{}: no checkpoint is whole: {}", directory_, broken);
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
