// Folders of pictures as data sets: classes, labels, parts, links, what is left out, and packed files.
#include <sys/file.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/files.h"
#include "base/output.h"
#include "data/augment_batch.h"
#include "data/files.h"
#include "data/picture_files.h"
#include "data/picture_list.h"
#include "data/prepare.h"
#include "data/transforms.h"
#include "lockstep/base/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/pictures.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(picture_folders)

using data::Augment;
using data::PictureOptions;
using data::Pictures;

constexpr PictureOptions small{.size = 14};

/// A picture whose pixels depend on the salt.
data::Picture pattern(std::int64_t height, std::int64_t width, int salt) {
  data::Picture picture;
  picture.resize(height, width);
  for (std::size_t i = 0; i < picture.pixels.size(); ++i)
    picture.pixels[i] = static_cast<std::uint8_t>(i * i / 7 + static_cast<std::size_t>(37 * salt));
  return picture;
}

void write_bytes(const std::string& path, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

void write_jpeg(const std::string& path, int salt, std::int64_t height = 24, std::int64_t width = 30) {
  std::vector<std::byte> bytes;
  data::encode_jpeg(pattern(height, width, salt), 90, bytes);
  write_bytes(path, bytes);
}

/// cat/a.jpg, cat/b.jpg, dog/a.JPEG and dog/deep/c.jpg.
std::string make_folder(const TemporaryFolder& folder, const std::string& name = "animals") {
  const std::string root = folder.file(name);
  write_jpeg(root + "/cat/b.jpg", 1);
  write_jpeg(root + "/cat/a.jpg", 0, 40, 20);
  write_jpeg(root + "/dog/a.JPEG", 2);
  write_jpeg(root + "/dog/deep/c.jpg", 3);
  return root;
}

struct Samples {
  std::vector<float> x{};
  std::vector<std::int64_t> y{};
  bool operator==(const Samples&) const = default;
};

Samples samples_of(const data::Dataset& dataset, const data::Moment* moment = nullptr) {
  std::vector<Tensor> tensors;
  for (const data::Field& field : dataset.fields())
    tensors.push_back(Tensor::zeros(data::batch_shape(dataset.size(), field.shape), field.dtype));
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(dataset.size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  moment ? dataset.read_to_train(numbers, tensors, *moment) : dataset.read(numbers, tensors);
  Samples samples{.x = {tensors[0].data<float>(), tensors[0].data<float>() + tensors[0].numel()}};
  if (tensors.size() > 1)
    samples.y.assign(tensors[1].data<std::int64_t>(), tensors[1].data<std::int64_t>() + dataset.size());
  return samples;
}

BOOST_AUTO_TEST_CASE(a_sub_folder_is_a_class_and_pictures_come_in_the_order_of_their_names) {
  const TemporaryFolder folder;
  const Pictures pictures({make_folder(folder)}, small);
  BOOST_TEST(pictures.size() == 4);
  BOOST_TEST(pictures.location(0) == folder.file("animals/cat/a.jpg"));
  BOOST_TEST(pictures.location(3) == folder.file("animals/dog/deep/c.jpg"));
  BOOST_TEST(samples_of(pictures).y == (std::vector<std::int64_t>{0, 0, 1, 1}),
             boost::test_tools::per_element());
  BOOST_TEST(pictures.meaning("y").classes.value == (std::vector<std::string>{"cat", "dog"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_sample_is_the_centre_of_the_resized_picture_normalised_by_imagenet) {
  const TemporaryFolder folder;
  const Pictures pictures({make_folder(folder)}, small);
  std::vector<std::byte> bytes;
  data::encode_jpeg(pattern(40, 20, 0), 90, bytes);
  data::Picture decoded, framed;
  data::PictureDecoder().decode(bytes, {}, decoded);
  const data::Framing framing = data::evaluation_framing(40, 20, 14);
  data::Resizer().resize(decoded, {.height = 40, .width = 20}, framing.height, framing.width, framing.window,
                         framed);
  const std::vector<float> x = samples_of(pictures).x;
  const double mean[] = {123.675, 116.28, 103.53}, deviation[] = {58.395, 57.12, 57.375};
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t i = 0; i < 14 * 14; ++i)
      BOOST_REQUIRE_EQUAL(x[c * 14 * 14 + i],
                          static_cast<float>((framed.pixels[3 * i + c] - mean[c]) / deviation[c]));
}

BOOST_AUTO_TEST_CASE(classes_take_the_numbers_that_a_run_gave_their_names) {
  const TemporaryFolder folder;
  Pictures pictures({make_folder(folder)}, small);
  pictures.number_classes("y", {{"bird", "cat", "cow", "dog"}, "run.h5"});
  BOOST_TEST(samples_of(pictures).y == (std::vector<std::int64_t>{1, 1, 3, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(data::field_named(pictures, "y").classes == 4);
  BOOST_CHECK_EXCEPTION(pictures.number_classes("y", {{"cat"}, "run.h5"}), DataError,
                        mentions({"animals", "dog", "run.h5"}));
}

BOOST_AUTO_TEST_CASE(folders_of_a_data_sets_parts_are_refused_with_the_line_to_write) {
  const TemporaryFolder folder;
  write_jpeg(folder.file("set/train/cat/a.jpg"), 0);
  write_jpeg(folder.file("set/val/cat/a.jpg"), 0);
  BOOST_CHECK_EXCEPTION(
      Pictures({folder.file("set")}, small), DataError,
      mentions({"data.train = " + folder.file("set/train"), "data.eval = " + folder.file("set/val")}));
}

BOOST_AUTO_TEST_CASE(pictures_without_a_class_are_refused_only_where_labels_are_needed) {
  const TemporaryFolder folder;
  write_jpeg(folder.file("flat/a.jpg"), 0);
  BOOST_CHECK_EXCEPTION(Pictures({folder.file("flat")}, small), DataError,
                        mentions({"flat/a.jpg", "data.labels"}));
  const Pictures pictures({folder.file("flat")}, small, {}, false);
  BOOST_TEST(pictures.fields().size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_csv_file_labels_pictures_by_name_or_number) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  std::ofstream(folder.file("names.csv")) << "file,label\ndog/a.JPEG,small\ncat/b.jpg,large\n";
  const Pictures named({root}, {.size = 14, .labels = folder.file("names.csv")});
  BOOST_TEST(samples_of(named).y == (std::vector<std::int64_t>{0, 1}), boost::test_tools::per_element());
  BOOST_TEST(named.notes().size() == 1U);  // two pictures have no label
  std::ofstream(folder.file("numbers.csv")) << "cat/b.jpg,7\ndog/a.JPEG,2\n";
  const Pictures numbered({root}, {.size = 14, .labels = folder.file("numbers.csv")});
  BOOST_TEST(samples_of(numbered).y == (std::vector<std::int64_t>{7, 2}), boost::test_tools::per_element());
  std::ofstream(folder.file("wrong.csv")) << "cat/b.jpg,7\ncat/z.jpg,2\n";
  BOOST_CHECK_EXCEPTION(Pictures({root}, {.size = 14, .labels = folder.file("wrong.csv")}), DataError,
                        mentions({"wrong.csv:2", "cat/z.jpg"}));
}

BOOST_AUTO_TEST_CASE(a_csv_file_may_label_the_pictures_of_several_folders) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder), other = folder.file("other");
  write_jpeg(other + "/z.jpg", 4);
  const PictureOptions options{.size = 14, .labels = folder.file("labels.csv")};
  std::ofstream(options.labels) << "cat/b.jpg,small\nz.jpg,large\n";
  const auto world = comm::make_self_communicator();
  BOOST_TEST(data::list_folders({root, other}, options, *world).size() == 2U);
  BOOST_CHECK_EXCEPTION(data::list_folders({root}, options, *world), DataError,
                        mentions({"labels.csv:2", "z.jpg"}));
  BOOST_TEST(data::list_folders({root}, options, *world, {.labels_are_theirs = false}).size() == 1U);
  std::ofstream(options.labels, std::ios::app) << "y.jpg,large\n";
  BOOST_CHECK_EXCEPTION(data::list_folders({root, other}, options, *world), DataError,
                        mentions({"labels.csv:3", "y.jpg"}));
}

BOOST_AUTO_TEST_CASE(a_label_beyond_any_models_classes_is_an_error) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  std::ofstream(folder.file("labels.csv")) << "cat/b.jpg,9223372036854775807\n";
  BOOST_CHECK_EXCEPTION(Pictures({root}, {.size = 14, .labels = folder.file("labels.csv")}), DataError,
                        mentions({"cat/b.jpg", "9223372036854775807"}));
}

BOOST_AUTO_TEST_CASE(what_is_no_picture_by_its_name_is_counted_once_and_links_that_lead_back_are_refused) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  std::ofstream(root + "/cat/readme.txt") << "cats";
  std::ofstream(root + "/cat/.hidden.jpg") << "no picture";
  const Pictures pictures({root}, small);
  BOOST_REQUIRE_EQUAL(pictures.notes().size(), 1U);
  BOOST_TEST(mentions({"1 file", "cat/readme.txt"})(DataError("{}", pictures.notes()[0])));
  std::filesystem::create_directory_symlink(root, root + "/dog/loop");
  BOOST_CHECK_EXCEPTION(Pictures({root}, small), DataError, mentions({"dog/loop", "leads back"}));
  std::filesystem::create_directories(folder.file("empty"));
  BOOST_CHECK_EXCEPTION(Pictures({folder.file("empty")}, small), DataError,
                        mentions({"empty", "no pictures"}));
}

BOOST_AUTO_TEST_CASE(a_broken_picture_is_an_error_that_names_it_or_is_left_out) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  std::vector<std::byte> bytes;
  data::encode_jpeg(pattern(24, 30, 5), 90, bytes);
  write_bytes(root + "/cat/a0.jpg", std::span(bytes).first(bytes.size() / 2));
  BOOST_CHECK_EXCEPTION(samples_of(Pictures({root}, small)), DataError, mentions({"cat/a0.jpg"}));
  const Pictures rest({root}, {.size = 14, .skip_bad = true});
  BOOST_TEST(rest.size() == 4);
  BOOST_TEST(mentions({"left out", "cat/a0.jpg"})(DataError("{}", rest.notes().at(0))));
}

BOOST_AUTO_TEST_CASE(a_link_that_leads_nowhere_is_an_error_or_left_out_like_a_broken_picture) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  std::filesystem::create_symlink("gone.txt", root + "/readme");
  BOOST_TEST(Pictures({root}, small).size() == 4);
  std::filesystem::create_symlink("gone.jpg", root + "/cat/link.jpg");
  BOOST_CHECK_EXCEPTION(Pictures({root}, small), DataError, mentions({"cat/link.jpg"}));
  BOOST_TEST(Pictures({root}, {.size = 14, .skip_bad = true}).size() == 4);
}

BOOST_AUTO_TEST_CASE(a_picture_that_changed_after_it_was_listed_is_an_error) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  const Pictures pictures({root}, small);
  write_jpeg(root + "/cat/b.jpg", 9, 50, 50);
  BOOST_CHECK_EXCEPTION(samples_of(pictures), DataError, mentions({"cat/b.jpg", "bytes"}));
  std::filesystem::remove(root + "/cat/b.jpg");
  BOOST_CHECK_EXCEPTION(samples_of(pictures), DataError, mentions({"cat/b.jpg"}));
}

