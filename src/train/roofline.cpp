#include "train/roofline.h"

#include <memory>
#include <utility>

#include "lockstep/comm/communicator.h"

namespace lockstep::train {
namespace {

using kernels::MetaMemory, kernels::RooflineFigures;

/// Accumulators of a device that is not there.
class MetaBuffer final : public comm::FlatBuffer {
 public:
  MetaBuffer(const MetaMemory& memory, std::size_t accumulator_bytes, int accumulators)
      : accumulator_bytes_(accumulator_bytes), accumulators_(accumulators) {
    for (int i = 0; i < accumulators; ++i) blocks_.push_back(memory.allocate(accumulator_bytes));
  }
  std::byte* accumulator(int index) override {
    return static_cast<std::byte*>(blocks_.at(static_cast<std::size_t>(index))->data);
  }
  int accumulators() const override { return accumulators_; }
  std::size_t accumulator_bytes() const override { return accumulator_bytes_; }

 private:
  std::size_t accumulator_bytes_;
  int accumulators_;
  std::vector<StorageRef> blocks_;
};

/// The sums of a single rank, which are there at once.
class MetaTransport final : public comm::GradientTransport {
 public:
  comm::HostGroup& group() override { return *self_; }
  bool rounds(DType) const override { return false; }
  std::unique_ptr<comm::FlatBuffer> allocate_buffer(std::size_t accumulator_bytes,
                                                    int accumulators) override {
    return std::make_unique<MetaBuffer>(memory_, accumulator_bytes, accumulators);
  }
  comm::Work start_tree_sum(const comm::TreeSum&, const comm::ShardMap&) override { return ++started_; }
  comm::Work start_reduce_scatter(const comm::TreeSum&, const comm::ShardMap&, const comm::Slices&) override {
    return ++started_;
  }
  comm::Work start_all_gather(const comm::TreeSum&, const comm::Slices&) override { return ++started_; }
  void progress() override {}
  bool done(comm::Work) override { return true; }
  void order_after(comm::Work) override {}
  std::unique_ptr<comm::GradientTransport> duplicate() override { return std::make_unique<MetaTransport>(); }

 private:
  std::unique_ptr<comm::CpuCommunicator> self_ = comm::make_self_communicator();
  MetaMemory memory_;
  comm::Work started_ = 0;
};

}  // namespace

RooflineTotals StepRoofline::total(RooflineFigures::Kind kind) const {
  RooflineTotals sum;
  for (const RooflineFigures& operation : operations) {
    if (operation.kind == kind)
      sum = sum + RooflineTotals{operation.launches, operation.bytes, operation.flops, operation.ms};
  }
  return sum;
}

RooflineTotals StepRoofline::total() const {
  using Kind = RooflineFigures::Kind;
  return total(Kind::product) + total(Kind::attention) + total(Kind::other);
}

StepRoofline roofline_of(const StandardWorkload& workload, DType compute,
                         const std::vector<std::string>& overrides) {
  kernels::Roofline counted;
  const std::unique_ptr<kernels::Backend> backend = kernels::make_meta_backend(counted);
  MetaTransport transport;
  WorkloadRun run(workload, transport, *backend, {.compute = compute}, 1, overrides);
  constexpr int until_steady = 2;  // the plan of buckets is remade after the first
  for (int step = 0; step < until_steady; ++step) run.step();
  counted.clear();
  run.step();
  return {.operations = counted.operations()};
}

}  // namespace lockstep::train
