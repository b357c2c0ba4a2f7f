#include "support/fake_device.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "base/clock.h"
#include "lockstep/base/error.h"
#include "support/closed_memory.h"

namespace lockstep::test {
namespace {

/// The same memory, as the CPU's operations take it.
Tensor as_cpu(const Tensor& tensor) {
  return tensor ? Tensor::view(tensor.raw(), tensor.shape(), tensor.dtype()) : tensor;
}

/// Copies at once, but insists on the order in which a device needs to be told.
class FakeStagingQueue final : public kernels::StagingQueue {
 public:
  explicit FakeStagingQueue(std::shared_ptr<ClosedMemory> memory) : memory_(std::move(memory)) {}
  kernels::StagedTensor allocate(Shape shape, DType dtype) override {
    const Tensor host = Tensor::zeros(shape, dtype);
    return {.host = host, .device = Tensor::over(memory_->allocate(host.bytes()), shape, dtype)};
  }
  void begin_fill() override { filling_ = true; }
  void send(std::span<const kernels::StagedTensor> tensors) override {
    if (!filling_.exchange(false)) throw FailureError("staging queue: sent what was not begun");
    if (in_use_) throw FailureError("staging queue: sent over what is computed with");
    const Access access(*memory_);
    for (const kernels::StagedTensor& tensor : tensors) copy_elements(tensor.host, as_cpu(tensor.device));
  }
  void receive() override { in_use_ = true; }
  void release() override { in_use_ = false; }

 private:
  std::shared_ptr<ClosedMemory> memory_;
  std::atomic<bool> filling_ = false, in_use_ = false;
};

/// Knows a moment once a read has followed it, as a device that runs behind does.
class FakeTimer final : public kernels::Timer {
 public:
  explicit FakeTimer(std::shared_ptr<const std::atomic<int>> reads) : reads_(std::move(reads)) {}
  void mark(int which) override { moments_.at(static_cast<std::size_t>(which)) = {*reads_, monotonic_s()}; }
  double elapsed_ms(int from, int to) override {
    const Moment &begin = moments_.at(static_cast<std::size_t>(from)),
                 &end = moments_.at(static_cast<std::size_t>(to));
    if (std::max(begin.reads, end.reads) >= *reads_)
      throw FailureError("timer: asked before a read has followed the moment");
    return (end.time_s - begin.time_s) * 1e3;
  }

 private:
  struct Moment {
    int reads = 0;  ///< of the device, when it was marked
    double time_s = 0;
  };
  std::shared_ptr<const std::atomic<int>> reads_;
  std::array<Moment, max_moments> moments_;
};

class FakeDevice final : public kernels::Backend {
 public:
  Device device() const override { return Device::cuda(0); }
  int threads() const override { return 1; }
  std::string instruction_set() const override { return "fake"; }
  std::unique_ptr<kernels::Timer> make_timer() override { return std::make_unique<FakeTimer>(reads_); }
  std::unique_ptr<kernels::StagingQueue> make_staging_queue() override {
    return std::make_unique<FakeStagingQueue>(memory_);
  }
  Tensor empty(Shape shape, DType dtype, int channel_block) override {
    return Tensor::over(
        memory_->allocate(static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype)),
        shape, dtype, channel_block);
  }
  std::size_t reserved_bytes() const override { return memory_->used_bytes(); }
  int preferred_channel_block(std::int64_t, DType) const override { return 1; }
  void move(const Tensor& from, const Tensor& to) {
    const Access access(*memory_);
    cpu_->copy(as_cpu(from), as_cpu(to));
  }
  int reads() const { return *reads_; }
  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                              std::int64_t keys) const override {
    return cpu_->attention_saved_shape(batch, heads, queries, keys);
  }
  kernels::Backend& cpu() { return *cpu_; }

 protected:
  void perform(const ops::AnyOperation& operation) override {
    const Access access(*memory_);
    operation.with([](const ops::Role&, const Tensor& tensor) { return as_cpu(tensor); },
                   [&](const ops::AnyOperation& here) { cpu_->run(here); });
  }
  void copy_elements(const Tensor& from, const Tensor& to) override {
    move(from, to);
    if (to.device() == Device::cpu()) ++*reads_;
  }
  void read_elements(std::span<const kernels::Transfer> transfers) override {
    for (const auto& [from, to] : transfers) move(from, to);
    ++*reads_;
  }

 private:
  std::shared_ptr<ClosedMemory> memory_ = std::make_shared<ClosedMemory>();
  std::shared_ptr<std::atomic<int>> reads_ = std::make_shared<std::atomic<int>>(0);
  std::unique_ptr<kernels::Backend> cpu_ = kernels::make_cpu_backend();
};

}  // namespace

std::unique_ptr<kernels::Backend> make_fake_device() { return std::make_unique<FakeDevice>(); }
kernels::Backend& cpu_of(kernels::Backend& fake_device) {
  return dynamic_cast<FakeDevice&>(fake_device).cpu();
}
int reads_of(const kernels::Backend& fake_device) {
  return dynamic_cast<const FakeDevice&>(fake_device).reads();
}
void move_by_transport(kernels::Backend& fake_device, const Tensor& from, const Tensor& to) {
  dynamic_cast<FakeDevice&>(fake_device).move(from, to);
}

}  // namespace lockstep::test
