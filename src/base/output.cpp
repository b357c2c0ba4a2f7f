#include "base/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "base/thread.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

std::string_view kind_of(const struct stat& status) {
  if (S_ISDIR(status.st_mode)) return "a directory";
  if (S_ISLNK(status.st_mode)) return "a symbolic link";
  if (S_ISFIFO(status.st_mode)) return "a named pipe";
  if (S_ISSOCK(status.st_mode)) return "a socket";
  return "a device";
}

/// True if the file is an input, or in a folder that is one.
bool is_input(const std::string& path, const struct stat& file, const std::string& input) {
  const std::optional<struct stat> of_input = status_of(input);
  if (!of_input) return false;
  if (same_file(file, *of_input)) return true;
  if (!S_ISDIR(of_input->st_mode)) return false;
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::canonical(path, ignored).parent_path();
  for (; !folder.empty(); folder = folder.parent_path()) {
    const std::optional<struct stat> of_folder = status_of(folder.string());
    if (of_folder && same_file(*of_folder, *of_input)) return true;
    if (folder == folder.root_path()) break;
  }
  return false;
}

void remove_draft(const std::string& path, Draft::Kind kind) {
  std::error_code ignored;
  if (kind == Draft::Kind::file) return remove_quietly(path);
  // When a signal ends the process, another thread may make a file between the removal of the last one and
  // that of the folder.
  constexpr int most_tries = 100;
  for (int tries = 0; tries < most_tries; ++tries) {
    std::filesystem::remove_all(path, ignored);
    if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return;
  }
}

/// The drafts of this process, removed when a signal ends it.
///
/// A signal handler may not remove a directory, so it passes the signal to a thread, which removes all drafts
/// and lets the signal end the process.
class Drafts {
 public:
  static Drafts& all() {
    static auto* const drafts = new Drafts;  // never destroyed: its thread may outlive static objects
    return *drafts;
  }

  void add(const std::string& path, Draft::Kind kind) {
    const std::lock_guard lock(mutex_);
    if (paths_.empty()) take_signals();
    paths_.emplace(path, kind);
  }

  void remove(const std::string& path) {
    const std::lock_guard lock(mutex_);
    paths_.erase(paths_.find(path));
    if (paths_.empty()) give_signals_back();
  }

 private:
  static constexpr std::array<int, 3> signals{SIGINT, SIGTERM, SIGHUP};
  static inline int to_thread = -1;
  static inline pid_t thread_of = 0;  // process: a fork leaves the thread behind

  static void on_signal(int signal) {
    const int error = errno;
    if (::getpid() != thread_of) {  // a fork: the drafts are the parent's
      ::signal(signal, SIG_DFL);
      ::raise(signal);
      return;
    }
    const auto number = static_cast<char>(signal);
    [[maybe_unused]] const ssize_t written = ::write(to_thread, &number, 1);
    errno = error;
  }

  void take_signals() {
    for (std::size_t s = 0; s < signals.size(); ++s) {
      struct sigaction now {};
      if (::sigaction(signals[s], nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
      if (thread_of != ::getpid() && !start_thread()) return;
      struct sigaction ours {};
      ours.sa_handler = on_signal;
      ours.sa_flags = SA_RESTART | SA_ONSTACK;
      ::sigaction(signals[s], &ours, nullptr);
    }
  }

  void give_signals_back() {
    for (const int signal : signals) {
      struct sigaction now {};
      if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == on_signal) ::signal(signal, SIG_DFL);
    }
  }

  bool start_thread() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    try {
      start_background_thread("the removal of drafts", [this, from = ends[0]] {
        end_by_signal(from);
      }).detach();
    } catch (const Error&) {  // then drafts stay after a signal
      ::close(ends[0]);
      ::close(ends[1]);
      return false;
    }
    to_thread = ends[1];
    thread_of = ::getpid();
    return true;
  }

  void end_by_signal(int from) {
    char number = 0;
    for (ssize_t got = 0; got != 1; got = ::read(from, &number, 1)) {
      if (got < 0 && errno != EINTR) return;
    }
    const std::lock_guard lock(mutex_);  // until the end: no thread publishes or begins a draft any more
    for (const auto& [path, kind] : paths_) remove_draft(path, kind);
    ::signal(number, SIG_DFL);
    ::kill(::getpid(), number);
    while (true) ::pause();
  }

  std::mutex mutex_;
  std::multimap<std::string, Draft::Kind> paths_;
};

}  // namespace

void check_output(const std::string& path, const OutputCheck& check) {
  if (path.empty()) throw UsageError("the name of the file to write is empty");
  struct stat there {};
  const bool exists = ::lstat(path.c_str(), &there) == 0;
  if (exists && S_ISDIR(there.st_mode)) throw UsageError("{}: is a directory; name the file to write", path);
  const std::string directory = directory_of(path);
  const std::optional<struct stat> of_directory = status_of(directory);
  if (!of_directory || !S_ISDIR(of_directory->st_mode))
    throw UsageError("{}: cannot write: there is no directory {}; make it", path, directory);
  if (path.back() == '/') throw UsageError("{}: ends with a slash; name the file to write", path);
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    throw_system_error(errno, path, "write in " + directory);
  if (!exists) return;
  if (!S_ISREG(there.st_mode))
    throw UsageError("{}: is {}, which is never replaced; give another name", path, kind_of(there));
  for (const std::string& input : check.inputs) {
    if (is_input(path, there, input))
      throw UsageError("{}: is read to make it, so it is never replaced; give another name", path);
  }
  if (!check.replace) throw UsageError("{}: is there already; --force replaces it", path);
}

Draft::Draft(std::string path, Kind kind) : path_(std::move(path)), kind_(kind) {
  Drafts::all().add(path_, kind_);
}

Draft::~Draft() {
  if (!listed_) return;
  remove_draft(path_, kind_);
  Drafts::all().remove(path_);
}

void write_text_atomically(const std::string& path, const std::string& text) {
  write_whole(path, temporary_path(path),
              [&](OpenFile& file) { file.write_at(0, text.data(), text.size()); });
}

void Draft::publish(const std::string& path, bool replace) {
  if (replace) {
    rename_file(path_, path);
  } else {  // a link takes no name that is taken
    if (::link(path_.c_str(), path.c_str()) == 0) {
      remove_quietly(path_);
    } else if (errno == EEXIST) {
      throw UsageError("{}: has been made by another meanwhile; --force replaces it", path);
    } else if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
      throw_system_error(errno, path, "give the file that name");  // a file system without links
    }
  }
  listed_ = false;
  Drafts::all().remove(path_);
  sync_directory(directory_of(path));
}

}  // namespace lockstep
