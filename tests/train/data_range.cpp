// data.range: stored values become [-1, 1] for a task that takes such, in images and in arrays, and come
// back.
#include "train/learned_data.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "support/world.h"
#include "train/components.h"
#include "train/data_sets.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(data_range)

using train::StoredRange;

/// Takes x in [-1, 1], and has no loss.
struct Unit final : Task {
  struct Options {
    static std::vector<Option<Options>> options() { return {}; }
  };
  explicit Unit(const Options&) {}
  Loss loss(Tape&, Model&, const Batch&) override { return {}; }
  bool takes_unit_range() const override { return true; }
};

struct RangeFiles {
  TemporaryFolder folder;
  Registries registries;

  RangeFiles() {
    add_built_in(registries);
    registries.tasks.add<Unit>("unit");
  }
  /// x [2, 1, 2, 2] and perhaps y.
  template <class T>
  std::string images(const std::string& name, const std::vector<T>& x, bool mean = true) {
    hdf5::File out = hdf5::File::create(folder.file(name));
    hdf5::Dataset array = out.create_dataset("x", dtype_of<T>, {2, 1, 2, 2});
    array.write(std::span<const T>(x));
    if (mean) {
      array.set_attribute("mean", std::vector<double>{3});
      array.set_attribute("std", std::vector<double>{5});
    }
    out.create_dataset("y", DType::int64, {2})
        .write(std::span<const std::int64_t>(std::vector<std::int64_t>{0, 1}));
    out.close();
    return folder.file(name);
  }
  train::Config config(const std::string& data, const std::vector<std::string>& overrides = {},
                       const std::string& task = "unit") const {
    return train::parse_config("[model]\nname = mlp\nsizes = 4 3 2\n[task]\nname = " + task +
                                   "\n[data]\ntrain = " + data + "\n[train]\nsteps = 1\nglobal_batch = 2\n",
                               "text", overrides, registries);
  }
  train::DataSets opened(const train::Config& config) const {
    return {config, *train::build_meta_model(config)};
  }
  static std::vector<float> x_of(const data::Dataset& data) {
    const Batch batch = read_samples(data, {0, 1});
    const float* const x = batch["x"].data<float>();
    return {x, x + batch["x"].numel()};
  }
};

const std::vector<std::uint8_t> bytes{0, 255, 51, 16, 8, 204, 1, 254};

BOOST_FIXTURE_TEST_CASE(bytes_are_0_to_255_whatever_mean_their_file_has_and_others_as_the_key_says,
                        RangeFiles) {
  const std::string file = images("bytes.h5", bytes);
  for (const std::string format : {"images", "arrays"}) {
    const train::DataSets plain = opened(config(file, {"data.format=" + format}));
    BOOST_TEST_REQUIRE(plain.range().has_value());
    BOOST_TEST(plain.range()->low == 0);
    BOOST_TEST(plain.range()->high == 255);
    BOOST_TEST((plain.range()->field.dtype == DType::uint8));
    BOOST_TEST((plain.range()->field.shape == Shape{1, 2, 2}));
    const std::vector<float> x = x_of(plain.train()),
                             y = x_of(
                                 opened(config(file, {"data.format=" + format, "data.range=0 16"})).train());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      BOOST_TEST(x[i] == static_cast<float>((bytes[i] - 127.5) / 127.5));
      BOOST_TEST(y[i] == static_cast<float>((bytes[i] - 8.0) / 8));
    }
    // Back to what was stored.
    const std::vector<double> back = plain.range()->stored_values(x);
    for (std::size_t i = 0; i < bytes.size(); ++i) BOOST_TEST(back[i] == bytes[i]);
  }
}

BOOST_FIXTURE_TEST_CASE(floats_stay_as_they_are_unless_the_key_says_otherwise, RangeFiles) {
  const std::vector<float> values{-1, 1, 0.25f, -0.75f, 0.125f, 1.0005f, 0, 1e-7f};
  const std::string file = images("floats.h5", values);
  for (const std::string format : {"images", "arrays"}) {
    BOOST_TEST(x_of(opened(config(file, {"data.format=" + format})).train()) == values,
               boost::test_tools::per_element());
    BOOST_TEST(x_of(opened(config(file, {"data.format=" + format, "data.range=-3 1"})).train())[0] == 0);
  }
}

BOOST_FIXTURE_TEST_CASE(held_out_data_are_mapped_as_training_data, RangeFiles) {
  const std::string file = images("bytes.h5", bytes),
                    floats = images("floats.h5", std::vector<float>(8, 255));
  const train::Config asked = config(file, {"data.eval=" + floats});
  const train::DataSets data = opened(asked);
  BOOST_TEST(x_of(*data.eval())[0] == 1);
  train::Config stored = asked;  // as a checkpoint's provenance says
  stored.data.range = {0, 255};
  train::DataSets other(stored, *train::build_meta_model(stored), floats, {});
  BOOST_TEST(x_of(*other.eval())[0] == 1);
  BOOST_TEST(other.take_warnings().empty());  // no mean of the training data is needed
}

