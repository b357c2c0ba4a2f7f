// Files and groups: opening, creating, order of links, and every way a file can be bad.
#include "lockstep/hdf5/file.h"

#include <hdf5.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "lockstep/base/error.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(file)

namespace h5 = hdf5;

struct OneFile {
  TemporaryFolder folder;
  std::string path = folder.file("f.h5");

  void put(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
  std::string bytes() const {
    std::ostringstream all;
    all << std::ifstream(path, std::ios::binary).rdbuf();
    return all.str();
  }
  void make_some(bool checksummed) const {
    h5::File file = h5::File::create(
        path, {.existing = h5::CreateOptions::Existing::replace, .checksummed = checksummed});
    const std::vector<float> values(1000, 1.5f);
    h5::Group model = file.create_group("model");
    for (const char* name : {"net.0.weight", "net.0.bias", "a"}) {
      h5::Dataset data = model.create_dataset(name, DType::float32, {10, 100});
      data.write(std::span<const float>(values));
      data.set_attribute("digest", "0123456789abcdef");
    }
    file.close();
  }
  /// Reads all there is; throws only what the room promises.
  void read_everything() const {
    const h5::File file = h5::File::open(path);
    const h5::Group model = file.open_group("model");
    for (const h5::Link& link : model.links()) {
      const h5::Dataset data = model.open_dataset(link.name);
      data.text_attribute("digest");
      data.read_all<float>();
    }
  }
  /// Whether reading everything is an error of the promised kind; any other exception ends the program.
  bool refused() const noexcept {
    try {
      read_everything();
    } catch (const DataError&) {
      return true;
    }
    return false;
  }
};

/// Runs `body` in a separate process and returns what it returns, 0 to 127, or -1 if it crashed: a crash
/// must not end the test, and what HDF5 never frees after it met a damaged file is of no interest.
template <class Body>
int in_a_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int crash : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE})
      std::signal(crash, SIG_DFL);  // not the framework's
    _exit(body());
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

BOOST_FIXTURE_TEST_CASE(links_are_listed_in_the_order_made_or_by_name, OneFile) {
  for (const bool checksummed : {false, true}) {
    make_some(checksummed);
    const h5::File file = h5::File::open(path);
    const auto names = [&](h5::Group::Order order) {
      std::vector<std::string> found;
      for (const h5::Link& link : file.open_group("model").links(order)) found.push_back(link.name);
      return found;
    };
    BOOST_TEST(names(h5::Group::Order::creation) ==
               (std::vector<std::string>{"net.0.weight", "net.0.bias", "a"}));
    BOOST_TEST(names(h5::Group::Order::name) ==
               (std::vector<std::string>{"a", "net.0.bias", "net.0.weight"}));
    BOOST_TEST((file.links() == std::vector<h5::Link>{{"model", h5::ObjectKind::group}}));
  }
}

BOOST_FIXTURE_TEST_CASE(existence_and_kinds_are_told_without_errors, OneFile) {
  h5::File file = h5::File::create(path);
  file.create_group("model").create_dataset("a.b", DType::uint8, {1});
  file.create_soft_link("model/tied", "/model/a.b");
  file.create_soft_link("dangling", "/nowhere");
  BOOST_TEST(file.exists("/"));
  BOOST_TEST(file.exists("model"));
  BOOST_TEST(file.exists("/model/a.b"));
  BOOST_TEST(!file.exists("none/of/this"));
  BOOST_TEST(!file.exists("model/a.b/c"));
  BOOST_TEST(file.open_group("model").exists("a.b"));
  BOOST_TEST((file.kind("model/tied") == h5::ObjectKind::dataset));
  BOOST_TEST((file.kind("dangling") == h5::ObjectKind::unreachable));
  BOOST_CHECK_EXCEPTION(file.open_dataset("nope"), DataError, mentions("f.h5: /nope does not exist"));
  BOOST_CHECK_EXCEPTION(file.open_dataset("model"), DataError, mentions("/model is a group, not a dataset"));
  BOOST_CHECK_EXCEPTION(file.open_group("model/a.b"), DataError, mentions("is a dataset, not a group"));
  BOOST_CHECK_EXCEPTION(file.open_dataset("dangling"), DataError, mentions("/dangling"));
  BOOST_CHECK_EXCEPTION(file.create_group("model"), DataError, mentions("/model"));
  BOOST_CHECK_EXCEPTION(file.create_dataset("no/way", DType::uint8, {1}), DataError, mentions("/no/way"));
}

BOOST_FIXTURE_TEST_CASE(a_file_in_memory_opens_by_its_path_and_is_never_on_storage, OneFile) {
  {
    h5::File file = h5::File::create(path, {.in_memory = true});
    file.create_dataset("x", DType::float32, {3})
        .write_rows(0, 3, std::span<const float>(std::vector{1.f, 2.f, 3.f}));
    const h5::File other = h5::File::open(path);
    file.close();
    BOOST_TEST(other.in_memory());
    BOOST_TEST(h5::File::open(path).open_dataset("x").read_all<float>() == (std::vector{1.f, 2.f, 3.f}));
    BOOST_TEST(!std::filesystem::exists(path));
  }
  BOOST_CHECK_EXCEPTION(h5::File::open(path), DataError, mentions("No such file"));
  make_some(false);
  BOOST_TEST(!h5::File::open(path).in_memory());
}

