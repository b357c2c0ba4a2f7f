#include "lockstep/train/session.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "lockstep/base/whereabouts.h"
#include "train/watchdog.h"

namespace lockstep {
namespace {

/// How long a failing rank waits for the others to fail, too, before it ends the world.
constexpr double agreement_timeout_s = 2;

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
    return {ExitCode::failure, "out of memory; use a smaller batch or set train.micro_batches"};
  } catch (const std::exception& error) {
    return {ExitCode::failure, error.what()};
  } catch (...) {
    return {ExitCode::failure, "an unknown exception"};
  }
}

/// Says the failure and ends the world.
[[noreturn]] void end_alone(comm::Communicator& communicator, const Failure& failure) {
  fmt::print(stderr, "lockstep: rank {}: {}\n", communicator.rank(), failure.text);
  std::fflush(nullptr);
  communicator.abort(static_cast<int>(failure.code));
  std::abort();  // not reached; GCC forgets [[noreturn]] on virtual calls
}

/// Says the failure once if all ranks failed, else ends the world. `errors` is a communicator that nothing
/// else uses.
int end_together(comm::Communicator& errors, const Failure& failure) {
  const int code = static_cast<int>(failure.code);
  try {
    errors.barrier(agreement_timeout_s);
  } catch (const Error&) {  // the others are elsewhere
    end_alone(errors, failure);
  }
  const std::vector<std::string> texts = errors.all_gather_texts(fmt::format("{:03d}{}", code, failure.text));
  if (errors.rank() == 0) {
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (rank == 0) fmt::print(stderr, "lockstep: {}\n", texts[0].substr(3));
      if (rank > 0 && texts[rank] != texts[0])
        fmt::print(stderr, "lockstep: rank {}: {}\n", rank, texts[rank].substr(3));
    }
    std::fflush(nullptr);
  }
  return std::atoi(texts[0].substr(0, 3).c_str());
}

}  // namespace

kernels::Backend& Session::backend() {
  if (!backend_) use_backend(Device::cpu(), 1);
  return *backend_;
}

void Session::watch(double hang_timeout_s, bool signal_report) {
  watchdog_.reset();
  watchdog_ = std::make_unique<train::Watchdog>(
      world_, train::WatchOptions{.hang_timeout_s = hang_timeout_s, .signal_report = signal_report});
}

int run_program(int argc, char** argv, const std::function<ExitCode(Session&)>& program) {
  std::unique_ptr<train::Watchdog> watchdog;  // the last to go: MPI, too, can hang in its end
  std::unique_ptr<comm::World> world;
  try {
    world = std::make_unique<comm::World>(argc, argv);
  } catch (...) {
    const Failure failure = current_failure();
    fmt::print(stderr, "lockstep: {}\n", failure.text);
    return static_cast<int>(failure.code);
  }
  comm::Communicator& communicator = world->communicator();
  std::unique_ptr<comm::Communicator> errors;
  Failure failure;
  try {
    errors = communicator.split(0, communicator.rank());
    Session session(communicator, watchdog);
    const ExitCode code = program(session);
    whereabouts::enter(whereabouts::Phase::end);
    return static_cast<int>(code);
  } catch (...) {
    failure = current_failure();
  }
  whereabouts::enter(whereabouts::Phase::failure);
  if (!errors) end_alone(communicator, failure);
  return end_together(*errors, failure);
}

}  // namespace lockstep
