#include "lockstep/train/session.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "base/streams.h"
#include "base/text.h"
#include "comm/nccl.h"
#include "lockstep/comm/agreement.h"
#include "train/device.h"
#include "train/watch/processes.h"
#include "train/watch/start_timeout.h"
#include "train/watch/watchdog.h"

namespace lockstep {
namespace {

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
    constexpr std::size_t max_bytes = 16 << 10;  // ranks exchange it
    return {ExitCode::failure, beginning_of(error.what(), max_bytes)};
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
  std::abort();  // not reached; GCC ignores [[noreturn]] of virtual calls
}

/// If all ranks fail, rank 0 prints their errors, each text once; returns the exit code of rank 0. If only
/// some fail, ends the world. `errors` is a communicator for this use alone.
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
  drop_transport();  // it uses the old backend
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
          "the program computes on {} already: call use_device() once, before constructing a model, a tape "
          "or "
          "a DataParallel",
          to_string(backend_->device()));
  });
  const train::RankDevice choice = train::choose_device(world_, asked, options.sums);
  if (!choice.remark.empty() && world_.rank() == 0) log_.warning("{}", choice.remark);
  use_backend(choice.device, options);
  if (choice.device != Device::cpu()) log_.info("computes on {}", choice.description);
}

void Session::watch(double hang_timeout_s, bool signal_report) {
  const comm::NamedCall call(world_, "calls Session::watch");
  hang_timeout_s_ = hang_timeout_s;
  const train::WatchOptions options{.hang_timeout_s = hang_timeout_s, .signal_report = signal_report};
  if (watchdog_)  // it continues meanwhile
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
  if (hang_timeout_s <= 0 || world_.size() == 1) return;  // a single rank waits for no other
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
  std::unique_ptr<train::Watchdog> watchdog;  // destroyed last: the end of MPI can hang
  std::unique_ptr<comm::World> world;
  try {
    const train::StartTimeout timeout(start_timeout_s);
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
      // Reported before the session ends: the end of NCCL takes seconds, in which other ranks may end the
      // world.
      progress::enter(progress::Phase::failure);
      code = report_failure(*errors, current_failure());
      if (session.after_failure) session.after_failure();
      throw;  // while an exception unwinds, the transport aborts instead of a joint end
    }
  } catch (...) {
    if (code) return *code;
    progress::enter(progress::Phase::failure);
    if (!errors) abort_world(communicator, current_failure());
    return report_failure(*errors, current_failure());
  }
}

}  // namespace lockstep
