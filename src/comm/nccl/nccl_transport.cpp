// The transport between GPUs: memory and collectives on the device.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "comm/collective.h"
#include "comm/nccl.h"
#include "comm/nccl/device_collectives.h"
#include "comm/nccl/device_lane.h"
#include "comm/nccl/gpu_choice.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::comm {
namespace {

/// Tells which collectives of a stream are complete: one event after each, in a ring that steady steps never
/// enlarge.
class TicketEvents {
 public:
  explicit TicketEvents(int rank) : rank_(rank) {}
  ~TicketEvents();
  TicketEvents(const TicketEvents&) = delete;
  TicketEvents& operator=(const TicketEvents&) = delete;

  /// The next ticket: complete when the stream has finished all work launched on it so far.
  Ticket record(cudaStream_t stream);
  Ticket recorded() const { return recorded_; }
  /// Asks the device without waiting. The ticket must have been recorded.
  bool complete(Ticket ticket);
  /// Work launched on `stream` from now on begins when the ticket is complete.
  void hold(cudaStream_t stream, Ticket ticket);

 private:
  cudaEvent_t& event(Ticket ticket) { return events_[ticket % events_.size()]; }
  void enlarge();

  int rank_;
  std::vector<cudaEvent_t> events_;  ///< those of (complete_, recorded_] are in use
  Ticket recorded_ = 0;
  Ticket complete_ = 0;  ///< these are known to be
};

TicketEvents::~TicketEvents() {
  for (const cudaEvent_t event : events_) {
    if (event) cudaEventDestroy(event);
  }
}

void TicketEvents::enlarge() {
  constexpr std::size_t fewest = 64;  // more than the buckets of nearly any model
  std::vector<cudaEvent_t> larger(std::max(fewest, 2 * events_.size()));
  // All events are in use, by the most recent tickets.
  for (Ticket ticket = recorded_; ticket > recorded_ - events_.size(); --ticket)
    larger[ticket % larger.size()] = event(ticket);
  events_.swap(larger);
  for (cudaEvent_t& made : events_) {
    if (!made) check_cuda(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreate", rank_);
  }
}

Ticket TicketEvents::record(cudaStream_t stream) {
  if (recorded_ - complete_ == events_.size()) {
    while (complete_ < recorded_ && complete(complete_ + 1)) {
    }
    if (recorded_ - complete_ == events_.size()) enlarge();
  }
  check_cuda(cudaEventRecord(event(recorded_ + 1), stream), "cudaEventRecord", rank_);
  return ++recorded_;
}

bool TicketEvents::complete(Ticket ticket) {
  if (ticket <= complete_) return true;
  const cudaError_t status = cudaEventQuery(event(ticket));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // clears it, or the next launch would report it
    return false;
  }
  check_cuda(status, "cudaEventQuery", rank_);
  complete_ = ticket;  // and all before it, which the same stream ran
  return true;
}

void TicketEvents::hold(cudaStream_t stream, Ticket ticket) {
  if (ticket <= complete_) return;
  check_cuda(cudaStreamWaitEvent(stream, event(ticket), 0), "cudaStreamWaitEvent", rank_);
}

/// Memory on a GPU. With NCCL running it comes from ncclMemAlloc and is registered, unless partial sums are
/// sent from it into memory that is not registered: NCCL wants both sides of a call registered, or neither.
/// (Registration as a window, for symmetric kernels, would be better for small vectors on NVLink. Buckets are
/// large and use rings or NVLink SHARP, which plain registration serves.)
class DeviceArena final : public Arena {
 public:
  /// `compute`: the stream of the work that fills the planes. Zeroes the memory before it returns.
  DeviceArena(std::shared_ptr<DeviceLane> lane, cudaStream_t compute, std::size_t plane_bytes, int planes,
              bool registered);
  /// Waits for both streams. After a failure, and while an exception unwinds, it does not, as peers may never
  /// send what the streams wait for; the process then keeps the memory until it ends.
  ~DeviceArena() override;
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  std::byte* plane(int index) override;
  int planes() const override { return planes_; }
  std::size_t plane_bytes() const override { return plane_bytes_; }
  bool leave() override { return left_ = true; }

