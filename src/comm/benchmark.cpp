#include "comm/benchmark.h"

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/clock.h"
#include "comm/mpi_calls.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::comm {
namespace {

/// A round times several small sums, since the barrier before it costs microseconds.
constexpr std::size_t bytes_of_round = 4 << 20;
constexpr std::size_t max_sums_of_round = 16;
constexpr double round_budget_s = 0.6;  // for each size and each of the two sums
constexpr int min_rounds = 7;
constexpr int max_rounds = 101;

/// Between 1 and 2, with all bits used, so that the order of additions shows in the result.
float value_of(int shard, std::size_t element) {
  const std::uint64_t bits = hash_of(shard, element);
  return 1.0f + static_cast<float>(bits >> 41) * 0x1p-23f;
}

void fill(float* values, std::size_t count, int rank) {
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
}

bool is_tree_sum(const float* values, std::size_t count, int shards) {
  for (std::size_t i = 0; i < count; ++i) {
    const float expected = fold_tree(
        ShardRange{0, shards}, [&](int shard) { return value_of(shard, i); },
        [](float left, float right) { return left + right; });
    if (std::memcmp(&expected, &values[i], sizeof expected) != 0) return false;
  }
  return true;
}

/// The MPI communicator of a group's ranks; none if MPI is not running.
std::optional<OwnedComm> mpi_comm_of(HostGroup& ranks) {
  int running = 0;
  check_mpi(MPI_Initialized(&running), "MPI_Initialized", ranks.rank());
  if (!running) return std::nullopt;
  int mine = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &mine), "MPI_Comm_rank", ranks.rank());
  const std::vector<int> world_ranks = all_gather_values(ranks, mine);
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group", mine);
  check_mpi(MPI_Group_incl(world, ranks.size(), world_ranks.data(), &group), "MPI_Group_incl", mine);
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm), "MPI_Comm_create_group", mine);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return std::optional<OwnedComm>(std::in_place, comm);
}

/// The benchmark of one size.
class AllReduceBenchmark {
 public:
  AllReduceBenchmark(GradientTransport& transport, MPI_Comm mpi, std::size_t bytes)
      : transport_(transport),
        group_(transport.group()),
        mpi_(mpi),
        count_(bytes / sizeof(float)),
        sums_of_round_(
            std::clamp(bytes_of_round / std::max(bytes, std::size_t{1}), std::size_t{1}, max_sums_of_round)),
        map_(group_.size(), group_.size()),
        flat_buffer_(transport.allocate_buffer(bytes, 1)),
        fresh_(count_),
        mpi_values_(mpi == MPI_COMM_NULL ? 0 : count_) {
    fill(fresh_.data(), count_, group_.rank());
  }

  AllReduceTime run() {
    AllReduceTime result{count_ * sizeof(float), group_.size()};
    refill(tree_values());
    sum();
    const std::uint8_t exact = is_tree_sum(tree_values(), count_, group_.size()) ? 1 : 0;
    result.exact = std::ranges::min(all_gather_values(group_, exact)) == 1;

    std::vector<double> lockstep_ms, mpi_ms;
    const Stopwatch spent;
    for (int round = 0; round < max_rounds; ++round) {
      if (round >= min_rounds && slowest_ms(spent.elapsed_ms()) > 2e3 * round_budget_s) break;
      lockstep_ms.push_back(timed(tree_values(), [&] { sum(); }));
      if (mpi_ != MPI_COMM_NULL) mpi_ms.push_back(timed(mpi_values_.data(), [&] { sum_by_mpi(); }));
    }
    result.lockstep_ms = median(lockstep_ms);
    if (!mpi_ms.empty()) result.mpi_ms = median(mpi_ms);
    return result;
  }

 private:
  float* tree_values() { return reinterpret_cast<float*>(flat_buffer_->accumulator(0)); }
  void refill(float* values) { std::copy(fresh_.begin(), fresh_.end(), values); }

  void sum() {
    transport_.order_after(transport_.start_tree_sum(
        {flat_buffer_.get(), 0, static_cast<std::int64_t>(count_), DType::float32}, map_));
  }
  void sum_by_mpi() {
    check_mpi(
        MPI_Allreduce(MPI_IN_PLACE, mpi_values_.data(), static_cast<int>(count_), MPI_FLOAT, MPI_SUM, mpi_),
        "MPI_Allreduce", group_.rank());
  }

  /// Milliseconds of one sum on the slowest rank.
  template <class Sum>
  double timed(float* values, const Sum& one) {
    refill(values);
    slowest_ms(0);
    const Stopwatch watch;
    for (std::size_t i = 0; i < sums_of_round_; ++i) one();
    return slowest_ms(watch.elapsed_ms()) / static_cast<double>(sums_of_round_);
  }
  double slowest_ms(double mine) { return std::ranges::max(all_gather_values(group_, mine)); }

  GradientTransport& transport_;
  HostGroup& group_;
  MPI_Comm mpi_;
  std::size_t count_;
  std::size_t sums_of_round_;
  ShardMap map_;
  std::unique_ptr<FlatBuffer> flat_buffer_;
  std::vector<float> fresh_;
  std::vector<float> mpi_values_;
};

}  // namespace

std::vector<AllReduceTime> time_all_reduce(GradientTransport& transport, std::span<const std::size_t> bytes) {
  const std::optional<OwnedComm> mpi = mpi_comm_of(transport.group());
  std::vector<AllReduceTime> times;
  for (const std::size_t size : bytes)
    times.push_back(AllReduceBenchmark(transport, mpi ? mpi->get() : MPI_COMM_NULL, size).run());
  return times;
}

}  // namespace lockstep::comm
