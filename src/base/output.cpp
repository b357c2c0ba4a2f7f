#include "base/output.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "lockstep/base/error.h"

namespace lockstep {

struct ListedDraft {
  std::atomic<bool> in_use{false}, listed{false};
  bool folder = false;
  char path[PATH_MAX] = {};
};

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

/// True if the file is an input, or in a folder that is an input.
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

/// The drafts of this process, in memory that a signal handler can read.
class Drafts {
 public:
  /// Null if there are too many, or if the name is too long. A signal then leaves the draft behind.
  static ListedDraft* add(const std::string& path, bool folder) {
    const std::lock_guard lock(mutex);
    const auto entry = std::ranges::find_if(entries, [](ListedDraft& any) { return !any.in_use; });
    if (entry == entries.end() || path.size() >= sizeof entry->path) return nullptr;
    entry->in_use = true;
    entry->folder = folder;
    entry->path[path.copy(entry->path, sizeof entry->path - 1)] = '\0';
    owner = ::getpid();
    if (count++ == 0) take_signals();
    entry->listed = true;
    if (ending) remove(*entry);  // the handler may not have seen it
    return &*entry;
  }

  static void forget(ListedDraft* entry) {
    if (!entry) return;
    const std::lock_guard lock(mutex);
    entry->listed = entry->in_use = false;
    if (--count == 0) give_signals_back();
  }

 private:
  static constexpr std::array<int, 5> signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
  static inline std::mutex mutex;
  static inline std::array<ListedDraft, 32> entries;
  static inline int count = 0;
  static inline volatile pid_t owner = 0;  // a forked process must not remove its parent's drafts
  static inline std::atomic<bool> ending{false};

  /// Calls only functions that a signal handler may call.
  static void remove(const ListedDraft& entry) {
    if (!entry.folder) {
      ::unlink(entry.path);
    } else if (const pid_t child = ::_Fork(); child == 0) {
      ::execl("/bin/rm", "rm", "-rf", "--", entry.path, nullptr);
      ::_exit(1);
    } else if (child > 0) {
      ::waitpid(child, nullptr, 0);
    }
  }

  static void on_signal(int signal) {
    if (::getpid() == owner) {
      ending = true;
      for (const ListedDraft& entry : entries)
        if (entry.listed) remove(entry);
    }
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // when this handler returns
  }

  static void take_signals() {
    for (const int signal : signals) {
      struct sigaction now {
      }, ours{};
      if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
      ours.sa_handler = on_signal;
      ours.sa_flags = SA_ONSTACK;
      ::sigaction(signal, &ours, nullptr);
    }
  }

  static void give_signals_back() {
    for (const int signal : signals) {
      struct sigaction now {};
      if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == on_signal) ::signal(signal, SIG_DFL);
    }
  }
};

}  // namespace

void check_output(const std::string& path, const OutputCheck& check) {
  if (path.empty()) throw UsageError("the name of the output file is empty");
  struct stat there {};
  const bool exists = ::lstat(path.c_str(), &there) == 0;
  if (exists && S_ISDIR(there.st_mode)) throw UsageError("{}: is a directory; give the name of a file", path);
  const std::string directory = directory_of(path);
  const std::optional<struct stat> of_directory = status_of(directory);
  if (!of_directory || !S_ISDIR(of_directory->st_mode))
    throw UsageError("{}: cannot write: there is no directory {}; create it", path, directory);
  if (path.back() == '/') throw UsageError("{}: ends with a slash; give the name of a file", path);
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    throw_system_error(errno, path, "write in " + directory);
  if (!exists) return;
  if (!S_ISREG(there.st_mode))
    throw UsageError("{}: is {}, which is never replaced; give another name", path, kind_of(there));
  for (const std::string& input : check.inputs) {
    if (is_input(path, there, input))
      throw UsageError("{}: is an input, which is never replaced; give another name", path);
  }
  if (!check.replace) throw UsageError("{}: already exists; --force replaces it", path);
}

Draft::Draft(std::string path, Kind kind)
    : path_(std::move(path)), kind_(kind), entry_(Drafts::add(path_, kind == Kind::directory)) {}

Draft::~Draft() {
  if (published_) return;
  std::error_code ignored;
  if (kind_ == Kind::file)
    remove_quietly(path_);
  else
    std::filesystem::remove_all(path_, ignored);
  Drafts::forget(entry_);
}

void write_text_atomically(const std::string& path, const std::string& text) {
  write_whole(path, temporary_path(path),
              [&](OpenFile& file) { file.write_at(0, text.data(), text.size()); });
}

void Draft::publish(const std::string& path, bool replace) {
  if (replace) {
    rename_file(path_, path);
  } else {  // link() does not replace an existing file
    if (::link(path_.c_str(), path.c_str()) == 0) {
      remove_quietly(path_);
    } else if (errno == EEXIST) {
      throw UsageError("{}: another process created it meanwhile; --force replaces it", path);
    } else if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
      throw_system_error(errno, path, "rename the file to it");  // a file system without links
    }
  }
  published_ = true;
  Drafts::forget(entry_);
  sync_directory(directory_of(path));
}

}  // namespace lockstep
