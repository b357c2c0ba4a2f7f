// Virtual datasets: read through their sources, and refused where HDF5 would read fill values for them.
#include <hdf5.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(virtual_dataset)

namespace h5 = hdf5;

struct Folder {
  TemporaryFolder folder;
  std::string path = folder.file("v.h5");

  /// A file with dataset d of `rows` numbers: 10, 11 ...
  void put_source(const std::string& name, std::int64_t rows) const {
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows; ++i) values.push_back(10 + static_cast<float>(i));
    h5::File file = h5::File::create(folder.file(name), {.existing = h5::CreateOptions::Existing::replace});
    file.create_dataset("d", DType::float32, {rows}).write(std::span<const float>(values));
    file.close();
  }

  /// v.h5 with dataset v of 8 numbers, whose first and last 4 are the first 4 of `dataset` in two files.
  void put_virtual(const std::string& first, const std::string& last, const std::string& dataset = "d",
                   const std::string& name = "v") const {
    const hid_t file = std::filesystem::exists(path)
                           ? H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)
                           : H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t whole = 8, half = 4;
    const hid_t space = H5Screate_simple(1, &whole, nullptr), source = H5Screate_simple(1, &half, nullptr);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t start = 0;
    H5Sselect_hyperslab(source, H5S_SELECT_SET, &start, nullptr, &half, nullptr);
    for (const hsize_t begin : {hsize_t{0}, hsize_t{4}}) {
      H5Sselect_hyperslab(space, H5S_SELECT_SET, &begin, nullptr, &half, nullptr);
      H5Pset_virtual(properties, space, begin == 0 ? first.c_str() : last.c_str(), dataset.c_str(), source);
    }
    H5Sselect_all(space);
    const hid_t made =
        H5Dcreate2(file, name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    BOOST_TEST_REQUIRE(made >= 0);
    H5Dclose(made);
    H5Pclose(properties);
    H5Sclose(source);
    H5Sclose(space);
    H5Fclose(file);
  }

  std::vector<float> read(const std::string& name = "v") const {
    return h5::File::open(path).open_dataset(name).read_all<float>();
  }
};

const std::vector<float> wanted{10, 11, 12, 13, 10, 11, 12, 13};

BOOST_FIXTURE_TEST_CASE(is_read_through_sources_beside_it_from_any_working_directory, Folder) {
  put_source("a.h5", 4);
  put_source("b.h5", 6);
  put_virtual("a.h5", folder.file("b.h5"));
  BOOST_TEST(read() == wanted);
}

BOOST_FIXTURE_TEST_CASE(may_take_from_its_own_file, Folder) {
  put_source("v.h5", 4);
  put_virtual(".", ".");
  BOOST_TEST(read() == wanted);
  const h5::File file = h5::File::open_for_writing(path);
  BOOST_TEST(file.open_dataset("v").read_all<float>() == wanted);
  BOOST_TEST(file.open_dataset("d").rows() == 4);
}

BOOST_FIXTURE_TEST_CASE(of_which_a_sources_file_is_missing_is_an_error, Folder) {
  put_source("a.h5", 4);
  put_virtual("a.h5", "gone.h5");
  BOOST_CHECK_EXCEPTION(read(), DataError,
                        mentions("v.h5: /v is virtual, and one of its sources cannot be read: "));
  BOOST_CHECK_EXCEPTION(read(), DataError, mentions("gone.h5: cannot open: No such file"));
}

BOOST_FIXTURE_TEST_CASE(of_which_a_sources_dataset_is_missing_is_an_error, Folder) {
  put_source("a.h5", 4);
  put_virtual("a.h5", "a.h5", "other");
  BOOST_CHECK_EXCEPTION(read(), DataError, mentions("a.h5: /other does not exist"));
}

BOOST_FIXTURE_TEST_CASE(of_which_a_source_is_too_short_is_an_error, Folder) {
  put_source("a.h5", 4);
  put_source("b.h5", 3);
  put_virtual("a.h5", "b.h5");
  BOOST_CHECK_EXCEPTION(read(), DataError, mentions("b.h5: /d has 3 rows, but 4 are needed"));
}

