#include "comm/nccl/connection.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/dynamic_library.h"
#include "base/progress.h"
#include "base/thread.h"
#include "comm/nccl.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::comm {

#define LOCKSTEP_LATE_FUNCTION(name) decltype(&::name) name = nullptr;
LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

namespace {

/// 0 if unknown.
int version() {
  int number = 0;
  return ncclGetVersion(&number) == ncclSuccess ? number : 0;
}

void load_all() {
  const DynamicLibrary nccl(
      "libnccl.so.2", {LOCKSTEP_NCCL_FOLDER, LOCKSTEP_CUDA_FOLDER, "/usr/local/cuda/lib64"},
      "install it, load its module, or name its folder in LD_LIBRARY_PATH (a single rank "
      "does without it)");
#define LOCKSTEP_FIND(name) nccl.find(#name, name);
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_FIND)
#undef LOCKSTEP_FIND
  if (version() >= NCCL_VERSION(2, 26, 0)) return;
  throw LibraryError(
      fmt::format("libnccl.so.2: version {}.{} is too old; 2.26 is the first that keeps the calls of several "
                  "communicators in order",
                  version() / 10000, version() / 100 % 100),
      "load the module of a newer version, or name its folder in LD_LIBRARY_PATH");
}

}  // namespace

void load_nccl() {
  static const bool loaded = (load_all(), true);
  static_cast<void>(loaded);
}

NcclFound find_nccl() {
  try {
    load_nccl();
    const int number = version();
    return {.version = fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100),
            .problem = {},
            .remedy = {}};
  } catch (const LibraryError& error) {
    return {.version = {}, .problem = error.cause, .remedy = error.remedy};
  }
}

namespace {

constexpr double start_timeout_s = 120, finish_timeout_s = 60, lock_timeout_s = 10;
constexpr std::chrono::seconds abort_timeout{10};

bool bad(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t status = ncclCommGetAsyncError(comm, &state);
  return status == ncclSuccess ? state : status;
}

/// Leaves NCCL fewer multiprocessors and computation more; since NCCL 2.27.
template <class Config>
void leave_room_for_computing(Config& config) {
  constexpr int efficiency = 1;  // NCCL_CTA_POLICY_EFFICIENCY
  if constexpr (requires { config.CTAPolicy; }) config.CTAPolicy = efficiency;
}

}  // namespace

NcclConnection::NcclConnection(HostGroup& host, double timeout_s) : host_(host), timeout_s_(timeout_s) {}

NcclConnection::Lock NcclConnection::hold() {
  const double timeout_s = std::min(timeout_s_, lock_timeout_s);
  Lock lock = try_lock_for(shared_->mutex, timeout_s);
  if (lock) return lock;
  failed_ = true;
  throw FailureError("NCCL on rank {} does not answer: another thread has been inside it for {} s",
                     host_.rank(), timeout_s);
}

void NcclConnection::start() {
  check();
  if (started()) return;
  run_on_all(host_, [] { load_nccl(); });
  try {
    start_together();
  } catch (...) {  // on all ranks
    failed_ = true;
    give_up();
    throw;
  }
}

