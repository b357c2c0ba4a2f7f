#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "base/text.h"
#include "checkpoint/run_files.h"
#include "checkpoint/save.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// The path with the links at its end resolved; if they lead nowhere, the name that does not exist.
std::string target_of(const std::string& path) {
  constexpr int max_links = 40;  // as the system
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; links < max_links; ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) return target;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return path;  // opening it reports the error
}

void check_no_directory(const std::string& path) {
  std::error_code ignored;  // opening the path reports the error
  if (!std::filesystem::is_directory(path, ignored)) return;
  const std::string latest = path + "/checkpoints/latest";
  throw DataError("{}: is a directory; a checkpoint is a file{}", path,
                  exists(latest) ? ", such as " + latest : "");
}

}  // namespace

double name_delay_s(const comm::HostGroup& world) {
  const std::vector<int>& nodes = world.topology().node_of_rank;
  return nodes[static_cast<std::size_t>(world.rank())] == nodes[0] ? 1 : 60;
}

std::shared_ptr<const OpenFile> open_live(const std::string& path) {
  check_no_directory(path);
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

NameTarget name_target(const OpenFile& file) {
  struct stat open {
  }, named{};
  if (::fstat(file.descriptor(), &open) != 0 || ::stat(file.path().c_str(), &named) != 0)
    return NameTarget::nothing;
  const bool same = open.st_dev == named.st_dev && open.st_ino == named.st_ino;
  return same ? NameTarget::same_file : NameTarget::other_file;
}

namespace {

constexpr auto retry_interval = std::chrono::milliseconds(50);
constexpr std::uint64_t longest_text_bytes = 4096;

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

/// A number that Slurm has set; empty if it is not set or not a number.
std::string number_from_environment(const char* variable) {
  const char* const value = std::getenv(variable);
  const std::string text = value ? value : "";
  return text.find_first_not_of("0123456789") == std::string::npos ? text : "";
}

std::int64_t integer(std::string_view text) {
  std::int64_t value = 0;
  parse_number(text, value);
  return value;
}

/// Boot identifier and start time in ticks since boot (field 22 of /proc/PID/stat); empty where there is no
/// /proc.
std::string start_of(std::int64_t pid) {
  std::ifstream status(fmt::format("/proc/{}/stat", pid)), boot("/proc/sys/kernel/random/boot_id");
  std::string line, boot_id;
  if (!std::getline(status, line) || !std::getline(boot, boot_id)) return "";
  // The second field, the program's name in brackets, may hold spaces and brackets itself.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return boot_id + " " + field;
}

/// Whether it has ended and only its parent has not looked yet: false where there is no /proc.
bool has_ended(std::int64_t pid) {
  std::ifstream status(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(status, line)) return false;
  const std::size_t letter = line.rfind(')') + 2;
  return letter < line.size() && (line[letter] == 'Z' || line[letter] == 'X');
}

bool has_its_name(const OpenFile& file) { return name_target(file) == NameTarget::same_file; }

/// The holder in the file's text now. While the holder writes it, half a text may name nobody.
LockHolder holder_in(const OpenFile& file) {
  std::string text(longest_text_bytes, '\0');
  const ssize_t bytes = ::pread(file.descriptor(), text.data(), text.size(), 0);
  if (bytes < 0) throw_system_error(errno, file.path(), "read");
  text.resize(static_cast<std::size_t>(bytes));
  return LockHolder::parse(text);
}

void write_holder(OpenFile& file, const LockHolder& holder) {
  const std::string text = holder.to_text();
  file.truncate(0);
  file.write_at(0, text.data(), text.size());
}

}  // namespace

LockHolder LockHolder::this_process() {
  return {host_name(), ::getpid(), start_of(::getpid()), number_from_environment("SLURM_JOB_ID"),
          integer(number_from_environment("SLURM_RESTART_COUNT"))};
}

LockHolder LockHolder::parse(const std::string& text) {
  LockHolder holder;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = line.substr(0, equals), value = line.substr(equals + 1);
    if (key == "host") holder.host = value;
    if (key == "pid") holder.pid = integer(value);
    if (key == "started") holder.started = value;
    if (key == "slurm_job") holder.slurm_job = value;
    if (key == "slurm_restart_count") holder.restart_count = integer(value);
  }
  return holder;
}

std::string LockHolder::to_text() const {
  return fmt::format("host={}\npid={}\nstarted={}\nslurm_job={}\nslurm_restart_count={}\nsince={}\n", host,
                     pid, started, slurm_job, restart_count, utc_now());
}

