#include "checkpoint/file_lock.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/option.h"
#include "lockstep/checkpoint/run_directory.h"

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
  parse_number(text, value);
  return value;
}

/// The fields of /proc/PID/stat after the second, the program's name in brackets, which may contain spaces
/// and brackets; none without /proc.
std::vector<std::string> fields_of(std::int64_t pid) {
  std::ifstream status(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(status, line)) return {};
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  return {std::istream_iterator<std::string>(fields), {}};
}

/// Boot identifier and start time in ticks since boot (field 22); empty without /proc.
std::string start_of(std::int64_t pid) {
  constexpr std::size_t start_time = 22 - 3;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  const std::vector<std::string> fields = fields_of(pid);
  if (fields.size() <= start_time || !std::getline(boot, boot_id)) return "";
  return boot_id + " " + fields[start_time];
}

/// Whether the process is a zombie; false without /proc.
bool has_ended(std::int64_t pid) {
  const std::vector<std::string> fields = fields_of(pid);
  return !fields.empty() && (fields[0] == "Z" || fields[0] == "X");
}

bool has_its_name(const OpenFile& file) { return name_target(file) == NameTarget::same_file; }

/// The current holder in the file's text. An incomplete text may name no holder.
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
  for (const IniLine& line : ini_lines(text)) {
    if (line.key == "host") holder.host = line.value;
    if (line.key == "pid") holder.pid = integer(line.value);
    if (line.key == "started") holder.started = line.value;
    if (line.key == "slurm_job") holder.slurm_job = line.value;
    if (line.key == "slurm_restart_count") holder.restart_count = integer(line.value);
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
      if (tries == 2) {  // no line for a holder that is about to end
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
    // The earlier start may hang on a lost node. It keeps the lock on the old file, which has no name then.
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
    if (exists(path_)) throw;  // failing storage is another error
  }
  if (now == self_ && has_its_name(*file_)) return;
  throw LostDirectory("{}: no longer belongs to this run: {}; this run ({}) stops writing to it", path_,
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
    say(fmt::format("{}: takes over the stale lock of {}, which has ended", path_, holder.describe()));
  }
  try {
    write_holder(*file, self_);
  } catch (const Error&) {  // a full disk: a lock without a text would name no holder
    remove_quietly(path_);
    throw;
  }
  file_ = std::move(file);
  return true;
}

}  // namespace lockstep::checkpoint
