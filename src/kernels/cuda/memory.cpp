#include "kernels/cuda/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "base/cores.h"
#include "base/text.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/base/error.h"

namespace lockstep::kernels {

class StreamPool::State final : public StorageOwner, public std::enable_shared_from_this<State> {
 public:
  explicit State(int device) : device_(device) {
    check(cudaSetDevice(device), "cudaSetDevice", device);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate", device);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    const cudaError_t status = cudaMemPoolCreate(&pool_, &properties);
    if (status != cudaSuccess) {
      cudaStreamDestroy(stream_);
      check(status, "cudaMemPoolCreate", device);
    }
    std::uint64_t keep_all = std::numeric_limits<std::uint64_t>::max();
    cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all);
  }

  ~State() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    cudaMemPoolDestroy(pool_);
    cudaStreamDestroy(stream_);
    for (Storage* list : {unused_, freed_meanwhile_})
      while (list) delete std::exchange(list, list->next_free);
  }

  cudaStream_t stream() const { return stream_; }

  StorageRef allocate(std::size_t bytes) {
    const std::size_t size = std::max<std::size_t>(1, bytes);
    void* data = nullptr;
    check_allocation(cudaMallocFromPoolAsync(&data, size, pool_, stream_), "cudaMallocAsync", size, device_);
    const std::lock_guard lock(mutex_);
    Storage* block = unused_;
    if (block) {
      unused_ = block->next_free;
    } else {
      block = new Storage;
    }
    if (capturing_) of_graph_.insert(data);
    block->data = data;
    block->bytes = size;
    block->device = Device::cuda(device_);
    block->owner = shared_from_this();
    return StorageRef(block);
  }

  void release(Storage* block) noexcept override {
    const std::lock_guard lock(mutex_);
    const bool of_graph = of_graph_.erase(block->data) > 0;
    if (capturing_ && !of_graph) return push(freed_meanwhile_, block);
    if (of_graph == capturing_) cudaFreeAsync(block->data, stream_);  // else its graph is never launched
    push(unused_, block);
  }

  void begin_capture() {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", device_);
    check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo", device_);
    const std::lock_guard lock(mutex_);
    capturing_ = true;
  }

  std::string end_capture() {
    const std::lock_guard lock(mutex_);
    capturing_ = false;
    int freed = 0;
    for (; freed_meanwhile_; ++freed) {
      Storage* const block = std::exchange(freed_meanwhile_, freed_meanwhile_->next_free);
      cudaFreeAsync(block->data, stream_);
      push(unused_, block);
    }
    if (!of_graph_.empty())
      return fmt::format("{} allocated in the capture outlive it", pluralized(of_graph_.size(), "tensor"));
    if (freed > 0)
      return fmt::format("{} from before the capture were freed in it", pluralized(freed, "tensor"));
    return {};
  }

  std::size_t reserved_bytes() const {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes),
          "cudaMemPoolGetAttribute", device_);
    std::uint64_t of_graphs = 0;
    check(cudaDeviceGetGraphMemAttribute(device_, cudaGraphMemAttrReservedMemCurrent, &of_graphs),
          "cudaDeviceGetGraphMemAttribute", device_);
    return bytes + of_graphs;
  }

 private:
  static void push(Storage*& list, Storage* block) {
    block->next_free = list;
    list = block;
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  Storage* unused_ = nullptr;           // descriptions of blocks, without memory
  Storage* freed_meanwhile_ = nullptr;  // freed in the capture, but allocated before it: to be freed after it
  bool capturing_ = false;
  std::set<void*> of_graph_;  // in use: of this capture, or of one that failed
};

StreamPool::StreamPool(int device) : state_(std::make_shared<State>(device)) {}
StreamPool::~StreamPool() = default;
cudaStream_t StreamPool::stream() const { return state_->stream(); }
StorageRef StreamPool::allocate(std::size_t bytes) { return state_->allocate(bytes); }
std::size_t StreamPool::reserved_bytes() const { return state_->reserved_bytes(); }
void StreamPool::begin_capture() { state_->begin_capture(); }
std::string StreamPool::end_capture() { return state_->end_capture(); }

namespace {

class PinnedOwner final : public StorageOwner {
 public:
  void release(Storage* block) noexcept override {
    cudaFreeHost(block->data);
    delete block;
  }
};

}  // namespace

