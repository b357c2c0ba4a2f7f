#include <map>

#include "support/fake_device.h"
#include "support/forwarding.h"

namespace lockstep::test {
namespace {

/// Planes on the device, each with a twin in an arena of the host.
class TwinArena final : public comm::Arena {
 public:
  TwinArena(kernels::Backend& device, std::unique_ptr<comm::Arena> host)
      : device_(device), host_(std::move(host)) {
    const auto stride = static_cast<std::int64_t>((host_->plane_bytes() + 255) / 256 * 256);
    memory_ = device_.empty({host_->planes(), stride}, DType::uint8);
    device_.fill(memory_, 0);
  }
  std::byte* plane(int index) override {
    return static_cast<std::byte*>(memory_.rows(index, index + 1).raw());
  }
  int planes() const override { return host_->planes(); }
  std::size_t plane_bytes() const override { return host_->plane_bytes(); }

  comm::Arena& host() { return *host_; }
  Tensor on_device(int index, const comm::TreeSum& part) {
    return Tensor::view(plane(index) + part.offset_bytes, {part.count}, part.dtype, device_.device());
  }
  Tensor on_host(int index, const comm::TreeSum& part) {
    return Tensor::view(host_->plane(index) + part.offset_bytes, {part.count}, part.dtype);
  }

 private:
  kernels::Backend& device_;
  std::unique_ptr<comm::Arena> host_;
  Tensor memory_;
};

class FakeTransport final : public Forwarding {
 public:
  FakeTransport(comm::CpuCommunicator& host, kernels::Backend& device) : Forwarding(host), device_(device) {}
  FakeTransport(std::unique_ptr<comm::CpuCommunicator> host, kernels::Backend& device)
      : Forwarding(*host), owned_(std::move(host)), device_(device) {}

  std::unique_ptr<comm::Arena> allocate_arena(std::size_t bytes, int planes) override {
    return std::make_unique<TwinArena>(device_, Forwarding::allocate_arena(bytes, planes));
  }
  comm::Ticket start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    return start(sum, [&](const comm::TreeSum& twin) { return Forwarding::start_tree_sum(twin, map); });
  }
  comm::Ticket start_reduce_scatter(const comm::TreeSum& sum, const comm::ShardMap& map,
                                    const comm::Slices& slices) override {
    return start(
        sum, [&](const comm::TreeSum& twin) { return Forwarding::start_reduce_scatter(twin, map, slices); });
  }
  comm::Ticket start_all_gather(const comm::TreeSum& vector, const comm::Slices& slices) override {
    return start(vector,
                 [&](const comm::TreeSum& twin) { return Forwarding::start_all_gather(twin, slices); });
  }
  std::unique_ptr<comm::CpuCommunicator> split(int colour, int key) override {
    return std::make_unique<FakeTransport>(Forwarding::split(colour, key), device_);
  }
  std::unique_ptr<comm::GradientTransport> duplicate() override { return split(0, rank()); }
  bool done(comm::Ticket ticket) override {
    if (!Forwarding::done(ticket)) return false;
    bring_back(ticket);
    return true;
  }
  void wait(comm::Ticket ticket) override {
    Forwarding::wait(ticket);
    bring_back(ticket);
  }

 private:
  template <class Start>
  comm::Ticket start(const comm::TreeSum& sum, const Start& begin) {
    auto& arena = dynamic_cast<TwinArena&>(*sum.arena);
    for (int plane = 0; plane < arena.planes(); ++plane)
      move_by_transport(device_, arena.on_device(plane, sum), arena.on_host(plane, sum));
    comm::TreeSum twin = sum;
    twin.arena = &arena.host();
    const comm::Ticket ticket = begin(twin);
    under_way_.emplace(ticket, sum);
    return ticket;
  }
  void bring_back(comm::Ticket last) {
    while (!under_way_.empty() && under_way_.begin()->first <= last) {
      const comm::TreeSum& sum = under_way_.begin()->second;
      auto& arena = dynamic_cast<TwinArena&>(*sum.arena);
      move_by_transport(device_, arena.on_host(0, sum), arena.on_device(0, sum));
      under_way_.erase(under_way_.begin());
    }
  }

  std::unique_ptr<comm::CpuCommunicator> owned_;  // a part's
  kernels::Backend& device_;
  std::map<comm::Ticket, comm::TreeSum> under_way_;
};

}  // namespace

std::unique_ptr<comm::GradientTransport> make_fake_transport(comm::CpuCommunicator& host,
                                                             kernels::Backend& device) {
  return std::make_unique<FakeTransport>(host, device);
}

}  // namespace lockstep::test
