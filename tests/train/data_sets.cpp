// Which data set a file is for a model, weights of files, and the normalisation over the training part.
#include "train/data_sets.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/text.h"
#include "support/world.h"
#include "train/components.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(data_sets, *ranks(1, 2, 3))

using train::DataSets;

struct Folder {
  TemporaryFolder folder;

  std::string file(const std::string& name) const {
    return folder.file(name + "." + std::to_string(world().rank()) + ".h5");
  }
  /// x float64 [n, width] and y, floats [n] or integers [n], and a table z.
  std::string make(const std::string& name, std::int64_t rows, DType targets, int salt = 0,
                   std::int64_t width = 4) const {
    hdf5::File out = hdf5::File::create(file(name));
    std::vector<double> x(static_cast<std::size_t>(rows * width));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(std::sin(static_cast<double>(i)) * 3 + salt);
    out.create_dataset("x", DType::float64, {rows, width}).write(std::span<const double>(x));
    if (is_floating(targets)) {
      const std::vector<float> y(static_cast<std::size_t>(rows), 1.5f);
      out.create_dataset("y", targets, {rows}).write(std::span<const float>(y));
    } else {
      const std::vector<std::int64_t> y(static_cast<std::size_t>(rows), 1);
      out.create_dataset("y", targets, {rows}).write(std::span<const std::int64_t>(y));
    }
    out.close();
    return file(name);
  }
  static train::Config config(const std::string& data, const std::vector<std::string>& overrides = {}) {
    return train::parse_config("[model]\nname = mlp\nsizes = 4 3 2\n[data]\ntrain = " + data +
                                   "\n[train]\nsteps = 1\nglobal_batch = 2\n",
                               "text", overrides);
  }
  static DataSets opened(const train::Config& config) { return {config, *train::build_meta_model(config)}; }
};

BOOST_FIXTURE_TEST_CASE(the_format_is_what_the_first_file_holds, Folder) {
  const std::string images = make("images", 6, DType::int64), targets = make("targets", 6, DType::float32);
  const auto is = [](const DataSets& data, auto* null) {
    return dynamic_cast<decltype(null)>(&data.train()) != nullptr;
  };
  BOOST_TEST(is(opened(config(images)), static_cast<const data::Images*>(nullptr)));
  BOOST_TEST(is(opened(config(targets)), static_cast<const data::Arrays*>(nullptr)));
  for (const std::string setting : {"data.format=arrays", "data.fields=x y", "data.normalize=x"})
    BOOST_TEST(is(opened(config(images, {setting})), static_cast<const data::Arrays*>(nullptr)));
  BOOST_CHECK_EXCEPTION(opened(config(targets, {"data.format=images"})), DataError,
                        mentions("labels are integers [N]"));
  BOOST_CHECK_EXCEPTION(opened(config(targets, {"data.format=text"})), UsageError,
                        mentions("does not read text"));
}

BOOST_FIXTURE_TEST_CASE(a_star_and_a_number_behind_a_file_are_its_weight_unless_a_file_has_that_name,
                        Folder) {
  const std::string starred = folder.file("b" + std::to_string(world().rank()) + ".h5*2");
  std::ofstream(starred) << "a file";
  train::DataConfig config;
  config.train = {"a.h5*0.25", "a.h5", "a*b.h5", "a*2.h5*3e1", starred, starred + "*0.5"};
  const std::vector<train::TrainingFile> files = train::training_files(config);
  const auto is = [&](std::size_t i, const std::string& path, std::optional<double> weight) {
    BOOST_TEST(files[i].path == path);
    BOOST_TEST((files[i].weight == weight));
  };
  is(0, "a.h5", 0.25);
  is(1, "a.h5", std::nullopt);
  is(2, "a*b.h5", std::nullopt);
  is(3, "a*2.h5", 30);
  is(4, starred, std::nullopt);
  is(5, starred, 0.5);
  for (const char* const word : {"a.h5*0", "a.h5*-1", "a.h5*inf", "a.h5*nan", "a.h5*1e999"}) {
    config.train = {word};
    BOOST_CHECK_EXCEPTION(train::training_files(config), UsageError, mentions("is a number above 0"));
  }
}

