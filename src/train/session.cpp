#include "lockstep/train/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/launcher.h"
#include "base/progress.h"
#include "base/streams.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/nccl.h"
#include "lockstep/comm/agreement.h"
#include "train/device.h"
#include "train/processes.h"
#include "train/watchdog.h"

namespace lockstep {
namespace {

// The start of MPI.

/// The same for all ranks of a job on this node, of which Hydra tells them nothing but who started them.
std::string job_name() {
  std::string name = std::to_string(train::launcher_above(::getpid()));
  for (const char* const variable : {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (const char* const value = std::getenv(variable)) name += std::string("-") + value;
  }
  return name;
}

/// Limits how long MPI may take to start, as there is no watchdog yet: while one lives, MPI starts. After
/// timeout_s (0: no limit) the process exits with code 5, which ends the job; a minute later if all ranks
/// seem to be there, as a busy node may just be slow. One rank of each node reports which ranks are missing.
/// Ranks of one node see each other by sockets with abstract names, which go with their processes.
class StartTimeout {
 public:
  explicit StartTimeout(double timeout_s) {
    if (timeout_s <= 0 || rank_ < 0 || ranks_ < 2) return;  // a single process waits for nobody
    presence_ = open_socket(rank_, ::bind);
    thread_ = start_background_thread("the watchdog of the start", [this, timeout_s] { watch(timeout_s); });
  }
  ~StartTimeout() {
    started_.set();
    if (thread_.joinable()) thread_.join();
    if (presence_ >= 0) ::close(presence_);
  }
  StartTimeout(const StartTimeout&) = delete;
  StartTimeout& operator=(const StartTimeout&) = delete;

 private:
  /// Binds or connects a socket to the name of a rank; -1 if that fails.
  static int open_socket(int rank, int (*attach)(int, const sockaddr*, socklen_t)) {
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

  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 0; rank < ranks_; ++rank) {
      const int socket = rank == rank_ ? -1 : open_socket(rank, ::connect);
      if (socket >= 0) ::close(socket);
      if (socket < 0 && rank != rank_) missing.push_back(rank);
    }
    return missing;
  }

  std::string describe(const std::vector<int>& missing) const {
    constexpr std::size_t max_named = 16;
    const int here = launcher::ranks_of_this_node();
    const int present = ranks_ - static_cast<int>(missing.size());
    if (here == ranks_ && !missing.empty()) {
      const auto end = missing.begin() + static_cast<std::ptrdiff_t>(std::min(missing.size(), max_named));
      return fmt::format(
          "{} {}{} did not come: another program, one that ended, or one that hangs before MPI",
          missing.size() == 1 ? "rank" : "ranks", fmt::join(missing.begin(), end, ", "),
          missing.size() > max_named ? " ..." : "");
    }
    if (here > present) return fmt::format("{} of the {} ranks of this node came", present, here);
    return "a rank of another node did not come, or one of those that came hangs";
  }

  void watch(double timeout_s) {
    constexpr double grace_s = 60;
    if (started_.wait_for(timeout_s)) return;
    if (missing_ranks().empty() && started_.wait_for(grace_s)) return;
    const std::vector<int> missing = missing_ranks();
    // The first rank of the node that is there reports: all ranks before it are missing.
    if (rank_ == 0 || (missing.size() >= static_cast<std::size_t>(rank_) &&
                       missing[static_cast<std::size_t>(rank_ - 1)] == rank_ - 1)) {
      constexpr double write_timeout_s = 1;
      write_standard_error(
          fmt::format("lockstep: rank {}: MPI did not start within {:g} s (fault.hang_timeout_s): {}\n",
                      rank_, timeout_s, describe(missing)),
          write_timeout_s);
    }
    // Stays visible to the rank that reports, and to ranks that started a little later.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::_exit(static_cast<int>(ExitCode::failure));
  }

  const int rank_ = launcher::rank(), launched_ = launcher::size();
  const int ranks_ = launched_ < 0 ? launcher::srun_tasks() : launched_;
  int presence_ = -1;  ///< the socket that shows that this rank is there
  StopEvent started_;
  std::thread thread_;
};

// The end of a program that fails.

struct Failure {
  ExitCode code;
  std::string text;
};

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::failure, comm::out_of_memory};
  } catch (const std::exception& error) {
    return {ExitCode::failure, error.what()};
  } catch (...) {
    return {ExitCode::failure, "an unknown exception"};
  }
}

void print_failure(const std::string& text) {
  constexpr double write_timeout_s = 2;
  write_standard_error("lockstep: " + on_one_line(text) + "\n", write_timeout_s);
}

/// Prints the failure with the rank and ends the world.
[[noreturn]] void abort_world(comm::HostGroup& world, const Failure& failure) {
  print_failure(fmt::format("rank {}: {}", world.rank(), failure.text));
  std::fflush(stdout);
  world.abort(static_cast<int>(failure.code));
  std::abort();  // not reached; GCC forgets [[noreturn]] on virtual calls
}

/// If all ranks fail, rank 0 prints what they say, each text once; returns the exit code of rank 0. If only
/// some fail, ends the world. `errors` is a communicator that nothing else uses.
int report_failure(comm::HostGroup& errors, const Failure& failure) {
  constexpr double agreement_timeout_s = 3;
  try {
    errors.barrier(agreement_timeout_s);
  } catch (const Error&) {  // the other ranks do not fail
    abort_world(errors, failure);
  }
  const std::vector<std::string> texts =
      errors.all_gather_texts(fmt::format("{:03d}{}", static_cast<int>(failure.code), failure.text));
  if (errors.rank() == 0) {
    print_failure(texts[0].substr(3));
    for (std::size_t rank = 1; rank < texts.size(); ++rank) {
      if (texts[rank] != texts[0]) print_failure(fmt::format("rank {}: {}", rank, texts[rank].substr(3)));
    }
    std::fflush(stdout);
  }
  return std::atoi(texts[0].substr(0, 3).c_str());
}

}  // namespace

