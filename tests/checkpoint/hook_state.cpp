// The state of a communication hook: saved by name, loaded at any number of ranks.
#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "checkpoint/sample.h"
#include "ddp/momentum.h"
#include "ddp/toy.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/kernels/backend.h"
#include "support/fake_device.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(hook_state, *ranks(1, 2, 3, 4))

using checkpoint::StateDict;

struct Run {
  explicit Run(comm::CpuCommunicator& ranks)
      : communicator(ranks),
        hook(std::make_shared<Momentum>()),
        backend(kernels::make_cpu_backend()),
        replicas(net.state(), ranks, *backend,
                 {.bucket_mb = 2e-4, .first_bucket_mb = 2e-4, .shards = 7, .hook = hook}) {}
  void train(std::uint64_t first, std::uint64_t end) {
    for (std::uint64_t step = first; step < end; ++step) {
      const ddp::StepResult result =
          replicas.step(toy_batch(step, replicas),
                        [&](Tape& tape, const ToyShard& shard) { return plain_loss(net, tape, shard); });
      const float rate = 5e-4f / static_cast<float>(result.count);
      for (const Param& param : net.params) {
        for (std::int64_t i = 0; i < param.value.numel(); ++i)
          param.value.data<float>()[i] -= rate * param.gradient.data<float>()[i];
      }
    }
  }
  StateDict state_dict() {
    StateDict all;
    checkpoint::add(all, net.state());
    checkpoint::add(all, *hook);
    return all;
  }
  checkpoint::LoadReport load(const std::string& path) {
    return checkpoint::load_file(path, state_dict(), communicator);
  }
  bool same_values(const Run& other) const {
    for (std::size_t p = 0; p < net.params.size(); ++p) {
      if (!same_bits(elements(net.params[p].value), elements(other.net.params[p].value))) return false;
    }
    return true;
  }
  comm::CpuCommunicator& communicator;
  Net net;
  std::shared_ptr<Momentum> hook;
  std::unique_ptr<kernels::Backend> backend;
  ddp::DataParallel replicas;
};

struct Saved {
  SharedFolder folder{world()};
  std::string path = folder.file("a.h5");
  Run run{world()};
  Saved() {
    run.train(0, 5);
    checkpoint::save_file(path, run.state_dict(), world());
  }
};

BOOST_FIXTURE_TEST_CASE(a_resumed_run_goes_on_bit_for_bit_at_any_number_of_ranks, Saved) {
  run.train(5, 9);
  for (int ranks = 1; ranks <= world().size(); ++ranks) {
    const auto part = world().split(world().rank() < ranks ? 0 : 1, world().rank());
    if (world().rank() < ranks) {
      Run resumed(*part);
      BOOST_TEST(resumed.load(path).warnings.empty());
      // The new process makes its plan again, and goes through a first plan that the other has left behind.
      resumed.train(5, 9);
      BOOST_TEST(resumed.same_values(run), "of " << ranks << " ranks");
    }
    world().barrier();
  }
}

BOOST_FIXTURE_TEST_CASE(what_is_remembered_matters, Saved) {
  Run forgetful(world());
  StateDict weights;
  checkpoint::add(weights, forgetful.net.state());
  const checkpoint::LoadReport report = checkpoint::load_file(path, weights, world());
  BOOST_REQUIRE(report.warnings.size() == 1u);
  BOOST_TEST(contains(report.warnings[0], "holds /hook/momentum, which this program does not load"));
  forgetful.train(5, 6);
  run.train(5, 6);
  BOOST_TEST(!forgetful.same_values(run));
}

BOOST_FIXTURE_TEST_CASE(names_are_those_of_parameters, Saved) {
  const checkpoint::FileIndex index = checkpoint::read_index(path, world());
  const auto has = [&](const std::string& name) {
    return std::ranges::count(index.tensors, name, &checkpoint::TensorEntry::path) == 1;
  };
  BOOST_TEST(has("/hook/momentum/tied.weight"));
  BOOST_TEST(!has("/hook/momentum/in.bias"));
}

/// Earlier versions saved state of which each rank had its own.
BOOST_FIXTURE_TEST_CASE(a_file_with_state_by_rank_loads_with_one_warning, Saved) {
  StateDict old = run.state_dict();
  for (int rank = 0; rank < 3; ++rank)
    old.sections.push_back(
        {fmt::format("hook/rounding/error.{}", rank), {{"tied.weight", Tensor::zeros({7, 7})}}, {}});
  checkpoint::save_file(path, old, world());
  Run resumed(world());
  const checkpoint::LoadReport report = resumed.load(path);
  BOOST_REQUIRE(report.warnings.size() == 1u);
  BOOST_TEST(contains(report.warnings[0],
                      "holds /hook/rounding/error.0, /hook/rounding/error.1, /hook/rounding/error.2, which "
                      "this program does not load"),
             report.warnings[0]);
  run.train(5, 6);
  resumed.train(5, 6);
  BOOST_TEST(resumed.same_values(run));
}

/// Remembers a few numbers on a device.
class OnDevice final : public ddp::Hook {
 public:
  explicit OnDevice(double number) { device_->fill(numbers_, number); }
  std::string describe() const override { return "remembers"; }
  void bind(ddp::Buckets&) override {}
  void begin_step(std::uint64_t) override {}
  void start(int) override {}
  void finish() override {}
  std::vector<ddp::HookState> state() override {
    return {{.name = "remembers/numbers", .entries = {{"a", numbers_}}}};
  }
  kernels::Backend* backend() override { return device_.get(); }
  std::vector<float> numbers() const { return elements(numbers_, device_.get()); }

 private:
  std::unique_ptr<kernels::Backend> device_ = make_fake_device();
  Tensor numbers_ = device_->empty({3});
};

BOOST_AUTO_TEST_CASE(what_lies_on_a_device_is_saved_and_loaded_alike) {
  SharedFolder folder(world());
  const std::string path = folder.file("a.h5");
  OnDevice saved(2), loaded(0);
  StateDict of_saved, of_loaded;
  checkpoint::add(of_saved, saved);
  checkpoint::save_file(path, of_saved, world());
  checkpoint::add(of_loaded, loaded);
  checkpoint::load_file(path, of_loaded, world());
  BOOST_TEST(loaded.numbers() == std::vector<float>(3, 2.0f), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