/// v.h5 with dataset v, of which `count` rows are those of a source that is said to be `columns` wide.
void put_rows(const std::string& path, const std::string& source, hsize_t rows, hsize_t count,
              hsize_t columns) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t shape[] = {rows, columns}, taken[] = {count, columns}, start[] = {0, 0};
  const hid_t space = H5Screate_simple(2, shape, nullptr), from = H5Screate_simple(2, taken, nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, taken, nullptr);
  H5Sselect_hyperslab(from, H5S_SELECT_SET, start, nullptr, taken, nullptr);
  H5Pset_virtual(properties, space, source.c_str(), "d", from);
  H5Sselect_all(space);
  H5Dclose(H5Dcreate2(file, "v", H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
  H5Pclose(properties);
  H5Sclose(from);
  H5Sclose(space);
  H5Fclose(file);
}

void put_table(const std::string& path, std::int64_t rows, std::int64_t columns) {
  const std::vector<float> values(static_cast<std::size_t>(rows * columns), 1);
  h5::File file = h5::File::create(path);
  file.create_dataset("d", DType::float32, {rows, columns}).write(std::span<const float>(values));
  file.close();
}

BOOST_FIXTURE_TEST_CASE(of_which_some_rows_have_no_source_is_an_error, Folder) {
  put_table(folder.file("table.h5"), 4, 2);
  put_rows(path, folder.file("table.h5"), 4, 4, 2);
  BOOST_TEST(read() == std::vector<float>(8, 1), boost::test_tools::per_element());
  put_rows(path, folder.file("table.h5"), 6, 4, 2);
  BOOST_CHECK_EXCEPTION(read(), DataError,
                        mentions("/v is virtual, and only 8 of its 12 elements have a source"));
}

BOOST_FIXTURE_TEST_CASE(of_which_a_source_is_narrower_than_is_said_is_an_error, Folder) {
  put_table(folder.file("table.h5"), 4, 2);
  put_rows(path, folder.file("table.h5"), 2, 2, 4);
  BOOST_CHECK_EXCEPTION(read(), DataError,
                        mentions("table.h5: /d has 2 elements in dimension 1, but 4 are needed"));
}

BOOST_FIXTURE_TEST_CASE(of_which_a_source_is_no_hdf5_file_is_an_error, Folder) {
  std::filesystem::create_directory(folder.path() / "a.h5");
  put_virtual("a.h5", "a.h5");
  BOOST_CHECK_EXCEPTION(read(), DataError, mentions("a.h5: cannot open: Is a directory"));
}

BOOST_FIXTURE_TEST_CASE(may_take_from_virtual_ones_but_not_from_itself, Folder) {
  put_source("a.h5", 4);
  put_virtual("a.h5", "a.h5", "d", "v");
  put_virtual(".", ".", "v", "twice");
  BOOST_TEST(read("twice") == wanted);
  put_virtual(".", ".", "self", "self");
  BOOST_CHECK_EXCEPTION(read("self"), DataError, mentions("/self is virtual, and its sources are nested"));
}

BOOST_FIXTURE_TEST_CASE(with_parts_that_no_source_fills_is_not_read_whole, Folder) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t rows = hsize_t{1} << 60;
  const hid_t space = H5Screate_simple(1, &rows, nullptr), properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_layout(properties, H5D_VIRTUAL);
  H5Dclose(H5Dcreate2(file, "v", H5T_STD_I8LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
  H5Pclose(properties);
  H5Sclose(space);
  H5Fclose(file);
  BOOST_CHECK_EXCEPTION(read(), DataError,
                        mentions("only 0 of its 1152921504606846976 elements have a source"));
}

BOOST_FIXTURE_TEST_CASE(with_numbered_sources_is_refused, Folder) {
  put_source("a0.h5", 4);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t rows = 4, most = H5S_UNLIMITED, begin = 0, count = H5S_UNLIMITED;
  const hid_t space = H5Screate_simple(1, &rows, &most), source = H5Screate_simple(1, &rows, nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &begin, &rows, &count, &rows);
  BOOST_TEST_REQUIRE(H5Pset_virtual(properties, space, "a%b.h5", "d", source) >= 0);
  H5Dclose(H5Dcreate2(file, "v", H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
  H5Pclose(properties);
  H5Sclose(source);
  H5Sclose(space);
  H5Fclose(file);
  BOOST_CHECK_EXCEPTION(read(), DataError,
                        mentions("numbers its sources ('a%b.h5'), which is not supported"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