  const DeviceLane* lane() const { return lane_.get(); }
  std::size_t stride_bytes() const { return stride_bytes_; }

 private:
  void allocate();
  [[noreturn]] void throw_no_memory(std::size_t bytes) const;
  void prepare(bool registered);
  void release() noexcept;

  std::shared_ptr<DeviceLane> lane_;
  cudaStream_t compute_;
  std::size_t plane_bytes_;
  std::size_t stride_bytes_;
  int planes_;
  int exceptions_at_start_;
  void* memory_ = nullptr;
  bool of_nccl_ = false;
  bool left_ = false;
  void* handle_ = nullptr;  ///< of the registration
};

constexpr std::size_t plane_alignment_bytes = 512;  // best for copies and NCCL

/// Why ncclMemAlloc failed, which reports all errors of CUDA as one and leaves none in the runtime.
bool lacks_memory(std::size_t bytes) {
  if (cudaPeekAtLastError() == cudaErrorMemoryAllocation) return true;
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess && free < bytes;
}

DeviceArena::DeviceArena(std::shared_ptr<DeviceLane> lane, cudaStream_t compute, std::size_t plane_bytes,
                         int planes, bool registered)
    : lane_(std::move(lane)),
      compute_(compute),
      plane_bytes_(plane_bytes),
      stride_bytes_((plane_bytes + plane_alignment_bytes - 1) / plane_alignment_bytes *
                    plane_alignment_bytes),
      planes_(planes),
      exceptions_at_start_(std::uncaught_exceptions()) {
  allocate();
  try {
    prepare(registered);
  } catch (...) {
    if (lane_->drain(lane_->stream()) && lane_->drain(compute_))
      release();  // which waits for the whole device
    throw;
  }
}

void DeviceArena::prepare(bool registered) {
  const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(planes_) + plane_alignment_bytes;
  check_cuda(cudaMemsetAsync(memory_, 0, bytes, compute_), "cudaMemsetAsync", lane_->rank());
  check_cuda(cudaStreamSynchronize(compute_), "cudaStreamSynchronize", lane_->rank());
  if (registered && of_nccl_) {
    lane_->connection().make("ncclCommRegister", [&](ncclComm_t comm) {
      return ncclCommRegister(comm, memory_, bytes, &handle_);
    });
  }
}

void DeviceArena::release() noexcept {
  if (of_nccl_) {
    ncclMemFree(memory_);
  } else {
    cudaFree(memory_);
  }
}

void DeviceArena::allocate() {
  const std::size_t bytes = stride_bytes_ * static_cast<std::size_t>(planes_) + plane_alignment_bytes;
  of_nccl_ = lane_->connection().started();
  if (!of_nccl_) {
    const cudaError_t made = cudaMalloc(&memory_, bytes);
    if (made == cudaErrorMemoryAllocation) throw_no_memory(bytes);
    return check_cuda(made, "cudaMalloc", lane_->rank());
  }
  const ncclResult_t made = ncclMemAlloc(&memory_, bytes);
  if (made == ncclSuccess && memory_) return;
  if (lacks_memory(bytes)) throw_no_memory(bytes);
  // The communicator stays usable.
  throw FailureError(
      "ncclMemAlloc of {} bytes failed on rank {}: {}; NCCL_DEBUG=WARN in the environment shows more", bytes,
      lane_->rank(), ncclGetErrorString(made));
}

void DeviceArena::throw_no_memory(std::size_t bytes) const {
  cudaGetLastError();  // the device stays usable
  throw FailureError(
      "arena on rank {}: the GPU has no {} bytes left for {} planes of {} bytes; use a smaller batch, or "
      "more ranks for the shards",
      lane_->rank(), bytes, planes_, plane_bytes_);
}

DeviceArena::~DeviceArena() {
  NcclConnection& connection = lane_->connection();
  if (left_ || connection.failed() || std::uncaught_exceptions() > exceptions_at_start_) return;
  if (!lane_->drain(lane_->stream()) || !lane_->drain(compute_)) return;
  try {
    if (handle_)
      connection.make("ncclCommDeregister",
                      [&](ncclComm_t comm) { return ncclCommDeregister(comm, handle_); });
  } catch (...) {
    return;
  }
  release();
}

std::byte* DeviceArena::plane(int index) {
  if (index < 0 || index >= planes_) throw UsageError("arena: no plane {} among {}", index, planes_);
  return static_cast<std::byte*>(memory_) + stride_bytes_ * static_cast<std::size_t>(index);
}

class NcclTransport final : public GradientTransport {
 public:
  NcclTransport(HostGroup& host, const NcclOptions& options)
      : host_(host),
        options_(options),
        lane_(std::make_shared<DeviceLane>(options.device, host, options.timeout_s)),
        collectives_(*lane_, host.rank(), host.size(), options.reproducible),
        tickets_(host.rank()) {
    check_cuda(cudaEventCreateWithFlags(&filled_, cudaEventDisableTiming), "cudaEventCreate", rank());
  }
  ~NcclTransport() override {
    cudaSetDevice(options_.device);
    cudaEventDestroy(filled_);
  }

