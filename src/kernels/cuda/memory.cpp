#include "kernels/cuda/memory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "kernels/cuda/error.h"

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
    const cudaError_t made = cudaMemPoolCreate(&pool_, &properties);
    if (made != cudaSuccess) {
      cudaStreamDestroy(stream_);
      check(made, "cudaMemPoolCreate", device);
    }
    std::uint64_t keep_all = std::numeric_limits<std::uint64_t>::max();
    cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all);
  }

  ~State() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    cudaMemPoolDestroy(pool_);
    cudaStreamDestroy(stream_);
    for (Storage* block = unused_; block;) delete std::exchange(block, block->next_free);
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
    block->data = data;
    block->bytes = size;
    block->device = Device::cuda(device_);
    block->owner = shared_from_this();
    return StorageRef(block);
  }

  void release(Storage* block) noexcept override {
    cudaFreeAsync(std::exchange(block->data, nullptr), stream_);
    const std::lock_guard lock(mutex_);
    block->next_free = unused_;
    unused_ = block;
  }

  std::size_t reserved_bytes() const {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes),
          "cudaMemPoolGetAttribute", device_);
    return bytes;
  }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  Storage* unused_ = nullptr;  // descriptions of blocks, without memory
};

StreamPool::StreamPool(int device) : state_(std::make_shared<State>(device)) {}
StreamPool::~StreamPool() = default;
cudaStream_t StreamPool::stream() const { return state_->stream(); }
StorageRef StreamPool::allocate(std::size_t bytes) { return state_->allocate(bytes); }
std::size_t StreamPool::reserved_bytes() const { return state_->reserved_bytes(); }

Upload::Upload(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

Upload::~Upload() { free(); }

void Upload::free() noexcept {
  for (cudaEvent_t& event : copied_) {
    if (!event) continue;
    cudaEventSynchronize(event);
    cudaEventDestroy(std::exchange(event, nullptr));
  }
  if (pinned_) cudaFreeHost(std::exchange(pinned_, nullptr));
}

void Upload::copy(const void* from, void* to, std::size_t bytes) {
  if (!pinned_) {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, pieces * piece_bytes), "cudaMallocHost", device_);
    pinned_ = static_cast<std::byte*>(memory);
    for (cudaEvent_t& event : copied_)
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", device_);
  }
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t size = std::min(piece_bytes, bytes - done);
    const std::size_t index = next_++ % pieces;
    std::byte* const piece = pinned_ + index * piece_bytes;
    // Of an event never recorded there is nothing to wait for.
    check(cudaEventSynchronize(copied_[index]), "cudaEventSynchronize", device_);
    std::memcpy(piece, static_cast<const std::byte*>(from) + done, size);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, piece, size, cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync", device_);
    check(cudaEventRecord(copied_[index], stream_), "cudaEventRecord", device_);
    done += size;
  }
}

}  // namespace lockstep::kernels
