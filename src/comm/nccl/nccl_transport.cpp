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
#include "lockstep/comm/agreement.h"

namespace lockstep::comm {
namespace {

/// Records which collectives of a stream are complete: one event after each, in a ring that steady steps
/// never enlarge. Events of a capture cannot be queried: the ring drops them after the capture, and the next
/// work covers theirs.
class WorkEvents {
 public:
  explicit WorkEvents(int rank) : rank_(rank) {}
  ~WorkEvents();
  WorkEvents(const WorkEvents&) = delete;
  WorkEvents& operator=(const WorkEvents&) = delete;

  /// The next work handle: complete when the stream has finished all work launched on it so far.
  Work record(cudaStream_t stream);
  /// The next work handle, for work that needs no wait.
  Work record_complete() { return complete_ = ++recorded_; }
  Work recorded() const { return recorded_; }
  /// Queries the device without waiting. The work must have been recorded, and not in a capture.
  bool complete(Work work);
  /// Work launched on `stream` from now on begins when the work is complete.
  void hold(cudaStream_t stream, Work work);

 private:
  struct Mark {
    Work work = 0;
    cudaEvent_t event = nullptr;
    bool captured = false;
  };
  Mark& mark(std::size_t index) { return marks_[(first_ + index) % marks_.size()]; }
  /// The first mark at or after the work, which covers it; null: none.
  Mark* covering(Work work);
  void drop_captured();
  void enlarge();

  int rank_;
  std::vector<Mark> marks_;
  std::size_t first_ = 0, used_ = 0;  ///< marks in use, in the order of their works
  Work recorded_ = 0;
  Work complete_ = 0;  ///< works up to this one are complete
};

WorkEvents::~WorkEvents() {
  for (const Mark& mark : marks_) {
    if (mark.event) cudaEventDestroy(mark.event);
  }
}

void WorkEvents::enlarge() {
  constexpr std::size_t min_marks = 64;  // more than the buckets of most models
  std::vector<Mark> larger(std::max(min_marks, 2 * marks_.size()));
  for (std::size_t i = 0; i < used_; ++i) larger[i] = mark(i);  // all of them
  for (std::size_t i = used_; i < larger.size(); ++i)
    check_cuda(cudaEventCreateWithFlags(&larger[i].event, cudaEventDisableTiming), "cudaEventCreate", rank_);
  marks_.swap(larger);
  first_ = 0;
}

void WorkEvents::drop_captured() {
  while (used_ > 0 && mark(used_ - 1).captured) --used_;
}

Work WorkEvents::record(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing", rank_);
  const bool captured = status != cudaStreamCaptureStatusNone;
  if (!captured) drop_captured();
  // A query would end the capture.
  if (used_ == marks_.size() && (captured || used_ == 0 || !complete(mark(0).work))) enlarge();
  Mark& next = mark(used_);
  check_cuda(cudaEventRecord(next.event, stream), "cudaEventRecord", rank_);
  next.work = ++recorded_;
  next.captured = captured;
  ++used_;
  return recorded_;
}

WorkEvents::Mark* WorkEvents::covering(Work work) {
  for (std::size_t i = 0; i < used_; ++i) {
    if (mark(i).work >= work) return &mark(i);
  }
  return nullptr;
}

bool WorkEvents::complete(Work work) {
  if (work <= complete_) return true;
  const Mark* const found = covering(work);
  if (!found || found->captured) return false;  // until the launch of its graph is recorded
  const cudaError_t status = cudaEventQuery(found->event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // clears the error, or the next launch would report it
    return false;
  }
  check_cuda(status, "cudaEventQuery", rank_);
  complete_ = found->work;  // and all before it, on the same stream
  for (; used_ > 0 && mark(0).work <= complete_; --used_) first_ = (first_ + 1) % marks_.size();
  return true;
}

void WorkEvents::hold(cudaStream_t stream, Work work) {
  if (work <= complete_) return;
  if (const Mark* const found = covering(work))
    check_cuda(cudaStreamWaitEvent(stream, found->event, 0), "cudaStreamWaitEvent", rank_);
}

/// Memory on a GPU. With NCCL running it comes from ncclMemAlloc and is registered, unless partial sums are
/// sent from it into memory that is not registered: NCCL needs both sides of a call registered, or neither.
/// (Registration as a window, for symmetric kernels, would be better for small vectors on NVLink. Buckets are
/// large and use rings or NVLink SHARP, which plain registration serves.)
class DeviceBuffer final : public FlatBuffer {
 public:
  /// `compute`: the stream of the work that fills the accumulators. Zeroes the memory before it returns.
  DeviceBuffer(std::shared_ptr<DeviceLane> lane, cudaStream_t compute, std::size_t accumulator_bytes,
               int accumulators, bool registered);
  /// Waits for both streams. After a failure, or while an exception unwinds, it does not, as peers may never
  /// send the data that the streams wait for; the process then keeps the memory until it ends.
  ~DeviceBuffer() override;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* accumulator(int index) override;
  int accumulators() const override { return accumulators_; }
  std::size_t accumulator_bytes() const override { return accumulator_bytes_; }
  bool abandon() override { return abandoned_ = true; }