BOOST_AUTO_TEST_CASE(a_list_is_read_as_it_was_written) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  const data::PictureList list = data::PictureList::of_folder(root, small, true);
  const data::PictureList again = data::PictureList::parse(root, list.text());
  BOOST_TEST(again.text() == list.text());
  BOOST_TEST(again.name(2) == list.name(2));
  BOOST_CHECK_EXCEPTION(data::PictureList::parse(root, "12\tcat\n"), DataError, mentions({"damaged"}));
}

BOOST_AUTO_TEST_CASE(draws_depend_on_seed_step_and_sample_alone) {
  const TemporaryFolder folder;
  const Augment augment{.resized_crop = true, .flip = true, .color_jitter = 0.4};
  const Pictures pictures({make_folder(folder)}, small, augment);
  const data::Moment moment{.seed = 3, .step = 5}, later{.seed = 3, .step = 6};
  const Samples samples = samples_of(pictures, &moment);
  BOOST_CHECK(samples == samples_of(pictures, &moment));
  BOOST_CHECK(samples != samples_of(pictures, &later));
  BOOST_CHECK(samples_of(pictures) != samples);
}

BOOST_AUTO_TEST_CASE(words_of_augment_are_printed_as_they_are_read) {
  for (const char* const words :
       {"", "crop flip",
        "random_resized_crop crop=4 flip color_jitter=0.4 mixup=0.2 cutmix=1 random_erasing=0.25"})
    BOOST_TEST(Augment::parse(words).text() == words);
  BOOST_CHECK_EXCEPTION(Augment::parse("rotate"), UsageError, mentions({"rotate"}));
  BOOST_CHECK_EXCEPTION(Augment::parse("mixup"), UsageError, mentions({"mixup"}));
  BOOST_CHECK_EXCEPTION(Augment::parse("flip=2"), UsageError, mentions({"flip=2"}));
  BOOST_CHECK_EXCEPTION(Augment::parse("random_erasing=1.5"), UsageError, mentions({"random_erasing=1.5"}));
}