BOOST_FIXTURE_TEST_CASE(creating_refuses_an_existing_file_unless_told_to_replace_it, OneFile) {
  make_some(false);
  BOOST_CHECK_EXCEPTION(h5::File::create(path), DataError, mentions("f.h5: cannot create: File exists"));
  h5::File::create(path, {.existing = h5::CreateOptions::Existing::replace}).close();
  BOOST_TEST(h5::File::open(path).links().empty());
  BOOST_CHECK_EXCEPTION(h5::File::create(folder.file("no/folder.h5")), DataError, mentions("No such file"));
}

BOOST_FIXTURE_TEST_CASE(equal_calls_make_equal_bytes, OneFile) {
  make_some(true);
  const std::string first = bytes();
  make_some(true);
  BOOST_TEST((bytes() == first));
  BOOST_TEST(static_cast<int>(first[8]) == 3);  // superblock version
}

BOOST_FIXTURE_TEST_CASE(a_file_that_is_no_hdf5_file_is_an_error_saying_so, OneFile) {
  BOOST_CHECK_EXCEPTION(h5::File::open(path), DataError,
                        mentions("f.h5: cannot open: No such file or directory"));
  put("");
  BOOST_CHECK_EXCEPTION(h5::File::open(path), DataError, mentions("is empty"));
  put("not a data file at all");
  BOOST_CHECK_EXCEPTION(h5::File::open(path), DataError, mentions("not an HDF5 file"));
  BOOST_CHECK_EXCEPTION(h5::File::open(folder.path().string()), DataError, mentions("directory"));
}

BOOST_FIXTURE_TEST_CASE(a_truncated_file_is_an_error_at_every_length, OneFile) {
  for (const bool checksummed : {false, true}) {
    make_some(checksummed);
    const std::string whole = bytes();
    const int accepted = in_a_child([&] {
      bool any = false;
      for (std::size_t length = 0; length < whole.size(); length += 97) {
        put(whole.substr(0, length));
        any = any || !refused();
      }
      return any ? 1 : 0;
    });
    BOOST_TEST(accepted == 0);
    put(whole);
    read_everything();
  }
}

BOOST_FIXTURE_TEST_CASE(damaged_metadata_is_an_error_and_never_a_crash, OneFile) {
  const unsigned seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  make_some(true);
  const std::string whole = bytes();
  const int percent_refused = in_a_child([&] {
    int refusals = 0;
    for (int trial = 0; trial < 200; ++trial) {
      std::string damaged = whole;
      // The first bytes are mostly metadata, which checksums cover.
      for (int change = 0; change < 3; ++change)
        damaged[random() % 1000] ^= static_cast<char>(1 + random() % 255);
      put(damaged);
      refusals += refused();
    }
    return refusals / 2;
  });
  BOOST_TEST(percent_refused > 50, "seed " << seed << ": " << percent_refused << " % were refused");
}

BOOST_FIXTURE_TEST_CASE(a_shape_beyond_any_memory_is_an_error, OneFile) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const auto create = [&](const char* name, std::vector<hsize_t> extents) {
    const hid_t space = H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    const std::vector<hsize_t> chunk(extents.size(), 1);
    H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data());
    H5Dclose(H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
    H5Pclose(properties);
    H5Sclose(space);
  };
  create("huge", {hsize_t{1} << 31, hsize_t{1} << 31});
  create("large", {hsize_t{1} << 30, hsize_t{1} << 20});
  create("unwritten", {8});
  H5Fclose(file);
  const h5::File read = h5::File::open(path);
  BOOST_CHECK_EXCEPTION(read.open_dataset("huge"), DataError, mentions("/huge claims more elements"));
  BOOST_CHECK_EXCEPTION(read.open_dataset("large").read_all<float>(), DataError, mentions("/large"));
  BOOST_CHECK_EXCEPTION(read.open_dataset("unwritten").read_all<float>(), DataError,
                        mentions("never written"));
  BOOST_CHECK_EXCEPTION(read.open_dataset("unwritten").extent(), DataError, mentions("contiguous"));
}

BOOST_FIXTURE_TEST_CASE(a_checksummed_file_left_open_by_a_killed_writer_is_refused, OneFile) {
  const int ended = in_a_child([&]() -> int {
    h5::File file = h5::File::create(path, {.checksummed = true});
    file.create_group("model");
    file.flush();
    _exit(0);  // no close
  });
  BOOST_REQUIRE(ended == 0);
  BOOST_CHECK_EXCEPTION(h5::File::open(path), DataError, mentions("f.h5: cannot open"));
}

BOOST_FIXTURE_TEST_CASE(closing_a_file_closes_its_objects_whatever_the_order, OneFile) {
  make_some(false);
  h5::File file = h5::File::open(path);
  const h5::Dataset data = file.open_dataset("model/a");
  file.close();
  file.close();
  BOOST_CHECK_THROW(data.read_all<float>(), DataError);
  h5::File::open_for_writing(path).set_attribute("more", 1);
  BOOST_TEST(h5::File::open(path).int64_attribute("more") == 1);
}

BOOST_FIXTURE_TEST_CASE(the_library_prints_no_errors_of_its_own, OneFile) {
  BOOST_CHECK_THROW(h5::File::open(path), DataError);
  H5E_auto2_t print = nullptr;
  void* print_data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &print, &print_data);
  BOOST_TEST((print == nullptr));
}

BOOST_FIXTURE_TEST_CASE(two_threads_may_read_two_files_at_once, OneFile) {
  make_some(true);
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      try {
        for (int i = 0; i < 50; ++i) read_everything();
      } catch (const std::exception&) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(failures == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
