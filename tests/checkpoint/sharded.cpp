// Checkpoints of a sharded optimizer and its averages: the same tensors as without, and a way in and out of
// it at any number of ranks.
#include <boost/test/unit_test.hpp>
#include <string>

#include "checkpoint/sample.h"
#include "ddp/wide.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/inspect.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(sharded, *ranks(1, 2, 3, 4))

void save(WideRun& run, const std::string& path) {
  checkpoint::StateDict state_dict;
  checkpoint::add(state_dict, run.model.state());
  checkpoint::add(state_dict, *run.optimizer);
  checkpoint::add(state_dict, run.ema);
  checkpoint::save_file(path, state_dict, run.replicas.group());
}

void load(WideRun& run, const std::string& path) {
  checkpoint::StateDict state_dict;
  checkpoint::add(state_dict, run.model.state());
  checkpoint::add(state_dict, *run.optimizer);
  checkpoint::add(state_dict, run.ema);
  checkpoint::load_file(path, state_dict, run.replicas.group());
}

void train(WideRun& run, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t step = from; step < to; ++step) run.step(step);
}

void check_same_files(const std::string& a, const std::string& b) {
  if (world().rank() == 0) {
    const checkpoint::DiffReport report = checkpoint::diff(a, b);
    BOOST_TEST(report.same());
    BOOST_TEST(report.tensors > 30);
  }
  world().barrier();
}

BOOST_AUTO_TEST_CASE(a_sharded_run_writes_the_file_of_a_whole_one_in_the_middle_of_its_steps) {
  const SharedFolder folder(world());
  for (const Algorithm algorithm : all_algorithms) {
    WideRun whole(wide_options(false), algorithm), parts(wide_options(true), algorithm);
    for (const std::uint64_t step : {0, 2, 4}) {
      train(whole, step, step + 2);
      train(parts, step, step + 2);
      save(whole, folder.file("whole.h5"));
      save(parts, folder.file("parts.h5"));
      check_same_files(folder.file("whole.h5"), folder.file("parts.h5"));
    }
    // Digests of tensors, names and attributes: all that a file's own digest covers.
    const std::uint64_t a = checkpoint::read_index(folder.file("whole.h5"), world()).digest;
    BOOST_TEST(a == checkpoint::read_index(folder.file("parts.h5"), world()).digest);
  }
}

/// Two steps by one run, two more by another.
void check_going_over(const ddp::Options& before, comm::CpuCommunicator& ranks_before,
                      const ddp::Options& after, comm::CpuCommunicator& ranks_after, bool takes_part_before,
                      bool takes_part_after) {
  const SharedFolder folder(world());
  if (takes_part_before) {
    WideRun run(before, Algorithm::adamw, ranks_before);
    train(run, 0, 2);
    save(run, folder.file("first.h5"));
  }
  world().barrier();
  if (takes_part_after) {
    WideRun run(after, Algorithm::adamw, ranks_after);
    load(run, folder.file("first.h5"));
    train(run, 2, 4);
    save(run, folder.file("then.h5"));
  }
  world().barrier();
  WideRun reference(wide_options(false));
  train(reference, 0, 4);
  save(reference, folder.file("reference.h5"));
  check_same_files(folder.file("reference.h5"), folder.file("then.h5"));
}

BOOST_AUTO_TEST_CASE(a_run_goes_on_sharded_or_whole_whatever_it_was) {
  for (const bool before : {true, false}) {
    for (const bool after : {true, false})
      check_going_over(wide_options(before), world(), wide_options(after), world(), true, true);
  }
}

BOOST_AUTO_TEST_CASE(a_sharded_run_goes_on_with_other_ranks) {
  const auto some = world().split(world().rank() == 0 ? 0 : 1, world().rank());
  const bool alone = world().rank() == 0;
  check_going_over(wide_options(true), world(), wide_options(true), *some, true, alone);
  check_going_over(wide_options(true), *some, wide_options(true), world(), alone, true);
}

BOOST_AUTO_TEST_CASE(averages_that_a_file_lacks_start_from_its_weights) {
  const SharedFolder folder(world());
  WideRun whole(wide_options(false));
  train(whole, 0, 2);
  checkpoint::StateDict weights;
  checkpoint::add(weights, whole.model.state());
  checkpoint::add(weights, *whole.optimizer);
  checkpoint::save_file(folder.file("no-averages.h5"), weights, world());

  WideRun parts(wide_options(true));
  load(parts, folder.file("no-averages.h5"));
  for (const optim::EmaTensor& shadow : parts.ema.tensors()) {
    const Param& param = *std::find_if(whole.model.params.begin(), whole.model.params.end(),
                                       [&](const Param& one) { return one.name == shadow.name; });
    BOOST_TEST(same_bits(elements(shadow.tensor), elements(param.value)), shadow.name);
  }
}

BOOST_AUTO_TEST_CASE(weights_alone_are_loaded_into_a_sharded_run) {
  const SharedFolder folder(world());
  WideRun whole(wide_options(false)), parts(wide_options(true));
  train(whole, 0, 2);
  train(parts, 0, 1);  // its parameters may be on their way
  save(whole, folder.file("whole.h5"));
  checkpoint::load_weights(folder.file("whole.h5"), parts.model.state(), world());
  BOOST_TEST((parts.model.values() == whole.model.values()));
  parts.ema.reset();
  BOOST_TEST(
      same_bits(elements(parts.ema.tensor("0.5", "middle.weight")), elements(whole.model.params[2].value)));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
