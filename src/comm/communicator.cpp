#include "lockstep/comm/communicator.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <regex>
#include <thread>

#include "base/launcher.h"
#include "base/progress.h"
#include "comm/collective.h"
#include "comm/mpi_calls.h"

namespace lockstep::comm {

int Topology::ranks_on_node(int node) const {
  return static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.end(), node));
}

bool Topology::node_major() const {
  // Nodes are numbered by first rank.
  return std::is_sorted(node_of_rank.begin(), node_of_rank.end());
}

void finish(GradientTransport& transport, Work work) {
  transport.order_after(work);
  if (transport.done(work)) return;
  // A device may work as long as a step: the core is free for the threads that feed it. (A blocking wait for
  // the device would not return if a peer died.)
  constexpr std::chrono::microseconds between_polls{20};
  for (progress::Polling polling; !transport.done(work); polling.count_poll()) {
    transport.group().check_calls();
    std::this_thread::sleep_for(between_polls);
  }
}

namespace {

constexpr std::size_t alignment_bytes = 64;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class SelfBuffer final : public FlatBuffer {
 public:
  SelfBuffer(std::size_t accumulator_bytes, int accumulators)
      : accumulator_bytes_(accumulator_bytes),
        stride_bytes_((accumulator_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes),
        accumulators_(accumulators) {
    const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(accumulators);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, bytes + alignment_bytes)));
    if (!memory_)
      throw FailureError("flat buffer: out of memory for {} accumulators of {} bytes", accumulators,
                         accumulator_bytes);
    std::memset(memory_.get(), 0, bytes);
  }
  std::byte* accumulator(int index) override {
    if (index < 0 || index >= accumulators_)
      throw UsageError("flat buffer: accumulator {} is out of range; there are {}", index, accumulators_);
    return memory_.get() + stride_bytes_ * static_cast<std::size_t>(index);
  }
  int accumulators() const override { return accumulators_; }
  std::size_t accumulator_bytes() const override { return accumulator_bytes_; }

 private:
  std::size_t accumulator_bytes_;
  std::size_t stride_bytes_;
  int accumulators_;
  std::unique_ptr<std::byte, Free> memory_;
};

class SelfCommunicator final : public CpuCommunicator {
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

  std::unique_ptr<FlatBuffer> allocate_buffer(std::size_t accumulator_bytes, int accumulators) override {
    if (accumulators < 1)
      throw UsageError("flat buffer on rank 0: {} accumulators; at least 1 is needed", accumulators);
    return std::make_unique<SelfBuffer>(accumulator_bytes, accumulators);
  }

  Work start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    // The only rank's maximal sub-tree is the whole tree, so accumulator 0 holds the sum already.
    check_tree_sum(sum, map, 0, 1);
    return ++started_;
  }
  Work start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) override {
    check_slices(sum, slices, 0, 1);
    return start_tree_sum(sum, map);
  }
  Work start_all_gather(const TreeSum& vector, const Slices& slices) override {
    check_elements(vector, 0);
    check_slices(vector, slices, 0, 1);
    return ++started_;
  }
  void progress() override {}
  bool done(Work work) override {
    check_started(work, started_, 0);
    return true;
  }
  void order_after(Work work) override { done(work); }

  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    if (bytes > 0 && mine != all) std::memcpy(all, mine, bytes);
  }
  void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank, void* all) override {
    check_sizes(bytes_of_rank.size(), 0, 1);
    all_gather(mine, bytes_of_rank.front(), all);
  }
  void all_to_all(std::span<const std::span<const std::byte>> to_rank,
                  std::span<const std::span<std::byte>> from_rank) override {
    check_sizes(to_rank.size(), 0, 1);
    check_sizes(from_rank.size(), 0, 1);
    all_gather(to_rank.front().data(), to_rank.front().size(), from_rank.front().data());
  }
  std::vector<std::string> all_gather_texts(const std::string& mine) override { return {mine}; }
  void broadcast(void*, std::size_t, int root) override {
    if (root != 0) throw UsageError("broadcast on rank 0: root {} is out of range; there is 1 rank", root);
  }
  void barrier(double) override {}
  std::unique_ptr<CpuCommunicator> split(int colour, int) override {
    if (colour < 0) throw UsageError("split on rank 0: colour {} is negative", colour);
    return std::make_unique<SelfCommunicator>();
  }
  [[noreturn]] void abort(int exit_code) override {
    std::fflush(nullptr);
    std::_Exit(exit_code);
  }

 private:
  Topology topology_;
  Work started_ = 0;
};

}  // namespace

std::unique_ptr<CpuCommunicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

std::string mpi_description() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data());
  return whole.substr(0, whole.find('\n'));
}

std::string mpi_library() {
  std::string name = mpi_description();
  name.resize(std::min({std::size_t{60}, name.size(), name.find(',')}));
  return std::regex_replace(name, std::regex("\\s+Version\\s*:\\s*"), " ");  // "MPICH Version:      4.0.2"
}

namespace {

/// If the launcher belongs to another MPI, each process is a world of its own, and N copies of one run
/// overwrite each other.
void check_launcher_matches(int size) {
  const int launched = launcher::size();
  if (size > 1 || launched < 2) return;
  throw UsageError(
      "world: the launcher started {} ranks, but MPI sees only this one: the launcher belongs to another MPI "
      "than the program, which has {}; start it with the mpirun of that MPI, or with srun --mpi={}",
      launched, mpi_library(), own_pmi);
}

}  // namespace

World::World(int& argc, char**& argv) {
  int initialised = 0;
  check_mpi(MPI_Initialized(&initialised), "MPI_Initialized", -1);
  if (!initialised) {
    if (launcher::rank() < 0) {
      communicator_ = make_self_communicator();
      return;
    }
    // Open MPI 4 treats a rank of another MPI's launcher as a singleton, and then exits if there is no ssh.
    if (launcher::number({"OMPI_COMM_WORLD_RANK"}) < 0) ::setenv("OMPI_MCA_plm_rsh_agent", "", 0);
    int provided = 0;
    check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", -1);
    owns_mpi_ = true;
    if (provided < MPI_THREAD_FUNNELED) {
      throw FailureError("MPI_Init_thread: this MPI does not support threads; install one that does");
    }
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", -1);
  int size = 1;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", -1);
  if (owns_mpi_) check_launcher_matches(size);
  communicator_ = make_mpi_communicator(MPI_COMM_WORLD);
}

World::~World() {
  // While an exception unwinds, peers may be elsewhere, and a collective would wait for them. The caller
  // aborts.
  const bool unwinding = std::uncaught_exceptions() > 0;
  const progress::Waiting waiting;
  communicator_.reset();
  if (owns_mpi_ && !unwinding) MPI_Finalize();
}

}  // namespace lockstep::comm
