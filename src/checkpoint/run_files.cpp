#include "checkpoint/run_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/output.h"
#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

/// The path with the links at its end resolved; if they lead nowhere, the name that does not exist.
std::string target_of(const std::string& path) {
  constexpr int max_links = 40;  // the limit of the system
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; links < max_links; ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) return target;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return path;  // opening it reports the error
}

/// DataError if the path is a folder, or a file of a folder of PyTorch, which is no checkpoint alone.
void check_no_folder(const std::string& path) {
  const bool is_part = path.ends_with(".distcp") || path.ends_with("/.metadata");
  if (!is_part && !is_directory(path)) return;
  const auto refuse = [&](const char* program, const std::string& command) {
    throw DataError("{}: is a checkpoint of {}; make a file of torch.save of it: python {}", path, program,
                    command);
  };
  for (const std::string& folder : {path, directory_of(path)}) {
    if (exists(folder + "/.metadata"))
      refuse("torch.distributed.checkpoint",
             fmt::format("-m torch.distributed.checkpoint.format_utils dcp_to_torch {} model.pt", folder));
    if (exists(folder + "/zero_to_fp32.py"))
      refuse("DeepSpeed", fmt::format("{0}/zero_to_fp32.py {0} OUT", folder));
  }
  if (!is_directory(path)) return;
  std::string here = "; it has neither model.safetensors nor pytorch_model.bin, nor an index of them";
  for (const char* const name : {"latest", "checkpoints/latest"})
    if (const auto there = std::filesystem::path(path) / name; exists(there))
      here = ", such as " + there.string();
  throw DataError("{}: is a directory; a checkpoint is a file{}", path, here);
}

}  // namespace

double name_delay_s(const comm::HostGroup& world) {
  const std::vector<int>& nodes = world.topology().node_of_rank;
  return nodes[static_cast<std::size_t>(world.rank())] == nodes[0] ? 1 : 60;
}

std::shared_ptr<const OpenFile> open_live(const std::string& path) {
  check_no_folder(path);
  for (int attempt = 1;; ++attempt) {
    const std::string target = target_of(path);
    try {
      return std::make_shared<const OpenFile>(target, OpenFile::Mode::read);
    } catch (const DataError& error) {
      if (target == path) throw;
      if (attempt == max_live_attempts) throw DataError("{}: leads to {}", path, error.what());
    }
  }
}

std::shared_ptr<const OpenFile> open_if_there(const std::string& target) {
  try {
    return std::make_shared<const OpenFile>(target, OpenFile::Mode::read);
  } catch (const DataError&) {
    if (exists(target)) throw;
    return nullptr;
  }
}

namespace {

/// Temporary names of files and links that are not named after a step.
const std::set<std::string_view> small_drafts{".latest.tmp", ".best.tmp", ".starts.tmp",
                                              ".evaluations.json.tmp"};

constexpr std::string_view name_prefix = "step-", name_suffix = ".h5";

/// True for ".step-000000500.h5.MARK.tmp", with or without the mark of the run that wrote it.
bool is_draft(std::string_view name) {
  constexpr std::string_view suffix = ".tmp";
  if (!name.starts_with('.') || !name.ends_with(suffix)) return false;
  name.remove_prefix(1);
  name.remove_suffix(std::min(name.size(), suffix.size()));
  const std::size_t last_dot = std::min(name.rfind('.'), name.size());
  return step_in_name(name) >= 0 || step_in_name(name.substr(0, last_dot)) >= 0;
}

std::vector<std::string> list(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) throw_system_error(error.value(), directory, "list the directory");
  return names;
}

}  // namespace

std::string name_of_step(std::int64_t step) {
  return fmt::format("{}{:09d}{}", name_prefix, step, name_suffix);
}

std::int64_t step_in_name(std::string_view name) {
  if (!name.starts_with(name_prefix) || !name.ends_with(name_suffix)) return -1;
  name.remove_prefix(name_prefix.size());
  name.remove_suffix(std::min(name.size(), name_suffix.size()));
  std::int64_t step = -1;
  return parse_number(name, step) && name.size() >= 9 ? step : -1;
}

