#include "lockstep/train/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/progress.h"
#include "base/streams.h"
#include "base/text.h"
#include "comm/nccl.h"
#include "kernels/gpus.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/train/device.h"
#include "train/start_watch.h"
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

constexpr double report_timeout_s = 2;  // with who reads standard error, for the reason why all ends

void say_failure(const std::string& text) {
  write_standard_error("lockstep: " + on_one_line(text) + "\n", report_timeout_s);
}

/// Says the failure and ends the world.
[[noreturn]] void end_alone(comm::HostGroup& communicator, const Failure& failure) {
  say_failure(fmt::format("rank {}: {}", communicator.rank(), failure.text));
  std::fflush(stdout);
  communicator.abort(static_cast<int>(failure.code));
  std::abort();  // not reached; GCC forgets [[noreturn]] on virtual calls
}

/// Says the failure once if all ranks failed, else ends the world. `errors` is a communicator that nothing
/// else uses.
int end_together(comm::HostGroup& errors, const Failure& failure) {
  const int code = static_cast<int>(failure.code);
  try {
    errors.barrier(agreement_timeout_s);
  } catch (const Error&) {  // the others are elsewhere
    end_alone(errors, failure);
  }
  const std::vector<std::string> texts = errors.all_gather_texts(fmt::format("{:03d}{}", code, failure.text));
  if (errors.rank() == 0) {
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (rank == 0) say_failure(texts[0].substr(3));
      if (rank > 0 && texts[rank] != texts[0])
        say_failure(fmt::format("rank {}: {}", rank, texts[rank].substr(3)));
    }
    std::fflush(stdout);
  }
  return std::atoi(texts[0].substr(0, 3).c_str());
}

/// What each rank has. Collective.
std::vector<train::RankDevices> gathered(comm::HostGroup& world, const kernels::Gpus& gpus) {
  const nlohmann::json mine = {
      {"gpus", gpus.visible.size()}, {"problem", gpus.problem}, {"remedy", gpus.remedy}};
  std::vector<train::RankDevices> of_rank;
  const comm::Topology& topology = world.topology();
  for (const nlohmann::json& record : comm::all_gather_json(world, mine)) {
    const auto node = static_cast<std::size_t>(topology.node_of_rank[of_rank.size()]);
    of_rank.push_back({.gpus = record["gpus"],
                       .problem = record["problem"],
                       .remedy = record["remedy"],
                       .host = topology.host_names[node]});
  }
  return of_rank;
}

/// GPUs that this rank could take: none if they could not sum what they are to sum.
kernels::Gpus usable_gpus(bool sums) {
  kernels::Gpus gpus = kernels::find_gpus();
  if (!sums || gpus.visible.empty()) return gpus;
  if (const comm::NcclFound nccl = comm::find_nccl(); !nccl.problem.empty()) {
    gpus.problem = nccl.problem;
    gpus.remedy = nccl.remedy;
    gpus.visible.clear();
  }
  return gpus;
}

}  // namespace

Session::~Session() { drop_transport(); }

void Session::drop_transport() {
  if (watchdog_) watchdog_->look_after(nullptr);
  transport_.reset();
}

kernels::Backend& Session::backend() {
  if (!backend_) use_backend(Device::cpu());
  return *backend_;
}

void Session::use_backend(Device device, const DeviceOptions& options) {
  drop_transport();  // it works with the backend that goes
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
  if (watchdog_) watchdog_->look_after(transport_.get());
}

void Session::use_device(const std::string& asked, const DeviceOptions& options) {
  kernels::Gpus gpus;
  const bool sums = options.sums && world_.size() > 1;
  if (asked != "cpu") gpus = usable_gpus(sums);
  const int place = world_.topology().local_rank_of_rank[static_cast<std::size_t>(world_.rank())];
  const int index = train::gpu_of_rank(place, std::max(1, static_cast<int>(gpus.visible.size())));
  const std::string sharing =
      sums && asked != "cpu" ? comm::sharing_problem(world_, gpus.visible.empty() ? -1 : index) : "";
  const train::DeviceChoice choice = train::choose_device(asked, gpus.built, gathered(world_, gpus), sharing);
  if (!choice.remark.empty() && world_.rank() == 0) log_.warning("{}", choice.remark);
  if (choice.kind == Device::Kind::cpu) return use_backend(Device::cpu(), options);
  use_backend(Device::cuda(index), options);
  log_.info("computes on {}", gpus.visible[static_cast<std::size_t>(index)].describe());
}

void Session::watch(double hang_timeout_s, bool signal_report) {
  hang_timeout_s_ = hang_timeout_s;
  watchdog_.reset();
  watchdog_ = std::make_unique<train::Watchdog>(
      world_, train::WatchOptions{.hang_timeout_s = hang_timeout_s, .signal_report = signal_report});
  watchdog_->look_after(transport_.get());
}

int run_program(int argc, char** argv, const std::function<ExitCode(Session&)>& program,
                double start_timeout_s) {
  settle_standard_streams();
  std::unique_ptr<train::Watchdog> watchdog;  // the last to go: MPI, too, can hang in its end
  std::unique_ptr<comm::World> world;
  try {
    const train::StartWatch watch(start_timeout_s);
    world = std::make_unique<comm::World>(argc, argv);
  } catch (...) {
    const Failure failure = current_failure();
    say_failure(failure.text);
    return static_cast<int>(failure.code);
  }
  comm::CpuCommunicator& communicator = world->communicator();
  std::unique_ptr<comm::HostGroup> errors;
  std::optional<int> said;  // the code of a failure that has been told
  Failure failure;
  try {
    errors = communicator.split(0, communicator.rank());
    Session session(communicator, watchdog);
    try {
      const ExitCode code = program(session);
      progress::enter(progress::Phase::end);
      return static_cast<int>(code);
    } catch (...) {
      // Told before the session goes: the end of NCCL takes seconds, in which peers may end the world.
      failure = current_failure();
      progress::enter(progress::Phase::failure);
      said = end_together(*errors, failure);
      throw;  // the transport's end is another after a failure
    }
  } catch (...) {
    if (said) return *said;
    if (failure.text.empty()) failure = current_failure();
  }
  progress::enter(progress::Phase::failure);
  if (!errors) end_alone(communicator, failure);
  return end_together(*errors, failure);
}

}  // namespace lockstep