  HostGroup& group() override { return host_; }
  bool rounds(DType comm_dtype) const override { return bytes_of(comm_dtype) == 2 && size() > 1; }

  std::unique_ptr<Arena> allocate_arena(std::size_t plane_bytes, int planes) override;

  Ticket start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    check_tree_sum(sum, map, rank(), size());
    const PartialPlan& plan = plan_for(map, sum);
    return start(sum, [&](const DeviceVector& vector) { collectives_.tree_sum(vector, plan); });
  }
  Ticket start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) override {
    check_tree_sum(sum, map, rank(), size());
    check_slices(sum, slices, rank(), size());
    const PartialPlan& plan = plan_for(map, sum);
    return start(sum, [&](const DeviceVector& vector) { collectives_.reduce_scatter(vector, plan, slices); });
  }
  Ticket start_all_gather(const TreeSum& vector, const Slices& slices) override {
    check_elements(vector, rank());
    check_slices(vector, slices, rank(), size());
    return start(vector, [&](const DeviceVector& all) { collectives_.all_gather(all, slices); });
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
  /// Earlier tickets belong to the lane's stream, for which the compute stream has waited: this one covers
  /// them.
  Ticket behind_recording() override {
    lane_->use_device();
    return tickets_.record(compute());
  }
  std::string async_error() const override { return lane_->connection().async_error(); }
  std::unique_ptr<GradientTransport> duplicate() override {
    std::unique_ptr<GradientTransport> made;
    run_on_all(host_, [&] { made = std::make_unique<NcclTransport>(host_, options_); });
    return made;
  }

 private:
  int rank() const { return host_.rank(); }
  int size() const { return host_.size(); }
  cudaStream_t compute() const { return static_cast<cudaStream_t>(options_.stream); }
  template <class Launch>
  Ticket start(const TreeSum& sum, const Launch& launch);
  const PartialPlan& plan_for(const ShardMap& map, const TreeSum& sum);
  const PartialPlan& check_planes(const PartialPlan& plan, const TreeSum& sum) const;
  void check() { lane_->connection().check(); }
  void check_given_out(Ticket ticket) const {
    if (ticket > tickets_.recorded())
      throw UsageError("collective on rank {}: no ticket {} was given out", rank(), ticket);
  }

  HostGroup& host_;
  NcclOptions options_;
  std::shared_ptr<DeviceLane> lane_;
  DeviceCollectives collectives_;
  TicketEvents tickets_;
  std::vector<std::unique_ptr<PartialPlan>> plans_;
  cudaEvent_t filled_ = nullptr;  ///< the memory of the collective to start
};

