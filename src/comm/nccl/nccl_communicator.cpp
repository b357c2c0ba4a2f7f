// The transport between GPUs: arenas and exchanges on the device, all else through the host's communicator.
#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "comm/arena_wish.h"
#include "comm/checks.h"
#include "comm/nccl/check.h"
#include "comm/nccl/device_arena.h"
#include "comm/nccl/device_exchanges.h"
#include "comm/nccl/device_lane.h"
#include "comm/nccl/gpu_choice.h"
#include "comm/nccl/ticket_events.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/nccl.h"

namespace lockstep::comm {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  /// `host` must outlive it.
  NcclCommunicator(Communicator& host, const NcclOptions& options)
      : host_(host),
        options_(options),
        lane_(std::make_shared<DeviceLane>(options.device, host, options.timeout_s)),
        exchanges_(*lane_, host.rank(), host.size(), options.reproducible),
        tickets_(host.rank()) {
    check_cuda(cudaEventCreateWithFlags(&filled_, cudaEventDisableTiming), "cudaEventCreate", rank());
  }
  /// Takes `host` over.
  NcclCommunicator(std::unique_ptr<Communicator> host, const NcclOptions& options)
      : NcclCommunicator(*host, options) {
    owned_host_ = std::move(host);
  }
  ~NcclCommunicator() override {
    cudaSetDevice(options_.device);
    cudaEventDestroy(filled_);
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const Topology& topology() const override { return host_.topology(); }
  bool rounds(DType wire) const override { return bytes_of(wire) == 2 && size() > 1; }

  std::unique_ptr<Arena> allocate_arena(std::size_t plane_bytes, int planes) override;

  Ticket start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    check_tree_sum(sum, map, rank(), size());
    const TermPlan& plan = plan_for(map, sum);
    return start(sum, [&](const DeviceVector& vector) { exchanges_.tree_sum(vector, plan); });
  }
  Ticket start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) override {
    check_tree_sum(sum, map, rank(), size());
    check_slices(sum, slices, rank(), size());
    const TermPlan& plan = plan_for(map, sum);
    return start(sum, [&](const DeviceVector& vector) { exchanges_.reduce_scatter(vector, plan, slices); });
  }
  Ticket start_all_gather(const TreeSum& vector, const Slices& slices) override {
    check_elements(vector, rank());
    check_slices(vector, slices, rank(), size());
    return start(vector, [&](const DeviceVector& all) { exchanges_.all_gather(all, slices); });
  }
  void progress() override { check(); }
  bool done(Ticket ticket) override {
    check_given_out(ticket);
    if (ticket == 0 || size() == 1) return true;
    lane_->use_device();
    if (tickets_.complete(ticket)) return true;
    check();
    return false;
  }
  void wait(Ticket ticket) override {
    check_given_out(ticket);
    if (ticket == 0 || size() == 1) return;
    check();
    lane_->use_device();
    tickets_.hold(compute(), ticket);
  }
  bool records() const override { return true; }
  /// Earlier tickets are of the lane's stream, which the device's has waited for: they are complete with it.
  Ticket behind_recording() override {
    lane_->use_device();
    return tickets_.record(compute());
  }
  std::string async_error() const override { return lane_->connection().async_error(); }

  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    host_.all_gather(mine, bytes, all);
  }
  void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank, void* all) override {
    host_.all_gather_unequal(mine, bytes_of_rank, all);
  }
  std::vector<std::string> all_gather_texts(const std::string& mine) override {
    return host_.all_gather_texts(mine);
  }
  void broadcast(void* data, std::size_t bytes, int root) override { host_.broadcast(data, bytes, root); }
  void barrier(double timeout_s) override { host_.barrier(timeout_s); }
  std::unique_ptr<Communicator> split(int colour, int key) override {
    std::unique_ptr<Communicator> part = host_.split(colour, key), made;
    together(host_, [&] { made = std::make_unique<NcclCommunicator>(std::move(part), options_); });
    return made;
  }
  [[noreturn]] void abort(int exit_code) override {
    host_.abort(exit_code);
    std::abort();  // not reached
  }

 private:
  cudaStream_t compute() const { return static_cast<cudaStream_t>(options_.stream); }
  template <class Exchange>
  Ticket start(const TreeSum& sum, const Exchange& exchange);
  const TermPlan& plan_for(const ShardMap& map, const TreeSum& sum);
  const TermPlan& check_planes(const TermPlan& plan, const TreeSum& sum) const;
  void check() { lane_->connection().check(); }
  void check_given_out(Ticket ticket) const {
    if (ticket > tickets_.recorded())
      throw UsageError("exchange on rank {}: no ticket {} was given out", rank(), ticket);
  }

  std::unique_ptr<Communicator> owned_host_;
  Communicator& host_;
  NcclOptions options_;
  std::shared_ptr<DeviceLane> lane_;
  DeviceExchanges exchanges_;
  TicketEvents tickets_;
  std::vector<std::unique_ptr<TermPlan>> plans_;
  cudaEvent_t filled_ = nullptr;  ///< what an exchange works on
};

