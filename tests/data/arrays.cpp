// Arrays of any HDF5 file as fields: types, shapes, several files, normalisation, and what is wrong with a
// file.
#include "lockstep/data/arrays.h"

#include <hdf5.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "data/files.h"
#include "data/finite.h"
#include "lockstep/base/error.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(arrays, *ranks(1, 2, 3))

using data::Arrays;

struct Folder {
  TemporaryFolder folder;

  /// /fields/density float64 [n, 2, 3], /fields/count int16 [n], /mask uint8 [n, 4], /label text.
  std::string make(const std::string& name, std::int64_t rows, int salt = 0) const {
    hdf5::File file = hdf5::File::create(folder.file(name));
    hdf5::Group fields = file.create_group("fields");
    std::vector<double> density(static_cast<std::size_t>(rows) * 6);
    for (std::size_t i = 0; i < density.size(); ++i) density[i] = 0.25 * static_cast<double>(i) + salt;
    fields.create_dataset("density", DType::float64, {rows, 2, 3}).write(std::span<const double>(density));
    std::vector<std::int16_t> count(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < count.size(); ++i) count[i] = static_cast<std::int16_t>(i) - 2;
    fields.create_dataset("count", DType::int16, {rows}).write(std::span<const std::int16_t>(count));
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows) * 4, 1);
    file.create_dataset("mask", DType::uint8, {rows, 4}).write(std::span<const std::uint8_t>(mask));
    file.create_text("label", "a text is no field");
    file.close();
    return folder.file(name);
  }
};

BOOST_FIXTURE_TEST_CASE(integers_that_are_no_class_are_named_with_file_and_row, Folder) {
  const Arrays data({make("a.h5", 2), make("b.h5", 5)}, {.fields = {"n:fields/count", "mask"}});
  data.check_labels("mask", 2);
  BOOST_CHECK_EXCEPTION(data.check_labels("mask", 1), DataError,
                        mentions("a.h5: row 0 of /mask is 1, but the model has 1 classes (0 to 0)"));
  BOOST_CHECK_EXCEPTION(data.check_labels("n", 9), DataError, mentions("a.h5: row 0 of /fields/count is -2"));
}

BOOST_FIXTURE_TEST_CASE(named_arrays_are_fields_of_their_own_type_and_rank, Folder) {
  const std::string path = make("a.h5", 5);
  for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{1} << 20}) {
    const Arrays data(
        path, {.fields = {"x:/fields/density", "n:fields/count", "mask"}, .memory_limit_bytes = limit});
    BOOST_TEST(data.size() == 5);
    BOOST_REQUIRE(data.fields().size() == 3u);
    BOOST_TEST((data.fields()[0] == data::Field{.name = "x", .shape = {2, 3}}));
    BOOST_TEST((data.fields()[1] == data::Field{.name = "n", .dtype = DType::int64}));
    BOOST_TEST((data.fields()[2] == data::Field{.name = "mask", .dtype = DType::int64, .shape = {4}}));
    const Batch batch = read_samples(data, {3, 4, 0});
    BOOST_TEST(values_of<std::int64_t>(batch["n"]) == (std::vector<std::int64_t>{1, 2, -2}));
    BOOST_TEST(batch["x"].data<float>()[0] == 4.5f);
    BOOST_TEST(batch["x"].data<float>()[6] == 6.0f);
    BOOST_TEST(batch["x"].data<float>()[17] == 1.25f);
    BOOST_TEST(batch["mask"].data<std::int64_t>()[0] == 1);
  }
}

BOOST_FIXTURE_TEST_CASE(without_names_every_array_of_numbers_at_the_root_is_a_field, Folder) {
  const Arrays data(make("a.h5", 5));
  BOOST_REQUIRE(data.fields().size() == 1u);
  BOOST_TEST(data.fields()[0].name == "mask");
}

