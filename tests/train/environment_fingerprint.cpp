#include "train/run/environment_fingerprint.h"

#include <sys/stat.h>
#include <cstring>

#include <boost/test/unit_test.hpp>
#include <fstream>

#include "lockstep/base/error.h"
#include "support/forwarding.h"
#include "support/temporary_folder.h"
#include "support/world.h"
#include "train/components.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(environment_fingerprint, *ranks(1, 2, 3, 4))

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

std::string digest_of(const TemporaryFolder& folder, const std::string& bytes) {
  std::ofstream(folder.file("a"), std::ios::binary) << bytes;
  return train::file_digest(folder.file("a"), 2 * mib);
}

train::Config config_of(int steps) {
  return train::parse_config(
      fmt::format("[model]\nname = mlp\nsizes = 4 2\n[train]\nsteps = {}\nglobal_batch = 8\n", steps),
      "a.ini");
}

bool last_rank() { return world().rank() == world().size() - 1; }

BOOST_AUTO_TEST_CASE(a_digest_covers_all_of_a_small_file_and_size_and_ends_of_a_large_one) {
  const TemporaryFolder folder;
  for (const std::size_t size : {std::size_t{1}, mib + 5, 2 * mib, 5 * mib + 3}) {
    const std::string bytes(size, 'x');
    const std::string before = digest_of(folder, bytes);
    BOOST_TEST(before == digest_of(folder, bytes));
    for (const std::size_t place : {std::size_t{0}, size / 3, size - 1}) {
      std::string changed = bytes;
      changed[place] ^= 1;
      const bool covered = size <= 2 * mib || place < mib || place >= size - mib;
      BOOST_TEST((digest_of(folder, changed) != before) == covered, size << " bytes, changed at " << place);
    }
    BOOST_TEST(digest_of(folder, bytes + 'x') != before);
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_file_to_read_is_named_and_not_waited_for) {
  const TemporaryFolder folder;
  BOOST_TEST(train::file_digest(folder.file("none"), mib).starts_with("no such file"));
  BOOST_TEST(train::file_digest(folder.path().string(), mib) == "no regular file");
  BOOST_REQUIRE(mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  BOOST_TEST(train::file_digest(folder.file("pipe"), mib) == "no regular file");
}

BOOST_AUTO_TEST_CASE(every_rank_learns_every_difference_in_the_order_of_the_entries) {
  comm::HostGroup& world = test::world();
  const train::Fingerprint same{{"a", "1"}, {"b", "2"}, {"c", ""}};
  BOOST_TEST(train::differences(world, same).empty());
  if (world.size() == 1) return;
  const train::Fingerprint other{{"a", "1"}, {"b", "3"}, {"c", ""}, {"d", "4"}};
  const auto found = train::differences(world, last_rank() ? other : same);
  BOOST_REQUIRE(found.size() == 2U);
  const int last = world.size() - 1;
  BOOST_TEST((found[0].name == "b" && found[0].rank == 0 && found[0].other == last));
  BOOST_TEST((found[0].value == "2" && found[0].other_value == "3"));
  BOOST_TEST((found[1].name == "d" && found[1].value == "nothing" && found[1].other_value == "4"));
  const std::string host = world.topology().host_names[0];
  BOOST_TEST(found[0].describe(world.topology()) ==
             fmt::format("b: rank 0 on {} has 2, rank {} on {} has 3", host, last, host));
}

BOOST_AUTO_TEST_CASE(ranks_with_different_configurations_all_refuse_with_one_text) {
  comm::HostGroup& world = test::world();
  train::check_same_environment(world, config_of(5), {.directory = "run"});
  std::string text;
  try {
    train::check_same_environment(world, config_of(last_rank() ? 6 : 5), {.directory = "run"});
  } catch (const UsageError& error) {
    text = error.what();
  }
  BOOST_TEST((text.find("train.steps: rank 0 on ") != std::string::npos) == (world.size() > 1), text);
  for (const std::string& others : world.all_gather_texts(text)) BOOST_TEST(others == text);
}

/// A rank beside one with another processor.
class BesideAnother final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  int size() const override { return 2; }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    std::memcpy(all, mine, bytes);
    std::memset(static_cast<char*>(all) + bytes, 0, bytes);
  }
  std::vector<std::string> all_gather_texts(const std::string& mine) override { return {mine, "another"}; }
};

BOOST_AUTO_TEST_CASE(muon_needs_processors_alike_or_one_owner_of_a_matrix) {
  BesideAnother mixed(world());
  const auto backend = kernels::make_cpu_backend();
  train::Config config = config_of(1);
  BOOST_CHECK_NO_THROW(train::check_same_updates(config, *backend, mixed));
  config.optimizer.algorithm = config.registries->optimizers.configure("muon");
  BOOST_CHECK_NO_THROW(train::check_same_updates(config, *backend, world()));
  try {
    train::check_same_updates(config, *backend, mixed);
    BOOST_TEST(false, "not refused");
  } catch (const UsageError& error) {
    const std::string text = error.what();
    BOOST_TEST(text.find("'another' on rank 1") != std::string::npos, text);
    BOOST_TEST(text.find("ddp.sharded_optimizer = true") != std::string::npos, text);
  }
  config.ddp.sharded_optimizer = true;
  BOOST_CHECK_NO_THROW(train::check_same_updates(config, *backend, mixed));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
