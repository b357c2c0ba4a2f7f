// What all backends do with operations, and what every one can do on the host.
#include "lockstep/kernels/backend.h"

#include <array>

#include "base/clock.h"
#include "kernels/compositions.h"
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
  std::array<double, most_moments> at_s_{};
};

class HostFeed final : public Feed {
 public:
  FeedRoom make_room(Shape shape, DType dtype) override {
    const Tensor room = Tensor::zeros(shape, dtype);
    return {.host = room, .device = room};
  }
  void begin_fill() override {}
  void send(std::span<const FeedRoom>) override {}
  void receive() override {}
  void release() override {}
};

}  // namespace

Backend::Backend() { enter_compositions(*this); }

template <class Body, class Label, class CostOf>
void Backend::observed(const Body& body, const Label& label, const CostOf& cost, bool read) {
  if (!observer_) return body();
  struct Unobserved {  // what the body asks for is a part of it
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
}

const Entry& Backend::entry_of(const ops::AnyOperation& operation) const {
  const auto found = entries_.find(&operation.type());
  if (found != entries_.end()) return found->second;
  throw UsageError("{} is not built for {}; Backend::enter() adds it", operation.name(), to_string(device()));
}

void Backend::throw_other_class(const char* operation) const {
  throw UsageError("{}: the function is another device's, not that of {}", operation, to_string(device()));
}

void Backend::fill(const Tensor& to, double value) { run(ops::Fill{to, value}); }

void Backend::copy(const Tensor& from, const Tensor& to) {
  const bool is_read = to.device() == Device::cpu() && from.device() != Device::cpu();
  observed([&] { copy_elements(from, to); }, [] { return "copy"; },
           [&] { return ops::Cost{.bytes = static_cast<double>(from.bytes() + to.bytes())}; }, is_read);
}

Tensor Backend::in_type(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
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
std::unique_ptr<Feed> make_host_feed() { return std::make_unique<HostFeed>(); }
std::unique_ptr<Feed> Backend::make_feed() { return make_host_feed(); }

std::unique_ptr<Recorder> Backend::record() {
  throw UsageError("the backend of {} does not record operations", to_string(device()));
}

std::unique_ptr<Backend> make_backend(Device device, int threads) {
  return device.kind == Device::Kind::cpu ? make_cpu_backend(threads) : make_cuda_backend(device.index);
}

}  // namespace lockstep::kernels