BOOST_AUTO_TEST_CASE(mixed_batches_have_the_partners_label_and_the_share_of_their_own) {
  const TemporaryFolder folder;
  const data::Images images(make_images(folder, "a.h5", 12));
  const data::LoaderOptions plain{.global_batch = 6, .shards = 2, .seed = 1};
  data::LoaderOptions mixing = plain;
  mixing.augment = {.mixup = 0.4};
  data::Loader loader(images, plain, 0, 1), mixed(images, mixing, 0, 1);
  const Batch before = loader.at(0).shards[1], after = mixed.at(0).shards[1];
  const std::int64_t elements = before["x"].numel() / 3;
  for (std::int64_t place = 0; place < 3; ++place) {
    const std::int64_t partner = (place + 2) % 3;
    const float share = after["y_share"].data<float>()[place];
    BOOST_TEST(after["y"].data<std::int64_t>()[place] == before["y"].data<std::int64_t>()[place]);
    BOOST_TEST(after["y_partner"].data<std::int64_t>()[place] == before["y"].data<std::int64_t>()[partner]);
    for (std::int64_t e = 0; e < elements; ++e)
      BOOST_REQUIRE_SMALL(after["x"].data<float>()[place * elements + e] -
                              share * before["x"].data<float>()[place * elements + e] -
                              (1 - share) * before["x"].data<float>()[partner * elements + e],
                          2e-6f);
  }
}