std::string LockHolder::describe() const {
  if (host.empty()) return "another process";
  const std::string job =
      slurm_job.empty() ? "" : fmt::format(" (Slurm job {}, restart {})", slurm_job, restart_count);
  return fmt::format("pid {} on {}{}", pid, host, job);
}

bool LockHolder::is_alive_here() const {
  if (host != host_name() || pid <= 0) return false;
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return false;
  if (has_ended(pid)) return false;
  const std::string now = start_of(pid);
  return now.empty() || started.empty() || now == started;
}

bool LockHolder::is_earlier_start_of(const LockHolder& other) const {
  return !slurm_job.empty() && slurm_job == other.slurm_job && restart_count < other.restart_count;
}

FileLock::FileLock(const std::string& path, double wait_s, const std::function<void(const std::string&)>& say,
                   const std::string& guarded)
    : path_(path) {
  const double deadline_s = monotonic_s() + wait_s;
  for (int tries = 1; !try_to_take(say); ++tries) {
    if (monotonic_s() < deadline_s) {
      if (tries == 2) {  // a holder that was about to end is not worth a line
        say(fmt::format("{}: held by {}; waiting up to {:g} s for it to end", path_,
                        holder_in(OpenFile(path_, OpenFile::Mode::read_write_or_create)).describe(), wait_s));
      }
      std::this_thread::sleep_for(retry_interval);
      continue;
    }
    const LockHolder holder = holder_in(OpenFile(path_, OpenFile::Mode::read_write_or_create));
    if (!holder.is_earlier_start_of(self_)) {
      throw UsageError("{}: another run holds {}: {}; wait for it to end, stop it, or use another one", path_,
                       guarded, holder.describe());
    }
    // The earlier start may hang on a lost node. It keeps the lock on the old file, which loses its name.
    remove_file(path_);
  }
}

FileLock::~FileLock() {
  if (file_ && has_its_name(*file_)) remove_quietly(path_);  // before closing it releases the lock
}

void FileLock::check_held() const {
  // The text as well: a file system that lost contact with this host gives the lock to another host.
  LockHolder now;
  try {
    now = holder_in(OpenFile(path_, OpenFile::Mode::read));
  } catch (const DataError&) {
    if (exists(path_)) throw;  // storage that fails is another error
  }
  if (now == self_ && has_its_name(*file_)) return;
  throw LostDirectory("{}: no longer this run's: {}; this run ({}) writes nothing more there", path_,
                      now.host.empty() ? "the file was removed" : "taken over by " + now.describe(),
                      self_.describe());
}

bool FileLock::try_to_take(const std::function<void(const std::string&)>& say) {
  auto file = std::make_unique<OpenFile>(path_, OpenFile::Mode::read_write_or_create);
  const LockHolder holder = holder_in(*file);
  if (::flock(file->descriptor(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return false;
    if (errno != ENOLCK && errno != ENOTSUP && errno != ENOSYS && errno != EINVAL)
      throw_system_error(errno, path_, "lock");
    const bool elsewhere = !holder.host.empty() && holder.host != self_.host;
    if (holder.is_alive_here() || elsewhere) return false;
  }
  if (!has_its_name(*file)) return false;  // its holder removed it between opening and locking
  if (!holder.host.empty()) {
    say(fmt::format("{}: taken over from {}, which ended without giving it back", path_, holder.describe()));
  }
  try {
    write_holder(*file, self_);
  } catch (const Error&) {  // a full disk: a lock without a text would name nobody
    remove_quietly(path_);
    throw;
  }
  file_ = std::move(file);
  return true;
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
    log.info("{}/{}: removed, left behind by a save that was cut off", directory, name);
    remove_file(directory + "/" + name);
  }
}

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

/// JSON has no such numbers, so they are written as null.
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::map<std::int64_t, EvaluationRecords::Metrics> parse(const std::string& text) {
  std::map<std::int64_t, EvaluationRecords::Metrics> of_step;
  const nlohmann::json all = nlohmann::json::parse(text);
  for (const auto& [name, metrics] : all.items()) {
    std::int64_t step = -1;
    if (!parse_number(name, step) || !metrics.is_object())
      throw DataError("{} is not a step with its metrics", quote(name));
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

/// A missing or unreadable file counts nothing: the counts are only advice.
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
  int kept = 0;
  for (const std::int64_t step : steps) {
    if (step > newest || ++kept <= keep_ || step == best) continue;
    removed.push_back(step);
  }
  return removed;
}

}  // namespace lockstep::checkpoint
