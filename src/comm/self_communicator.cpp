// The transport of a world of one: every collective is a copy or nothing.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "comm/checks.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t alignment_bytes = 64;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class SelfArena final : public Arena {
 public:
  SelfArena(std::size_t plane_bytes, int planes)
      : plane_bytes_(plane_bytes),
        stride_bytes_((plane_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes),
        planes_(planes) {
    const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(planes);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, bytes + alignment_bytes)));
    if (!memory_) throw FailureError("arena: no memory for {} planes of {} bytes", planes, plane_bytes);
    std::memset(memory_.get(), 0, bytes);
  }
  std::byte* plane(int index) override {
    if (index < 0 || index >= planes_) throw UsageError("arena: no plane {} among {}", index, planes_);
    return memory_.get() + stride_bytes_ * static_cast<std::size_t>(index);
  }
  int planes() const override { return planes_; }
  std::size_t plane_bytes() const override { return plane_bytes_; }

 private:
  std::size_t plane_bytes_;
  std::size_t stride_bytes_;
  int planes_;
  std::unique_ptr<std::byte, Free> memory_;
};

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) std::strcpy(name.data(), "localhost");
    topology_ = {{0}, {0}, {name.data()}};
  }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const Topology& topology() const override { return topology_; }
  bool rounds(DType) const override { return false; }

  std::unique_ptr<Arena> allocate_arena(std::size_t plane_bytes, int planes) override {
    if (planes < 1) throw UsageError("arena on rank 0: {} planes; at least 1 is needed", planes);
    return std::make_unique<SelfArena>(plane_bytes, planes);
  }

  Ticket start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    // One rank owns every shard, so its one maximal sub-tree is the whole tree and plane 0 holds the sum
    // already.
    check_tree_sum(sum, map, 0, 1);
    return ++started_;
  }
  Ticket start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) override {
    check_slices(sum, slices, 0, 1);
    return start_tree_sum(sum, map);
  }
  Ticket start_all_gather(const TreeSum& vector, const Slices& slices) override {
    check_elements(vector, 0);
    check_slices(vector, slices, 0, 1);
    return ++started_;
  }
  void progress() override {}
  bool done(Ticket ticket) override {
    if (ticket > started_) throw UsageError("tree sum on rank 0: ticket {} was never given out", ticket);
    return true;
  }
  void wait(Ticket ticket) override { done(ticket); }

  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    if (bytes > 0 && mine != all) std::memcpy(all, mine, bytes);
  }
  void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank, void* all) override {
    check_sizes(bytes_of_rank, 0, 1);
    all_gather(mine, bytes_of_rank.front(), all);
  }
  std::vector<std::string> all_gather_texts(const std::string& mine) override { return {mine}; }
  void broadcast(void*, std::size_t, int root) override {
    if (root != 0) throw UsageError("broadcast on rank 0: no rank {} among 1", root);
  }
  void barrier(double) override {}
  std::unique_ptr<Communicator> split(int colour, int) override {
    if (colour < 0) throw UsageError("split on rank 0: colour {} is negative", colour);
    return std::make_unique<SelfCommunicator>();
  }
  [[noreturn]] void abort(int exit_code) override {
    std::fflush(nullptr);
    std::_Exit(exit_code);
  }

 private:
  Topology topology_;
  Ticket started_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace lockstep::comm