BOOST_AUTO_TEST_CASE(erased_boxes_have_the_mean_colour_and_other_pixels_stay) {
  const TemporaryFolder folder;
  const Pictures pictures({make_folder(folder)}, small);
  data::LoaderOptions options{.global_batch = 4, .shards = 1, .seed = 1, .shuffle = false};
  data::Loader loader(pictures, options, 0, 1);
  options.augment = {.erasing = 1};
  data::Loader erasing(pictures, options, 0, 1);
  const Tensor before = loader.at(0).shards[0]["x"], after = erasing.at(0).shards[0]["x"];
  std::int64_t erased = 0;
  for (std::int64_t e = 0; e < before.numel(); ++e) {
    if (after.data<float>()[e] == before.data<float>()[e]) continue;
    BOOST_REQUIRE_EQUAL(after.data<float>()[e], 0.0f);
    ++erased;
  }
  BOOST_TEST(erased > before.numel() / 60);
}

BOOST_AUTO_TEST_CASE(a_packed_file_has_the_samples_of_its_folder_and_a_second_start_keeps_it) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  const auto world = comm::make_self_communicator();
  data::prepare_pictures(root, {folder.file("all.h5")}, {}, *world);
  const Pictures whole({root}, small), packed({folder.file("all.h5")}, small);
  BOOST_CHECK(samples_of(whole) == samples_of(packed));
  BOOST_CHECK(whole.meaning("y").classes.value == packed.meaning("y").classes.value);
  const data::Summary again = data::prepare_pictures(root, {folder.file("all.h5")}, {}, *world);
  BOOST_TEST(mentions({"all.h5", "already"})(DataError("{}", again.notes.at(0))));
  BOOST_TEST(again.samples == 4);
  std::ofstream(root + "/dog/readme.txt") << "no picture: the file stays as it is";
  BOOST_TEST(data::prepare_pictures(root, {folder.file("all.h5")}, {}, *world).samples == 4);
  write_jpeg(root + "/dog/z.jpg", 8);
  BOOST_CHECK_EXCEPTION(data::prepare_pictures(root, {folder.file("all.h5")}, {}, *world), UsageError,
                        mentions({"all.h5"}));
  data::prepare_pictures(root, {folder.file("parts.h5")}, {.files = 2}, *world);
  const Pictures parts({folder.file("parts-00001-of-00002.h5"), folder.file("parts-00002-of-00002.h5")},
                       small);
  BOOST_CHECK(samples_of(parts) == samples_of(Pictures({root}, small)));
}