/// /y bool [4, 2] as h5py writes it.
std::string make_booleans(const std::string& path) {
  {
    hdf5::File file = hdf5::File::create(path);
    const std::vector<float> x(4);
    file.create_dataset("x", DType::float32, {4}).write(std::span<const float>(x));
    file.create_text("label", "a text is no field");
    file.close();
  }
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t type = H5Tenum_create(H5T_STD_I8LE);
  const std::array<std::int8_t, 2> numbers{0, 1};
  H5Tenum_insert(type, "FALSE", &numbers[0]);
  H5Tenum_insert(type, "TRUE", &numbers[1]);
  const std::array<hsize_t, 2> extents{4, 2};
  const hid_t space = H5Screate_simple(2, extents.data(), nullptr);
  const hid_t y = H5Dcreate2(file, "y", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const std::array<std::int8_t, 8> values{1, 0, 0, 1, 1, 1, 0, 0};
  BOOST_REQUIRE(H5Dwrite(y, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  H5Dclose(y);
  H5Sclose(space);
  H5Tclose(type);
  H5Fclose(file);
  return path;
}

BOOST_FIXTURE_TEST_CASE(booleans_are_integers_0_and_1, Folder) {
  const std::string path = make_booleans(folder.file("bool.h5"));
  for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{1} << 20}) {
    for (const std::vector<std::string>& fields : {std::vector<std::string>{}, {"x", "y"}}) {
      const Arrays data(path, {.fields = fields, .memory_limit_bytes = limit});
      BOOST_REQUIRE(data.fields().size() == 2u);
      BOOST_TEST((data.fields()[1] == data::Field{.name = "y", .dtype = DType::int64, .shape = {2}}));
      BOOST_TEST(values_of<std::int64_t>(read_samples(data, {1, 2, 3, 0})["y"]) ==
                 (std::vector<std::int64_t>{0, 1, 1, 1, 0, 0, 1, 0}));
    }
  }
}

BOOST_FIXTURE_TEST_CASE(bit_fields_of_a_byte_are_booleans_and_enumerations_are_their_integers, Folder) {
  const std::string path = folder.file("bits.h5");
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const std::array<hsize_t, 1> extents{4};
  const hid_t space = H5Screate_simple(1, extents.data(), nullptr), animal = H5Tenum_create(H5T_STD_I16LE);
  const std::array<std::int16_t, 4> animals{7, -2, 7, 7};
  H5Tenum_insert(animal, "dog", &animals[0]);
  H5Tenum_insert(animal, "cat", &animals[1]);
  const std::array<std::uint8_t, 4> bits{1, 0, 4, 0};
  const auto add = [&](const char* name, hid_t type, const void* values) {
    const hid_t array = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    BOOST_REQUIRE(H5Dwrite(array, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(array);
  };
  add("animal", animal, animals.data());
  add("bits", H5T_STD_B8LE, bits.data());
  H5Tclose(animal);
  H5Sclose(space);
  H5Fclose(file);
  for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{1} << 20}) {
    const Arrays data(path, {.memory_limit_bytes = limit});
    BOOST_REQUIRE(data.fields().size() == 2u);
    const auto batch = read_samples(data, {1, 2, 0});
    BOOST_TEST(values_of<std::int64_t>(batch["animal"]) == (std::vector<std::int64_t>{-2, 7, 7}));
    BOOST_TEST(values_of<std::int64_t>(batch["bits"]) == (std::vector<std::int64_t>{0, 1, 1}));
    BOOST_TEST(data.column("bits") == (std::vector<double>{1, 0, 1, 0}));
  }
}

extern "C" std::size_t pass_on(unsigned, std::size_t, const unsigned*, std::size_t bytes, std::size_t*,
                               void**) {
  return bytes;
}

BOOST_FIXTURE_TEST_CASE(a_filter_that_hdf5_lacks_is_named_with_the_remedy, Folder) {
  const std::string path = folder.file("filtered.h5");
  constexpr H5Z_filter_t number = 400;
  const H5Z_class2_t filter{H5Z_CLASS_T_VERS, number, 1, 1, "squeeze", nullptr, nullptr, pass_on};
  BOOST_REQUIRE(H5Zregister(&filter) >= 0);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const std::array<hsize_t, 1> extents{4};
  const hid_t space = H5Screate_simple(1, extents.data(), nullptr), how = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(how, 1, extents.data());
  H5Pset_filter(how, number, 0, 0, nullptr);
  const hid_t x = H5Dcreate2(file, "x", H5T_STD_I64LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
  const std::array<std::int64_t, 4> values{1, 2, 3, 4};
  BOOST_REQUIRE(H5Dwrite(x, H5T_STD_I64LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  H5Dclose(x);
  H5Pclose(how);
  H5Sclose(space);
  H5Fclose(file);
  BOOST_REQUIRE(H5Zunregister(number) >= 0);
  BOOST_CHECK_EXCEPTION(Arrays(path).column("x"), DataError,
                        mentions("filtered.h5: /x: cannot read: the filter squeeze (400) has compressed it",
                                 "h5repack -f GZIP=4", "HDF5_PLUGIN_PATH"));
}

BOOST_FIXTURE_TEST_CASE(links_to_other_files_are_fields_and_what_has_no_elements_is_skipped, Folder) {
  make("a.h5", 5);
  const std::string path = folder.file("master.h5");
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
              space = H5Screate(H5S_NULL);
  H5Lcreate_external("a.h5", "/fields/count", file, "n", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_external("gone.h5", "/z", file, "lost", H5P_DEFAULT, H5P_DEFAULT);
  H5Dclose(H5Dcreate2(file, "comment", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(space);
  H5Fclose(file);
  const Arrays data(path);
  BOOST_REQUIRE(data.fields().size() == 1u);
  BOOST_TEST(values_of<std::int64_t>(read_samples(data, {3, 0})["n"]) == (std::vector<std::int64_t>{1, -2}));
  BOOST_CHECK_EXCEPTION(data::field_named(data, "lost"), DataError,
                        mentions("skipped: ", "/lost", "gone.h5"));
}

BOOST_FIXTURE_TEST_CASE(a_field_that_is_missing_is_an_error_that_names_what_was_skipped, Folder) {
  const Arrays data(make_booleans(folder.file("bool.h5")));
  const auto named =
      mentions("has no field 'label', which is needed; it has x, y; skipped: /label is text []");
  BOOST_CHECK_EXCEPTION(data::field_named(data, "label"), DataError, named);
  BOOST_CHECK_EXCEPTION(data::field_named(data::Subset(data, 0, 2), "label"), DataError, named);
}

BOOST_FIXTURE_TEST_CASE(several_files_count_as_one, Folder) {
  const Arrays data(std::vector<std::string>{make("a.h5", 5), make("b.h5", 4, 100)},
                    {.fields = {"x:/fields/density"}});
  BOOST_TEST(data.size() == 9);
  const Batch batch = read_samples(data, {4, 5, 6});
  BOOST_TEST(batch["x"].data<float>()[0] == 6.0f);
  BOOST_TEST(batch["x"].data<float>()[6] == 100.0f);
  BOOST_TEST(batch["x"].data<float>()[12] == 101.5f);
}

BOOST_FIXTURE_TEST_CASE(many_scattered_samples_of_several_files_are_read_in_the_order_they_are_asked_for,
                        Folder) {
  const Arrays data(std::vector<std::string>{make("a.h5", 50), make("b.h5", 40, 100)},
                    {.fields = {"x:/fields/density", "n:/fields/count"}, .memory_limit_bytes = 0});
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < 90; ++i) samples.push_back((i * 37 + i % 3) % 90);
  const Batch batch = read_samples(data, samples);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t row = samples[i] < 50 ? samples[i] : samples[i] - 50;
    BOOST_TEST(batch["x"].data<float>()[6 * i] ==
               1.5 * static_cast<double>(row) + (samples[i] < 50 ? 0 : 100));
    BOOST_TEST(batch["n"].data<std::int64_t>()[i] == row - 2);
  }
}

BOOST_FIXTURE_TEST_CASE(what_a_file_lacks_or_has_in_another_shape_is_named, Folder) {
  const std::string path = make("a.h5", 5);
  BOOST_CHECK_EXCEPTION(Arrays(path, {.fields = {"flow"}}), DataError,
                        mentions("a.h5: /flow is missing; the file has fields, label, mask"));
  BOOST_CHECK_EXCEPTION(Arrays(path, {.fields = {"label"}}), DataError, mentions("a.h5: /label is text"));
  BOOST_CHECK_EXCEPTION(Arrays(path, {.fields = {":/mask"}}), UsageError,
                        mentions("':/mask' names no field"));
  BOOST_CHECK_EXCEPTION(Arrays(path, {.fields = {"mask", "mask:/fields/count"}}), UsageError,
                        mentions("two fields are named mask"));
  hdf5::File file = hdf5::File::create(folder.file("uneven.h5"));
  const std::vector<float> three(3), four(4);
  file.create_dataset("a", DType::float32, {3}).write(std::span<const float>(three));
  file.create_dataset("b", DType::float32, {4}).write(std::span<const float>(four));
  file.close();
  BOOST_CHECK_EXCEPTION(Arrays(folder.file("uneven.h5")), DataError, mentions("/a has 3 rows and /b has 4"));
  hdf5::File other = hdf5::File::create(folder.file("other.h5"));
  other.create_dataset("mask", DType::float32, {3}).write(std::span<const float>(three));
  other.close();
  BOOST_CHECK_EXCEPTION(Arrays(std::vector<std::string>{path, folder.file("other.h5")}, {.fields = {"mask"}}),
                        DataError, mentions("other.h5: /mask has samples float32 [], but in"));
}

BOOST_FIXTURE_TEST_CASE(values_that_float32_cannot_hold_are_an_error_with_file_row_and_array, Folder) {
  hdf5::File file = hdf5::File::create(folder.file("big.h5"));
  const std::vector<double> values{1, 1e300};
  file.create_dataset("x", DType::float64, {2}).write(std::span<const double>(values));
  file.close();
  const Arrays data(folder.file("big.h5"));
  read_samples(data, {0});
  BOOST_CHECK_EXCEPTION(read_samples(data, {0, 1}), DataError, mentions("big.h5: row 1 of /x has values"));
}

BOOST_FIXTURE_TEST_CASE(normalisation_is_the_mean_and_deviation_of_the_samples_on_every_rank, Folder) {
  Arrays data(make("a.h5", 1000), {.fields = {"x:/fields/density", "n:/fields/count", "mask"}});
  const data::Subset train(data, 0, 800);
  const data::Normalization x = data::normalization_of(train, "x", world());
  BOOST_REQUIRE(x.mean.size() == 1u);  // samples [2, 3]: one for all
  const double n = 4800;
  BOOST_TEST(x.mean[0] == 0.25 * (n - 1) / 2, boost::test_tools::tolerance(1e-13));
  BOOST_TEST(x.deviation[0] == 0.25 * std::sqrt((n * n - 1) / 12), boost::test_tools::tolerance(1e-13));
  const data::Normalization mask = data::normalization_of(train, "mask", world());
  BOOST_TEST(mask.mean == std::vector<double>(4, 1.0));  // samples [4]: each column
  BOOST_TEST(mask.deviation == std::vector<double>(4, 1.0));
  BOOST_TEST((data::normalization_of(train, "x", world()) == x));
  data.normalize("x", x);
  data.normalize("n", data::Normalization{{10}, {2}});
  const Batch batch = read_samples(data, {0});
  BOOST_TEST(batch["x"].data<float>()[0] == static_cast<float>(-x.mean[0] / x.deviation[0]));
  BOOST_TEST((batch["n"].dtype() == DType::float32));
  BOOST_TEST(batch["n"].data<float>()[0] == -6.0f);
  BOOST_CHECK_EXCEPTION(data.normalize("flow", x), DataError, mentions("no field 'flow'"));
  BOOST_CHECK_THROW(data.normalize("x", data::Normalization{{0}, {0}}), DataError);
  BOOST_CHECK_THROW(data.normalize("mask", data::Normalization{{0, 0}, {1, 1}}), DataError);
}

BOOST_FIXTURE_TEST_CASE(series_are_normalised_by_feature_over_the_steps_that_exist, Folder) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  // [3, 2, 2]; the second series has one step, the third none.
  const std::vector<double> x{1, 10, 3, 20, 5, 60, nan, 1e300, nan, nan, nan, nan};
  const std::vector<std::int64_t> lengths{2, 1, 0}, labels{0, 1, 2, 9, -5, 7};
  const auto write = [&](const char* name, bool padded) {
    hdf5::File file = hdf5::File::create(folder.file(name));
    file.create_dataset("x", DType::float64, {3, 2, 2}).write(std::span<const double>(x));
    file.create_dataset("y", DType::int64, {3, 2}).write(std::span<const std::int64_t>(labels));
    if (padded)
      file.create_dataset("lengths", DType::int64, {3}).write(std::span<const std::int64_t>(lengths));
    file.close();
    return folder.file(name);
  };
  const auto series = [](std::string path) {
    return data::Request{.files = {std::move(path)}, .takes_series = true, .y_lengths = "lengths"};
  };
  Arrays data(series(write("series.h5", true)));
  BOOST_TEST((data::first_not_finite(data, 1 << 20, world())).empty());
  data.check_labels("y", 3);
  BOOST_CHECK_EXCEPTION(data.check_labels("y", 2), DataError, mentions("row 1 of /y is 2"));
  BOOST_CHECK_EXCEPTION(Arrays(folder.file("series.h5")).check_labels("y", 3), DataError,
                        mentions("row 1 of /y is 9"));
  data.normalize("x", std::nullopt);
  const data::Normalization by = data::normalization_of(data, "x", world(), 2);
  BOOST_TEST(by.mean == (std::vector<double>{3, 30}), boost::test_tools::per_element());
  BOOST_TEST(by.deviation[0] == std::sqrt(8.0 / 3), boost::test_tools::tolerance(1e-14));
  BOOST_TEST(data::normalization_of(data, "x", world(), 1).mean[0] == 16.5);
  data.normalize("x", by);
  const Batch batch = read_samples(data, {0, 1, 2});
  BOOST_TEST(batch["x"].data<float>()[3] == static_cast<float>((20 - 30) / by.deviation[1]));
  BOOST_TEST(std::isnan(batch["x"].data<float>()[6]));
  BOOST_CHECK_THROW(data.normalize("x", data::Normalization{{0, 0, 0}, {1, 1, 1}}), DataError);
  BOOST_CHECK_EXCEPTION(data::normalization_of(data, "x", world(), 3), UsageError, mentions("3 means"));
  Arrays unpadded(series(write("unpadded.h5", false)));
  BOOST_CHECK_EXCEPTION(read_samples(unpadded, {1}), DataError, mentions("row 1 of /x"));
  data::Request both = series(folder.file("unpadded.h5"));
  both.files.push_back(folder.file("series.h5"));
  BOOST_CHECK_EXCEPTION(Arrays{both}, DataError,
                        mentions("series.h5: has /lengths, but", "unpadded.h5 has no such"));
  both.fields = {"x", "y"};
  BOOST_TEST(contains(Arrays(both).notes().at(0), "series.h5: /lengths is not read"));
}

BOOST_FIXTURE_TEST_CASE(a_step_that_fewer_targets_have_is_normalised_by_those_that_have_it, Folder) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> y{1, 7, nan, 3, nan, nan, 5, 9, nan};  // [3, 3]
  const std::vector<std::int64_t> lengths{2, 1, 2};
  hdf5::File file = hdf5::File::create(folder.file("y.h5"));
  file.create_dataset("y", DType::float32, {3, 3}).write(std::span<const float>(y));
  file.create_dataset("y_lengths", DType::int64, {3}).write(std::span<const std::int64_t>(lengths));
  file.close();
  Arrays data(data::Request{.files = {folder.file("y.h5")}, .y_lengths = "y_lengths"});
  data.normalize("y", std::nullopt);
  const data::Normalization by = data::normalization_of(data, "y", world());
  BOOST_TEST(by.mean == (std::vector<double>{3, 8, 0}), boost::test_tools::per_element());
  BOOST_TEST(by.deviation[1] == 1.0);
  BOOST_TEST(by.deviation[2] == 1.0);
}

BOOST_FIXTURE_TEST_CASE(a_field_that_a_model_does_not_read_as_lengths_hides_no_bad_value, Folder) {
  const std::vector<float> x{1, 2, std::numeric_limits<float>::quiet_NaN(), 4};  // [2, 2]
  const std::vector<std::int64_t> lengths{1, 0};
  hdf5::File file = hdf5::File::create(folder.file("table.h5"));
  file.create_dataset("x", DType::float32, {2, 2}).write(std::span<const float>(x));
  file.create_dataset("lengths", DType::int64, {2}).write(std::span<const std::int64_t>(lengths));
  file.close();
  const auto found = [&](bool takes_series) {
    return data::first_not_finite(
        Arrays(data::Request{.files = {folder.file("table.h5")}, .takes_series = takes_series}), 1 << 20,
        world());
  };
  BOOST_TEST(found(true) == "");
  BOOST_TEST(contains(found(false), "table.h5: row 1 of field x holds nan"));
}

BOOST_FIXTURE_TEST_CASE(float64_keeps_its_digits_until_the_mean_is_taken_away, Folder) {
  const std::vector<double> seconds{1.7e9, 1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3};
  const std::vector<float> far(4, 1.7e9F);
  const auto write = [&](const char* name, DType dtype, const auto& values) {
    hdf5::File file = hdf5::File::create(folder.file(name));
    file.create_dataset("x", dtype, {4, 1}).write(values);
    file.close();
    return folder.file(name);
  };
  const std::string doubles = write("doubles.h5", DType::float64, std::span<const double>(seconds)),
                    floats = write("floats.h5", DType::float32, std::span<const float>(far));
  for (const std::vector<std::string>& files : {std::vector{doubles, floats}, std::vector{floats, doubles}}) {
    Arrays data(files);
    data.normalize("x", std::nullopt);
    data::Normalization by = data::normalization_of(data, "x", world());
    BOOST_TEST(by.mean[0] == 1.7e9 + 0.75);
    data.normalize("x", by);
    const Tensor into = Tensor::empty({8, 1});
    const std::array<std::int64_t, 8> samples{0, 1, 2, 3, 4, 5, 6, 7};
    data.read(samples, std::array{into});
    const float* const first = into.data<float>() + (files[0] == doubles ? 0 : 4);
    for (int i = 0; i < 4; ++i) BOOST_TEST(first[i] == static_cast<float>((i - 0.75) / by.deviation[0]));
  }
  Arrays one(doubles), other(floats);  // a mixture of both types
  one.normalize("x", std::nullopt);
  other.normalize("x", std::nullopt);
  const data::Mixture mixture({{.dataset = &one}, {.dataset = &other}}, false);
  BOOST_TEST(data::normalization_of(mixture, "x", world()).mean[0] == 1.7e9 + 0.75);
}

BOOST_FIXTURE_TEST_CASE(missing_values_of_netcdf_are_named_with_file_and_row, Folder) {
  const auto write = [&](const std::string& name, const char* attribute, double marker) {
    hdf5::File file = hdf5::File::create(folder.file(name));
    hdf5::Dataset t = file.create_dataset("t", DType::int16, {3, 2});
    t.write(std::span<const std::int16_t>(std::array<std::int16_t, 6>{1, 2, 3, -32767, 5, 6}));
    t.set_attribute(attribute, marker);
    file.close();
    return folder.file(name);
  };
  for (const char* const attribute : {"_FillValue", "missing_value"}) {
    BOOST_CHECK_EXCEPTION(Arrays{write(std::string(attribute) + "era.nc", attribute, -32767)}, DataError,
                          mentions("era.nc: row 1 of /t holds -32767, a missing value"));
    BOOST_CHECK_NO_THROW(Arrays{write(std::string(attribute) + "whole.nc", attribute, -1)});
  }
  for (const double marker : {-99.9, 1e20}) {  // a float64 beside float32
    const std::string path = folder.file(fmt::format("{}.nc", marker));
    hdf5::File file = hdf5::File::create(path);
    hdf5::Dataset t = file.create_dataset("t", DType::float32, {2});
    t.write(std::span<const float>(std::array<float, 2>{1, static_cast<float>(marker)}));
    t.set_attribute("missing_value", marker);
    file.close();
    BOOST_CHECK_EXCEPTION(Arrays{path}, DataError, mentions("row 1 of /t holds"));
  }
}

BOOST_FIXTURE_TEST_CASE(chunks_that_were_never_written_are_no_values, Folder) {
  const std::string path = folder.file("chunks.h5");
  const auto write = [&](hsize_t rows) {
    const hsize_t shape[] = {10, 2}, chunk[] = {4, 2}, start[] = {0, 0}, count[] = {rows, 2};
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, 2, chunk);
    const hid_t space = H5Screate_simple(2, shape, nullptr), part = H5Screate_simple(2, count, nullptr);
    const hid_t x = H5Dcreate2(file, "x", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, count, nullptr);
    const std::vector<float> ones(20, 1);
    H5Dwrite(x, H5T_NATIVE_FLOAT, part, space, H5P_DEFAULT, ones.data());
    H5Dclose(x), H5Sclose(space), H5Sclose(part), H5Pclose(properties), H5Fclose(file);
  };
  write(8);
  BOOST_CHECK_EXCEPTION(Arrays{path}, DataError, mentions("/x has 3 chunks, of which 1 were never written"));
  write(10);
  BOOST_CHECK_NO_THROW(Arrays{path});
}

BOOST_FIXTURE_TEST_CASE(a_row_that_no_memory_holds_and_nobody_wrote_is_never_read, Folder) {
  const std::string path = folder.file("large.h5");
  const hsize_t shape[] = {2, hsize_t{1} << 40};
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t space = H5Screate_simple(2, shape, nullptr);
  const hid_t x = H5Dcreate2(file, "x", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Dclose(x), H5Sclose(space), H5Fclose(file);
  BOOST_CHECK_EXCEPTION(Arrays{path}, DataError, mentions("large.h5: /x was created but never written"));
}

/// /x and /y [mappings]: virtual, each row taken from row 0 of /d of the file `source`.
void make_virtual(const std::string& path, const std::string& source, hsize_t mappings) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t one = 1, first = 0;
  const hid_t space = H5Screate_simple(1, &mappings, nullptr), from = H5Screate_simple(1, &one, nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  for (hsize_t row = 0; row < mappings; ++row) {
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &row, nullptr, &one, nullptr);
    H5Sselect_hyperslab(from, H5S_SELECT_SET, &first, nullptr, &one, nullptr);
    H5Pset_virtual(properties, space, source.c_str(), "d", from);
  }
  H5Sselect_all(space);
  for (const char* const name : {"x", "y"})
    H5Dclose(H5Dcreate2(file, name, H5T_NATIVE_FLOAT, space, H5P_DEFAULT, properties, H5P_DEFAULT));
  H5Pclose(properties), H5Sclose(from), H5Sclose(space), H5Fclose(file);
}

BOOST_FIXTURE_TEST_CASE(each_file_of_a_virtual_array_is_open_once, Folder) {
  hdf5::File source = hdf5::File::create(folder.file("source.h5"));
  source.create_dataset("d", DType::float32, {1}).write(std::span<const float>(std::array<float, 1>{7}));
  source.close();
  make_virtual(folder.file("v.h5"), folder.file("source.h5"), 400);
  rlimit before{};
  BOOST_TEST_REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{.rlim_cur = std::min<rlim_t>(before.rlim_cur, 256), .rlim_max = before.rlim_max};
  BOOST_TEST_REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{1} << 20}) {
    const Arrays data(folder.file("v.h5"), {.fields = {}, .memory_limit_bytes = limit});
    BOOST_TEST(read_samples(data, {0, 399})["y"].data<float>()[1] == 7);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

BOOST_FIXTURE_TEST_CASE(attributes_of_the_file_are_a_normalisation_if_they_fit, Folder) {
  const std::string path = make("a.h5", 5);
  BOOST_TEST(Arrays(path).meaning("mask").stored.named.mean.empty());
  {
    hdf5::File file = hdf5::File::open_for_writing(path);
    hdf5::Dataset mask = file.open_dataset("mask");
    mask.set_attribute("mean", std::span<const double>(std::vector<double>{1, 2, 3, 4}));
    mask.set_attribute("std", std::span<const double>(std::vector<double>{1, 1, 2, 2}));
    file.close();
  }
  const data::Normalization stored = Arrays(path).meaning("mask").stored.named;
  BOOST_TEST(stored.mean == (std::vector<double>{1, 2, 3, 4}));
  BOOST_CHECK_EXCEPTION(Arrays(path, {.fields = {"mask", "x:/fields/density"}}).normalize("x", stored),
                        DataError, mentions("samples are [2, 3], which need 1"));
}

BOOST_FIXTURE_TEST_CASE(what_is_not_finite_cannot_be_normalised, Folder) {
  hdf5::File file = hdf5::File::create(folder.file("nan.h5"));
  const std::vector<float> values{1, std::numeric_limits<float>::quiet_NaN()};
  file.create_dataset("x", DType::float32, {2}).write(std::span<const float>(values));
  file.close();
  const Arrays data(folder.file("nan.h5"));
  BOOST_CHECK_EXCEPTION(data::normalization_of(data, "x", world()), DataError,
                        mentions("nan.h5: row 1 of field x holds nan: the field cannot be normalised"));
  BOOST_CHECK_THROW(data::normalization_of(data, "y", world()), DataError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