void NcclConnection::start_together() {
  ncclUniqueId id{};
  run_on_all(host_, [&] {
    if (host_.rank() != 0) return;
    if (const ncclResult_t status = ncclGetUniqueId(&id); status != ncclSuccess)
      fail("ncclGetUniqueId", status);
  });
  host_.broadcast(&id, sizeof id, 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  leave_room_for_computing(config);
  const double usual_timeout_s = timeout_s_;
  timeout_s_ = std::min(timeout_s_ / 2, start_timeout_s);
  run_on_all(host_, [&] {
    try {
      make("ncclCommInitRankConfig", [&](ncclComm_t) {
        return ncclCommInitRankConfig(&shared_->comm, host_.size(), id, host_.rank(), &config);
      });
    } catch (...) {
      give_up();  // now, as peers inside NCCL notice nothing else
      throw;
    }
  });
  timeout_s_ = usual_timeout_s;
}

NcclConnection::~NcclConnection() {
  try {
    if (started() && !failed_ && std::uncaught_exceptions() == 0) finish();
  } catch (...) {  // a peer is gone
  }
  give_up();
}

void NcclConnection::begin_group() {
  group_ = hold();
  result_ = ncclSuccess;
  note("ncclGroupStart", ncclGroupStart());
}

void NcclConnection::end_group() {
  const ncclResult_t ended = ncclGroupEnd();
  if (!bad(result_)) result_ = ended;  // reported under the name of the group's last call
  group_ = {};
  settle();
}

void NcclConnection::note(const char* name, ncclResult_t result) {
  if (group_ && bad(result_)) return;
  name_ = name;
  result_ = result;
}

void NcclConnection::settle() {
  if (bad(result_)) fail(name_, result_);
  if (result_ == ncclSuccess) return;
  const auto look = [this] {
    const Lock lock = hold();
    return result_ = state_of(shared_->comm);
  };
  if (look() == ncclInProgress) {
    const Stopwatch watch;
    progress::Polling polling;
    for (Backoff backoff(false); look() == ncclInProgress; backoff.pause()) {
      polling.count_poll();
      host_.progress();  // a peer may wait for our part of a host collective first
      if (watch.elapsed_ms() < timeout_s_ * 1e3) continue;
      failed_ = true;
      throw FailureError(
          "{} on rank {}: other ranks have not joined it for {} s; look for the rank that hangs or has left",
          name_, host_.rank(), timeout_s_);
    }
  }
  if (bad(result_)) fail(name_, result_);
}

void NcclConnection::fail(const char* name, ncclResult_t result) {
  failed_ = true;
  throw FailureError("{} failed on rank {}: {} ({}); NCCL_DEBUG=WARN in the environment shows more", name,
                     host_.rank(), ncclGetErrorString(result), ncclGetLastError(shared_->comm));
}

void NcclConnection::check() {
  if (failed_) throw FailureError("NCCL on rank {} has failed before; only abort() may follow", host_.rank());
  if (!started()) return;
  const Lock lock = hold();
  if (const ncclResult_t found = state_of(shared_->comm); bad(found)) fail("a collective of NCCL", found);
}

std::string NcclConnection::async_error() const {
  const std::shared_ptr<Shared> shared = shared_;  // this object may be gone when NCCL answers
  const Lock lock(shared->mutex, std::try_to_lock);
  if (!lock || !shared->comm) return {};
  const ncclResult_t found = state_of(shared->comm);
  return bad(found) ? fmt::format("NCCL: {} ({})", ncclGetErrorString(found), ncclGetLastError(shared->comm))
                    : std::string();
}

void NcclConnection::finish() {
  timeout_s_ = std::min(timeout_s_, finish_timeout_s);
  make("ncclCommFinalize", [](ncclComm_t comm) { return ncclCommFinalize(comm); });
  const Lock lock = hold();
  ncclCommDestroy(std::exchange(shared_->comm, nullptr));
}

void NcclConnection::give_up() noexcept {
  ncclComm_t comm = nullptr;
  {
    const Lock lock = try_lock_for(shared_->mutex, std::min(timeout_s_, lock_timeout_s));
    if (!lock) return;  // a thread is stuck inside NCCL until the process ends
    comm = std::exchange(shared_->comm, nullptr);
  }
  if (!comm) return;
  // The abort may wait until other ranks abort too: its thread then lasts until the process ends.
  try {
    const auto over = std::make_shared<std::promise<void>>();
    const std::future<void> aborted = over->get_future();
    start_background_thread("the end of NCCL", [comm, over] {
      ncclCommAbort(comm);
      over->set_value();
    }).detach();
    aborted.wait_for(abort_timeout);
  } catch (...) {  // no thread: the process ends soon, and NCCL with it
  }
}

}  // namespace lockstep::comm
