#include "support/fake_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/tensor/storage.h"
#include "support/forwarding.h"

namespace lockstep::test {
namespace {

/// Address space that is closed but while somebody has access. Blocks are kept by size.
class ClosedMemory final : public StorageOwner, public std::enable_shared_from_this<ClosedMemory> {
 public:
  ClosedMemory() {
    void* const memory =
        ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no address space for a fake device");
    begin_ = static_cast<std::byte*>(memory);
  }
  ~ClosedMemory() override { ::munmap(begin_, room_bytes); }

  StorageRef allocate(std::size_t bytes) {
    const std::size_t size = (std::max<std::size_t>(1, bytes) + 255) / 256 * 256;
    const std::lock_guard lock(mutex_);
    auto block = std::make_unique<Storage>();
    std::vector<void*>& free = free_[size];
    if (!free.empty()) {
      block->data = free.back();
      free.pop_back();
    } else {
      if (used_bytes_ + size > room_bytes) throw FailureError("the fake device is out of memory");
      block->data = begin_ + used_bytes_;
      used_bytes_ += size;
    }
    block->bytes = size;
    block->device = Device::cuda(0);
    block->owner = shared_from_this();
    return StorageRef(block.release());
  }
  void release(Storage* block) noexcept override {
    const std::lock_guard lock(mutex_);
    free_.at(block->bytes).push_back(block->data);
    delete block;
  }
  std::size_t used_bytes() const { return used_bytes_; }

  /// Counted: a loader's thread may copy next to an operation.
  void open() {
    const std::lock_guard lock(mutex_);
    if (accesses_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    if (--accesses_ == 0) protect(PROT_NONE);
  }

 private:
  static constexpr std::size_t room_bytes = std::size_t{1} << 30;
  void protect(int allowed) noexcept {
    if (::mprotect(begin_, room_bytes, allowed) != 0) std::abort();
  }

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  std::size_t used_bytes_ = 0;
  std::map<std::size_t, std::vector<void*>> free_;
  int accesses_ = 0;
};

class Access {
 public:
  explicit Access(ClosedMemory& memory) : memory_(memory) { memory_.open(); }
  ~Access() { memory_.close(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  ClosedMemory& memory_;
};

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
  void grow(kernels::StagedTensor& tensor, Shape shape) override {
    if (in_use_) throw FailureError("staging queue: a tensor grew while it was in use");
    tensor = allocate(shape, tensor.host.dtype());
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

/// Accumulators on the device, each with a twin in a flat buffer of the host.
class TwinBuffer final : public comm::FlatBuffer {
 public:
  TwinBuffer(kernels::Backend& device, std::unique_ptr<comm::FlatBuffer> host)
      : device_(device), host_(std::move(host)) {
    const auto stride = static_cast<std::int64_t>((host_->accumulator_bytes() + 255) / 256 * 256);
    memory_ = device_.empty({host_->accumulators(), stride}, DType::uint8);
    device_.fill(memory_, 0);
  }
  std::byte* accumulator(int index) override {
    return static_cast<std::byte*>(memory_.rows(index, index + 1).raw());
  }
  int accumulators() const override { return host_->accumulators(); }
  std::size_t accumulator_bytes() const override { return host_->accumulator_bytes(); }

  comm::FlatBuffer& host() { return *host_; }
  Tensor on_device(int index, const comm::TreeSum& part) {
    return Tensor::view(accumulator(index) + part.offset_bytes, {part.count}, part.dtype, device_.device());
  }
  Tensor on_host(int index, const comm::TreeSum& part) {
    return Tensor::view(host_->accumulator(index) + part.offset_bytes, {part.count}, part.dtype);
  }

 private:
  kernels::Backend& device_;
  std::unique_ptr<comm::FlatBuffer> host_;
  Tensor memory_;
};

class FakeTransport final : public Forwarding {
 public:
  FakeTransport(comm::CpuCommunicator& host, FakeDevice& device) : Forwarding(host), device_(device) {}
  FakeTransport(std::unique_ptr<comm::CpuCommunicator> host, FakeDevice& device)
      : Forwarding(*host), owned_(std::move(host)), device_(device) {}

  std::unique_ptr<comm::FlatBuffer> allocate_buffer(std::size_t bytes, int accumulators) override {
    return std::make_unique<TwinBuffer>(device_, Forwarding::allocate_buffer(bytes, accumulators));
  }
  comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    return start(sum, [&](const comm::TreeSum& twin) { return Forwarding::start_tree_sum(twin, map); });
  }
  comm::Work start_reduce_scatter(const comm::TreeSum& sum, const comm::ShardMap& map,
                                  const comm::Slices& slices) override {
    return start(
        sum, [&](const comm::TreeSum& twin) { return Forwarding::start_reduce_scatter(twin, map, slices); });
  }
  comm::Work start_all_gather(const comm::TreeSum& vector, const comm::Slices& slices) override {
    return start(vector,
                 [&](const comm::TreeSum& twin) { return Forwarding::start_all_gather(twin, slices); });
  }
  std::unique_ptr<comm::CpuCommunicator> split(int colour, int key) override {
    return std::make_unique<FakeTransport>(Forwarding::split(colour, key), device_);
  }
  std::unique_ptr<comm::GradientTransport> duplicate() override { return split(0, rank()); }
  bool done(comm::Work work) override {
    if (!Forwarding::done(work)) return false;
    bring_back(work);
    return true;
  }
  void order_after(comm::Work work) override {
    Forwarding::order_after(work);
    bring_back(work);
  }

 private:
  template <class Start>
  comm::Work start(const comm::TreeSum& sum, const Start& begin) {
    auto& flat_buffer = dynamic_cast<TwinBuffer&>(*sum.flat_buffer);
    for (int accumulator = 0; accumulator < flat_buffer.accumulators(); ++accumulator)
      device_.move(flat_buffer.on_device(accumulator, sum), flat_buffer.on_host(accumulator, sum));
    comm::TreeSum twin = sum;
    twin.flat_buffer = &flat_buffer.host();
    const comm::Work work = begin(twin);
    under_way_.emplace(work, sum);
    return work;
  }
  void bring_back(comm::Work last) {
    while (!under_way_.empty() && under_way_.begin()->first <= last) {
      const comm::TreeSum& sum = under_way_.begin()->second;
      auto& flat_buffer = dynamic_cast<TwinBuffer&>(*sum.flat_buffer);
      device_.move(flat_buffer.on_host(0, sum), flat_buffer.on_device(0, sum));
      under_way_.erase(under_way_.begin());
    }
  }

  std::unique_ptr<comm::CpuCommunicator> owned_;  // a part's
  FakeDevice& device_;
  std::map<comm::Work, comm::TreeSum> under_way_;
};

}  // namespace

std::unique_ptr<kernels::Backend> make_fake_device() { return std::make_unique<FakeDevice>(); }
kernels::Backend& cpu_of(kernels::Backend& fake_device) {
  return dynamic_cast<FakeDevice&>(fake_device).cpu();
}
int reads_of(const kernels::Backend& fake_device) {
  return dynamic_cast<const FakeDevice&>(fake_device).reads();
}
std::unique_ptr<comm::GradientTransport> make_fake_transport(comm::CpuCommunicator& host,
                                                             kernels::Backend& device) {
  return std::make_unique<FakeTransport>(host, dynamic_cast<FakeDevice&>(device));
}

}  // namespace lockstep::test
