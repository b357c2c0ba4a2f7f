// Resuming: the newest checkpoint that is whole, and what is done about those that are not.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/evaluations.h"
#include "checkpoint/gpt2_layout.h"
#include "checkpoint/load_steps.h"
#include "checkpoint/profile_snapshots.h"
#include "checkpoint/starts.h"
#include "checkpoint/step_files.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// Starts from a checkpoint that may end without a newer one before it is passed over.
constexpr int most_starts = 2;

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
  if (stream.samples_per_step != 0 && stored.samples != 0 && stored.step != 0 &&
      (stored.samples % stored.step != 0 || stored.samples / stored.step != stream.samples_per_step))
    refuse("a global batch of", static_cast<double>(stored.samples) / static_cast<double>(stored.step),
           stream.samples_per_step);
}

/// A file that somebody has given another's name.
void check_step(const FileIndex& index) {
  const std::int64_t named = step_in_name(file_name_of(index.path));
  if (named == index.position.step) return;
  throw UsageError("{}: holds the state after step {}; give it that step's name back, or remove it",
                   index.path, index.position.step);
}

/// Bits of results depend on these; a resume under others is allowed but said. In another
/// precision or on another device nothing else is worth saying.
std::vector<std::string> changed_surroundings(const FileIndex& index, const Provenance& now) {
  std::vector<std::string> warnings;
  const auto compare = [&](const char* what, const char* effect = "may differ in the last bits") {
    const auto then = index.provenance.find(what), here = now.find(what);
    if (then == index.provenance.end() || here == now.end() || then->second == here->second) return;
    warnings.push_back(fmt::format("{} was written with {} {}, this run has {}: results {}", index.path, what,
                                   then->second, here->second, effect));
  };
  compare("precision", "differ by their rounding");
  if (!warnings.empty()) return warnings;
  compare("device");
  if (!warnings.empty()) return warnings;
  compare("instruction_set");
  compare("threads");
  return warnings;
}

/// A file whose bytes are not what was saved.
struct Damaged {
  std::string text;
};

/// Calls action(), whose DataErrors mean damage.
template <class Action>
void reading(const Action& action) {
  try {
    action();
  } catch (const DataError& error) {
    throw Damaged{error.what()};
  }
}

}  // namespace

struct Store::Candidates {
  std::vector<std::int64_t> steps;  ///< in the order in which they are tried
  std::vector<std::int64_t> tired;  ///< those of them that have had their starts; they come last
};

Store::Candidates Store::candidates() {
  std::vector<std::int64_t> all = steps_in(directory_, communicator_);
  std::vector<char> tired(all.size());
  if (communicator_.rank() == 0) {
    const Starts::Counts counts = starts_->read();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto found = counts.find(all[i]);
      tired[i] = found != counts.end() && found->second >= most_starts;
    }
  }
  communicator_.broadcast(tired.data(), tired.size(), 0);
  Candidates candidates;
  for (std::size_t i = 0; i < all.size(); ++i)
    (tired[i] ? candidates.tired : candidates.steps).push_back(all[i]);
  candidates.steps.insert(candidates.steps.end(), candidates.tired.begin(), candidates.tired.end());
  return candidates;
}

std::int64_t Store::resume_contents(const Contents& contents) {
  finish();
  const Candidates candidates = this->candidates();
  std::vector<std::string> broken;
  std::string reasons;
  for (const std::int64_t step : candidates.steps) {
    const std::string path = directory_ + "/" + name_of_step(step);
    try {
      load(path, contents);
    } catch (const Damaged& damage) {
      if (communicator_.rank() == 0)
        log_.warning("a checkpoint is broken, trying the one before: {}", damage.text);
      broken.push_back(path);
      reasons += (reasons.empty() ? "" : "; ") + damage.text;
      continue;
    }
    for (const std::int64_t other : candidates.tired) {
      if (other <= step || communicator_.rank() != 0) continue;
      log_.warning(
          "{0}/{1}: passed over for {2}: {3} starts from it ended before anything newer was saved (remove "
          "{0}/starts to have it tried again)",
          directory_, name_of_step(other), name_of_step(step), most_starts);
    }
    started_from(step, broken);
    current_path_ = path;
    return step;
  }
  if (!broken.empty()) throw DataError("{}: no checkpoint is whole: {}", directory_, reasons);
  snapshots_->drop_after(0);
  return 0;
}

/// Throws Damaged.
void Store::load(const std::string& path, const Contents& contents) {
  FileIndex index;
  reading([&] { index = read_index(path, communicator_); });
  Request request;
  LoadPlan plan;
  comm::together(communicator_, [&] {
    check_step(index);
    check_stream(index, options_.stream);
    request = request_for(index, contents, communicator_);
    plan = plan_load(index, request, {.strict = options_.strict, .narrow = options_.narrow});
  });
  reading([&] { read_tensors(index, plan.pairs, contents.backend, communicator_); });
  comm::together(communicator_, [&] { finish_load(plan, request.contents); });
  if (const auto layout = index.provenance.find(weights_layout_key); layout != index.provenance.end())
    note({*layout});
  for (std::string& warning : changed_surroundings(index, provenance_))
    plan.warnings.push_back(std::move(warning));
  if (communicator_.rank() == 0) {
    for (const std::string& warning : plan.warnings) log_.warning("{}", warning);
  }
}

/// Puts the directory in order once there is a checkpoint to go on from: before, a broken one may be all
/// there is.
void Store::started_from(std::int64_t step, const std::vector<std::string>& broken) {
  comm::together(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    run_directory_.check_held();
    for (const std::string& path : broken) {
      std::string aside = path + ".bad";
      for (int number = 2; exists(aside); ++number) aside = fmt::format("{}.bad{}", path, number);
      rename_file(path, aside);
      log_.warning("{}: broken, kept aside as {}", path, file_name_of(aside));
    }
    if (!broken.empty()) {
      sync_directory(directory_);
      link("latest", step);
      link_best();
    }
    evaluations_->forget_after(step);
    started_in_vain();  // by an earlier call
    starts_->add(step);
    started_from_ = step;
  });
  snapshots_->drop_after(step);
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