BOOST_AUTO_TEST_CASE(a_packed_file_older_than_a_picture_is_refused_and_made_anew_by_force) {
  const TemporaryFolder folder;
  const std::string root = folder.file("cats"), out = folder.file("all.h5");
  const auto world = comm::make_self_communicator();
  std::vector<std::byte> bytes;
  data::encode_jpeg(pattern(24, 30, 1), 90, bytes);
  write_bytes(root + "/cat/a.jpg", bytes);
  data::prepare_pictures(root, {out}, {}, *world);
  std::swap(bytes[bytes.size() - 8], bytes[bytes.size() - 9]);  // another picture of as many bytes
  write_bytes(root + "/cat/a.jpg", bytes);
  std::filesystem::last_write_time(out, std::filesystem::last_write_time(out) - std::chrono::hours(1));
  BOOST_CHECK_THROW(data::prepare_pictures(root, {out}, {}, *world), UsageError);
  data::prepare_pictures(root, {out, true}, {}, *world);
  BOOST_CHECK(samples_of(Pictures({out}, small)) == samples_of(Pictures({root}, small)));
}

BOOST_AUTO_TEST_CASE(a_picture_beside_the_folders_of_classes_is_named_when_they_are_packed) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  write_jpeg(root + "/stray.jpg", 5);
  const auto world = comm::make_self_communicator();
  BOOST_CHECK_EXCEPTION(data::prepare_pictures(root, {folder.file("a.h5")}, {}, *world), DataError,
                        mentions({"stray.jpg", "has no class"}));
}

BOOST_AUTO_TEST_CASE(labels_that_are_numbers_are_not_taken_for_classes_with_names) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  std::ofstream(folder.file("numbers.csv")) << "cat/b.jpg,1\ndog/a.JPEG,0\n";
  Pictures numbered({root}, {.size = 14, .labels = folder.file("numbers.csv")}), named({root}, small);
  BOOST_CHECK_THROW(numbered.number_classes("y", named.meaning("y").classes), DataError);
  BOOST_CHECK_THROW(named.number_classes("y", numbered.meaning("y").classes), DataError);
  std::ofstream(folder.file("mixed.csv")) << "cat/b.jpg,1\ndog/a.JPEG,NA\n";
  const Pictures mixed({root}, {.size = 14, .labels = folder.file("mixed.csv")});
  BOOST_TEST(mentions({"mixed.csv", "NA"})(DataError("{}", mixed.notes().at(1))));
}

BOOST_AUTO_TEST_CASE(a_packed_file_is_read_from_the_memory_of_the_node_where_it_fits) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder), path = folder.file("all.h5");
  const auto world = comm::make_self_communicator();
  data::prepare_pictures(root, {path}, {}, *world);
  Pictures packed({path}, small);
  std::int64_t left_bytes = 1 << 20;
  packed.hold_on_node(*world, left_bytes);
  BOOST_TEST(left_bytes < (1 << 20));
  std::filesystem::resize_file(path, 100);
  BOOST_CHECK(samples_of(packed) == samples_of(Pictures({root}, small)));
}

BOOST_AUTO_TEST_CASE(an_output_that_another_process_makes_or_that_is_no_data_file_is_not_taken_for_made) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  const auto world = comm::make_self_communicator();
  std::ofstream(folder.file("text.h5")) << "no HDF5";
  data::prepare_pictures(root, {folder.file("text.h5"), true}, {}, *world);
  BOOST_TEST(Pictures({folder.file("text.h5")}, small).size() == 4);
  const OpenFile spool(temporary_path(folder.file("b.h5"), "encoded"), OpenFile::Mode::read_write_or_create);
  BOOST_REQUIRE(::flock(spool.descriptor(), LOCK_EX) == 0);
  BOOST_CHECK_EXCEPTION(data::prepare_pictures(root, {folder.file("b.h5")}, {}, *world), UsageError,
                        mentions({"b.h5", "another process"}));
}

