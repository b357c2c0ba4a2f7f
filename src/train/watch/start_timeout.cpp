#include "train/watch/start_timeout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/streams.h"
#include "lockstep/base/error.h"
#include "train/watch/processes.h"

namespace lockstep::train {
namespace {

/// A name that all ranks of a job on this node share. From Hydra they know only the process that started
/// them.
std::string job_name() {
  std::string name = std::to_string(launcher_above(::getpid()));
  for (const char* const variable : {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (const char* const value = std::getenv(variable)) name += std::string("-") + value;
  }
  return name;
}

/// Binds or connects a socket to the name of a rank; -1 if that fails.
int open_socket(int rank, int (*attach)(int, const sockaddr*, socklen_t)) {
  sockaddr_un address{};
  const std::string name = fmt::format("lockstep-start-{}-{}-{}", ::getuid(), job_name(), rank);
  if (name.size() + 1 > sizeof address.sun_path) return -1;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // the 0 before it makes the name abstract
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0 || attach(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return socket;
  ::close(socket);
  return -1;
}

}  // namespace

StartTimeout::StartTimeout(double timeout_s) {
  if (timeout_s <= 0 || rank_ < 0 || ranks_ < 2) return;  // a single process waits for no other
  presence_ = open_socket(rank_, ::bind);
  thread_ = start_background_thread("the watchdog of the start", [this, timeout_s] { watch(timeout_s); });
}

StartTimeout::~StartTimeout() {
  started_.set();
  if (thread_.joinable()) thread_.join();
  if (presence_ >= 0) ::close(presence_);
}

std::vector<int> StartTimeout::missing_ranks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    const int socket = rank == rank_ ? -1 : open_socket(rank, ::connect);
    if (socket >= 0) ::close(socket);
    if (socket < 0 && rank != rank_) missing.push_back(rank);
  }
  return missing;
}

std::string StartTimeout::describe(const std::vector<int>& missing) const {
  constexpr std::size_t max_named = 16;
  const int here = launcher::ranks_of_this_node();
  const int present = ranks_ - static_cast<int>(missing.size());
  if (here == ranks_ && !missing.empty()) {
    const auto end = missing.begin() + static_cast<std::ptrdiff_t>(std::min(missing.size(), max_named));
    return fmt::format("{} {}{} did not come: another program, one that ended, or one that hangs before MPI",
                       missing.size() == 1 ? "rank" : "ranks", fmt::join(missing.begin(), end, ", "),
                       missing.size() > max_named ? " ..." : "");
  }
  if (here > present) return fmt::format("{} of the {} ranks of this node came", present, here);
  return "a rank of another node did not come, or one of those that came hangs";
}

void StartTimeout::watch(double timeout_s) {
  constexpr double grace_s = 60;
  if (started_.wait_for(timeout_s)) return;
  if (missing_ranks().empty() && started_.wait_for(grace_s)) return;
  const std::vector<int> missing = missing_ranks();
  // The first present rank of the node reports: all ranks before it are missing.
  if (rank_ == 0 || (missing.size() >= static_cast<std::size_t>(rank_) &&
                     missing[static_cast<std::size_t>(rank_ - 1)] == rank_ - 1)) {
    constexpr double write_timeout_s = 1;
    write_standard_error(
        fmt::format("lockstep: rank {}: MPI did not start within {:g} s (fault.hang_timeout_s): {}\n", rank_,
                    timeout_s, describe(missing)),
        write_timeout_s);
  }
  // Stays visible to the reporting rank, and to ranks that started a little later.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ::_exit(static_cast<int>(ExitCode::failure));
}

}  // namespace lockstep::train
