// Which backend serves a device, and what every one can do by its own operations or on the host.
#include "lockstep/kernels/backend.h"

#include <array>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

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

void Backend::read(std::span<const Transfer> transfers) {
  for (const auto& [from, to] : transfers) copy(from, to);
}

void Backend::linear_backward_weight_bias(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                          const Tensor& dbias, bool accumulate) {
  linear_backward_weight(x, dy, dweight, accumulate);
  sum_rows(dy, dbias, accumulate);
}

void Backend::linear_activation(Activation kind, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                const Tensor& before, const Tensor& y) {
  const Tensor& product = before ? before : y;
  linear(x, weight, bias, product);
  activation(kind, product, y);
}

void Backend::linear_backward_input_activation(Activation kind, const Tensor& dy, const Tensor& weight,
                                               const Tensor& before, const Tensor& dx) {
  linear_backward_input(dy, weight, dx);
  activation_backward(kind, before, dx, dx);
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
