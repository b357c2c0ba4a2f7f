// Reading next to a run that continues: links move, and the files that they led to are pruned.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(live_files, *ranks(1, 3))

namespace lc = checkpoint;
namespace fs = std::filesystem;

/// One small tensor whose elements are all `value`, as is the step.
lc::StateDict state_dict_of(std::int64_t value) {
  lc::StateDict state_dict;
  const Tensor tensor = Tensor::empty({1000});
  std::fill_n(tensor.data<float>(), tensor.numel(), static_cast<float>(value));
  state_dict.sections.push_back({"model", {{"values", tensor}}, {}});
  state_dict.position.step = value;
  return state_dict;
}

void link_to(const std::string& link, const std::string& target) {
  fs::remove(link + ".tmp");
  fs::create_symlink(target, link + ".tmp");
  fs::rename(link + ".tmp", link);
}

/// On rank 0: a thread that gives `latest` a new file every other millisecond, and keeps some for as long as
/// a slow machine needs.
class MovingLink {
 public:
  explicit MovingLink(comm::HostGroup& group) : folder_(group) {
    if (group.rank() == 0) {
      const auto self = comm::make_self_communicator();
      for (const int number : {0, 1}) lc::save_file(source(number), state_dict_of(number), *self);
      put(0);
      thread_ = std::thread([this] {
        for (int turn = 1; !done_; ++turn) {
          put(turn);
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      });
    }
    group.barrier();
  }
  MovingLink(const MovingLink&) = delete;
  MovingLink& operator=(const MovingLink&) = delete;
  ~MovingLink() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::string path() const { return folder_.file("latest"); }

 private:
  std::string source(int number) const { return folder_.file("source-" + std::to_string(number)); }
  void put(int turn) {
    const std::string name = "step-" + std::to_string(turn) + ".h5";
    fs::copy_file(source(turn % 2), folder_.file(name));
    link_to(path(), name);
    constexpr int kept = 32;
    fs::remove(folder_.file("step-" + std::to_string(turn - kept) + ".h5"));
  }

  SharedFolder folder_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

BOOST_AUTO_TEST_CASE(all_ranks_load_the_one_file_that_a_moving_link_led_to) {
  const MovingLink link(world());
  for (int i = 0; i < 100; ++i) {
    lc::StateDict state_dict = state_dict_of(-1);
    const lc::LoadReport report = lc::load_file(link.path(), state_dict, world());
    BOOST_TEST_REQUIRE(state_dict.sections[0].tensors[0].value.data<float>()[999] ==
                       static_cast<float>(report.index.position.step));
  }
  world().barrier();
}

BOOST_AUTO_TEST_CASE(a_moving_link_is_verified_inspected_and_compared_as_one_file) {
  const MovingLink link(world());
  for (int i = 0; i < 100; ++i) {
    const lc::VerifyReport report = lc::verify(link.path(), world());
    BOOST_TEST_REQUIRE(report.whole(), (report.whole() ? "" : report.problems[0]));
    const lc::Inspection inspection = lc::inspect(link.path());
    BOOST_TEST_REQUIRE(inspection.tensors[0].digest_right);
    BOOST_TEST_REQUIRE(inspection.tensors[0].max == static_cast<double>(inspection.index.position.step));
    BOOST_REQUIRE_NO_THROW(lc::diff(link.path(), link.path()));
  }
  world().barrier();
}

BOOST_AUTO_TEST_CASE(weights_come_from_the_file_of_the_index_though_it_is_pruned) {
  SharedFolder folder(world());
  const std::string path = folder.file("step-5.h5");
  lc::save_file(path, state_dict_of(5), world());
  const lc::FileIndex index = lc::read_index(path, world());
  world().barrier();
  if (world().rank() == 0) fs::remove(path);
  world().barrier();
  Param values;
  values.name = "values";
  values.value = Tensor::zeros({1000});
  lc::load_weights(index, {{&values}, {}, {}}, world());
  BOOST_TEST(values.value.data<float>()[0] == 5.0f);
}

BOOST_AUTO_TEST_CASE(a_link_that_leads_nowhere_names_itself_and_the_file_that_is_gone) {
  const TemporaryFolder folder;
  fs::create_symlink("gone.h5", folder.file("latest"));
  BOOST_CHECK_EXCEPTION(lc::read_index(folder.file("latest")), DataError,
                        mentions("latest: leads to ", "gone.h5: cannot open: No such file"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