std::unique_ptr<Arena> NcclTransport::allocate_arena(std::size_t plane_bytes, int planes) {
  agree_on_arena(host_, plane_bytes, planes);
  lane_->use_device();
  if (size() > 1) lane_->connection().start();
  std::unique_ptr<Arena> arena;
  try {
    run_on_all(host_, [&] {
      arena = std::make_unique<DeviceArena>(lane_, compute(), plane_bytes, planes,
                                            size() > 1 && !options_.reproducible);
    });
  } catch (...) {
    arena.reset();  // before the exception unwinds, as no peer uses it
    throw;
  }
  return arena;
}

const PartialPlan& NcclTransport::plan_for(const ShardMap& map, const TreeSum& sum) {
  for (const auto& plan : plans_) {
    if (plan->shards == map.shards()) return check_planes(*plan, sum);
  }
  auto plan = std::make_unique<PartialPlan>(map, rank());
  if (plan->whole.depth > deepest_tree)
    throw UsageError("tree sum on rank {}: {} shards are more than a GPU adds", rank(), map.shards());
  lane_->use_device();
  lane_->upload(plan->whole);
  lane_->upload(plan->own);
  plans_.push_back(std::move(plan));
  return check_planes(*plans_.back(), sum);
}

const PartialPlan& NcclTransport::check_planes(const PartialPlan& plan, const TreeSum& sum) const {
  const int needed = plan.partials_of_rank[static_cast<std::size_t>(rank())];
  if (sum.arena->planes() < needed)
    throw UsageError("tree sum on rank {}: its shards need {} planes, the arena has {}", rank(), needed,
                     sum.arena->planes());
  return plan;
}

template <class Launch>
Ticket NcclTransport::start(const TreeSum& sum, const Launch& launch) {
  auto* const arena = dynamic_cast<DeviceArena*>(sum.arena);
  if (!arena || arena->lane() != lane_.get())
    throw UsageError("collective on rank {}: the arena was allocated by another communicator", rank());
  lane_->use_device();
  if (size() > 1) {
    check();
    check_cuda(cudaEventRecord(filled_, compute()), "cudaEventRecord", rank());
    check_cuda(cudaStreamWaitEvent(lane_->stream(), filled_, 0), "cudaStreamWaitEvent", rank());
    launch({.values = arena->plane(0) + sum.offset_bytes,
            .plane_bytes = arena->stride_bytes(),
            .count = sum.count,
            .dtype = sum.dtype,
            .comm_dtype = sum.comm_dtype});
  }
  return tickets_.record(lane_->stream());
}

/// Tells two ranks of a node that they use the same GPU.
std::string gpu_address(int device, int rank) {
  std::array<char, 64> address{};
  check_cuda(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device),
             "cudaDeviceGetPCIBusId", rank);
  return address.data();
}

/// Variables that NCCL reads when it starts; those that the user has set stay.
void prepare_environment(int rank, bool shared) {
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  if (!shared) return;
  for (const auto& [name, value] : sharing_environment(rank)) ::setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace

std::string sharing_problem(HostGroup& host, int device) {
  std::string address;
  run_on_all(host, [&] {
    if (device >= 0) address = gpu_address(device, host.rank());
  });
  return find_sharing(host, address, false).problem;
}

std::unique_ptr<GradientTransport> make_nccl_transport(HostGroup& host, const NcclOptions& options) {
  std::string address;
  run_on_all(host, [&] {
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

  std::unique_ptr<GradientTransport> made;
  run_on_all(host, [&] { made = std::make_unique<NcclTransport>(host, options); });
  return made;
}

}  // namespace lockstep::comm
