#include "train/start_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/streams.h"
#include "base/thread.h"
#include "lockstep/base/error.h"

namespace lockstep::train {
namespace {

/// A number that the launcher has told; -1: none.
int told(std::initializer_list<const char*> variables) {
  for (const char* const variable : variables) {
    const char* const text = std::getenv(variable);
    int number = -1;
    if (text && std::from_chars(text, text + std::strlen(text), number).ec == std::errc() && number >= 0)
      return number;
  }
  return -1;
}

int own_rank() { return told({"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}); }
int ranks() { return told({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}); }
int ranks_here() { return told({"OMPI_COMM_WORLD_LOCAL_SIZE"}); }

std::string job() {
  std::string name;
  for (const char* const variable : {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (const char* const value = std::getenv(variable)) name += std::string("-") + value;
  }
  return name;
}

/// A name of a socket that no file has, which goes with the process that took it.
struct Name {
  sockaddr_un address{};
  socklen_t bytes = 0;  ///< 0: too long to be one

  explicit Name(int rank) {
    const std::string name = fmt::format("lockstep-start-{}{}-{}", ::getuid(), job(), rank);
    address.sun_family = AF_UNIX;
    if (name.size() + 1 > sizeof address.sun_path) return;
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // behind a 0: an abstract name
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

int new_socket() { return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0); }

/// The socket that shows that this rank has come; -1: none.
int show(int rank) {
  const Name name(rank);
  const int socket = name.bytes > 0 ? new_socket() : -1;
  if (socket < 0 || ::bind(socket, name.get(), name.bytes) == 0) return socket;
  ::close(socket);
  return -1;
}

bool has_come(int rank) {
  const Name name(rank);
  const int socket = name.bytes > 0 ? new_socket() : -1;
  if (socket < 0) return false;
  const bool came = ::connect(socket, name.get(), name.bytes) == 0;
  ::close(socket);
  return came;
}

bool all_came() {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != own_rank() && !has_come(rank)) return false;
  }
  return true;
}

std::string absent_text(const std::vector<int>& missing, int present) {
  constexpr std::size_t most_named = 16;
  const int here = ranks_here();
  if (here == ranks() && !missing.empty()) {
    const auto end = missing.begin() + static_cast<std::ptrdiff_t>(std::min(missing.size(), most_named));
    return fmt::format("{} {}{} did not come: another program, one that ended, or one that hangs before MPI",
                       missing.size() == 1 ? "rank" : "ranks", fmt::join(missing.begin(), end, ", "),
                       missing.size() > most_named ? " ..." : "");
  }
  if (here > present) return fmt::format("{} of the {} ranks of this node came", present, here);
  return "a rank of another node did not come, or one of those that came hangs";
}

}  // namespace

StartWatch::StartWatch(double timeout_s) {
  if (timeout_s <= 0 || own_rank() < 0 || ranks() < 2) return;  // alone there is nobody to wait for
  here_ = show(own_rank());
  thread_ = start_background_thread("the watch over the start", [this, timeout_s] { watch(timeout_s); });
}

StartWatch::~StartWatch() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  if (here_ >= 0) ::close(here_);
}

void StartWatch::watch(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto over_within = [&](double s) {
    return changed_.wait_for(lock, std::chrono::duration<double>(s), [this] { return over_; });
  };
  constexpr double until_all_hang_s = 60;  // where all have come, a busy node may just be slow
  if (over_within(timeout_s) || (all_came() && over_within(until_all_hang_s))) return;
  std::vector<int> missing;
  int present = 1;
  bool first = true;  // of those that have come here: it speaks
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == own_rank()) continue;
    const bool came = has_come(rank);
    if (!came) missing.push_back(rank);
    present += came;
    if (came && rank < own_rank()) first = false;
  }
  constexpr double most_wait_s = 1;
  if (first) {
    write_standard_error(
        fmt::format("lockstep: rank {}: MPI did not start within {:g} s (fault.hang_timeout_s): {}\n",
                    own_rank(), timeout_s, absent_text(missing, present)),
        most_wait_s);
  }
  // To be seen as here: by the one that speaks, and then by those that began, and judge, a little later.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ::_exit(static_cast<int>(ExitCode::failure));
}

}  // namespace lockstep::train
