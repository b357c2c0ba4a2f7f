// Staging queues, which copy on a second stream, and timers of events.
#include "kernels/cuda/memory.h"

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cuda/libraries.h"
#include "lockstep/base/error.h"

namespace lockstep::kernels {
namespace {

class Stream {
 public:
  explicit Stream(int device) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate", device);
  }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Makes the device current in the calling thread. Returns it.
int current(int device) {
  check(cudaSetDevice(device), "cudaSetDevice", device);
  return device;
}

class StreamStagingQueue final : public StagingQueue {
 public:
  StreamStagingQueue(int device, StreamPool& pool)
      : device_(current(device)),
        pool_(pool),
        sent_(device, cudaEventDisableTiming | cudaEventBlockingSync),  // a loader's thread sleeps meanwhile
        released_(device, cudaEventDisableTiming),
        copies_(device) {}

  StagedTensor allocate(Shape shape, DType dtype) override {
    current(device_);
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * bytes_of(dtype);
    const StagedTensor tensor{.host = Tensor::over(allocate_pinned(bytes, device_), shape, dtype),
                              .device = Tensor::over(pool_.allocate(bytes), shape, dtype)};
    std::memset(tensor.host.raw(), 0, bytes);
    check(cudaMemsetAsync(tensor.device.raw(), 0, bytes, pool_.stream()), "cudaMemsetAsync", device_);
    tensors_.push_back(tensor);
    released_.record(pool_.stream());  // the copy stream may write the memory from here on
    return tensor;
  }

  void grow(StagedTensor& tensor, Shape shape) override {
    begin_fill();  // an earlier fill that nobody received may be under way
    std::erase_if(tensors_, [&](const StagedTensor& one) { return one.host.raw() == tensor.host.raw(); });
    tensor = allocate(shape, tensor.host.dtype());
  }

  void begin_fill() override {
    current(device_);
    sent_.wait();
  }
  void send(std::span<const StagedTensor> tensors) override {
    current(device_);
    released_.hold(copies_.get());
    for (const StagedTensor& tensor : tensors)
      check(cudaMemcpyAsync(tensor.device.raw(), tensor.host.raw(), tensor.host.bytes(),
                            cudaMemcpyHostToDevice, copies_.get()),
            "cudaMemcpyAsync", device_);
    sent_.record(copies_.get());
  }
  void receive() override {
    current(device_);
    sent_.hold(pool_.stream());
  }
  void release() override {
    current(device_);
    released_.record(pool_.stream());
  }

 private:
  int device_;
  StreamPool& pool_;
  std::vector<StagedTensor> tensors_;  // the stream below may still copy them until it is destroyed
  Event sent_, released_;
  Stream copies_;
};

class EventTimer final : public Timer {
 public:
  EventTimer(int device, cudaStream_t stream)
      : device_(current(device)),
        stream_(stream),
        events_{Event{device, cudaEventDefault}, Event{device, cudaEventDefault},
                Event{device, cudaEventDefault}, Event{device, cudaEventDefault}} {}

  void mark(int which) override {
    current(device_);
    events_.at(static_cast<std::size_t>(which)).record_timed(stream_);
  }
  double elapsed_ms(int from, int to) override {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_.at(static_cast<std::size_t>(from)).get(),
                               events_.at(static_cast<std::size_t>(to)).get()),
          "cudaEventElapsedTime", device_);
    return static_cast<double>(ms);
  }

 private:
  int device_;
  cudaStream_t stream_;
  std::array<Event, max_moments> events_;
};

}  // namespace

std::unique_ptr<StagingQueue> make_staging_queue(int device, StreamPool& pool) {
  return std::make_unique<StreamStagingQueue>(device, pool);
}

std::unique_ptr<Timer> make_event_timer(int device, cudaStream_t stream) {
  return std::make_unique<EventTimer>(device, stream);
}

}  // namespace lockstep::kernels