BOOST_FIXTURE_TEST_CASE(each_source_of_a_mixture_is_split_and_the_normalisation_is_that_of_the_training_parts,
                        Folder) {
  const std::string a = make("a", 200, DType::float32), b = make("b", 50, DType::float32, 7);
  const train::Config plain = config(a + "*0.9 " + b, {"data.format=arrays", "data.eval_fraction=0.2"});
  const DataSets raw = opened(plain);
  BOOST_TEST(raw.train().size() == 200);
  BOOST_TEST(raw.eval()->size() == 50);
  BOOST_REQUIRE(raw.train().order(1));
  std::vector<double> mean(4), deviation(4);
  const auto each = [&](const auto& use) {
    for (std::int64_t i = 0; i < raw.train().size(); ++i) {
      const Batch batch = read_samples(raw.train(), {i});
      for (std::size_t c = 0; c < 4; ++c) use(c, static_cast<double>(batch["x"].data<float>()[c]));
    }
  };
  each([&](std::size_t c, double value) { mean[c] += value / 200; });
  each([&](std::size_t c, double value) { deviation[c] += (value - mean[c]) * (value - mean[c]) / 200; });

  train::Config asked = plain;
  asked.data.normalize = {"x"};
  DataSets data = opened(asked);
  data.measure(world());
  checkpoint::StateDict contents;
  add(contents, data.train(), data.range());
  BOOST_REQUIRE(contents.sections.size() == 2u);
  BOOST_TEST(contents.sections[0].path == "data/x");
  BOOST_TEST(contents.sections[1].path == "data/y");
  for (std::size_t c = 0; c < 4; ++c) {
    BOOST_TEST(contents.sections[0].tensors[0].value.data<double>()[c] == mean[c],
               boost::test_tools::tolerance(1e-12));
    BOOST_TEST(contents.sections[0].tensors[1].value.data<double>()[c] == std::sqrt(deviation[c]),
               boost::test_tools::tolerance(1e-12));
  }
  for (const auto& [is, was] : {std::pair(&data.train(), &raw.train()), {data.eval(), raw.eval()}}) {
    const float value = read_samples(*is, {3})["x"].data<float>()[1];
    const double stored = static_cast<double>(read_samples(*was, {3})["x"].data<float>()[1]);
    BOOST_TEST(value == static_cast<float>((stored - mean[1]) / std::sqrt(deviation[1])),
               boost::test_tools::tolerance(1e-5f));
  }

  // A resume's numbers, whatever the data are by now.
  data.use({.name = "saved", .fields = {{"x", {.by = data::Normalization{{10, 10, 10, 10}, {2, 2, 2, 2}}}}}});
  const float value = read_samples(data.train(), {3})["x"].data<float>()[0];
  BOOST_TEST(value == (read_samples(raw.train(), {3})["x"].data<float>()[0] - 10) / 2,
             boost::test_tools::tolerance(1e-5f));
}

BOOST_FIXTURE_TEST_CASE(training_draws_classes_equally_often_or_samples_by_a_field, Folder) {
  hdf5::File out = hdf5::File::create(file("rare"));
  std::vector<float> x(400), weight(100, 1);
  std::vector<std::int64_t> y(100, 0);
  y[7] = 1;
  weight[9] = 99;
  out.create_dataset("x", DType::float32, {100, 4}).write(std::span<const float>(x));
  out.create_dataset("y", DType::int64, {100}).write(std::span<const std::int64_t>(y));
  out.create_dataset("weight", DType::float32, {100}).write(std::span<const float>(weight));
  out.close();
  const auto share_of = [&](std::int64_t sample, const std::string& key) {
    const DataSets data = opened(config(file("rare"), {"data.format=arrays", key}));
    const data::WeightedDraws order(data.draw_weights(), 1);
    std::vector<std::int64_t> drawn(4000);
    order.samples(0, drawn);
    return static_cast<double>(std::ranges::count(drawn, sample)) / 4000;
  };
  BOOST_TEST(share_of(7, "data.balance=y") == 0.5, boost::test_tools::tolerance(0.1));
  BOOST_TEST(share_of(9, "data.weights=weight") == 0.5, boost::test_tools::tolerance(0.1));
  BOOST_CHECK_EXCEPTION(share_of(0, "data.weights=x"), Error, mentions("data.weights", "x"));
  BOOST_CHECK_EXCEPTION(share_of(0, "data.balance=z"), Error, mentions("data.balance", "z"));
}

/// As many samples as its file's name says, the heavy half of them drawn three times as often.
class Drawn final : public data::Dataset {
 public:
  explicit Drawn(const std::vector<std::string>& files) : base_(files.empty() ? 40 : std::stoll(files[0])) {}
  static bool fits(const data::Request& request) { return request.files.empty(); }
  std::int64_t size() const override { return base_.size(); }
  const std::vector<data::Field>& fields() const override { return base_.fields(); }
  std::string name() const override { return "drawn"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    base_.read(samples, into);
  }
  std::unique_ptr<data::Order> order(std::uint64_t seed) const override {
    std::vector<double> weights(static_cast<std::size_t>(size()), 1);
    std::fill_n(weights.begin(), size() / 2, 3);
    return std::make_unique<data::WeightedDraws>(weights, seed);
  }

