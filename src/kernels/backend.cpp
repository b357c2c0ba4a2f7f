// Operations in all backends, and functions of every backend on the host.
#include "lockstep/kernels/backend.h"

#include <fmt/format.h>
#include <atomic>

#include <array>

#include "base/clock.h"
#include "kernels/compositions.h"
#include "kernels/gpus.h"
#include "lockstep/base/error.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

class HostTimer final : public Timer {
 public:
  void mark(int which) override { at_s_.at(static_cast<std::size_t>(which)) = monotonic_s(); }
  double elapsed_ms(int from, int to) override {
    return (at_s_.at(static_cast<std::size_t>(to)) - at_s_.at(static_cast<std::size_t>(from))) * 1e3;
  }

 private:
  std::array<double, max_moments> at_s_{};
};

class HostStagingQueue final : public StagingQueue {
 public:
  StagedTensor allocate(Shape shape, DType dtype) override {
    const Tensor both = Tensor::zeros(shape, dtype);
    return {.host = both, .device = both};
  }
  void grow(StagedTensor& tensor, Shape shape) override { tensor = allocate(shape, tensor.host.dtype()); }
  void begin_fill() override {}
  void send(std::span<const StagedTensor>) override {}
  void receive() override {}
  void release() override {}
};

/// Operations and copies of the backends of GPUs.
std::atomic<std::uint64_t> operations{0};

}  // namespace

Backend::Backend() { enter_compositions(*this); }

template <class Body, class Label, class CostOf>
void Backend::observed(const Body& body, const Label& label, const CostOf& cost, bool read) {
  if (!observer_) return body();
  struct Unobserved {  // operations of the body are parts of it
    Backend& backend;
    Observer* const observer = std::exchange(backend.observer_, nullptr);
    ~Unobserved() { backend.observer_ = observer; }
  } meanwhile{*this};
  meanwhile.observer->begin();
  body();
  meanwhile.observer->end(label(), cost(), read);
}

void Backend::run(const ops::AnyOperation& operation) {
  operation.check(device());
  observed([&] { perform(operation); }, [&] { return operation.label(); }, [&] { return operation.cost(); },
           false);
  note_writes(operation);
}

void Backend::run_parts(const ops::AnyOperation& operation, int parts) {
  if (parts == 1) return run(operation);
  if (!entry_of(operation).run_parts) return run_each_part(operation, parts);
  ops::Cost cost;
  std::string label;
  operation.with_part(0, parts, [&](const ops::AnyOperation& one) {
    one.check(device());
    if (!observer_) return;
    cost = one.cost();
    cost.flops *= parts;
    cost.bytes *= parts;
    label = fmt::format("{} (x {})", one.label(), parts);
  });
  observed([&] { perform_parts(operation, parts); }, [&] { return label; }, [&] { return cost; }, false);
  note_writes(operation);
}

void Backend::run_each_part(const ops::AnyOperation& operation, int parts) {
  for (int part = 0; part < parts; ++part)
    operation.with_part(part, parts, [&](const ops::AnyOperation& one) { run(one); });
}

void Backend::perform_parts(const ops::AnyOperation& operation, int parts) {
  entry_of(operation).run_parts(*this, operation.get(), parts);
}

void Backend::note_writes(const ops::AnyOperation& operation) {
  if (device() == Device::cpu()) return;
  const std::uint64_t number = ++operations;
  operation.visit([&](const char*, const ops::Role& role, const Tensor& tensor) {
    if (tensor && role.access != ops::Access::read) tensor.note_write(number);
  });
}

const Entry& Backend::entry_of(const ops::AnyOperation& operation) const {
  const auto found = entries_.find(&operation.type());
  if (found != entries_.end()) return found->second;
  throw UsageError("{} is not built for {}; Backend::enter() adds it", operation.name(), to_string(device()));
}

void Backend::throw_other_class(const char* operation) const {
  throw UsageError("{}: the function belongs to another device, not to {}", operation, to_string(device()));
}

void Backend::fill(const Tensor& to, double value) { run(ops::Fill{to, value}); }

void Backend::copy(const Tensor& from, const Tensor& to) {
  const bool is_read = to.device() == Device::cpu() && from.device() != Device::cpu();
  observed([&] { copy_elements(from, to); }, [] { return "copy"; },
           [&] { return ops::Cost{.bytes = static_cast<double>(from.bytes() + to.bytes())}; }, is_read);
  if (to.device() != Device::cpu()) to.note_write(++operations);
}

Tensor Backend::in_type(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  if (dtype == DType::bfloat16 && tensor.dtype() != DType::float32)  // copy() supports only that one
    return in_type(in_type(tensor, DType::float32), dtype);
  const Tensor converted = empty(tensor.shape(), dtype, tensor.channel_block());
  copy(tensor, converted);
  return converted;
}

void Backend::read(std::span<const Transfer> transfers) {
  const auto cost = [&] {
    ops::Cost sum;
    for (const Transfer& transfer : transfers) sum.bytes += 2 * static_cast<double>(transfer.from.bytes());
    return sum;
  };
  observed([&] { read_elements(transfers); }, [] { return "copy"; }, cost, true);
}

void Backend::read_elements(std::span<const Transfer> transfers) {
  for (const auto& [from, to] : transfers) copy_elements(from, to);
}

std::unique_ptr<Timer> Backend::make_timer() { return std::make_unique<HostTimer>(); }
std::unique_ptr<StagingQueue> make_host_staging_queue() { return std::make_unique<HostStagingQueue>(); }
std::unique_ptr<StagingQueue> Backend::make_staging_queue() { return make_host_staging_queue(); }

std::unique_ptr<GraphCapture> Backend::capture_graph(std::uint64_t) {
  throw UsageError("the backend of {} does not capture graphs", to_string(device()));
}

std::unique_ptr<Backend> make_backend(Device device, int threads) {
  return device.kind == Device::Kind::cpu ? make_cpu_backend(threads) : make_cuda_backend(device.index);
}

Tensor empty_on_cpu(const Tensor& tensor) {
  return tensor.device() == Device::cpu() ? tensor : Tensor::empty(tensor.shape(), tensor.dtype());
}

Tensor on_cpu(const Tensor& tensor, Backend* backend) {
  const Tensor here = empty_on_cpu(tensor);
  transfer(tensor, here, backend);
  return here;
}

Tensor on_device(const Tensor& tensor, Backend& backend) {
  if (!tensor || tensor.device() == backend.device()) return tensor;
  const Tensor there = backend.empty(tensor.shape(), tensor.dtype(), tensor.channel_block());
  backend.copy(tensor, there);
  return there;
}

void transfer(const Tensor& from, const Tensor& to, Backend* backend) {
  if (from.shares_memory_with(to)) return;
  if (from.device() == Device::cpu() && to.device() == Device::cpu()) return copy_elements(from, to);
  const Device device = from.device() == Device::cpu() ? to.device() : from.device();
  if (!backend)
    throw UsageError(
        "a tensor is on {}, which only the backend of that device can copy from: pass that backend",
        to_string(device));
  backend->copy(from, to);
}

}  // namespace lockstep::kernels
