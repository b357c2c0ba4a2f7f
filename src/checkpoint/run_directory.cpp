#include "lockstep/checkpoint/run_directory.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "base/output.h"
#include "checkpoint/blocks.h"
#include "checkpoint/run_files.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
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
  std::from_chars(text.data(), text.data() + text.size(), value);
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

bool has_its_name(const OpenFile& file) { return name_target(file) == NameTarget::same_file; }

/// The holder in the file's text now. While the holder writes it, half a text may name nobody.
LockHolder holder_in(const OpenFile& file) {
  std::string text(longest_text_bytes, '\0');
  const ssize_t bytes = ::pread(file.descriptor(), text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
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
  const std::string now = start_of(pid);
  return now.empty() || started.empty() || now == started;
}

bool LockHolder::is_earlier_start_of(const LockHolder& other) const {
  return !slurm_job.empty() && slurm_job == other.slurm_job && restart_count < other.restart_count;
}

FileLock::FileLock(const std::string& path, double wait_s, const std::function<void(const std::string&)>& say)
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
      throw UsageError(
          "{}: another run holds this directory: {}; wait for it to end, stop it, or use another directory",
          path_, holder.describe());
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
  if (exists(path_)) now = holder_in(OpenFile(path_, OpenFile::Mode::read));
  if (now == self_ && has_its_name(*file_)) return;
  throw FailureError("{}: no longer this run's: {}; this run ({}) writes nothing more there", path_,
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
  write_holder(*file, self_);
  file_ = std::move(file);
  return true;
}

namespace {

/// Of a directory and its parents, those that do not exist yet, innermost first.
std::vector<std::string> missing_on_the_way_to(std::string path) {
  std::vector<std::string> missing;
  while (!exists(path)) {
    missing.push_back(path);
    const std::string outer = directory_of(path);
    if (outer == path) break;
    path = outer;
  }
  return missing;
}

}  // namespace

RunDirectory::RunDirectory(std::string path, comm::HostGroup& communicator, double lock_wait_s)
    : path_(std::move(path)), communicator_(communicator) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  comm::run_on_all(communicator_, [&] {
    if (path_.empty()) throw UsageError("the name of the run directory is empty");
    if (communicator_.rank() != 0) return;
    made_ = missing_on_the_way_to(checkpoints_path());
    const auto take_lock = [&] {
      lock_ = std::make_unique<FileLock>(path_ + "/lock", lock_wait_s,
                                         [](const std::string& line) { Log().warning("{}", line); });
    };
    make_directories(checkpoints_path());
    try {
      take_lock();
    } catch (const Error&) {
      if (exists(path_)) throw;
      make_directories(checkpoints_path());
      take_lock();  // another run failed meanwhile and removed the directory that it had made
    }
    make_directories(checkpoints_path());
    remove_file(temporary_path(config_path()));
  });
  const std::string holder = communicator_.all_gather_texts(lock_ ? lock_->holder().to_text() : "")[0];
  mark_ = to_hex(digest_of(holder.data(), holder.size()));
  check_same_directory(holder);
}

/// All ranks write checkpoints, so all must see the directory whose lock rank 0 has just taken. A relative
/// path, or a disk local to each node, may lead to another one. A network file system may take a moment.
void RunDirectory::check_same_directory(const std::string& holder) const {
  comm::run_on_all(communicator_, [&] {
    // On other nodes a network file system may cache for a minute that nothing existed.
    const std::vector<int>& node_of_rank = communicator_.topology().node_of_rank;
    const bool same_node = node_of_rank[static_cast<std::size_t>(communicator_.rank())] == node_of_rank[0];
    const double deadline_s = monotonic_s() + (same_node ? 1 : 60);
    while (communicator_.rank() != 0 && !sees_lock_of(holder)) {
      if (monotonic_s() > deadline_s) {
        std::error_code ignored;
        throw UsageError(
            "{}: is not the directory that rank 0 sees under this name, seen from {}; give one that all "
            "ranks share, as an absolute path",
            path_, std::filesystem::current_path(ignored).string());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
}

bool RunDirectory::sees_lock_of(const std::string& holder) const {
  try {
    return LockHolder::parse(read_text(path_ + "/lock")) == LockHolder::parse(holder);
  } catch (const DataError&) {  // does not exist, or not yet
    return false;
  }
}

RunDirectory::~RunDirectory() {
  if (!lock_) return;
  std::error_code ignored;
  const bool configured = std::filesystem::exists(config_path(), ignored);
  if (configured || made_.empty()) return;
  // This run has not been configured. Only empty directories go, the innermost while the lock is held.
  try {
    check_held();
  } catch (const std::exception&) {
    return;
  }
  std::filesystem::remove(made_.front(), ignored);
  lock_.reset();
  for (const std::string& directory : made_) std::filesystem::remove(directory, ignored);
}

std::optional<std::string> RunDirectory::stored_config() const {
  const auto text = from_rank_0(communicator_, [&]() -> nlohmann::json {
    if (!exists(config_path())) return nullptr;
    return read_text(config_path());
  });
  if (text.is_null()) return std::nullopt;
  return text.get<std::string>();
}

void RunDirectory::write_config(const std::string& text) {
  comm::run_on_all(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    check_held();
    write_text_atomically(config_path(), text);
  });
}

void RunDirectory::check_held() const {
  if (lock_) lock_->check_held();
}

}  // namespace lockstep::checkpoint
