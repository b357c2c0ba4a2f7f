// Image files: values, normalisation, several files, and every way a file can be wrong.
#include "lockstep/data/images.h"

#include <boost/test/unit_test.hpp>
#include <fstream>

#include "data/files.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(images)

namespace h5 = hdf5;
using data::Images;

struct Folder {
  TemporaryFolder folder;

  /// A file with /x and /y of given types and shapes.
  std::string make(const std::string& name, h5::ElementType x, std::vector<std::int64_t> x_shape,
                   h5::ElementType y, std::vector<std::int64_t> y_shape) const {
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
  BOOST_TEST((images.x_shape() == Shape{2, 3, 4}));
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
  const std::string path = make("f.h5", h5::ElementType::float32, {2, 1, 1, 3}, h5::ElementType::int64, {2});
  const std::vector<float> values{1, -2.5f, 3, 4, 5, 6};
  {
    h5::File file = h5::File::open_for_writing(path);
    file.open_dataset("x").write(std::span<const float>(values));
    file.open_dataset("y").write(std::span<const std::int64_t>(std::vector<std::int64_t>{0, 1}));
  }
  BOOST_TEST(values_of<float>(Samples(Images(path), {0, 1}).x) == values);
}

BOOST_FIXTURE_TEST_CASE(given_statistics_replace_those_of_the_file, Folder) {
  const std::string path = make_images(folder, "a.h5", 3, 0, {10, 20}, {2, 4});
  const Images images(path, {.mean = {0, 0}, .deviation = {1, 1}});
  BOOST_TEST(Samples(images, {0}).x.data<float>()[1] == 7.0f);
  BOOST_CHECK_THROW(Images(path, {.mean = {1}, .deviation = {1}}), UsageError);
  BOOST_CHECK_EXCEPTION(Images(make_images(folder, "z.h5", 3, 0, {1, 1}, {1, 0})), DataError,
                        mentions("std 0 of channel 1"));
  BOOST_CHECK_EXCEPTION(Images(make_images(folder, "m.h5", 3, 0, {1}, {1})), DataError,
                        mentions("'mean' of /x has 1"));
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
  images.check_labels(5);
  BOOST_CHECK_EXCEPTION(images.check_labels(4), DataError,
                        mentions("b.h5: label 4 of /y is 4, but the model has 4 classes"));
  const std::string path = make_images(folder, "n.h5", 3);
  h5::File::open_for_writing(path).open_dataset("y").write(
      std::span<const std::int64_t>(std::vector<std::int64_t>{0, 1, -3}));
  BOOST_CHECK_EXCEPTION(Images{path}, DataError, mentions("n.h5: label 2 of /y is -3"));
}

BOOST_FIXTURE_TEST_CASE(a_file_that_is_wrong_is_refused_with_its_name_and_what_is_wrong, Folder) {
  using enum h5::ElementType;
  BOOST_CHECK_EXCEPTION(Images(folder.file("none.h5")), DataError,
                        mentions("none.h5: cannot open: No such file"));
  std::ofstream(folder.file("text.h5")) << "hello";
  BOOST_CHECK_EXCEPTION(Images(folder.file("text.h5")), DataError, mentions("not an HDF5 file"));
  h5::File::create(folder.file("empty.h5")).close();
  BOOST_CHECK_EXCEPTION(Images(folder.file("empty.h5")), DataError,
                        mentions("empty.h5: /x is missing: this is no data file"));
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
  BOOST_CHECK_EXCEPTION(Images(make("type.h5", float64, {4, 1, 8, 8}, int64, {4})), DataError,
                        mentions("/x is float64"));
  BOOST_CHECK_EXCEPTION(Images(make("label.h5", uint8, {4, 1, 8, 8}, int32, {4})), DataError,
                        mentions("/y is int32 [4]"));
  BOOST_CHECK_EXCEPTION(Images(make("length.h5", uint8, {4, 1, 8, 8}, int64, {5})), DataError,
                        mentions("/x has 4 images and /y 5"));
  BOOST_CHECK_EXCEPTION(Images(make("zero.h5", uint8, {0, 1, 8, 8}, int64, {0})), DataError,
                        mentions("no elements"));
  const std::string a = make_images(folder, "a.h5", 3), b = make("b.h5", uint8, {2, 1, 8, 8}, int64, {2});
  BOOST_CHECK_EXCEPTION(Images({a, b}), DataError, mentions("b.h5: images are [1, 8, 8], but those of"));
}

BOOST_FIXTURE_TEST_CASE(reading_into_wrong_tensors_or_wrong_samples_is_misuse, Folder) {
  const Images images(make_images(folder, "a.h5", 3));
  const Tensor x = Tensor::zeros({2, 2, 3, 4}), y = Tensor::zeros({2}, DType::int64);
  const std::vector<std::int64_t> one{0}, beyond{0, 3};
  BOOST_CHECK_THROW(images.read(one, x, y), UsageError);
  BOOST_CHECK_EXCEPTION(images.read(beyond, x, y), UsageError, mentions("sample 3 of 3"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