std::unique_ptr<Arena> NcclCommunicator::allocate_arena(std::size_t plane_bytes, int planes) {
  agree_on_arena(host_, plane_bytes, planes);
  lane_->use_device();
  if (size() > 1) lane_->connection().start();
  std::unique_ptr<Arena> arena;
  try {
    together(host_, [&] {
      arena = std::make_unique<DeviceArena>(lane_, compute(), plane_bytes, planes,
                                            size() > 1 && !options_.reproducible);
    });
  } catch (...) {
    arena.reset();  // no peer uses it: it goes like any other, not as one that an exception unwinds
    throw;
  }
  return arena;
}

const TermPlan& NcclCommunicator::plan_for(const ShardMap& map, const TreeSum& sum) {
  for (const auto& plan : plans_) {
    if (plan->shards == map.shards()) return check_planes(*plan, sum);
  }
  auto plan = std::make_unique<TermPlan>(map, rank());
  if (plan->whole.depth > deepest_tree)
    throw UsageError("tree sum on rank {}: {} shards are more than a GPU adds", rank(), map.shards());
  lane_->use_device();
  lane_->upload(plan->whole);
  lane_->upload(plan->own);
  plans_.push_back(std::move(plan));
  return check_planes(*plans_.back(), sum);
}

const TermPlan& NcclCommunicator::check_planes(const TermPlan& plan, const TreeSum& sum) const {
  const int needed = plan.terms_of_rank[static_cast<std::size_t>(rank())];
  if (sum.arena->planes() < needed)
    throw UsageError("tree sum on rank {}: its shards need {} planes, the arena has {}", rank(), needed,
                     sum.arena->planes());
  return plan;
}

template <class Exchange>
Ticket NcclCommunicator::start(const TreeSum& sum, const Exchange& exchange) {
  auto* const arena = dynamic_cast<DeviceArena*>(sum.arena);
  if (!arena || arena->lane() != lane_.get())
    throw UsageError("exchange on rank {}: the arena was allocated by another communicator", rank());
  lane_->use_device();
  if (size() > 1) {
    check();
    check_cuda(cudaEventRecord(filled_, compute()), "cudaEventRecord", rank());
    check_cuda(cudaStreamWaitEvent(lane_->stream(), filled_, 0), "cudaStreamWaitEvent", rank());
    exchange({.values = arena->plane(0) + sum.offset_bytes,
              .plane_bytes = arena->stride_bytes(),
              .count = sum.count,
              .dtype = sum.dtype,
              .wire = sum.wire});
  }
  return tickets_.record(lane_->stream());
}

/// By which two ranks of a machine know that they have the same GPU.
std::string gpu_address(int device, int rank) {
  std::array<char, 64> address{};
  check_cuda(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device),
             "cudaDeviceGetPCIBusId", rank);
  return address.data();
}

/// What NCCL reads once, when it starts; what the user has set stays.
void prepare_environment(int rank, bool shared) {
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  if (!shared) return;
  for (const auto& [name, value] : sharing_environment(rank)) ::setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace

std::string sharing_problem(Communicator& host, int device) {
  std::string address;
  together(host, [&] {
    if (device >= 0) address = gpu_address(device, host.rank());
  });
  return find_sharing(host, address, false).problem;
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, const NcclOptions& options) {
  std::string address;
  together(host, [&] {
    int visible = 0;
    if (cudaGetDeviceCount(&visible) != cudaSuccess) cudaGetLastError();  // without a driver: none
    if (options.device < 0 || options.device >= visible)
      throw UsageError(
          "rank {}: there is no GPU {} among the {} visible ones; see nvidia-smi and "
          "CUDA_VISIBLE_DEVICES",
          host.rank(), options.device, visible);
    address = gpu_address(options.device, host.rank());
  });
  const Sharing sharing = find_sharing(host, address, options.share_gpu);
  if (!sharing.problem.empty()) throw UsageError("{}", sharing.problem);
  prepare_environment(host.rank(), sharing.shared);

  std::unique_ptr<Communicator> made;
  together(host, [&] { made = std::make_unique<NcclCommunicator>(host, options); });
  return made;
}

}  // namespace lockstep::comm