  const DeviceLane* lane() const { return lane_.get(); }
  std::size_t stride_bytes() const { return stride_bytes_; }

 private:
  void allocate();
  [[noreturn]] void throw_no_memory(std::size_t bytes) const;
  void prepare(bool registered);
  void release() noexcept;

  std::shared_ptr<DeviceLane> lane_;
  cudaStream_t compute_;
  std::size_t accumulator_bytes_;
  std::size_t stride_bytes_;
  int accumulators_;
  void* memory_ = nullptr;
  bool of_nccl_ = false;
  bool abandoned_ = false;
  void* handle_ = nullptr;  ///< of the registration
};

constexpr std::size_t accumulator_alignment_bytes = 512;  // best for copies and NCCL

/// Why ncclMemAlloc failed: it reports all CUDA errors as one and leaves none in the runtime.
bool lacks_memory(std::size_t bytes) {
  if (cudaPeekAtLastError() == cudaErrorMemoryAllocation) return true;
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess && free < bytes;
}

DeviceBuffer::DeviceBuffer(std::shared_ptr<DeviceLane> lane, cudaStream_t compute,
                           std::size_t accumulator_bytes, int accumulators, bool registered)
    : lane_(std::move(lane)),
      compute_(compute),
      accumulator_bytes_(accumulator_bytes),
      stride_bytes_((accumulator_bytes + accumulator_alignment_bytes - 1) / accumulator_alignment_bytes *
                    accumulator_alignment_bytes),
      accumulators_(accumulators) {
  allocate();
  try {
    prepare(registered);
  } catch (...) {
    if (lane_->drain(lane_->stream()) && lane_->drain(compute_))
      release();  // which waits for the whole device
    throw;
  }
}

void DeviceBuffer::prepare(bool registered) {
  const std::size_t bytes =
      stride_bytes_ * static_cast<std::size_t>(accumulators_) + accumulator_alignment_bytes;
  check_cuda(cudaMemsetAsync(memory_, 0, bytes, compute_), "cudaMemsetAsync", lane_->rank());
  check_cuda(cudaStreamSynchronize(compute_), "cudaStreamSynchronize", lane_->rank());
  if (registered && of_nccl_) {
    lane_->connection().make("ncclCommRegister", [&](ncclComm_t comm) {
      return ncclCommRegister(comm, memory_, bytes, &handle_);
    });
  }
}

void DeviceBuffer::release() noexcept {
  if (of_nccl_) {
    ncclMemFree(memory_);
  } else {
    cudaFree(memory_);
  }
}

void DeviceBuffer::allocate() {
  const std::size_t bytes =
      stride_bytes_ * static_cast<std::size_t>(accumulators_) + accumulator_alignment_bytes;
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

void DeviceBuffer::throw_no_memory(std::size_t bytes) const {
  cudaGetLastError();  // the device stays usable
  throw FailureError(
      "flat buffer on rank {}: the GPU is out of memory: {} bytes for {} accumulators of {} bytes; use a "
      "smaller "
      "batch, or more ranks for the shards",
      lane_->rank(), bytes, accumulators_, accumulator_bytes_);
}

DeviceBuffer::~DeviceBuffer() {
  NcclConnection& connection = lane_->connection();
  if (abandoned_ || connection.failed() || std::uncaught_exceptions() > 0) return;
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

std::byte* DeviceBuffer::accumulator(int index) {
  if (index < 0 || index >= accumulators_)
    throw UsageError("flat buffer: accumulator {} is out of range; there are {}", index, accumulators_);
  return static_cast<std::byte*>(memory_) + stride_bytes_ * static_cast<std::size_t>(index);
}

class NcclTransport final : public GradientTransport {
 public:
  NcclTransport(HostGroup& host, const NcclOptions& options)
      : host_(host),
        options_(options),
        lane_(std::make_shared<DeviceLane>(options.device, host, options.timeout_s)),
        collectives_(*lane_, host.rank(), host.size(), options.reproducible),
        works_(host.rank()) {
    check_cuda(cudaEventCreateWithFlags(&filled_, cudaEventDisableTiming), "cudaEventCreate", rank());
  }
  ~NcclTransport() override {
    cudaSetDevice(options_.device);
    cudaEventDestroy(filled_);
  }

  HostGroup& group() override { return host_; }
  bool rounds(DType comm_dtype) const override { return bytes_of(comm_dtype) == 2 && size() > 1; }

  std::unique_ptr<FlatBuffer> allocate_buffer(std::size_t accumulator_bytes, int accumulators) override;

  Work start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    check_tree_sum(sum, map, rank(), size());
    const DeviceSumPlan& plan = plan_for(map);
    check_accumulators(sum, plan, rank());
    return start(sum, [&](const DeviceVector& vector) { collectives_.tree_sum(vector, plan); });
  }
  Work start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) override {
    check_tree_sum(sum, map, rank(), size());
    check_slices(sum, slices, rank(), size());
    const DeviceSumPlan& plan = plan_for(map);
    check_accumulators(sum, plan, rank());
    return start(sum, [&](const DeviceVector& vector) { collectives_.reduce_scatter(vector, plan, slices); });
  }
  Work start_all_gather(const TreeSum& vector, const Slices& slices) override {
    check_elements(vector, rank());
    check_slices(vector, slices, rank(), size());
    return start(vector, [&](const DeviceVector& all) { collectives_.all_gather(all, slices); });
  }
  void progress() override { check(); }
  bool done(Work work) override {
    check_started(work, works_.recorded(), rank());
    if (work == 0 || size() == 1) return true;
    lane_->use_device();
    if (works_.complete(work)) return true;
    check();
    return false;
  }
  void order_after(Work work) override {
    check_started(work, works_.recorded(), rank());
    if (work == 0 || size() == 1) return;
    check();
    lane_->use_device();
    works_.hold(compute(), work);
  }
  bool may_be_captured() const override { return true; }
  /// Earlier work handles belong to the lane's stream, for which the compute stream has waited: this one
  /// covers them.
  Work after_graphs() override {
    if (size() == 1) return works_.record_complete();
    lane_->use_device();
    return works_.record(compute());
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
  Work start(const TreeSum& sum, const Launch& launch);
  const DeviceSumPlan& plan_for(const ShardMap& map);
  void check() { lane_->connection().check(); }

  HostGroup& host_;
  NcclOptions options_;
  std::shared_ptr<DeviceLane> lane_;
  DeviceCollectives collectives_;
  WorkEvents works_;
  std::vector<std::unique_ptr<DeviceSumPlan>> plans_;
  cudaEvent_t filled_ = nullptr;  ///< after the memory of the next collective is filled
};

std::unique_ptr<FlatBuffer> NcclTransport::allocate_buffer(std::size_t accumulator_bytes, int accumulators) {
  agree_on_buffer(host_, accumulator_bytes, accumulators);
  lane_->use_device();
  if (size() > 1) lane_->connection().start();
  std::unique_ptr<FlatBuffer> flat_buffer;
  try {
    run_on_all(host_, [&] {
      flat_buffer = std::make_unique<DeviceBuffer>(lane_, compute(), accumulator_bytes, accumulators,
                                                   size() > 1 && !options_.reproducible);
    });
  } catch (...) {
    flat_buffer.reset();  // before the exception unwinds, as no peer uses it
    throw;
  }
  return flat_buffer;
}

const DeviceSumPlan& NcclTransport::plan_for(const ShardMap& map) {
  for (const auto& plan : plans_) {
    if (plan->shards == map.shards()) return *plan;
  }
  auto plan = std::make_unique<DeviceSumPlan>(map, rank());
  if (plan->whole.depth > deepest_tree)
    throw UsageError("tree sum on rank {}: {} shards are too many for a GPU", rank(), map.shards());
  lane_->use_device();
  lane_->upload(plan->whole);
  lane_->upload(plan->own);
  plans_.push_back(std::move(plan));
  return *plans_.back();
}

template <class Launch>
Work NcclTransport::start(const TreeSum& sum, const Launch& launch) {
  auto* const flat_buffer = dynamic_cast<DeviceBuffer*>(sum.flat_buffer);
  if (!flat_buffer || flat_buffer->lane() != lane_.get())
    throw UsageError("collective on rank {}: the flat buffer was allocated by another communicator", rank());
  if (size() == 1) return works_.record_complete();
  lane_->use_device();
  check();
  check_cuda(cudaEventRecord(filled_, compute()), "cudaEventRecord", rank());
  check_cuda(cudaStreamWaitEvent(lane_->stream(), filled_, 0), "cudaStreamWaitEvent", rank());
  launch({.values = flat_buffer->accumulator(0) + sum.offset_bytes,
          .accumulator_bytes = flat_buffer->stride_bytes(),
          .count = sum.count,
          .dtype = sum.dtype,
          .comm_dtype = sum.comm_dtype});
  return works_.record(lane_->stream());
}

/// Checks whether two ranks of a node use the same GPU.
std::string gpu_address(int device, int rank) {
  std::array<char, 64> address{};
  check_cuda(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device),
             "cudaDeviceGetPCIBusId", rank);
  return address.data();
}

/// Variables that NCCL reads at its start; the user's values stay.
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
    if (cudaGetDeviceCount(&visible) != cudaSuccess) cudaGetLastError();  // no driver: no GPU
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
