// Damaged files: one clear DataError, never a crash, a hang, an absurd allocation or a wrong load.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <random>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(damage)

namespace lc = checkpoint;

/// A small checkpoint, whole and in memory.
struct Whole {
  std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  TemporaryFolder folder;
  std::string path = folder.file("a.h5");
  lc::StateDict state_dict = small_state_dict();
  std::string bytes;

  Whole() {
    fill(state_dict, 5);
    lc::save_file(path, state_dict, *self);
    bytes = read_bytes(path);
  }

  static lc::StateDict small_state_dict() {
    lc::StateDict small;
    small.sections.push_back(
        {"model", {{"a.weight", Tensor::zeros({40, 9})}, {"a.bias", Tensor::zeros({9})}}, {}});
    small.sections.push_back(
        {"ema/0.5", {{"a.weight", Tensor::zeros({40, 9})}}, {{"updates", std::int64_t{3}, {}}}});
    small.position = {5, 1, 320, 4, 9};
    small.config = "[train]\nsteps = 10\n";
    return small;
  }

  /// Loading either fails with DataError or gives exactly what was saved.
  bool loads_wrongly() const {
    const lc::StateDict loaded = small_state_dict();
    try {
      const lc::LoadReport report = lc::load_file(path, loaded, *self);
      return !same_bytes(loaded, state_dict) || !(report.index.position == state_dict.position) ||
             report.index.config != state_dict.config;
    } catch (const DataError&) {
      return false;
    }
  }
};

BOOST_FIXTURE_TEST_CASE(every_length_of_a_cut_off_file_is_refused, Whole) {
  for (std::size_t length = 0; length < bytes.size(); length += 1 + length / 40) {
    write_bytes(path, bytes.substr(0, length));
    BOOST_CHECK_EXCEPTION(lc::load_file(path, small_state_dict(), *self), DataError, mentions("a.h5"));
    const lc::VerifyReport report = lc::verify(path, *self);
    BOOST_REQUIRE(report.problems.size() == 1u);
    BOOST_TEST(report.problems[0].find("a.h5") != std::string::npos);
    BOOST_CHECK_THROW(lc::inspect(path), DataError);
  }
}

BOOST_FIXTURE_TEST_CASE(every_flipped_byte_of_a_tensor_is_found_and_named, Whole) {
  const lc::FileIndex index = lc::read_index(path);
  for (const lc::TensorEntry& tensor : index.tensors) {
    for (const std::uint64_t at : {std::uint64_t{0}, tensor.bytes / 2, tensor.bytes - 1}) {
      std::string damaged = bytes;
      damaged[tensor.offset + at] = static_cast<char>(damaged[tensor.offset + at] ^ 0x10);
      write_bytes(path, damaged);
      const lc::VerifyReport report = lc::verify(path, *self);
      BOOST_REQUIRE(report.problems.size() == 1u);
      BOOST_TEST(report.problems[0].find(tensor.path() + ":") != std::string::npos);
      BOOST_CHECK_EXCEPTION(lc::load_file(path, small_state_dict(), *self), DataError,
                            mentions(tensor.path(), "damaged"));
      const lc::Inspection inspection = lc::inspect(path);
      for (const lc::TensorSummary& summary : inspection.tensors)
        BOOST_TEST(summary.digest_right == (summary.entry.path() != tensor.path()));
      BOOST_CHECK_THROW(lc::diff(path, path), DataError);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(no_flipped_byte_anywhere_loads_wrongly, Whole) {
  for (std::size_t at = 0; at < bytes.size(); at += at < 1500 ? 1 : 7) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    write_bytes(path, damaged);
    BOOST_TEST_CONTEXT("byte " << at) { BOOST_REQUIRE(!loads_wrongly()); }
  }
}

BOOST_FIXTURE_TEST_CASE(no_random_damage_crashes_or_loads_wrongly, Whole) {
  const auto seed = std::random_device()();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 600; ++trial) {
    std::string damaged = bytes;
    for (unsigned flips = 1 + random() % 8; flips > 0; --flips)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    if (random() % 4 == 0)
      damaged.insert(random() % damaged.size(), std::string(random() % 64, static_cast<char>(random())));
    write_bytes(path, damaged);
    BOOST_REQUIRE(!loads_wrongly());
    lc::verify(path, *self);
  }
}

BOOST_FIXTURE_TEST_CASE(what_is_no_checkpoint_is_called_what_it_is, Whole) {
  const auto refused = [&](const char* text) {
    BOOST_CHECK_EXCEPTION(lc::load_file(path, small_state_dict(), *self), DataError, mentions("a.h5", text));
  };
  write_bytes(path, "");
  refused("is empty");
  write_bytes(path, std::string(100'000, 'x'));
  refused("not an HDF5 file");
  std::filesystem::remove(path);
  refused("No such file");
  std::filesystem::create_directory(path);
  refused("is a directory; a checkpoint is a file");
  std::filesystem::remove(path);
  BOOST_REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  refused("not a regular file");
  std::filesystem::remove(path);
  hdf5::File::create(path).close();
  refused("not a Lockstep checkpoint");
}

BOOST_FIXTURE_TEST_CASE(attributes_and_configuration_changed_with_other_tools_are_found, Whole) {
  const auto change = [&](auto&& what) {
    write_bytes(path, bytes);
    hdf5::File file = hdf5::File::open_for_writing(path);
    what(file);
    file.close();
  };
  const auto refused = [&](const char* text) {
    BOOST_CHECK_EXCEPTION(lc::load_file(path, small_state_dict(), *self), DataError, mentions("a.h5", text));
  };
  for (const char* name : {"step", "samples", "epoch", "shards", "seed"}) {
    change([&](hdf5::File& file) { file.set_attribute(name, 77); });
    refused("root digest");
  }
  change([](hdf5::File& file) { file.open_group("ema/0.5").set_attribute("updates", 4); });
  refused("root digest");
  change([](hdf5::File& file) { file.open_group("model").set_attribute("note", "x"); });
  refused("root digest");
  change([](hdf5::File& file) { file.set_attribute("format_version", 2); });
  // Nothing is wrong with it, and a run does not continue from another one instead.
  BOOST_CHECK_EXCEPTION(lc::read_index(path), UsageError,
                        mentions("a.h5", "format_version 2; this build reads up to 1"));
  change([](hdf5::File& file) { file.set_attribute("step", "five"); });
  refused("'step'");
  change([](hdf5::File& file) { file.open_group("model").create_dataset("extra", DType::float32, {2}); });
  refused("/model/extra is in the file but not in the manifest");
  change([](hdf5::File& file) { file.set_attribute("world_size", 64); });
  lc::load_file(path, small_state_dict(), *self);  // information only
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