Session::~Session() { drop_transport(); }

void Session::drop_transport() {
  if (watchdog_) watchdog_->watch_transport(nullptr);
  release_sum_memory();
  transport_.reset();
}

kernels::Backend& Session::backend() {
  if (!backend_) use_backend(Device::cpu());
  return *backend_;
}

void Session::use_backend(Device device, const DeviceOptions& options) {
  const comm::NamedCall call(world_, "calls Session::use_backend");
  drop_transport();  // it uses the backend that is replaced
  if (device == Device::cpu()) {
    backend_ = kernels::make_cpu_backend(options.threads);
    return;
  }
  comm::run_on_all(world_, [&] { backend_ = kernels::make_backend(device); });
  if (!options.sums) return;
  comm::NcclOptions of_nccl{
      .device = device.index, .stream = backend_->stream(), .reproducible = options.reproducible};
  if (hang_timeout_s_)
    of_nccl.timeout_s = *hang_timeout_s_ > 0 ? *hang_timeout_s_ : std::numeric_limits<double>::infinity();
  transport_ = comm::make_nccl_transport(world_, of_nccl);
  if (watchdog_) watchdog_->watch_transport(transport_.get());
}

void Session::use_device(const std::string& asked, const DeviceOptions& options) {
  const comm::NamedCall call(world_, "calls Session::use_device");
  comm::run_on_all(world_, [&] {
    if (backend_)
      throw UsageError(
          "the program computes on {} already: call use_device() once, before a model, a tape or a "
          "DataParallel is made",
          to_string(backend_->device()));
  });
  const train::RankDevice chosen = train::choose_device(world_, asked, options.sums);
  if (!chosen.remark.empty() && world_.rank() == 0) log_.warning("{}", chosen.remark);
  use_backend(chosen.device, options);
  if (chosen.device != Device::cpu()) log_.info("computes on {}", chosen.description);
}

void Session::watch(double hang_timeout_s, bool signal_report) {
  const comm::NamedCall call(world_, "calls Session::watch");
  hang_timeout_s_ = hang_timeout_s;
  const train::WatchOptions options{.hang_timeout_s = hang_timeout_s, .signal_report = signal_report};
  if (watchdog_)  // it watches on meanwhile
    watchdog_->watch(options);
  else
    watchdog_ = std::make_unique<train::Watchdog>(world_, options);
  watchdog_->watch_transport(transport_.get());
}

void Session::watch_by_default(double hang_timeout_s) {
  comm::run_on_all(world_, [&] {
    const char* const text = std::getenv(train::hang_timeout_variable);
    if (!text) return;
    if (!parse_number(text, hang_timeout_s) || !(hang_timeout_s >= 0))
      throw UsageError("{} = {} in the environment is not a number of seconds; 0: no limit",
                       train::hang_timeout_variable, text);
  });
  world_.broadcast(&hang_timeout_s, sizeof hang_timeout_s, 0);
  hang_timeout_s_ = hang_timeout_s;
  if (hang_timeout_s <= 0 || world_.size() == 1) return;  // a rank alone waits for nobody
  try {
    watchdog_ = std::make_unique<train::Watchdog>(
        world_, train::WatchOptions{.hang_timeout_s = hang_timeout_s, .by_default = true});
  } catch (const UsageError& error) {  // the same on every rank: no memory to share
    if (world_.rank() == 0) log_.warning("a rank that hangs is not noticed: {}", error.what());
  }
}

int run_program(int argc, char** argv, const std::function<ExitCode(Session&)>& program,
                double start_timeout_s) {
  protect_standard_streams();
  std::unique_ptr<train::Watchdog> watchdog;  // destroyed last: MPI can hang while it ends
  std::unique_ptr<comm::World> world;
  try {
    const StartTimeout timeout(start_timeout_s);
    const train::HeldSignals held;  // with many ranks MPI takes seconds to start
    world = std::make_unique<comm::World>(argc, argv);
  } catch (...) {
    const Failure failure = current_failure();
    print_failure(failure.text);
    return static_cast<int>(failure.code);
  }
  comm::CpuCommunicator& communicator = world->communicator();
  std::unique_ptr<comm::HostGroup> errors;
  std::optional<int> code;  // of a failure that has been reported
  try {
    errors = communicator.split(0, communicator.rank());
    Session session(communicator, watchdog);
    try {
      session.watch_by_default(start_timeout_s);
      progress::enter(progress::Phase::program);
      const ExitCode done = program(session);
      progress::enter(progress::Phase::end);
      const comm::NamedCall call(communicator, "is at the end of its program");
      communicator.barrier();
      return static_cast<int>(done);
    } catch (...) {
      // Reported before the session ends: ending NCCL takes seconds, in which other ranks may end the world.
      progress::enter(progress::Phase::failure);
      code = report_failure(*errors, current_failure());
      if (session.after_failure) session.after_failure();
      throw;  // while an exception unwinds, the transport aborts instead of ending with the others
    }
  } catch (...) {
    if (code) return *code;
    progress::enter(progress::Phase::failure);
    if (!errors) abort_world(communicator, current_failure());
    return report_failure(*errors, current_failure());
  }
}

}  // namespace lockstep