 private:
  Counting base_;
};

BOOST_FIXTURE_TEST_CASE(a_data_set_of_the_program_is_made_of_its_files_and_keeps_its_order, Folder) {
  Registries registries;
  add_built_in(registries);
  registries.data.add<Drawn>("drawn");
  const auto of = [&](const std::string& files, const std::vector<std::string>& overrides) {
    train::Config asked = config(files, overrides);
    asked.registries = &registries;
    return asked;
  };
  const DataSets data = opened(of("120", {"data.format=drawn", "data.eval=30"}));
  BOOST_TEST(data.format() == "drawn");
  BOOST_TEST(data.train().size() == 120);
  BOOST_TEST(data.eval()->size() == 30);
  BOOST_TEST(data.train().order(1) != nullptr);
  BOOST_TEST(opened(of("", {"data.format=drawn"})).train().size() == 40);
  BOOST_TEST(opened(of("", {})).format() == "drawn");  // auto asks it, though there are no files
  const DataSets parts = opened(of("100*2 50", {"data.format=drawn", "data.eval_fraction=0.2"}));
  BOOST_TEST(parts.train().size() == 120);
  BOOST_TEST(parts.eval()->size() == 30);
  BOOST_TEST(parts.train().order(1) != nullptr);
  BOOST_CHECK_EXCEPTION(opened(of("120", {"data.format=draw"})), UsageError, mentions("data.format: "));
  DataSets normalized = opened(of("120", {"data.format=drawn", "data.normalize=x"}));
  normalized.measure(world());
  BOOST_TEST(read_samples(normalized.train(), {0, 119})["x"].data<float>()[2] ==
                 static_cast<float>(59.5 / std::sqrt((120.0 * 120 - 1) / 12)),
             boost::test_tools::tolerance(1e-6f));
}

/// Images of one value, as bytes or as floats from 0 to 1, and labels with names.
struct Pictures : Folder {
  std::string pictures(const std::string& name, DType dtype, const std::string& classes,
                       const std::string& units = "", double mean = 0) const {
    hdf5::File out = hdf5::File::create(file(name));
    const std::vector<float> values(64, dtype == DType::uint8 ? 100.f : 0.4f);
    hdf5::Dataset x = out.create_dataset("x", dtype, {4, 1, 4, 4});
    x.write(std::span<const float>(values));
    if (mean > 0) x.set_attribute("mean", std::vector<double>{mean});
    if (!units.empty()) x.set_attribute("units", units);
    hdf5::Dataset y = out.create_dataset("y", DType::int64, {4});
    y.write(std::span<const std::int64_t>(std::vector<std::int64_t>{0, 1, 0, 1}));
    if (!classes.empty()) y.set_attribute("classes", classes);
    out.close();
    return file(name);
  }
  static train::LearnedFrom saved(const DataSets& data) {
    train::LearnedFrom from{.name = "saved", .fields = {}};
    for (const data::Field& field : data.train().fields())
      from.fields[field.name] = data.train().meaning(field.name);
    return from;
  }
};

BOOST_FIXTURE_TEST_CASE(values_that_mean_two_things_are_refused_in_a_run_and_by_a_checkpoint, Pictures) {
  const std::string bytes = pictures("bytes", DType::uint8, "cat\ndog", "counts"),
                    units = pictures("units", DType::uint8, "", "K"),
                    floats = pictures("floats", DType::float32, ""),
                    order = pictures("order", DType::uint8, "dog\ncat"),
                    packed = pictures("packed", DType::uint8, "");
  hdf5::File::open_for_writing(packed).open_dataset("x").set_attribute("scale_factor",
                                                                       std::vector<double>{0.5});
  const train::Config trained = config(bytes);
  const auto model = train::build_meta_model(trained);
  const train::LearnedFrom from = saved(opened(trained));
  for (const auto& [path, said] : {std::pair(units, std::string("units")),
                                   {floats, "in the same scale"},
                                   {order, "class 0 of"},
                                   {packed, "the packing"}}) {
    for (const std::string format : {"images", "arrays"}) {
      const std::string setting = "data.format=" + format;
      if (format == "arrays" && path == floats) continue;  // another type, which is another error
      BOOST_CHECK_EXCEPTION(opened(config(bytes + " " + path, {setting})), DataError, mentions(said));
      BOOST_CHECK_EXCEPTION(opened(config(bytes + "*1 " + path + "*1", {setting})), DataError,
                            mentions(said));
      BOOST_CHECK_EXCEPTION(opened(config(bytes, {setting, "data.eval=" + path})), DataError, mentions(said));
    }
    BOOST_CHECK_EXCEPTION(DataSets(trained, *model, path, from), DataError, mentions(said));
    BOOST_CHECK_EXCEPTION(opened(config(path)).use(from), DataError, mentions(said));
  }
  DataSets(trained, *model, floats, from, true, true);  // its own scale
  BOOST_CHECK_THROW(DataSets(trained, *model, order, from, true, true), DataError);
}

