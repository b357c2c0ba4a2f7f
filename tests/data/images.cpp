// Image files: values, normalisation, several files, and every way a file can be wrong.

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <fstream>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(images)

namespace h5 = hdf5;
using data::Images;

struct Folder {
  TemporaryFolder folder;

  /// A file with /x and /y of given types and shapes.
  std::string make(const std::string& name, DType x, std::vector<std::int64_t> x_shape, DType y,
                   std::vector<std::int64_t> y_shape) const {
    h5::File file = h5::File::create(folder.file(name));
    file.create_dataset("x", x, x_shape);
    file.create_dataset("y", y, y_shape);
    file.close();
    return folder.file(name);
  }
};

BOOST_FIXTURE_TEST_CASE(bytes_are_normalised_per_channel_in_their_own_units, Folder) {
  const Images images(make_images(folder, "a.h5", 6, 0, {10, 20}, {2, 4}));
  BOOST_TEST(images.size() == 6);
  BOOST_TEST((images.fields()[0].shape == Shape{2, 3, 4}));
  BOOST_TEST(images.classes() == 5);
  const Samples samples(images, {4, 1});
  const auto bytes = image_bytes(6, 0);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::size_t sample = i == 0 ? 4 : 1;
    BOOST_TEST(samples.y.data<std::int64_t>()[i] == static_cast<std::int64_t>(sample));
    for (std::size_t e = 0; e < 24; ++e) {
      const double mean = e < 12 ? 10 : 20, deviation = e < 12 ? 2 : 4;
      const auto wanted = static_cast<float>((bytes[sample * 24 + e] - mean) / deviation);
      BOOST_TEST(samples.x.data<float>()[i * 24 + e] == wanted);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(without_statistics_bytes_become_0_to_1_and_floats_stay, Folder) {
  const Images images(make_images(folder, "a.h5", 3));
  BOOST_TEST(Samples(images, {1}).x.data<float>()[3] == static_cast<float>(image_bytes(3, 0)[27] / 255.0));
  const std::string path = make("f.h5", DType::float32, {2, 1, 1, 3}, DType::int64, {2});
  const std::vector<float> values{1, -2.5f, 3, 4, 5, 6};
  {
    h5::File file = h5::File::open_for_writing(path);
    file.open_dataset("x").write(std::span<const float>(values));
    file.open_dataset("y").write(std::span<const std::int64_t>(std::vector<std::int64_t>{0, 1}));
  }
  BOOST_TEST(values_of<float>(Samples(Images(path), {0, 1}).x) == values);
}

/// A file with these values in /x and /y, as they are.
template <class X, class Y>
std::string put(const TemporaryFolder& folder, const std::string& name, const std::vector<X>& x,
                std::vector<std::int64_t> x_shape, const std::vector<Y>& y) {
  h5::File file = h5::File::create(folder.file(name));
  file.create_dataset("x", dtype_of<X>, x_shape).write(std::span<const X>(x));
  file.create_dataset("y", dtype_of<Y>, {std::ssize(y)}).write(std::span<const Y>(y));
  file.close();
  return folder.file(name);
}

template <class... Types, class Use>
void for_each_type(const Use& use) {
  (use(Types{}), ...);
}

BOOST_FIXTURE_TEST_CASE(labels_may_be_integers_of_any_type, Folder) {
  for_each_type<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                std::uint32_t, std::uint64_t>([&]<class Label>(Label) {
    const std::string name = std::string(to_string(dtype_of<Label>)) + ".h5";
    const Images images(
        put(folder, name, std::vector<std::uint8_t>{1, 2, 3}, {3, 1, 1, 1}, std::vector<Label>{5, 0, 100}));
    BOOST_TEST(images.classes() == 101);
    BOOST_TEST(values_of<std::int64_t>(Samples(images, {2, 0}).y) == (std::vector<std::int64_t>{100, 5}));
  });
}

BOOST_FIXTURE_TEST_CASE(labels_that_a_file_calls_missing_are_named, Folder) {
  const std::vector<float> x(6);
  const std::vector<std::int64_t> labels{0, 9, 1};
  const std::vector<double> missing{9};
  {
    h5::File file = h5::File::create(folder.file("m.h5"));
    file.create_dataset("x", DType::float32, {3, 2}).write(std::span<const float>(x));
    h5::Dataset y = file.create_dataset("y", DType::int64, {3});
    y.write(std::span<const std::int64_t>(labels));
    y.set_attribute("_FillValue", std::span<const double>(missing));
  }
  BOOST_CHECK_EXCEPTION(Images(folder.file("m.h5")), DataError,
                        mentions("row 1 of /y holds 9, a missing value"));
}

BOOST_FIXTURE_TEST_CASE(labels_beyond_int64_are_an_error, Folder) {
  const std::vector<std::uint64_t> labels{0, std::uint64_t{1} << 63};
  const std::string path = put(folder, "u.h5", std::vector<std::uint8_t>{1, 2}, {2, 1, 1, 1}, labels);
  BOOST_CHECK_EXCEPTION(Images{path}, DataError,
                        mentions("u.h5: label 1 of /y is 9223372036854775807 or more"));
}

BOOST_FIXTURE_TEST_CASE(numbers_of_other_types_are_read_as_floats_from_memory_and_from_disk, Folder) {
  const std::vector<std::int64_t> y{0, 1};
  const std::vector<float> wanted{1, -2, 300, 4};
  for_each_type<double, std::int16_t, std::int32_t, std::int64_t>([&]<class X>(X) {
    const std::string name = std::string(to_string(dtype_of<X>)) + ".h5";
    const std::string path = put(folder, name, std::vector<X>{1, -2, 300, 4}, {2, 1, 1, 2}, y);
    for (const std::int64_t limit : {0, 1 << 20}) {
      const Images images(path, {.memory_limit_bytes = limit});
      BOOST_TEST(values_of<float>(Samples(images, {0, 1}).x) == wanted);
    }
  });
}

BOOST_FIXTURE_TEST_CASE(the_mean_is_taken_away_before_digits_are_lost, Folder) {
  for (const DType dtype : {DType::float64, DType::int64, DType::int32}) {
    h5::File file = h5::File::create(folder.file(std::string(to_string(dtype))));
    const double begin = dtype == DType::int32 ? 2e9 : 1.7e9 * 4;
    h5::Dataset x = file.create_dataset("x", dtype, {4, 1});
    x.write(std::span<const double>(std::vector<double>{begin, begin + 1, begin + 2, begin + 3}));
    x.set_attribute("mean", std::vector<double>{begin});
    x.set_attribute("std", std::vector<double>{2});
    file.create_dataset("y", DType::int64, {4})
        .write(std::span<const std::int64_t>(std::vector<std::int64_t>(4)));
    file.close();
    const Images images(folder.file(std::string(to_string(dtype))));
    for (std::int64_t i = 0; i < 4; ++i)
      BOOST_TEST(read_samples(images, {i})["x"].data<float>()[0] == static_cast<float>(i) / 2);
  }
}

BOOST_FIXTURE_TEST_CASE(numbers_that_float32_cannot_hold_are_named_by_file_and_image, Folder) {
  const Images images(put(folder, "d.h5", std::vector<double>{1, 2, 3, 1e300}, {2, 2, 1, 1},
                          std::vector<std::int64_t>{0, 1}));
  Samples(images, {0});
  BOOST_CHECK_EXCEPTION(Samples(images, {1}), DataError,
                        mentions("d.h5: row 1 of /x has values in channel 1 that are not finite"));
}

BOOST_FIXTURE_TEST_CASE(a_table_is_images_of_a_channel_a_column, Folder) {
  const Images images(
      put(folder, "t.h5", std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3}, std::vector<std::int32_t>{0, 1}));
  BOOST_TEST((images.fields()[0].shape == Shape{3, 1, 1}));
  BOOST_TEST(values_of<float>(Samples(images, {1}).x) == (std::vector<float>{4, 5, 6}));
}

BOOST_FIXTURE_TEST_CASE(given_statistics_replace_those_of_the_file, Folder) {
  const std::string path = make_images(folder, "a.h5", 3, 0, {10, 20}, {2, 4});
  const Images images(path, {.mean = {0, 0}, .deviation = {1, 1}});
  BOOST_TEST(Samples(images, {0}).x.data<float>()[1] == 7.0f);
  BOOST_CHECK_THROW(Images(path, {.mean = {1}, .deviation = {1}}), UsageError);
  BOOST_CHECK_EXCEPTION(Images(make_images(folder, "m.h5", 3, 0, {1}, {1})), DataError,
                        mentions("'mean' of /x has 1"));
}

BOOST_FIXTURE_TEST_CASE(statistics_that_no_float32_survives_are_named_by_file_channel_and_value, Folder) {
  int files = 0;
  const auto refused = [&](const std::vector<double>& mean, const std::vector<double>& deviation,
                           const std::string& text) {
    const std::string name = std::to_string(files++) + ".h5",
                      path = make_images(folder, name, 3, 0, mean, deviation);
    BOOST_CHECK_EXCEPTION(Images{path}, DataError, mentions(name + ": /x: " + text));
    const std::string plain = make_images(folder, "plain" + name, 3);
    BOOST_CHECK_EXCEPTION(Images(plain, {.mean = mean, .deviation = deviation}), DataError, mentions(text));
  };
  refused({0, 1e308}, {1, 1}, "mean 1e+308 of channel 1 cannot normalise images");
  refused({0, 0}, {1, 1e308}, "std 1e+308 of channel 1 cannot normalise images");
  refused({0, 0}, {1e-44, 1}, "std 1e-44 of channel 0 cannot normalise images");
  refused({0, 0}, {1, -1}, "std -1 of channel 1");
  refused({NAN, 0}, {1, 1}, "mean nan of channel 0");
}

BOOST_FIXTURE_TEST_CASE(a_channel_that_never_changes_has_the_deviation_1_with_a_note, Folder) {
  const Images images(make_images(folder, "a.h5", 3, 0, {1, 2}, {4, 0})),
      ones(make_images(folder, "b.h5", 3, 0, {1, 2}, {4, 1}));
  BOOST_REQUIRE(images.notes().size() == 1u);
  BOOST_TEST(images.notes()[0].find("a.h5: std 0 of channel 1 of /x counts as 1") != std::string::npos);
  BOOST_TEST(ones.notes().empty());
  BOOST_TEST(values_of<float>(read_samples(images, {0, 2})["x"]) ==
             values_of<float>(read_samples(ones, {0, 2})["x"]));
}

BOOST_FIXTURE_TEST_CASE(values_that_normalise_to_no_float32_are_named, Folder) {
  const std::string path =
      put(folder, "f.h5", std::vector<float>{1, 1e20f}, {2, 1, 1, 1}, std::vector<std::int64_t>{0, 1});
  const Images images(path, {.mean = {0}, .deviation = {1e-25}});
  BOOST_CHECK_EXCEPTION(Samples(images, {1}), DataError,
                        mentions("f.h5: row 1 of /x has values in channel 0 that are not finite"));
}

BOOST_FIXTURE_TEST_CASE(images_like_others_are_normalised_as_they_are_and_have_as_many_channels, Folder) {
  const Images train(make_images(folder, "train.h5", 3, 0, {10, 20}, {2, 4}));
  const Images like(make_images(folder, "eval.h5", 3, 0, {0, 0}, {1, 1}), {.like = &train});
  BOOST_TEST((like.meaning("x").by == train.meaning("x").by));
  const std::string grey =
      put(folder, "grey.h5", std::vector<std::uint8_t>{1, 2}, {2, 1, 1, 1}, std::vector<std::int64_t>{0, 1});
  BOOST_CHECK_EXCEPTION(Images(grey, {.like = &train}), DataError,
                        mentions("grey.h5: images are [1, 1, 1], but those of"));
  BOOST_CHECK_EXCEPTION(Images(grey, {.like = &train}), DataError,
                        mentions("train.h5, which the model was trained on, are [2, 3, 4]"));
}

BOOST_FIXTURE_TEST_CASE(files_whose_classes_have_other_names_do_not_go_together, Folder) {
  const auto named = [&](const std::string& name, const std::string& classes) {
    const std::string path = make_images(folder, name, 3);
    h5::File file = h5::File::open_for_writing(path);
    file.open_dataset("y").set_attribute("classes", classes);
    return path;
  };
  const std::string a = named("a.h5", "cat\ndog"), b = named("b.h5", "ant\ncat\ndog"),
                    same = named("c.h5", "cat\ndog"), none = make_images(folder, "n.h5", 3);
  BOOST_TEST(Images({a, none, same}).size() == 9);
  BOOST_CHECK_EXCEPTION(Images({none, a, b}), DataError, mentions("b.h5: class 0 of /y is \"ant\", but in"));
  const Images train(a);
  BOOST_CHECK_THROW(Images(b, {.like = &train}), DataError);
}

BOOST_FIXTURE_TEST_CASE(tables_may_have_any_numbers_but_bytes_beside_floats_of_their_scale_say_so, Folder) {
  const auto table = [&](const std::string& name, DType dtype, std::vector<float> values, double mean = 0) {
    const std::string path = make(name, dtype, {2, 2}, DType::int64, {2});
    h5::File file = h5::File::open_for_writing(path);
    h5::Dataset x = file.open_dataset("x");
    x.write(std::span<const float>(values));
    if (mean > 0) x.set_attribute("mean", std::vector(2, mean)), x.set_attribute("std", std::vector(2, 1.0));
    file.open_dataset("y").write(std::span<const std::int64_t>(std::vector<std::int64_t>{0, 1}));
    file.close();
    return path;
  };
  const std::string small = table("small.h5", DType::float32, {0.5f, 1, 0, 0.25f}),
                    large = table("large.h5", DType::float64, {0, 200, 1e4f, 3}),
                    bytes = table("bytes.h5", DType::uint8, {0, 200, 7, 3}),
                    zeros = table("zeros.h5", DType::uint8, {0, 0, 0, 0});
  for (const std::vector<std::string>& files : {std::vector{small, large}, {large, small}, {large, bytes}})
    BOOST_TEST(Images(files).size() == 4);
  const auto refused = mentions("bytes.h5: /x is uint8 up to 200, but in ", "small.h5 it is float32 up to 1");
  BOOST_CHECK_EXCEPTION(Images({small, bytes}), DataError, refused);
  BOOST_CHECK_EXCEPTION(Images({zeros, small, bytes}), DataError, refused);  // the second file said it
  const Images images({zeros, small});
  BOOST_TEST((images.meaning("x").stored.dtype == DType::uint8));  // of the first
  Images({table("a.h5", DType::float32, {0.5f, 1, 0, 0.25f}, 3),
          table("b.h5", DType::uint8, {0, 200, 7, 3}, 3)});
  BOOST_CHECK_THROW(Images({table("a.h5", DType::float32, {0.5f, 1, 0, 0.25f}, 3),
                            table("b.h5", DType::uint8, {0, 200, 7, 3}, 4)}),
                    DataError);
}

BOOST_FIXTURE_TEST_CASE(files_follow_one_another_and_are_read_alike_from_memory_and_from_disk, Folder) {
  const std::vector<std::string> paths{make_images(folder, "a.h5", 6, 0, {10, 20}, {2, 4}),
                                       make_images(folder, "b.h5", 4, 99)};
  const Images loaded(paths), streamed(paths, {.memory_limit_bytes = 0}),
      half(paths, {.memory_limit_bytes = 6 * 24});
  BOOST_TEST(loaded.size() == 10);
  const std::vector<std::int64_t> some{9, 0, 6, 5, 6};
  const Samples samples(loaded, some);
  for (const Images* other : {&streamed, &half}) {
    const Samples others(*other, some);
    BOOST_TEST(values_of<float>(samples.x) == values_of<float>(others.x));
    BOOST_TEST(values_of<std::int64_t>(samples.y) == values_of<std::int64_t>(others.y));
  }
  // Sample 6 is the first of the second file, normalised as the first file says.
  BOOST_TEST(samples.x.data<float>()[2 * 24] == (99 - 10) / 2.0f);
}

BOOST_FIXTURE_TEST_CASE(labels_beyond_the_models_classes_are_named_by_file_index_and_value, Folder) {
  const Images images({make_images(folder, "a.h5", 3), make_images(folder, "b.h5", 5)});
  images.check_labels("y", 5);
  BOOST_CHECK_EXCEPTION(images.check_labels("y", 4), DataError,
                        mentions("b.h5: row 4 of /y is 4, but the model has 4 classes"));
  const std::string path = make_images(folder, "n.h5", 3);
  h5::File::open_for_writing(path).open_dataset("y").write(
      std::span<const std::int64_t>(std::vector<std::int64_t>{0, 1, -3}));
  BOOST_CHECK_EXCEPTION(Images{path}, DataError, mentions("n.h5: label 2 of /y is -3"));
}

BOOST_FIXTURE_TEST_CASE(a_file_that_is_wrong_is_refused_with_its_name_and_what_is_wrong, Folder) {
  using enum DType;
  BOOST_CHECK_EXCEPTION(Images(folder.file("none.h5")), DataError,
                        mentions("none.h5: cannot open: No such file"));
  std::ofstream(folder.file("text.h5")) << "hello";
  BOOST_CHECK_EXCEPTION(Images(folder.file("text.h5")), DataError, mentions("not an HDF5 file"));
  h5::File::create(folder.file("empty.h5")).close();
  BOOST_CHECK_EXCEPTION(Images(folder.file("empty.h5")), DataError,
                        mentions("empty.h5: /x is missing: this is not a data file"));
  BOOST_CHECK_EXCEPTION(
      Images(make_text(folder, "tokens.h5", 9)), DataError,
      mentions("tokens.h5: /x is missing: this is a text data file, but images are needed"));
  h5::File::create(folder.file("checkpoint.h5")).set_attribute("format", "lockstep");
  BOOST_CHECK_EXCEPTION(Images(folder.file("checkpoint.h5")), DataError,
                        mentions("checkpoint.h5: /x is missing: this is a checkpoint, but images"));
  h5::File::create(folder.file("no_y.h5")).create_dataset("x", uint8, {1, 1, 1, 1});
  BOOST_CHECK_EXCEPTION(Images(folder.file("no_y.h5")), DataError, mentions("no_y.h5: /y does not exist"));
  BOOST_CHECK_EXCEPTION(Images(make("rank.h5", uint8, {4, 8, 8}, int64, {4})), DataError,
                        mentions("/x is uint8 [4, 8, 8]"));
  BOOST_CHECK_EXCEPTION(Images(make("label.h5", uint8, {4, 1, 8, 8}, float32, {4})), DataError,
                        mentions("label.h5: /y is float32 [4], but labels are integers [N]"));
  BOOST_CHECK_EXCEPTION(Images(make("column.h5", uint8, {4, 1, 8, 8}, int64, {4, 1})), DataError,
                        mentions("column.h5: /y is int64 [4, 1]"));
  {
    h5::File file = h5::File::create(folder.file("type.h5"));
    file.create_text("x", "words");
    file.create_dataset("y", int64, {1});
  }
  BOOST_CHECK_EXCEPTION(Images(folder.file("type.h5")), DataError, mentions("type.h5: /x is text []"));
  BOOST_CHECK_EXCEPTION(Images(make("length.h5", uint8, {4, 1, 8, 8}, int64, {5})), DataError,
                        mentions("/x has 4 rows and /y has 5"));
  BOOST_CHECK_EXCEPTION(Images(make("zero.h5", uint8, {0, 1, 8, 8}, int64, {0})), DataError,
                        mentions("no elements"));
  const std::string a = make_images(folder, "a.h5", 3), b = make("b.h5", uint8, {2, 1, 8, 8}, int64, {2});
  BOOST_CHECK_EXCEPTION(Images({a, b}), DataError,
                        mentions("b.h5: /x has samples float32 [1, 8, 8], but in"));
}

BOOST_FIXTURE_TEST_CASE(reading_into_wrong_tensors_or_wrong_samples_is_misuse, Folder) {
  const Images images(make_images(folder, "a.h5", 3));
  const Tensor x = Tensor::zeros({2, 2, 3, 4}), y = Tensor::zeros({2}, DType::int64);
  const std::vector<std::int64_t> one{0}, beyond{0, 3};
  BOOST_CHECK_THROW(images.read(one, std::vector<Tensor>{x, y}), UsageError);
  BOOST_CHECK_EXCEPTION(images.read(beyond, std::vector<Tensor>{x, y}), UsageError,
                        mentions("sample 3 of 3"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