BOOST_AUTO_TEST_CASE(a_picture_that_a_size_would_make_huge_is_a_bad_one) {
  const TemporaryFolder folder;
  write_jpeg(folder.file("long/a.jpg"), 0, 1, 60'000);
  const auto world = comm::make_self_communicator();
  const data::PackOptions how{.encode = data::PackOptions::Encode::jpeg, .size = 256};
  BOOST_CHECK_EXCEPTION(data::prepare_pictures(folder.file("long"), {folder.file("a.h5")}, how, *world),
                        DataError, mentions({"long/a.jpg", "256 x 15360000"}));
}

BOOST_AUTO_TEST_CASE(pictures_are_packed_as_raw_images_of_one_size) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  const auto world = comm::make_self_communicator();
  data::prepare_pictures(root, {folder.file("raw.h5")},
                         {.encode = data::PackOptions::Encode::raw, .size = 10}, *world);
  const data::Images images(folder.file("raw.h5"));
  BOOST_TEST(images.size() == 4);
  BOOST_CHECK((data::field_named(images, "x").shape == Shape{3, 10, 10}));
  BOOST_TEST(images.meaning("y").classes.value.size() == 2U);
  BOOST_CHECK_THROW(
      data::prepare_pictures(root, {folder.file("b.h5")}, {.encode = data::PackOptions::Encode::raw}, *world),
      UsageError);
}

BOOST_AUTO_TEST_CASE(raw_images_of_any_size_are_packed_whole) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  const auto world = comm::make_self_communicator();
  const auto pixels = [&](std::int64_t size, int files) {  // 1 MiB is written at once
    const data::Summary summary = data::prepare_pictures(
        root, {folder.file(fmt::format("{}.h5", files)), true},
        {.encode = data::PackOptions::Encode::raw, .size = size, .files = files}, *world);
    std::vector<std::uint8_t> all;
    for (int i = 1; i <= files; ++i) {
      const std::string name = files == 1 ? "1.h5" : fmt::format("{}-{:05}-of-{:05}.h5", files, i, files);
      const auto part = hdf5::File::open(folder.file(name)).open_dataset("x").read_all<std::uint8_t>();
      all.insert(all.end(), part.begin(), part.end());
      std::filesystem::remove(folder.file(name));
    }
    return all;
  };
  for (const std::int64_t size : {500, 700}) BOOST_TEST((pixels(size, 1) == pixels(size, 4)));
}

BOOST_AUTO_TEST_CASE(broken_pictures_are_listed_by_name_when_they_are_packed) {
  const TemporaryFolder folder;
  const std::string root = make_folder(folder);
  write_bytes(root + "/cat/c.png", {});
  write_bytes(root + "/dog/d.jpg", std::as_bytes(std::span("GIF89a and more")));
  const auto world = comm::make_self_communicator();
  BOOST_CHECK_EXCEPTION(data::prepare_pictures(root, {folder.file("all.h5")}, {}, *world), DataError,
                        mentions({"2 pictures", "cat/c.png", "dog/d.jpg", "--skip-bad"}));
  BOOST_CHECK_THROW(data::prepare_pictures(root, {folder.file("parts.h5")}, {.files = 3}, *world), DataError);
  for (const char* const part :
       {"parts-00001-of-00003.h5", "parts-00002-of-00003.h5", "parts-00003-of-00003.h5"})
    BOOST_TEST(!std::filesystem::exists(folder.file(part)));
  BOOST_TEST(!std::filesystem::exists(folder.file("all.h5")));
  std::filesystem::copy_file(root + "/cat/a.jpg", folder.file("parts-00002-of-00003.h5"));
  BOOST_CHECK_THROW(data::prepare_pictures(root, {folder.file("parts.h5"), true}, {.files = 3}, *world),
                    DataError);
  BOOST_TEST(std::filesystem::exists(folder.file("parts-00002-of-00003.h5")));
  const data::Summary rest =
      data::prepare_pictures(root, {folder.file("all.h5")}, {.pictures = {.skip_bad = true}}, *world);
  BOOST_TEST(rest.samples == 4);
  BOOST_TEST(rest.warnings.size() == 2U);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
