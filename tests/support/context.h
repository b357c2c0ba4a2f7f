// The Context of a test: a group of ranks, and a CPU or another device with its transport.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/kernels/context.h"
#include "support/world.h"

namespace lockstep::test {

class TestContext final : public Context {
 public:
  explicit TestContext(comm::CpuCommunicator& ranks = test::world()) : world_(ranks) {}
  TestContext(std::unique_ptr<kernels::Backend> device, std::unique_ptr<comm::GradientTransport> transport)
      : world_(test::world()), backend_(std::move(device)), transport_(std::move(transport)) {}
  ~TestContext() override { release_sum_memory(); }

  comm::CpuCommunicator& world() const override { return world_; }
  comm::GradientTransport& transport() const override {
    if (transport_) return *transport_;
    return world_;
  }
  kernels::Backend& backend() override { return *backend_; }

 private:
  comm::CpuCommunicator& world_;
  std::unique_ptr<kernels::Backend> backend_ = kernels::make_cpu_backend();
  std::unique_ptr<comm::GradientTransport> transport_;  // null: of the CPUs
};

}  // namespace lockstep::test
