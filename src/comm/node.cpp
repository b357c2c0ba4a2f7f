#include "comm/node.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "base/progress.h"
#include "comm/mpi_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::comm {
namespace {

/// Mappings of one segment differ by whole pages between processes, so all of them align it the same
/// way.
std::byte* aligned(void* base) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  constexpr std::uintptr_t alignment = SharedWindow::alignment;
  return reinterpret_cast<std::byte*>((address + alignment - 1) / alignment * alignment);
}

/// Requests separate segments, so that each starts on a new page, near the core that uses it first.
class SeparateSegments {
 public:
  explicit SeparateSegments(int rank) {
    check_mpi(MPI_Info_create(&info_), "MPI_Info_create", rank);
    check_mpi(MPI_Info_set(info_, "alloc_shared_noncontig", "true"), "MPI_Info_set", rank);
  }
  ~SeparateSegments() { MPI_Info_free(&info_); }
  SeparateSegments(const SeparateSegments&) = delete;
  SeparateSegments& operator=(const SeparateSegments&) = delete;
  MPI_Info info() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

}  // namespace

bool oversubscribed(MPI_Comm node, const CoreSet& mine) {
  constexpr std::size_t max_cores = 8192;  // the maximum of Linux builds
  std::array<std::uint64_t, max_cores / 64> cores{};
  for (const int core : mine) {
    const auto index = static_cast<std::size_t>(core);
    if (index < max_cores) cores[index / 64] |= std::uint64_t{1} << index % 64;
  }
  check_mpi(
      MPI_Allreduce(MPI_IN_PLACE, cores.data(), static_cast<int>(cores.size()), MPI_UINT64_T, MPI_BOR, node),
      "MPI_Allreduce", -1);
  int ranks = 0, usable = 0;
  check_mpi(MPI_Comm_size(node, &ranks), "MPI_Comm_size", -1);
  for (const std::uint64_t word : cores) usable += std::popcount(word);
  return ranks > std::max(1, usable);
}

SharedWindow::SharedWindow(MPI_Comm node, std::size_t bytes) {
  int world_rank = 0, rank = 0, size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank", -1);
  check_mpi(MPI_Comm_rank(node, &rank), "MPI_Comm_rank", world_rank);
  check_mpi(MPI_Comm_size(node, &size), "MPI_Comm_size", world_rank);
  const SeparateSegments hint(world_rank);
  void* mine = nullptr;
  check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + alignment), 1, hint.info(), node, &mine,
                                    &window_),
            "MPI_Win_allocate_shared (is there room in /dev/shm?)", world_rank);
  check_mpi(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler", world_rank);
  segments_.resize(static_cast<std::size_t>(size));
  for (int peer = 0; peer < size; ++peer) {
    MPI_Aint segment_bytes = 0;
    int unit = 0;
    void* base = nullptr;
    check_mpi(MPI_Win_shared_query(window_, peer, &segment_bytes, &unit, &base), "MPI_Win_shared_query",
              world_rank);
    segments_[static_cast<std::size_t>(peer)] = aligned(base);
  }
  std::memset(segment(rank), 0, bytes);
  // One epoch for the window's whole life: it is plain memory from now on.
  check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all", world_rank);
  check_mpi(MPI_Win_sync(window_), "MPI_Win_sync", world_rank);
  check_mpi(MPI_Barrier(node), "MPI_Barrier", world_rank);
}

