// What a communication hook remembers: saved by name, and by rank; taken back at any number of ranks.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>

#include "checkpoint/sample.h"
#include "ddp/rounding.h"
#include "ddp/toy.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/kernels/backend.h"
#include "support/fake_device.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(hook_state, *ranks(1, 2, 3, 4))

using checkpoint::StateDict;

struct Run {
  explicit Run(comm::CpuCommunicator& ranks)
      : communicator(ranks),
        hook(std::make_shared<Rounding>()),
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
  /// Of the entry `index` of rounding/error over the ranks.
  std::vector<double> left_out(std::size_t index) {
    const Tensor mine = hook->state().back().entries[index].tensor;
    const auto count = static_cast<std::size_t>(mine.numel());
    std::vector<float> all(count * static_cast<std::size_t>(communicator.size()));
    communicator.all_gather(mine.raw(), mine.bytes(), all.data());
    std::vector<double> sum(count);
    for (std::size_t i = 0; i < all.size(); ++i) sum[i % count] += all[i];
    return sum;
  }
  comm::CpuCommunicator& communicator;
  Net net;
  std::shared_ptr<Rounding> hook;
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

BOOST_FIXTURE_TEST_CASE(a_resumed_run_goes_on_bit_for_bit, Saved) {
  Run resumed(world());
  const checkpoint::LoadReport report = resumed.load(path);
  BOOST_TEST(report.warnings.empty());
  BOOST_TEST(resumed.same_values(run));
  // The new process makes its plan again, and goes through a first plan that the other has left behind.
  for (std::uint64_t step = 5; step < 9; ++step) {
    run.train(step, step + 1);
    resumed.train(step, step + 1);
    BOOST_TEST(resumed.same_values(run), "after step " << step);
  }
  BOOST_TEST(std::isfinite(run.net.params[0].value.data<float>()[0]));
}

BOOST_FIXTURE_TEST_CASE(what_is_remembered_matters, Saved) {
  Run forgetful(world());
  StateDict weights;
  checkpoint::add(weights, forgetful.net.state());
  const checkpoint::LoadReport report = checkpoint::load_file(path, weights, world());
  BOOST_TEST(report.warnings.size() == static_cast<std::size_t>(world().size()) + 1);  // named, as not loaded
  forgetful.train(5, 6);
  run.train(5, 6);
  BOOST_TEST(!forgetful.same_values(run));
}

BOOST_FIXTURE_TEST_CASE(names_are_those_of_parameters_by_rank_where_ranks_differ, Saved) {
  const checkpoint::FileIndex index = checkpoint::read_index(path, world());
  std::vector<std::string> names;
  for (const checkpoint::TensorEntry& tensor : index.tensors) names.push_back(tensor.path());
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  BOOST_TEST(has("/hook/rounding/last/tied.weight"));
  for (int rank = 0; rank < world().size(); ++rank)
    BOOST_TEST(has("/hook/rounding/error." + std::to_string(rank) + "/tied.weight"));
  BOOST_TEST(!has("/hook/rounding/error." + std::to_string(world().size()) + "/tied.weight"));
  BOOST_TEST(!has("/hook/rounding/last/in.bias"));
}

BOOST_FIXTURE_TEST_CASE(such_a_file_is_whole_inspected_and_compared_like_any, Saved) {
  BOOST_TEST(checkpoint::verify(path, world()).whole());
  Run again(world());
  again.train(0, 5);
  const std::string other = folder.file("b.h5");
  checkpoint::save_file(other, again.state_dict(), world());
  BOOST_TEST(checkpoint::diff(path, other).same());
  again.train(5, 6);
  checkpoint::save_file(other, again.state_dict(), world());
  const checkpoint::DiffReport report = checkpoint::diff(path, other);
  BOOST_TEST(std::ranges::any_of(report.differences, [](const checkpoint::TensorDifference& difference) {
    return difference.path == "/hook/rounding/error.0/tied.weight";
  }));
  const checkpoint::Inspection inspection = checkpoint::inspect(path);
  BOOST_TEST(std::ranges::any_of(inspection.tensors, [](const checkpoint::TensorSummary& tensor) {
    return tensor.entry.path() == "/hook/rounding/error.0/tied.weight" && tensor.norm > 0;
  }));
}

BOOST_FIXTURE_TEST_CASE(at_another_number_of_ranks_what_was_left_out_is_summed_and_shared_equally, Saved) {
  const std::size_t entries = run.hook->state().back().entries.size();
  std::vector<std::vector<double>> before;
  for (std::size_t e = 0; e < entries; ++e) before.push_back(run.left_out(e));
  for (int ranks = 1; ranks < world().size(); ++ranks) {
    const auto part = world().split(world().rank() < ranks ? 0 : 1, world().rank());
    if (world().rank() < ranks) {
      Run fewer(*part);
      const checkpoint::LoadReport report = fewer.load(path);
      BOOST_REQUIRE(report.warnings.size() == 1);
      BOOST_TEST(contains(report.warnings[0], "holds /hook/rounding/error of " +
                                                  std::to_string(world().size()) + " ranks, this run has " +
                                                  std::to_string(ranks) + ": their sum is shared equally"));
      for (std::size_t e = 0; e < entries; ++e) {
        const std::vector<double> after = fewer.left_out(e);
        for (std::size_t i = 0; i < after.size(); ++i)
          BOOST_TEST(std::abs(after[i] - before[e][i]) <= 1e-5 * (1 + std::abs(before[e][i])));
        const Tensor mine = fewer.hook->state().back().entries[e].tensor;
        std::vector<float> all(after.size() * static_cast<std::size_t>(ranks));
        part->all_gather(mine.raw(), mine.bytes(), all.data());
        for (int rank = 0; rank < ranks; ++rank)
          BOOST_TEST(std::memcmp(all.data() + after.size() * static_cast<std::size_t>(rank), all.data(),
                                 mine.bytes()) == 0);
      }
      fewer.train(5, 7);
      fewer.replicas.check_replicas();
    }
    world().barrier();
  }
}

BOOST_AUTO_TEST_CASE(more_ranks_than_wrote_share_what_was_left_out) {
  SharedFolder folder(world());
  const std::string path = folder.file("a.h5");
  const auto first = world().split(world().rank() == 0 ? 0 : 1, 0);
  std::vector<double> before;
  if (world().rank() == 0) {
    Run alone(*first);
    alone.train(0, 5);
    checkpoint::save_file(path, alone.state_dict(), *first);
    before = alone.left_out(0);
  }
  world().barrier();
  Run all(world());
  const checkpoint::LoadReport report = all.load(path);
  BOOST_TEST(report.warnings.size() == (world().size() == 1 ? 0 : 1));
  const std::vector<double> after = all.left_out(0);
  for (std::size_t i = 0; i < before.size(); ++i)
    BOOST_TEST(std::abs(after[i] - before[i]) <= 1e-5 * (1 + std::abs(before[i])));
}

/// Remembers a few numbers of each rank, on a device.
class OnDevice final : public ddp::Hook {
 public:
  explicit OnDevice(double number, std::int64_t count = 3)
      : device_(make_fake_device()), numbers_(device_->empty({count})) {
    device_->fill(numbers_, number);
  }
  std::string describe() const override { return "remembers"; }
  void bind(ddp::Buckets&) override {}
  void begin_step(std::uint64_t) override {}
  void start(int) override {}
  void finish() override {}
  std::vector<ddp::HookState> state() override {
    return {{.name = "remembers/numbers", .by_rank = true, .entries = {{"a", numbers_}}}};
  }
  kernels::Backend* backend() override { return reachable ? device_.get() : nullptr; }
  std::vector<float> numbers() const { return elements(kernels::on_cpu(numbers_, device_.get())); }

