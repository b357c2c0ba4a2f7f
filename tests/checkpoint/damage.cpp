// Damaged files: one clear DataError, never a crash, a hang, an absurd allocation or a wrong load.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "checkpoint/damage.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(damage)

namespace lc = checkpoint;

struct Whole : SmallRun {
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
    BOOST_CHECK_EXCEPTION(lc::load_file(path, small_state_dict(), *self), DataError, mentions(file_name));
    const lc::VerifyReport report = lc::verify(path, *self);
    BOOST_REQUIRE(report.problems.size() == 1u);
    BOOST_TEST(contains(report.problems[0], file_name));
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
      BOOST_TEST(contains(report.problems[0], tensor.path() + ":"));
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
  for (std::size_t at = 0; at < bytes.size(); at += at < 1500 ? 1 : 23) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    write_bytes(path, damaged);
    BOOST_TEST_CONTEXT("byte " << at) { BOOST_REQUIRE(!loads_wrongly()); }
  }
}

BOOST_FIXTURE_TEST_CASE(what_is_no_checkpoint_is_called_what_it_is, Whole) {
  const auto refused = [&](const char* text) {
    BOOST_CHECK_EXCEPTION(lc::load_file(path, small_state_dict(), *self), DataError,
                          mentions(file_name, text));
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

BOOST_FIXTURE_TEST_CASE(what_other_tools_changed_is_said, Whole) {
  const auto change = [&](auto&& what) {
    write_bytes(path, bytes);
    hdf5::File file = hdf5::File::open_for_writing(path);
    what(file);
    file.close();
  };
  const auto refused = [&](const char* text) {
    BOOST_CHECK_EXCEPTION(lc::load_file(path, small_state_dict(), *self), DataError,
                          mentions(file_name, text));
  };
  change([](hdf5::File& file) { file.set_attribute("step", 77); });
  refused("root digest");
  change([](hdf5::File& file) { file.open_group("model").set_attribute("note", "x"); });
  refused("root digest");
  change([](hdf5::File& file) { file.set_attribute("step", "five"); });
  refused("'step'");
  change([](hdf5::File& file) { file.open_group("model").create_dataset("extra", DType::float32, {2}); });
  refused("/model/extra is in the file but not in the manifest");
  change([](hdf5::File& file) { file.set_attribute("format_version", 2); });
  // Nothing is wrong with it, and a run does not continue from another one instead.
  BOOST_CHECK_EXCEPTION(lc::read_index(path), UsageError,
                        mentions(file_name, "format_version 2; this build reads up to 1"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
