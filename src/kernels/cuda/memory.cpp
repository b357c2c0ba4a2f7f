#include "kernels/cuda/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/cores.h"
#include "base/text.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/base/error.h"
#include "tensor/block_cache.h"

namespace lockstep::kernels {

namespace {

/// A block's size: a multiple of 512 bytes with five significant bits, so that a sequence of a slightly other
/// length finds a block.
std::size_t block_bytes(std::size_t bytes) {
  constexpr std::size_t smallest = 512, steps = 16;  // from a size to twice that size
  const std::size_t step = std::max(smallest, std::bit_floor(std::max<std::size_t>(bytes, 1)) / steps);
  return std::max<std::size_t>(1, (bytes + step - 1) / step) * step;
}

struct Block : Storage {
  std::uint64_t capture = 0;  // which one took it last, so that graphs may use it; 0: none
};

void give_back(Storage* block) noexcept {
  cudaFree(block->data);
  delete static_cast<Block*>(block);
}

/// Within it, this thread may allocate memory although it captures a stream.
class AllocatesInCapture {
 public:
  AllocatesInCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~AllocatesInCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  AllocatesInCapture(const AllocatesInCapture&) = delete;
  AllocatesInCapture& operator=(const AllocatesInCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

class StreamPool::State final : public StorageOwner, public std::enable_shared_from_this<State> {
 public:
  explicit State(int device) : device_(device) {
    check(cudaSetDevice(device), "cudaSetDevice", device);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate", device);
    const char* const spoils = std::getenv("LOCKSTEP_SPOIL_MEMORY");
    spoils_ = spoils && std::string_view(spoils) == "1";
  }

  ~State() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    take_back_from_graphs();
    cache_.clear(give_back);
    cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const { return stream_; }

  StorageRef allocate(std::size_t bytes) {
    const std::size_t size = block_bytes(bytes);
    const std::lock_guard lock(mutex_);
    Block* block = capturing_ ? pop(of_graphs_[size]) : nullptr;
    if (!block) block = static_cast<Block*>(cache_.take(size));
    if (!block) block = obtain(size);
    block->capture = capturing_ ? captures_ : 0;
    in_capture_ += capturing_ ? 1 : 0;
    spoil(*block);
    block->owner = shared_from_this();
    return StorageRef(block);
  }

  void release(Storage* released) noexcept override {
    const std::lock_guard lock(mutex_);
    auto* const block = static_cast<Block*>(released);
    if (capturing_ && block->capture != captures_) return push(freed_meanwhile_, block);
    if (capturing_) --in_capture_;
    put(block);
  }

  std::shared_ptr<const void> begin_capture() {
    const std::lock_guard lock(mutex_);
    cache_.clear(give_back);  // nothing is given back in a capture
    capturing_ = true;
    ++captures_;
    ++graphs_;
    in_capture_ = 0;
    return {this, [state = shared_from_this()](const void*) { state->end_graph(); }};
  }

  std::string end_capture() {
    const std::lock_guard lock(mutex_);
    capturing_ = false;
    int freed = 0;
    for (; Block* const block = pop(freed_meanwhile_); ++freed) put(block);
    if (in_capture_ > 0)
      return fmt::format("{} allocated in the capture outlive it", pluralized(in_capture_, "tensor"));
    if (freed > 0)
      return fmt::format("{} from before the capture were freed in it", pluralized(freed, "tensor"));
    return {};
  }

  std::size_t reserved_bytes() const {
    const std::lock_guard lock(mutex_);
    return cache_.reserved_bytes();
  }

 private:
  static void push(Storage*& list, Storage* block) { block->next_free = std::exchange(list, block); }
  static Block* pop(Storage*& list) {
    Storage* const block = list;
    if (block) list = block->next_free;
    return static_cast<Block*>(block);
  }

  /// The block is free: for captures alone if a graph may use it.
  void put(Block* block) noexcept {
    if (block->capture != 0 && graphs_ > 0) return push(of_graphs_.find(block->bytes)->second, block);
    spoil(*block);
    cache_.put(block);
  }

  /// Finds what is read before it is written, or after it was freed.
  void spoil(const Block& block) const noexcept {
    if (spoils_ && cudaSetDevice(device_) == cudaSuccess)
      cudaMemsetAsync(block.data, 0xff, block.bytes, stream_);
  }

  Block* obtain(std::size_t bytes) {
    check(cudaSetDevice(device_), "cudaSetDevice", device_);
    if (!capturing_)
      if (Storage* const larger = cache_.make_room(bytes, give_back)) return static_cast<Block*>(larger);
    const AllocatesInCapture now;
    void* data = nullptr;
    cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation && !capturing_ && cache_.clear(give_back)) {
      cudaGetLastError();  // this error leaves the device usable
      status = cudaMalloc(&data, bytes);
    }
    check_allocation(status, "cudaMalloc", bytes, device_);
    auto* const block = new Block;
    block->data = data;
    block->bytes = bytes;
    block->device = Device::cuda(device_);
    cache_.add(bytes);
    return block;
  }

  void end_graph() {
    const std::lock_guard lock(mutex_);
    if (--graphs_ == 0) take_back_from_graphs();
  }

  void take_back_from_graphs() {
    for (auto& [bytes, list] : of_graphs_)
      while (Block* const block = pop(list)) cache_.put(block);
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  bool spoils_ = false;
  mutable std::mutex mutex_;
  BlockCache cache_;
  std::unordered_map<std::size_t, Storage*> of_graphs_;  // by size: free for captures alone
  int graphs_ = 0;                                       // and captures
  bool capturing_ = false;
  std::uint64_t captures_ = 0;
  std::int64_t in_capture_ = 0;         // blocks in use that the capture took
  Storage* freed_meanwhile_ = nullptr;  // in the capture, but allocated before it: a graph may use them
};

StreamPool::StreamPool(int device) : state_(std::make_shared<State>(device)) {}
StreamPool::~StreamPool() = default;
cudaStream_t StreamPool::stream() const { return state_->stream(); }
StorageRef StreamPool::allocate(std::size_t bytes) { return state_->allocate(bytes); }
std::size_t StreamPool::reserved_bytes() const { return state_->reserved_bytes(); }
std::shared_ptr<const void> StreamPool::begin_capture() { return state_->begin_capture(); }
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