  bool reachable = true;

 private:
  std::unique_ptr<kernels::Backend> device_;
  Tensor numbers_;
};

BOOST_AUTO_TEST_CASE(what_lies_on_a_device_is_saved_and_shared_out_alike) {
  SharedFolder folder(world());
  const std::string path = folder.file("a.h5");
  OnDevice saved(2.0 + world().rank()), same(0), shared(0);
  StateDict state_dict, again, alone;
  checkpoint::add(state_dict, saved);
  checkpoint::save_file(path, state_dict, world());
  checkpoint::add(again, same);
  checkpoint::load_file(path, again, world());
  BOOST_TEST(same.numbers() == std::vector<float>(3, static_cast<float>(2 + world().rank())),
             boost::test_tools::per_element());
  checkpoint::add(alone, shared);
  checkpoint::load_file(path, alone, *world().split(world().rank(), 0));
  const int ranks = world().size();
  BOOST_TEST(
      shared.numbers() == std::vector<float>(3, static_cast<float>(2 * ranks + ranks * (ranks - 1) / 2)),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_one_rank_cannot_read_from_its_device_is_the_same_error_on_all) {
  SharedFolder folder(world());
  OnDevice saved(1);
  StateDict state_dict;
  checkpoint::add(state_dict, saved);
  saved.reachable = world().rank() + 1 < world().size();
  const std::string text =
      same_error(ExitCode::usage, [&] { checkpoint::save_file(folder.file("a.h5"), state_dict, world()); });
  BOOST_TEST(contains(text, "only the backend of that device can copy from"), text);
}

BOOST_AUTO_TEST_CASE(before_a_step_was_rounded_nothing_is_saved_and_nothing_is_missed) {
  SharedFolder folder(world());
  const std::string path = folder.file("a.h5");
  Run run(world()), resumed(world());
  run.train(0, 2);
  checkpoint::save_file(path, run.state_dict(), world());
  for (const checkpoint::GroupEntry& group : checkpoint::read_index(path, world()).groups)
    BOOST_TEST(!group.path.starts_with("hook"));
  BOOST_TEST(resumed.load(path).warnings.empty());
  BOOST_TEST(resumed.hook->state().empty());
  run.train(2, 5);
  resumed.train(2, 5);
  BOOST_TEST(resumed.same_values(run));
}

BOOST_AUTO_TEST_CASE(what_has_another_shape_does_not_fit) {
  SharedFolder folder(world());
  const std::string path = folder.file("a.h5");
  OnDevice saved(1), other(1, 2);
  StateDict state_dict, asked;
  checkpoint::add(state_dict, saved);
  checkpoint::save_file(path, state_dict, world());
  checkpoint::add(asked, other);
  const std::string text = same_error(ExitCode::data, [&] { checkpoint::load_file(path, asked, world()); });
  BOOST_TEST(contains(text, "hook/remembers/numbers.0/a is [3] in the file, [2] here"), text);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
