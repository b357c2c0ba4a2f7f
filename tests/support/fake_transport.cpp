#include <map>

#include "support/fake_device.h"
#include "support/forwarding.h"

namespace lockstep::test {
namespace {

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
  FakeTransport(comm::CpuCommunicator& host, kernels::Backend& device) : Forwarding(host), device_(device) {}
  FakeTransport(std::unique_ptr<comm::CpuCommunicator> host, kernels::Backend& device)
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
      move_by_transport(device_, flat_buffer.on_device(accumulator, sum),
                        flat_buffer.on_host(accumulator, sum));
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
      move_by_transport(device_, flat_buffer.on_host(0, sum), flat_buffer.on_device(0, sum));
      under_way_.erase(under_way_.begin());
    }
  }

  std::unique_ptr<comm::CpuCommunicator> owned_;  // a part's
  kernels::Backend& device_;
  std::map<comm::Work, comm::TreeSum> under_way_;
};

}  // namespace

std::unique_ptr<comm::GradientTransport> make_fake_transport(comm::CpuCommunicator& host,
                                                             kernels::Backend& device) {
  return std::make_unique<FakeTransport>(host, device);
}

}  // namespace lockstep::test
