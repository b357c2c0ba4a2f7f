// The MPI transport.
#include "comm/mpi_communicator.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>

#include "comm/checks.h"
#include "comm/mpi_check.h"
#include "lockstep/base/clock.h"

namespace lockstep::comm {
namespace {

class TemporaryArena final : public Arena {
 public:
  TemporaryArena(std::size_t bytes, int planes) : bytes_(bytes), planes_(planes) {
    self_ = make_self_communicator()->allocate_arena(bytes, planes);
  }
  std::byte* plane(int index) override { return self_->plane(index); }
  int planes() const override { return planes_; }
  std::size_t plane_bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
  int planes_;
  std::unique_ptr<Arena> self_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, std::vector<int> node_of_rank, const MpiLimits& limits)
      : comm_(comm), limits_(limits) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank", -1);
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size", rank_);
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", rank_);
    find_topology(node_of_rank);
  }
  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const Topology& topology() const override { return topology_; }

  std::unique_ptr<Arena> allocate_arena(std::size_t plane_bytes, int planes) override {
    return std::make_unique<TemporaryArena>(plane_bytes, planes);
  }

  Ticket start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    check_tree_sum(sum, map, rank_, size_);
    if (sum.dtype == DType::float32) {
      add<float>(sum, map);
    } else {
      add<double>(sum, map);
    }
    return ++started_;
  }
  void progress() override {}
  bool done(Ticket) override { return true; }
  void wait(Ticket) override {}

  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    if (bytes == 0) return;
    if (bytes > limits_.message_bytes) {
      auto* out = static_cast<std::byte*>(all);
      std::memmove(out + bytes * static_cast<std::size_t>(rank_), mine, bytes);
      for (int root = 0; root < size_; ++root)
        broadcast(out + bytes * static_cast<std::size_t>(root), bytes, root);
      return;
    }
    MPI_Request request;
    const int count = static_cast<int>(bytes);
    const bool in_place = mine == static_cast<std::byte*>(all) + bytes * static_cast<std::size_t>(rank_);
    check_mpi(MPI_Iallgather(in_place ? MPI_IN_PLACE : mine, count, MPI_BYTE, all, count, MPI_BYTE, comm_,
                             &request),
              "MPI_Iallgather", rank_);
    finish(request, "MPI_Iallgather");
  }

  std::vector<std::string> all_gather_texts(const std::string& mine) override {
    const std::uint64_t bytes = mine.size();
    std::vector<std::uint64_t> sizes(size_);
    all_gather(&bytes, sizeof bytes, sizes.data());
    std::vector<std::string> texts(size_);
    std::uint64_t total = 0;
    for (const std::uint64_t size : sizes) total += size;
    if (total <= limits_.message_bytes) {
      std::vector<int> counts(size_), places(size_);
      std::string all(total, '\0');
      int place = 0;
      for (int r = 0; r < size_; ++r) {
        counts[r] = static_cast<int>(sizes[r]);
        places[r] = place;
        place += counts[r];
      }
      MPI_Request request;
      check_mpi(MPI_Iallgatherv(mine.data(), static_cast<int>(bytes), MPI_BYTE, all.data(), counts.data(),
                                places.data(), MPI_BYTE, comm_, &request),
                "MPI_Iallgatherv", rank_);
      finish(request, "MPI_Iallgatherv");
      for (int r = 0; r < size_; ++r) texts[r] = all.substr(places[r], counts[r]);
      return texts;
    }
    texts[rank_] = mine;
    for (int r = 0; r < size_; ++r) {
      texts[r].resize(sizes[r]);
      broadcast(texts[r].data(), texts[r].size(), r);
    }
    return texts;
  }

  void broadcast(void* data, std::size_t bytes, int root) override {
    if (root < 0 || root >= size_)
      throw UsageError("broadcast on rank {}: no rank {} among {}", rank_, root, size_);
    auto* place = static_cast<std::byte*>(data);
    while (bytes > 0) {
      const std::size_t part = std::min(bytes, limits_.message_bytes);
      MPI_Request request;
      check_mpi(MPI_Ibcast(place, static_cast<int>(part), MPI_BYTE, root, comm_, &request), "MPI_Ibcast",
                rank_);
      finish(request, "MPI_Ibcast");
      place += part;
      bytes -= part;
    }
  }

  void barrier(double) override {
    MPI_Request request;
    check_mpi(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier", rank_);
    finish(request, "MPI_Ibarrier");
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    if (colour < 0) throw UsageError("split on rank {}: colour {} is negative", rank_, colour);
    MPI_Comm part;
    check_mpi(MPI_Comm_split(comm_, colour, key, &part), "MPI_Comm_split", rank_);
    int part_size = 0;
    MPI_Comm_size(part, &part_size);
    std::vector<int> nodes(part_size);
    check_mpi(MPI_Allgather(&topology_.node_of_rank[rank_], 1, MPI_INT, nodes.data(), 1, MPI_INT, part),
              "MPI_Allgather", rank_);
    return std::make_unique<MpiCommunicator>(part, nodes, limits_);
  }

  [[noreturn]] void abort(int exit_code) override {
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  void finish(MPI_Request& request, const char* call) {
    int finished = 0;
    while (true) {
      check_mpi(MPI_Test(&request, &finished, MPI_STATUS_IGNORE), call, rank_);
      if (finished) return;
      progress();
      sched_yield();
    }
  }

  void find_topology(const std::vector<int>& node_of_rank) {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name", rank_);
    const std::vector<std::string> hosts = all_gather_texts(name.data());
    std::vector<int> numbers(node_of_rank);
    topology_.node_of_rank.resize(size_);
    topology_.local_rank_of_rank.resize(size_);
    std::vector<int> seen;
    for (int r = 0; r < size_; ++r) {
      auto place = std::find(seen.begin(), seen.end(), numbers[r]);
      if (place == seen.end()) {
        seen.push_back(numbers[r]);
        topology_.host_names.push_back(hosts[r]);
        place = seen.end() - 1;
      }
      topology_.node_of_rank[r] = static_cast<int>(place - seen.begin());
      topology_.local_rank_of_rank[r] =
          static_cast<int>(std::count(numbers.begin(), numbers.begin() + r, numbers[r]));
    }
  }

  template <class T>
  void add(const TreeSum& sum, const ShardMap& map) {
    std::vector<std::vector<std::vector<T>>> parts(size_);
    for (int r = 0; r < size_; ++r) {
      const auto subtrees = map.subtrees(r);
      for (std::size_t p = 0; p < subtrees.size(); ++p) {
        std::vector<T> values(sum.count);
        if (r == rank_)
          std::memcpy(values.data(), sum.arena->plane(static_cast<int>(p)) + sum.offset_bytes,
                      sum.count * sizeof(T));
        broadcast(values.data(), values.size() * sizeof(T), r);
        parts[r].push_back(std::move(values));
      }
    }
    std::vector<T> total = fold<T>({0, map.shards()}, map, parts);
    std::memcpy(sum.arena->plane(0) + sum.offset_bytes, total.data(), sum.count * sizeof(T));
  }
  template <class T>
  std::vector<T> fold(ShardRange range, const ShardMap& map,
                      std::vector<std::vector<std::vector<T>>>& parts) {
    const int owner = map.owner(range.first);
    if (map.owner(range.end() - 1) == owner) {
      const auto subtrees = map.subtrees(owner);
      const auto index = std::find(subtrees.begin(), subtrees.end(), range) - subtrees.begin();
      return parts[owner][index];
    }
    const int left = left_leaves(range.count);
    auto a = fold<T>({range.first, left}, map, parts);
    const auto b = fold<T>({range.first + left, range.count - left}, map, parts);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }

  MPI_Comm comm_;
  MpiLimits limits_;
  int rank_ = 0;
  int size_ = 1;
  Topology topology_;
  Ticket started_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, std::vector<int> node_of_rank,
                                                    const MpiLimits& limits) {
  MPI_Comm comm;
  check_mpi(MPI_Comm_dup(parent, &comm), "MPI_Comm_dup", -1);
  return std::make_unique<MpiCommunicator>(comm, std::move(node_of_rank), limits);
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiLimits& limits) {
  MPI_Comm node;
  int rank = 0, size = 1, leader = 0;
  MPI_Comm_rank(parent, &rank);
  MPI_Comm_size(parent, &size);
  check_mpi(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type", rank);
  leader = rank;
  MPI_Bcast(&leader, 1, MPI_INT, 0, node);
  MPI_Comm_free(&node);
  std::vector<int> nodes(size);
  check_mpi(MPI_Allgather(&leader, 1, MPI_INT, nodes.data(), 1, MPI_INT, parent), "MPI_Allgather", rank);
  return make_mpi_communicator(parent, std::move(nodes), limits);
}

}  // namespace lockstep::comm
