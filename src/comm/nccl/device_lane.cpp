#include "comm/nccl/device_lane.h"

#include <utility>

#include "base/clock.h"
#include "base/thread.h"
#include "comm/nccl/connection.h"

namespace lockstep::comm {
namespace {

constexpr double drain_timeout_s = 60, end_timeout_s = 5;

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return ncclFloat64;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::float16:
      return ncclFloat16;
    default:
      return ncclFloat32;
  }
}

std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

DeviceLane::DeviceLane(int device, HostGroup& host, double timeout_s)
    : device_(device), rank_(host.rank()), connection_(std::make_unique<NcclConnection>(host, timeout_s)) {
  use_device();
  check(cudaDeviceGetAttribute(&on_.multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  int min_priority = 0, max_priority = 0;
  check(cudaDeviceGetStreamPriorityRange(&min_priority, &max_priority), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&on_.stream, cudaStreamNonBlocking, max_priority), "cudaStreamCreate");
}

DeviceLane::~DeviceLane() {
  cudaSetDevice(device_);
  connection_.reset();
  if (!drain(on_.stream, end_timeout_s)) return;  // the GPU still uses all of it: the process keeps it
  for (void* memory : uploads_) cudaFree(memory);
  if (scratch_) of_graphs_.push_back(scratch_);
  for (void* memory : of_graphs_) cudaFreeAsync(memory, on_.stream);
  cudaStreamDestroy(on_.stream);
}

void DeviceLane::check(cudaError_t status, const char* call) const { check_cuda(status, call, rank_); }

void DeviceLane::use_device() const { check(cudaSetDevice(device_), "cudaSetDevice"); }

void DeviceLane::upload(SumProgram& program) {
  if (program.steps.empty()) return;
  const std::size_t bytes = program.steps.size() * sizeof(SumStep);
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  uploads_.push_back(memory);
  // On the stream that reads it, as a copy of pageable memory returns after its read and before its write.
  check(cudaMemcpyAsync(memory, program.steps.data(), bytes, cudaMemcpyHostToDevice, on_.stream),
        "cudaMemcpyAsync");
  program.on_device = static_cast<const SumStep*>(memory);
}

bool DeviceLane::drain(cudaStream_t stream) noexcept { return drain(stream, drain_timeout_s); }

bool DeviceLane::drain(cudaStream_t stream, double timeout_s) noexcept {
  try {
    use_device();
    const Stopwatch watch;
    for (Backoff backoff(false);; backoff.pause()) {
      const cudaError_t status = cudaStreamQuery(stream);
      if (status == cudaSuccess) return true;
      cudaGetLastError();  // clears the error, or the next launch would report it
      if (status != cudaErrorNotReady || watch.elapsed_ms() > timeout_s * 1e3) return false;
      if (connection_) connection_->check();
    }
  } catch (...) {
    return false;
  }
}

std::byte* DeviceLane::scratch(std::size_t bytes) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(on_.stream, &status), "cudaStreamIsCapturing");
  const bool capturing = status != cudaStreamCaptureStatusNone;
  if (bytes > scratch_bytes_) {
    // Memory allocated in a capture belongs to its graph.
    if (capturing)
      throw UsageError(
          "collective on rank {}: its partial sums need {} bytes on the GPU, and {} are allocated; run it "
          "once "
          "before the capture",
          rank_, bytes, scratch_bytes_);
    enlarge_scratch(bytes);
  }
  in_graph_ = in_graph_ || capturing;
  return static_cast<std::byte*>(scratch_);
}

void DeviceLane::enlarge_scratch(std::size_t bytes) {
  void* const before = std::exchange(scratch_, nullptr);
  scratch_bytes_ = 0;
  if (before && std::exchange(in_graph_, false)) {
    of_graphs_.push_back(before);  // launches of graphs use it
  } else if (before) {
    check(cudaFreeAsync(before, on_.stream), "cudaFreeAsync");  // running collectives keep it
  }
  const cudaError_t status = cudaMallocAsync(&scratch_, bytes, on_.stream);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the device stays usable
    throw FailureError(
        "collective on rank {}: the GPU is out of memory for {} bytes of partial sums; use a smaller "
        "batch or smaller buckets (ddp.bucket_mb)",
        rank_, bytes);
  }
  check(status, "cudaMallocAsync");
  scratch_bytes_ = bytes;
}

void DeviceLane::zero(std::byte* memory, std::size_t bytes) {
  check(cudaMemsetAsync(memory, 0, bytes, on_.stream), "cudaMemsetAsync");
}

void DeviceLane::add(const TreeAddition& addition) { check(launch_add(addition, on_), "add_along_tree"); }

void DeviceLane::cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype) {
  check(launch_cast_to(values, cast, count, comm_dtype, on_), "cast_to");
}

void DeviceLane::cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype) {
  check(launch_cast_from(cast, values, count, comm_dtype, on_), "cast_from");
}

void DeviceLane::all_reduce(std::byte* values, std::int64_t count, DType dtype) {
  connection_->make("ncclAllReduce", [&](ncclComm_t comm) {
    return ncclAllReduce(values, values, as_size(count), nccl_type(dtype), ncclSum, comm, on_.stream);
  });
}

void DeviceLane::reduce_scatter(std::byte* values, std::int64_t count, DType dtype) {
  std::byte* const own = values + as_size(rank_) * as_size(count) * bytes_of(dtype);
  connection_->make("ncclReduceScatter", [&](ncclComm_t comm) {
    return ncclReduceScatter(values, own, as_size(count), nccl_type(dtype), ncclSum, comm, on_.stream);
  });
}

void DeviceLane::reduce(std::byte* values, std::int64_t count, DType dtype, int root) {
  connection_->make("ncclReduce", [&](ncclComm_t comm) {
    return ncclReduce(values, values, as_size(count), nccl_type(dtype), ncclSum, root, comm, on_.stream);
  });
}

void DeviceLane::all_gather(std::byte* data, std::size_t bytes) {
  const std::byte* const own = data + as_size(rank_) * bytes;
  connection_->make("ncclAllGather", [&](ncclComm_t comm) {
    return ncclAllGather(own, data, bytes, ncclInt8, comm, on_.stream);
  });
}

void DeviceLane::broadcast(std::byte* data, std::size_t bytes, int root) {
  connection_->make("ncclBroadcast", [&](ncclComm_t comm) {
    return ncclBroadcast(data, data, bytes, ncclInt8, root, comm, on_.stream);
  });
}

void DeviceLane::send(const std::byte* data, std::size_t bytes, int to) {
  connection_->make("ncclSend",
                    [&](ncclComm_t comm) { return ncclSend(data, bytes, ncclInt8, to, comm, on_.stream); });
}

void DeviceLane::receive(std::byte* data, std::size_t bytes, int from) {
  connection_->make("ncclRecv",
                    [&](ncclComm_t comm) { return ncclRecv(data, bytes, ncclInt8, from, comm, on_.stream); });
}

}  // namespace lockstep::comm