BOOST_FIXTURE_TEST_CASE(images_are_normalised_as_the_checkpoint_says_wherever_the_training_data_are,
                        Pictures) {
  const std::string first = pictures("first", DType::uint8, "", "", 50),
                    none = pictures("none", DType::uint8, ""),
                    other = pictures("other", DType::uint8, "", "", 80);
  train::Config trained = config(first);
  const auto model = train::build_meta_model(trained);
  const train::LearnedFrom from = saved(opened(trained));
  std::filesystem::remove(first);
  const auto first_value = [](const data::Dataset& dataset) {
    return read_samples(dataset, {0})["x"].data<float>()[0];
  };
  for (const auto& [path, said] : {std::pair(none, false), {other, true}}) {
    DataSets data(trained, *model, path, from);
    BOOST_TEST(first_value(*data.eval()) == (100 - 50) / 255.f);
    BOOST_TEST(!data.take_warnings().empty() == said);
    BOOST_TEST(first_value(*DataSets(trained, *model, path, from, true, true).eval()) ==
               (path == other ? 20 : 100) / 255.f);
    DataSets resumed = opened(config(path));
    resumed.use(from);
    BOOST_TEST(first_value(resumed.train()) == (100 - 50) / 255.f);
    BOOST_TEST(!resumed.take_warnings().empty() == said);
  }
}

BOOST_FIXTURE_TEST_CASE(each_warning_is_kept_and_the_file_that_says_it_is_named, Pictures) {
  const std::string plain = pictures("plain", DType::uint8, ""),
                    cats = pictures("cats", DType::uint8, "cat\ndog"),
                    dogs = pictures("dogs", DType::uint8, "dog\ncat"),
                    packed = pictures("packed", DType::uint8, "", "", 50),
                    other = pictures("other", DType::uint8, "", "", 80);
  for (const std::string& path : {packed, other})
    hdf5::File::open_for_writing(path).open_dataset("x").set_attribute("scale_factor",
                                                                       std::vector<double>{0.5});
  train::Config trained = config(packed);
  const train::LearnedFrom from = saved(opened(trained));
  DataSets data(trained, *train::build_meta_model(trained), other, from);
  const std::vector<std::string> warnings = data.take_warnings();
  BOOST_REQUIRE(warnings.size() == 2u);
  BOOST_TEST(mentions("scale_factor", "x (" + other + ")")(DataError("{}", warnings[0])));
  BOOST_TEST(mentions(other, "normalised by mean")(DataError("{}", warnings[1])));
  BOOST_TEST(data.take_warnings().empty());
  for (const std::string& files :
       {plain + " " + cats + " " + dogs, plain + "*1 " + cats + "*1 " + dogs + "*1"})
    BOOST_CHECK_EXCEPTION(opened(config(files)), DataError, mentions(dogs + ": class 0", cats));
  BOOST_CHECK_EXCEPTION(opened(config(plain + " " + cats, {"data.eval=" + dogs})), DataError,
                        mentions(dogs + ": class 0", cats));
  BOOST_CHECK_EXCEPTION(opened(config(plain, {"data.eval=" + dogs})).use(saved(opened(config(cats)))),
                        DataError, mentions(dogs + ": class 0"));
}

BOOST_FIXTURE_TEST_CASE(large_integers_are_measured_as_they_are_stored, Folder) {
  hdf5::File out = hdf5::File::create(file("large"));
  std::vector<std::int64_t> x(8);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = (std::int64_t{1} << 40) + static_cast<std::int64_t>(i);
  out.create_dataset("x", DType::int64, {8}).write(std::span<const std::int64_t>(x));
  out.close();
  DataSets data = opened(config(file("large"), {"data.normalize=x"}));
  BOOST_TEST((data.train().fields()[0].dtype == DType::float32));
  data.measure(world());
  const double deviation = std::sqrt(5.25);
  for (std::int64_t i = 0; i < 8; ++i)
    BOOST_TEST(read_samples(data.train(), {i})["x"].data<float>()[0] ==
                   static_cast<float>((static_cast<double>(i) - 3.5) / deviation),
               boost::test_tools::tolerance(1e-6f));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
