// Saves during training: what the file holds is what the tensors held when the save began, one save at a
// time, one error for all.
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/store.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(asynchronous, *ranks(1, 2, 3, 4))

namespace lc = checkpoint;

struct Run {
  comm::HostGroup& world = test::world();
  SharedFolder folder{world};
  std::string run = folder.file("run");
  std::string checkpoints = run + "/checkpoints";
  lc::StateDict state_dict = awkward_state_dict();
  Run() { fill(state_dict, 7); }

  /// Every element becomes something else.
  void overwrite() {
    for (lc::Section& section : state_dict.sections) {
      for (lc::NamedTensor& tensor : section.tensors) {
        auto* const bytes = static_cast<unsigned char*>(tensor.value.raw());
        for (std::size_t i = 0; i < tensor.value.bytes(); ++i) bytes[i] ^= 0x55;
      }
    }
  }
  /// Steps of training that do nothing else, until the save is through.
  void train_until_saved(lc::Store& store) {
    while (store.saving()) {
      store.advance();
      std::this_thread::yield();
    }
  }
};

using Names = std::vector<std::string>;

BOOST_FIXTURE_TEST_CASE(the_file_holds_what_the_tensors_held_when_the_save_began, Run) {
  lc::save_file(folder.file("wanted.h5"), state_dict, world);
  lc::Store store(run, world, {.async = true});
  const std::string path = store.save_state_dict(7, state_dict);
  BOOST_TEST(store.saving());
  overwrite();
  train_until_saved(store);
  BOOST_TEST(store.current_path() == path);
  if (world.rank() == 0) {
    BOOST_TEST(lc::diff(folder.file("wanted.h5"), path).differences.empty());
    BOOST_TEST(std::filesystem::read_symlink(checkpoints + "/latest") == "step-000000007.h5");
  }
  BOOST_TEST(lc::verify(path, world).whole());
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000007.h5"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(every_element_is_written_without_anybody_waiting_for_it, Run) {
  lc::Store store(run, world, {.async = true});
  const std::string path = store.save_state_dict(7, state_dict);
  while (store.writer().writing) std::this_thread::yield();  // what training would do: nothing for the save
  BOOST_TEST(!store.writer().failed);
  world.barrier();
  const Names names = names_in(checkpoints);
  BOOST_REQUIRE(names.size() == 1u);
  const std::string unnamed = read_bytes(checkpoints + "/" + names[0]);
  world.barrier();
  store.finish();
  const std::string named = read_bytes(path);
  for (const lc::TensorEntry& tensor : lc::read_index(path, world).tensors)
    BOOST_TEST((unnamed.substr(tensor.offset, tensor.bytes) == named.substr(tensor.offset, tensor.bytes)),
               tensor.path());
}

BOOST_FIXTURE_TEST_CASE(a_name_appears_only_when_the_file_is_whole_and_the_next_save_waits_for_the_last,
                        Run) {
  lc::Store store(run, world, {.keep = 2, .async = true});
  for (int step = 1; step <= 4; ++step) {
    const std::string path = store.save_state_dict(step, state_dict);
    // Nobody has moved the save on: it cannot have been published yet.
    BOOST_TEST(!std::filesystem::exists(path));
    BOOST_TEST(store.current_path() ==
               (step == 1 ? "" : checkpoints + "/step-00000000" + std::to_string(step - 1) + ".h5"));
    world.barrier();
  }
  store.finish();
  BOOST_TEST(!store.saving());
  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000003.h5", "step-000000004.h5"}),
             boost::test_tools::per_element());
  store.finish();  // nothing is under way: nothing happens
  store.advance();
}

BOOST_FIXTURE_TEST_CASE(a_writer_that_fails_on_one_rank_fails_the_run_on_all_and_leaves_earlier_checkpoints,
                        Run) {
  lc::Store store(run, world, {.async = true});
  store.save_state_dict(1, state_dict);
  store.finish();
  const std::string before = read_bytes(checkpoints + "/step-000000001.h5");

  const int failing = world.size() - 1;
  std::optional<ShortFiles> full;
  if (world.rank() == failing) full.emplace(3 << 20);
  std::string text;
  try {
    store.save_state_dict(2, state_dict);  // alone it fails here: the file may not grow
    BOOST_TEST(world.size() > 1);
    train_until_saved(store);
  } catch (const DataError& error) {
    text = error.what();
  }
  full.reset();
  BOOST_TEST(text.starts_with(world.size() > 1 ? "rank " + std::to_string(failing) + ": " : folder.path()));
  BOOST_TEST(text.find("File too large") != std::string::npos);
  const std::vector<std::string> texts = world.all_gather_texts(text);
  for (const std::string& other : texts) BOOST_TEST(other == text);
  BOOST_TEST(!store.saving());
  world.barrier();
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000001.h5"}),
             boost::test_tools::per_element());
  BOOST_TEST((read_bytes(checkpoints + "/step-000000001.h5") == before));
  store.save_state_dict(2, state_dict);  // the run may continue
  store.finish();
  BOOST_TEST(lc::verify(checkpoints + "/step-000000002.h5", world).whole());
}

BOOST_FIXTURE_TEST_CASE(a_save_fails_with_the_name_of_who_took_the_directory_over_meanwhile, Run) {
  lc::Store store(run, world, {.async = true});
  store.save_state_dict(1, state_dict);
  store.finish();
  store.save_state_dict(2, state_dict);
  world.barrier();
  if (world.rank() == 0) {  // as a later start does it
    std::ofstream(run + "/lock") << "host=node9\npid=77\n";
    for (const std::string& name : names_in(checkpoints))
      if (name.ends_with(".tmp")) std::filesystem::remove(checkpoints + "/" + name);
  }
  world.barrier();
  BOOST_CHECK_EXCEPTION(store.finish(), FailureError, mentions("run/lock", "taken over by pid 77 on node9"));
  BOOST_TEST(names_in(checkpoints) == (Names{"latest", "step-000000001.h5"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_save_that_nobody_waits_for_leaves_nothing_behind, Run) {
  {
    lc::Store store(run, world, {.async = true});
    store.save_state_dict(1, state_dict);
    world.barrier();
  }
  world.barrier();
  const lc::Store store(run, world);
  BOOST_TEST(names_in(checkpoints).empty());
  world.barrier();
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