std::vector<std::int64_t> steps_in(const std::string& directory) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : list(directory)) {
    if (const std::int64_t step = step_in_name(name); step >= 0) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<std::int64_t> steps_in(const std::string& directory, comm::HostGroup& world) {
  return from_rank_0(world, [&] { return steps_in(directory); });
}

void remove_drafts(const std::string& directory, const Log& log) {
  for (const std::string& name : list(directory)) {
    if (!small_drafts.contains(name) && !is_draft(name)) continue;
    log.info("{}/{}: removed; an interrupted save left it behind", directory, name);
    remove_file(directory + "/" + name);
  }
}

namespace {

/// JSON has no such numbers, so null stands for them.
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::map<std::int64_t, EvaluationRecords::Metrics> parse(const std::string& text) {
  std::map<std::int64_t, EvaluationRecords::Metrics> of_step;
  const nlohmann::json all = nlohmann::json::parse(text);
  for (const auto& [name, metrics] : all.items()) {
    std::int64_t step = -1;
    if (!parse_number(name, step) || !metrics.is_object())
      throw DataError("{} is not a step with metrics", quote(name));
    for (const auto& [metric, value] : metrics.items())
      of_step[step][metric] = value.is_number() ? value.get<double>() : not_a_number;
  }
  return of_step;
}

}  // namespace

EvaluationRecords::EvaluationRecords(std::string path, const Log& log) : path_(std::move(path)) {
  if (!exists(path_)) return;
  try {
    of_step_ = parse(read_text(path_));
  } catch (const std::exception& error) {
    log.warning("{}: cannot be read, so its metrics of checkpoints are lost: {}", path_, error.what());
  }
}

const double* EvaluationRecords::find(std::int64_t step, const std::string& metric) const {
  const auto metrics = of_step_.find(step);
  if (metrics == of_step_.end()) return nullptr;
  const auto found = metrics->second.find(metric);
  return found == metrics->second.end() ? nullptr : &found->second;
}

void EvaluationRecords::set(std::int64_t step, const Metrics& metrics) {
  of_step_[step] = metrics;
  write();
}

void EvaluationRecords::forget(std::span<const std::int64_t> steps) {
  std::size_t gone = 0;
  for (const std::int64_t step : steps) gone += of_step_.erase(step);
  if (gone > 0) write();
}

void EvaluationRecords::forget_after(std::int64_t step) {
  const auto later = of_step_.upper_bound(step);
  if (later == of_step_.end()) return;
  of_step_.erase(later, of_step_.end());
  write();
}

void EvaluationRecords::write() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [step, metrics] : of_step_) all[std::to_string(step)] = metrics;
  write_text_atomically(path_, json_text(all, 1) + "\n");
}

void AttemptCounter::add(std::int64_t step) {
  Counts counts = read();
  ++counts[step];
  write(counts);
}

void AttemptCounter::take_back(std::int64_t step) {
  Counts counts = read();
  const auto found = counts.find(step);
  if (found == counts.end()) return;
  if (--found->second <= 0) counts.erase(found);
  write(counts);
}

void AttemptCounter::forget_up_to(std::int64_t step) {
  Counts counts = read();
  if (counts.empty() || counts.begin()->first > step) return;
  counts.erase(counts.begin(), counts.upper_bound(step));
  write(counts);
}

/// A missing or unreadable file has no counts: they are only advice.
AttemptCounter::Counts AttemptCounter::read() const {
  Counts counts;
  try {
    if (!exists(path_)) return counts;
    std::istringstream lines(read_text(path_));
    std::int64_t step = 0;
    for (int starts = 0; lines >> step >> starts;) counts[step] = starts;
  } catch (const Error&) {
  }
  return counts;
}

void AttemptCounter::write(const Counts& counts) const {
  if (counts.empty()) return remove_file(path_);
  std::string text;
  for (const auto& [step, starts] : counts) text += fmt::format("{} {}\n", step, starts);
  write_text_atomically(path_, text);
}

Retention::Retention(int keep, std::string metric, bool more_is_better)
    : keep_(keep), metric_(std::move(metric)), more_is_better_(more_is_better) {}

void Retention::note(std::int64_t step, std::optional<double> metric) {
  if (metric && std::isfinite(*metric)) {
    scores_[step] = *metric;
  } else {
    scores_.erase(step);
  }
}

std::optional<std::int64_t> Retention::best(std::span<const std::int64_t> steps) const {
  const std::pair<const std::int64_t, double>* best = nullptr;
  for (const auto& candidate : scores_) {
    if (std::ranges::find(steps, candidate.first) == steps.end()) continue;
    if (!best || (more_is_better_ ? candidate.second > best->second : candidate.second < best->second))
      best = &candidate;
  }
  if (!best) return std::nullopt;
  return best->first;
}

std::vector<std::int64_t> Retention::to_remove(std::span<const std::int64_t> steps,
                                               std::int64_t newest) const {
  std::vector<std::int64_t> removed;
  if (keep_ <= 0) return removed;
  const std::optional<std::int64_t> best = this->best(steps);
  int count = 0;
  for (const std::int64_t step : steps) {
    if (step > newest || ++count <= keep_ || step == best) continue;
    removed.push_back(step);
  }
  return removed;
}

}  // namespace lockstep::checkpoint
