// Files that others change while they are read: what they hold then is not learned without a word.
#include <hdf5.h>
#include <sys/stat.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/text.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(changed_files)

namespace fs = std::filesystem;

/// A kind of data, read from its file whenever it is asked for.
struct Kind {
  std::string name;
  std::function<std::string(const TemporaryFolder&, const std::string&, int salt)> make;
  std::function<std::unique_ptr<data::Dataset>(const std::string&)> open;
};

const std::vector<Kind> kinds{
    {"images",
     [](const auto& folder, const auto& name, int salt) { return make_images(folder, name, 4000, salt); },
     [](const auto& path) {
       return std::make_unique<data::Images>(path, data::ImagesOptions{.memory_limit_bytes = 0});
     }},
    {"arrays",
     [](const auto& folder, const auto& name, int salt) { return make_images(folder, name, 4000, salt); },
     [](const auto& path) {
       return std::make_unique<data::Arrays>(path, data::ArraysOptions{.memory_limit_bytes = 0});
     }},
    {"text",
     [](const auto& folder, const auto& name, int salt) { return make_text(folder, name, 40'000, salt); },
     [](const auto& path) {
       return std::make_unique<data::Text>(path, 10, data::TextOptions{.memory_limit_bytes = 0});
     }},
};

/// The bytes of the first field of the last sample, which are not zeros.
std::string last_sample(const data::Dataset& dataset) {
  const Batch batch = read_samples(dataset, {dataset.size() - 1});
  const Tensor first = batch.tensors()[0];
  return {static_cast<const char*>(first.raw()), first.bytes()};
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  BOOST_REQUIRE(::stat(path.c_str(), &status) == 0);
  return status;
}

/// Repeats change() until the clock of the file system has moved on.
void change_in_time(const std::string& path, const std::function<void()>& change) {
  const struct stat before = status_of(path);
  const auto unchanged = [&] {
    const struct stat now = status_of(path);
    return now.st_ctim.tv_sec == before.st_ctim.tv_sec && now.st_ctim.tv_nsec == before.st_ctim.tv_nsec;
  };
  do change();
  while (unchanged());
}

/// Writes the bytes of another file over those of `path`, in place.
void write_over(const std::string& path, const std::string& other) {
  std::ifstream from(other, std::ios::binary);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << from.rdbuf();
}

BOOST_AUTO_TEST_CASE(a_file_that_was_cut_is_a_data_error_by_name) {
  for (const Kind& kind : kinds) {
    const TemporaryFolder folder;
    const std::string path = kind.make(folder, "a.h5", 1);
    const auto dataset = kind.open(path);
    last_sample(*dataset);
    fs::resize_file(path, fs::file_size(path) / 2);
    BOOST_TEST_CONTEXT(kind.name)
    BOOST_CHECK_EXCEPTION(last_sample(*dataset), DataError,
                          mentions("a.h5: the file changed while the run reads it"));
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_was_written_over_in_place_is_a_data_error_each_time) {
  for (const Kind& kind : kinds) {
    const TemporaryFolder folder;
    const std::string path = kind.make(folder, "a.h5", 1), other = kind.make(folder, "b.h5", 2);
    const auto dataset = kind.open(path);
    last_sample(*dataset);
    change_in_time(path, [&] { write_over(path, other); });
    BOOST_TEST_CONTEXT(kind.name)
    for (int time = 0; time < 2; ++time)
      BOOST_CHECK_EXCEPTION(last_sample(*dataset), DataError,
                            mentions("a.h5: the file changed while the run reads it"));
  }
}

BOOST_AUTO_TEST_CASE(an_open_file_that_was_renamed_and_written_over_in_part_is_named) {
  for (const Kind& kind : kinds) {
    const TemporaryFolder folder;
    const std::string path = kind.make(folder, "a.h5", 1), old = folder.file("old.h5");
    const auto dataset = kind.open(path);
    last_sample(*dataset);
    fs::rename(path, old);
    change_in_time(
        old, [&] { std::fstream(old, std::ios::binary | std::ios::in | std::ios::out).seekp(3000) << "x"; });
    BOOST_TEST_CONTEXT(kind.name)
    BOOST_CHECK_EXCEPTION(last_sample(*dataset), DataError, mentions("a.h5: the file changed"));
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_was_read_replaced_or_removed_is_read_as_it_was) {
  for (const Kind& kind : kinds) {
    const TemporaryFolder folder;
    const std::string path = kind.make(folder, "a.h5", 1), other = kind.make(folder, "b.h5", 2);
    const auto dataset = kind.open(path);
    const std::string sample = last_sample(*dataset);
    BOOST_TEST_CONTEXT(kind.name) {
      change_in_time(path, [&] { fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write); });
      BOOST_TEST(last_sample(*dataset) == sample);
      fs::rename(other, path);
      BOOST_TEST(last_sample(*dataset) == sample);
      fs::remove(path);
      BOOST_TEST(last_sample(*dataset) == sample);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_source_of_a_virtual_dataset_that_was_cut_is_named) {
  const TemporaryFolder folder;
  const std::string source = make_images(folder, "source.h5", 4000, 1), path = folder.file("v.h5");
  const std::array<hsize_t, 4> extents{4000, 2, 3, 4};
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t space = H5Screate_simple(4, extents.data(), nullptr),
              properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_virtual(properties, space, "source.h5", "/x", space);
  const hid_t made = H5Dcreate2(file, "x", H5T_STD_U8LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  BOOST_TEST_REQUIRE(made >= 0);
  H5Dclose(made);
  H5Pclose(properties);
  H5Sclose(space);
  H5Fclose(file);
  const data::Arrays dataset(path, {.memory_limit_bytes = 0});
  last_sample(dataset);
  fs::resize_file(source, fs::file_size(source) / 2);
  BOOST_CHECK_EXCEPTION(last_sample(dataset), DataError,
                        mentions("source.h5: the file changed while the run reads it"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