SharedWindow::~SharedWindow() {
  if (std::uncaught_exceptions() > 0 || window_ == MPI_WIN_NULL) return;
  const progress::During teardown(progress::Phase::teardown);
  const progress::Waiting waiting;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

NodeControl::NodeControl(MPI_Comm node, int local_rank, std::vector<int> ranks)
    : local_rank_(local_rank), ranks_(std::move(ranks)), window_(node, sizeof(RankFlags)) {
  new (window_.segment(local_rank)) RankFlags;  // counters start at zero
}

void NodeControl::begin(Sequence sequence, std::uint64_t number, const Collective& collective) const {
  BegunCollectives& begun = mine().*sequence;
  begun.descriptions[number % BegunCollectives::kept] = collective;
  begun.signatures[number % BegunCollectives::kept] = collective.signature();
  begun.count.store(number, std::memory_order_release);
}

void NodeControl::check_same(Sequence sequence, std::uint64_t number) const {
  check();
  const std::uint64_t index = number % BegunCollectives::kept;
  int first = -1;
  for (int peer = 0; peer < local_ranks(); ++peer) {
    const BegunCollectives& begun = of(peer).*sequence;
    if (begun.count.load(std::memory_order_acquire) < number) continue;
    if (first < 0) first = peer;
    const BegunCollectives& reference = of(first).*sequence;
    if (begun.signatures[index] == reference.signatures[index]) continue;
    const Collective one = reference.descriptions[index], other = begun.descriptions[index];
    std::atomic_thread_fence(std::memory_order_acquire);
    const auto overwritten = [number](const BegunCollectives& by) {  // by calls of ranks that are ahead
      return by.count.load(std::memory_order_relaxed) - number >= BegunCollectives::kept - 1;
    };
    if (overwritten(reference) || overwritten(begun)) continue;
    if (sequence != &RankFlags::calls) check_same(&RankFlags::calls, mine().calls.count);
    fail(difference(number, ranks_[static_cast<std::size_t>(first)], one,
                    ranks_[static_cast<std::size_t>(peer)], other));
  }
}

void NodeControl::check_order(std::uint64_t gathers, std::uint64_t sums, const CallName& call) const {
  for (int peer = 0; peer < local_ranks(); ++peer) {
    const BegunCollectives& begun = of(peer).gathers;
    if (begun.count.load(std::memory_order_acquire) <= gathers) continue;
    const Collective& theirs = begun.descriptions[(gathers + 1) % BegunCollectives::kept];
    if (theirs.flat_buffer < sums)
      fail(difference(gathers, ranks_[static_cast<std::size_t>(peer)], theirs,
                      ranks_[static_cast<std::size_t>(local_rank_)],
                      {.kind = Collective::Kind::wait, .flat_buffer = sums, .call = call}));
  }
}

void NodeControl::fail(const std::string& text) const {
  RankFlags& shared = of(0);
  auto expected = RankFlags::Verdict::none;
  if (shared.verdict.compare_exchange_strong(expected, RankFlags::Verdict::begun)) {
    shared.verdict_text[text.copy(shared.verdict_text, sizeof shared.verdict_text - 1)] = '\0';
    shared.verdict.store(RankFlags::Verdict::written, std::memory_order_release);
  }
  check();
}

void NodeControl::check() const {
  const auto is = [this](RankFlags::Verdict state) {
    return of(0).verdict.load(std::memory_order_acquire) == state;
  };
  if (is(RankFlags::Verdict::none)) return;
  while (!is(RankFlags::Verdict::written)) sched_yield();
  throw UsageError("{}", of(0).verdict_text);
}

NodeBuffer::NodeBuffer(HostGroup* owner, std::uint64_t number, MPI_Comm node, int local_rank,
                       std::size_t accumulator_bytes, int accumulators)
    : owner_(owner),
      number_(number),
      local_rank_(local_rank),
      accumulator_bytes_(accumulator_bytes),
      stride_bytes_((accumulator_bytes + SharedWindow::alignment - 1) / SharedWindow::alignment *
                    SharedWindow::alignment),
      accumulators_(accumulators),
      window_(node, stride_bytes_ * static_cast<std::size_t>(accumulators)) {}

NodeBuffer::~NodeBuffer() {
  const progress::During teardown(progress::Phase::teardown);
  if (!meet_at_end(*owner_, "destroys a FlatBuffer (its scope ends)")) window_.abandon();
}

std::byte* NodeBuffer::accumulator(int index) {
  if (index < 0 || index >= accumulators_)
    throw UsageError("flat buffer: accumulator {} is out of range; there are {}", index, accumulators_);
  return accumulator_of(local_rank_, index);
}

}  // namespace lockstep::comm