BOOST_FIXTURE_TEST_CASE(what_does_not_fit_is_refused, RangeFiles) {
  const std::string file = images("bytes.h5", bytes),
                    words = images("words.h5", std::vector<std::int32_t>(8, 3));
  const auto refused = [&](const std::string& data, const std::vector<std::string>& overrides,
                           const std::string& task, const std::string& why) {
    BOOST_CHECK_EXCEPTION(opened(config(data, overrides, task)), UsageError, mentions(why));
  };
  refused(file, {"data.range=0 16", "data.normalize=x"}, "unit",
          "cannot be combined with data.normalize of x");
  refused(file, {"data.normalize=x"}, "unit", "data.normalize: names x, which the task needs in [-1, 1]");
  refused(file, {"data.range=0 16"}, "classification", "data.range: the task takes x as it is");
  refused(words, {}, "unit", "data.range: is missing");
  const std::string wide = images("wide.h5", std::vector<float>{0, 1, 160, 3, -2, 0, 0, 0});
  for (const std::string format : {"images", "arrays"}) {
    refused(wide, {"data.format=" + format}, "unit",
            "has values from -2 to 160 (in its first 2 samples); give the lowest and the highest value");
    BOOST_TEST(opened(config(wide, {"data.format=" + format, "data.range=-1 1"})).range()->high == 1);
  }
  for (const char* const range : {"1", "1 0", "0 0", "0 1 2"})
    refused(file, {std::string("data.range=") + range}, "unit", "takes two numbers, the lower one first");
  refused(file, {"data.range=0 inf"}, "unit", "data.range");
  BOOST_TEST(opened(config(words, {"data.range=3 5"})).range()->low == 3);
  BOOST_TEST(!opened(config(file, {}, "classification")).range().has_value());
}

BOOST_AUTO_TEST_CASE(stored_values_are_clamped_and_rounded_to_the_type) {
  const std::vector<float> values{-1, 1, -2, 2, 0, 0.51f};
  const auto are = [&](const StoredRange& range, const std::vector<double>& wanted) {
    BOOST_TEST(range.stored_values(values) == wanted, boost::test_tools::per_element());
  };
  are({.low = 0, .high = 255, .field = {.dtype = DType::uint8}}, {0, 255, 0, 255, 128, 193});
  are({.low = -300, .high = 300, .field = {.dtype = DType::int8}}, {-128, 127, -128, 127, 0, 127});
  are({.low = 0, .high = 1, .field = {.dtype = DType::float32}},
      {0, 1, 0, 1, 0.5, static_cast<double>(0.51f) * 0.5 + 0.5});
}

BOOST_AUTO_TEST_CASE(weights_of_other_programs_are_assumed_to_make_bytes_unless_the_key_says_otherwise) {
  const auto type_of = [](const std::vector<double>& range) {
    train::DataConfig config;
    config.range = range;
    return train::assumed_range(config).field.dtype;
  };
  BOOST_TEST(train::assumed_range({}).high == 255);
  for (const std::vector<double>& range : {std::vector<double>{}, {0, 255}, {0, 16}})
    BOOST_TEST((type_of(range) == DType::uint8));
  for (const std::vector<double>& range : {std::vector<double>{-1, 1}, {0, 1}, {0, 256}, {0.5, 16}})
    BOOST_TEST((type_of(range) == DType::float32));
}

BOOST_AUTO_TEST_CASE(provenance_keeps_it_and_damage_is_found) {
  const StoredRange range{.low = -0.1, .high = 16, .field = {.dtype = DType::uint8, .shape = Shape{64}}};
  checkpoint::Provenance provenance;
  BOOST_TEST(!train::stored_range(provenance, "f.h5").has_value());
  train::add(provenance, range);
  const StoredRange again = *train::stored_range(provenance, "f.h5");
  BOOST_TEST(again.low == -0.1);
  BOOST_TEST(again.high == 16);
  BOOST_TEST((again.field.dtype == DType::uint8));
  BOOST_TEST((again.field.shape == Shape{64}));
  for (const auto& [key, value] : {std::pair("x_range", "0"),
                                   {"x_range", "1 0"},
                                   {"x_range", "a b"},
                                   {"x_range", "\""},
                                   {"x_type", "uint9"},
                                   {"x_shape", "-4"},
                                   {"x_shape", "1 1 1 1 1 1 1 1 1 1"}}) {
    checkpoint::Provenance damaged = provenance;
    damaged[key] = value;
    BOOST_CHECK_EXCEPTION(train::stored_range(damaged, "f.h5"), DataError, mentions("f.h5: the range of x"));
  }
  provenance.erase("x_type");
  BOOST_CHECK_THROW(train::stored_range(provenance, "f.h5"), DataError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