StorageRef allocate_pinned(std::size_t bytes, int device) {
  auto block = std::make_unique<Storage>();
  block->owner = std::make_shared<PinnedOwner>();
  block->bytes = std::max<std::size_t>(1, bytes);
  const cudaError_t status = cudaMallocHost(&block->data, block->bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error leaves the device usable
    throw FailureError(
        "out of page-locked memory: no {} bytes left; see ulimit -l and the job's memory limit",
        block->bytes);
  }
  check(status, "cudaMallocHost", device);
  return StorageRef(block.release());
}

namespace {

/// How the CPU waits for an event: in a process of few cores it sleeps, because a spinning thread would take
/// a core from a loader and from NCCL. It wakes about 30 us late, so a process of more cores spins.
unsigned wait_flags() {
  constexpr int few = 4;
  return available_cores() < few ? cudaEventBlockingSync : cudaEventDefault;
}

}  // namespace

Event::Event(int device, unsigned flags) : device_(device) {
  check(cudaEventCreateWithFlags(&event_, flags | wait_flags()), "cudaEventCreate", device_);
}

Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}

Event::Event(Event&& other) noexcept : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

void Event::record(cudaStream_t stream) {
  check(cudaEventRecord(event_, stream), "cudaEventRecord", device_);
}

void Event::record_timed(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing", device_);
  const bool captured = capture != cudaStreamCaptureStatusNone;
  check(cudaEventRecordWithFlags(event_, stream, captured ? cudaEventRecordExternal : cudaEventRecordDefault),
        "cudaEventRecordWithFlags", device_);
}

void Event::hold(cudaStream_t stream) {
  check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent", device_);
}

void Event::wait() { check(cudaEventSynchronize(event_), "cudaEventSynchronize", device_); }

void Download::copy(std::span<const Copy> copies) {
  chunks_.make(device_);
  constexpr std::size_t chunk_bytes = decltype(chunks_)::chunk_bytes;
  std::size_t bytes = 0;
  for (const Copy& copy : copies) bytes += copy.bytes;
  // The copies, one after another, are split into chunks. Calls move(copy, its first byte, address in the
  // chunk, bytes) for the part of each copy in chunk number `chunk`.
  const auto each_in = [&](std::size_t chunk, const auto& move) {
    const std::size_t begin = chunk * chunk_bytes, end = std::min(bytes, begin + chunk_bytes);
    std::byte* const buffer = chunks_.chunk(chunk);
    std::size_t first = 0;
    for (const Copy& copy : copies) {
      const std::size_t from = std::max(first, begin), to = std::min(first + copy.bytes, end);
      if (from < to) move(copy, from - first, buffer + (from - begin), to - from);
      first += copy.bytes;
    }
  };
  // Chunks are enqueued one ahead of the one that is copied out. Without copies there is one empty chunk.
  const std::size_t count = std::max<std::size_t>(1, (bytes + chunk_bytes - 1) / chunk_bytes);
  const auto enqueue = [&](std::size_t chunk) {
    each_in(chunk, [&](const Copy& copy, std::size_t at, std::byte* buffer, std::size_t size) {
      check(cudaMemcpyAsync(buffer, static_cast<const std::byte*>(copy.from) + at, size,
                            cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync", device_);
    });
    chunks_.event(chunk).record(stream_);
  };
  enqueue(0);
  for (std::size_t chunk = 0; chunk < count; ++chunk) {
    if (chunk + 1 < count) enqueue(chunk + 1);
    chunks_.event(chunk).wait();
    each_in(chunk, [](const Copy& copy, std::size_t at, const std::byte* buffer, std::size_t size) {
      std::memcpy(static_cast<std::byte*>(copy.to) + at, buffer, size);
    });
  }
}

Upload::~Upload() {
  for (Event& event : chunks_.copied) {
    if (event.get()) cudaEventSynchronize(event.get());  // its chunk is being read
  }
}

void Upload::copy(const void* from, void* to, std::size_t bytes) {
  chunks_.make(device_);
  constexpr std::size_t chunk_bytes = decltype(chunks_)::chunk_bytes;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t size = std::min(chunk_bytes, bytes - done);
    const std::size_t number = next_++;
    std::byte* const chunk = chunks_.chunk(number);
    chunks_.event(number).wait();
    std::memcpy(chunk, static_cast<const std::byte*>(from) + done, size);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, chunk, size, cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync", device_);
    chunks_.event(number).record(stream_);
    done += size;
  }
}

}  // namespace lockstep::kernels
