// Rows that are read without HDF5: the same values, for every layout that has addresses.
#include "hdf5/raw_rows.h"

#include <hdf5.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <numeric>
#include <thread>

#include "lockstep/hdf5/file.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(raw_rows)

namespace h5 = hdf5;

using Extents = std::vector<hsize_t>;

/// A file with dataset /d of int64 numbers 0, 1, 2 ...; as a type of the file, in chunks if there are any.
struct Stored {
  Extents shape, chunk{};
  hid_t type = H5T_STD_I64LE;
  bool compressed = false, compact = false;
  hsize_t user_block_bytes = 0;

  std::string in(const TemporaryFolder& folder) const {
    const std::string path = folder.file("a.h5");
    const hid_t creation = H5Pcreate(H5P_FILE_CREATE), properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_userblock(creation, user_block_bytes);
    if (!chunk.empty()) H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data());
    if (compressed) H5Pset_deflate(properties, 1);
    if (compact) H5Pset_layout(properties, H5D_COMPACT);
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t dataset = H5Dcreate2(file, "d", type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    std::vector<std::int64_t> values(
        std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies()));
    std::iota(values.begin(), values.end(), 0);
    BOOST_TEST_REQUIRE(H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >=
                       0);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Fclose(file);
    H5Pclose(properties);
    H5Pclose(creation);
    return path;
  }
};

std::vector<std::int64_t> rows_of(const h5::RawRows& raw, const h5::Dataset& dataset, std::int64_t begin,
                                  std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count * dataset.row_numel()), -1);
  BOOST_TEST(raw.read(begin, count, reinterpret_cast<std::byte*>(values.data())));
  return values;
}

std::vector<std::int64_t> rows_by_hdf5(const h5::Dataset& dataset, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count * dataset.row_numel()), -2);
  dataset.read_rows(begin, count, std::span<std::int64_t>(values));
  return values;
}

const std::vector<Stored> layouts{{.shape = {13}},
                                  {.shape = {13, 3, 5}},
                                  {.shape = {13}, .chunk = {4}},
                                  {.shape = {13, 3, 5}, .chunk = {1, 3, 5}},
                                  {.shape = {13, 3, 5}, .chunk = {4, 3, 5}},
                                  {.shape = {13, 3, 5}, .chunk = {4, 2, 2}},
                                  {.shape = {13, 5}, .chunk = {5, 3}},
                                  {.shape = {7, 5, 3, 4}, .chunk = {3, 2, 3, 3}}};

BOOST_AUTO_TEST_CASE(rows_are_those_that_hdf5_reads_of_any_chunks_also_of_cut_ones) {
  for (const Stored& stored : layouts) {
    const TemporaryFolder folder;
    const h5::File file = h5::File::open(stored.in(folder));
    const OpenFile opened(file.file_path(), OpenFile::Mode::read);
    const h5::Dataset dataset = file.open_dataset("d");
    const auto raw = h5::RawRows::of(dataset, opened);
    BOOST_TEST_REQUIRE(raw.has_value());
    for (std::int64_t begin = 0; begin < dataset.rows(); ++begin)
      for (std::int64_t count = 1; begin + count <= dataset.rows(); ++count)
        BOOST_TEST(rows_of(*raw, dataset, begin, count) == rows_by_hdf5(dataset, begin, count),
                   "rows " << begin << ", " << count << " of " << stored.chunk.size() << " dimensions");
  }
}

BOOST_AUTO_TEST_CASE(several_threads_read_rows_of_one_file_at_once) {
  const TemporaryFolder folder;
  const h5::File file = h5::File::open(Stored{.shape = {600, 6, 7}, .chunk = {11, 4, 5}}.in(folder));
  const OpenFile opened(file.file_path(), OpenFile::Mode::read);
  const h5::Dataset dataset = file.open_dataset("d");
  const auto raw = h5::RawRows::of(dataset, opened);
  BOOST_TEST_REQUIRE(raw.has_value());
  const std::vector<std::int64_t> all = rows_by_hdf5(dataset, 0, 600);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& mine : wrong)
    threads.emplace_back([&] {
      std::vector<std::int64_t> row(42);
      for (std::int64_t i = 0; i < 3000; ++i) {
        const std::int64_t at = (i * 7919 + (&mine - wrong.data()) * 101) % 600;
        mine += !raw->read(at, 1, reinterpret_cast<std::byte*>(row.data())) ||
                !std::equal(row.begin(), row.end(), all.begin() + at * 42);
      }
    });
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(wrong == std::vector<int>(4), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_has_no_addresses_of_its_numbers_is_left_to_hdf5) {
  for (const Stored& stored : {Stored{.shape = {13, 5}, .type = H5T_STD_I64BE},
                               Stored{.shape = {13, 5}, .chunk = {4, 5}, .compressed = true},
                               Stored{.shape = {13, 5}, .compact = true},
                               Stored{.shape = {13, 5}, .chunk = {4, 5}, .user_block_bytes = 512}}) {
    const TemporaryFolder folder;
    const h5::File file = h5::File::open(stored.in(folder));
    const OpenFile opened(file.file_path(), OpenFile::Mode::read);
    BOOST_TEST(!h5::RawRows::of(file.open_dataset("d"), opened));
  }
}

BOOST_AUTO_TEST_CASE(rows_are_read_while_hdf5_has_the_file_closed_and_of_no_other_file) {
  const TemporaryFolder folder;
  const std::string path = Stored{.shape = {13, 5}}.in(folder);
  const OpenFile opened(path, OpenFile::Mode::read);
  std::optional<h5::RawRows> raw;
  std::vector<std::int64_t> row(5), same(5);
  {
    const h5::File file = h5::File::open(path);
    raw = h5::RawRows::of(file.open_dataset("d"), opened);
    same = rows_by_hdf5(file.open_dataset("d"), 7, 1);
    std::filesystem::copy_file(path, folder.file("copy.h5"));
    const OpenFile other(folder.file("copy.h5"), OpenFile::Mode::read);
    BOOST_TEST(!h5::RawRows::of(file.open_dataset("d"), other));
  }
  BOOST_TEST_REQUIRE(raw.has_value());
  BOOST_TEST(raw->read(7, 1, reinterpret_cast<std::byte*>(row.data())));
  BOOST_TEST(row == same, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(rows_beyond_the_end_of_a_file_that_was_cut_are_not_read) {
  const TemporaryFolder folder;
  const std::string path = Stored{.shape = {2000, 5}}.in(folder);
  const h5::File file = h5::File::open(path);
  const OpenFile opened(file.file_path(), OpenFile::Mode::read);
  const auto raw = h5::RawRows::of(file.open_dataset("d"), opened);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  std::vector<std::byte> row(5 * sizeof(std::int64_t));
  BOOST_TEST(raw->read(0, 1, row.data()));
  BOOST_TEST(!raw->read(1999, 1, row.data()));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
