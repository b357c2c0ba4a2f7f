// Orders: weighted draws, mixtures, and orders of one's own, all pure functions of the position.
#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(orders)

std::vector<std::int64_t> drawn(const data::Order& order, std::int64_t first, std::size_t count) {
  std::vector<std::int64_t> samples(count);
  order.samples(first, samples);
  return samples;
}

/// Whatever is asked in one piece is the same in any others.
void check_pure(const data::Order& order) {
  const std::vector<std::int64_t> whole = drawn(order, 0, 25'000);
  for (const std::int64_t first : {0, 1, 777, 9'999, 10'000, 24'000}) {
    const std::vector<std::int64_t> part = drawn(order, first, 1'000);
    BOOST_TEST(std::equal(part.begin(), part.end(), whole.begin() + first));
  }
}

BOOST_AUTO_TEST_CASE(samples_are_drawn_as_often_as_their_weights_say) {
  const std::vector<double> weights{1, 0, 3, 4, 0};
  const data::WeightedDraws order(weights, 7);
  check_pure(order);
  std::map<std::int64_t, int> times;
  constexpr int draws = 80'000;
  for (const std::int64_t sample : drawn(order, 0, draws)) ++times[sample];
  BOOST_TEST(times.count(1) == 0u);
  BOOST_TEST(times.count(4) == 0u);
  for (const std::int64_t sample : {0, 2, 3}) {
    const double p = weights[static_cast<std::size_t>(sample)] / 8, wanted = p * draws;
    // Six standard deviations of a binomial count.
    BOOST_TEST(std::abs(times[sample] - wanted) < 6 * std::sqrt(wanted * (1 - p)));
  }
  BOOST_TEST(drawn(order, 0, 100) != drawn(data::WeightedDraws(weights, 8), 0, 100));
}

BOOST_AUTO_TEST_CASE(weights_that_make_no_sense_are_refused) {
  const auto refused = [](std::vector<double> weights) {
    BOOST_CHECK_THROW(data::WeightedDraws(weights, 1), UsageError);
  };
  refused({});
  refused({0, 0});
  refused({1, -1});
  refused({1, std::nan("")});
  refused({std::numeric_limits<double>::infinity()});
}

BOOST_AUTO_TEST_CASE(after_any_number_of_positions_each_source_has_had_its_share) {
  const Counting a(70), b(1000), c(13);
  const data::Mixture mixture({{&a, 0.7}, {&b, 0.2}, {&c, 0.1}}, true);
  BOOST_TEST(mixture.size() == 1083);
  const auto order = mixture.order(3);
  BOOST_REQUIRE(order);
  check_pure(*order);
  const std::vector<std::int64_t> samples = drawn(*order, 0, 30'000);
  std::array<double, 3> had{};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ++had[samples[i] < 70 ? 0 : samples[i] < 1070 ? 1 : 2];
    const double n = static_cast<double>(i + 1);
    const bool fair =
        std::abs(had[0] - 0.7 * n) <= 1 && std::abs(had[1] - 0.2 * n) <= 1 && std::abs(had[2] - 0.1 * n) <= 1;
    BOOST_REQUIRE(fair);
  }
}

/// Of a mixture of `weights`: the share of each source holds at every one of `positions` positions.
void check_shares(const std::vector<double>& weights, std::int64_t positions) {
  std::vector<std::unique_ptr<Counting>> sources;
  std::vector<data::Mixture::Source> parts;
  double sum = 0;
  for (const double weight : weights) {
    sources.push_back(std::make_unique<Counting>(1));  // a sample's number is its source
    parts.push_back({sources.back().get(), weight});
    sum += weight;
  }
  const double bound = weights.size() <= 3 ? 1 : 1.7;
  const auto order = data::Mixture(parts, true).order(3);
  const std::vector<std::int64_t> samples = drawn(*order, 0, static_cast<std::size_t>(positions));
  std::vector<double> had(weights.size());
  double worst = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ++had[static_cast<std::size_t>(samples[i])];
    for (std::size_t s = 0; s < weights.size(); ++s)
      worst = std::max(worst, std::abs(had[s] - weights[s] / sum * static_cast<double>(i + 1)));
  }
  BOOST_TEST(worst <= bound);
}

BOOST_AUTO_TEST_CASE(shares_of_random_weights_hold_at_every_position) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> exponent(-5, 0);
  for (const std::size_t count : {1, 2, 3, 4, 5, 9}) {
    for (int trial = 0; trial < 5; ++trial) {
      std::vector<double> weights(count);
      for (double& weight : weights) weight = std::pow(10, exponent(random));
      check_shares(weights, 20'000);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_source_of_a_tiny_share_is_sampled_as_often_as_its_weight_says) {
  check_shares({0.99996, 0.00004}, 200'000);
  check_shares({0.5, 0.49985, 0.00015}, 200'000);
  check_shares({1e300, 1e-300, 1}, 10'000);
}

BOOST_AUTO_TEST_CASE(each_source_of_a_mixture_has_positions_of_its_own_one_after_the_other_however_far) {
  const Counting a(70), b(1000), c(13), d(1);
  const auto order = data::Mixture({{&a, 0.61}, {&b, 0.3}, {&c, 0.00004}, {&d, 0.2}}, true).order(3);
  constexpr std::int64_t far = std::int64_t{1} << 40;
  const std::vector<std::int64_t> whole = drawn(*order, far, 2'000);
  for (const std::int64_t first : {0, 1, 999}) {
    const std::vector<std::int64_t> part = drawn(*order, far + first, 1'000);
    BOOST_TEST(std::equal(part.begin(), part.end(), whole.begin() + first));
  }
  // Any 139 samples of `a` in a row contain a whole epoch of it.
  std::vector<std::int64_t> of_a;
  for (const std::int64_t sample : whole)
    if (sample < 70 && of_a.size() < 139) of_a.push_back(sample);
  std::sort(of_a.begin(), of_a.end());
  of_a.erase(std::unique(of_a.begin(), of_a.end()), of_a.end());
  BOOST_TEST(of_a == range(0, 70));
}

BOOST_AUTO_TEST_CASE(each_source_is_walked_in_epochs_of_its_own) {
  const Counting a(70), b(1000);
  const data::Mixture mixture({{&a, 3}, {&b, 1}}, true);
  const auto order = mixture.order(3);
  std::vector<std::int64_t> of_a;
  for (const std::int64_t sample : drawn(*order, 0, 5'000)) {
    if (sample < 70) of_a.push_back(sample);
  }
  for (std::size_t epoch = 0; (epoch + 1) * 70 <= of_a.size(); ++epoch) {
    const auto begin = of_a.begin() + static_cast<std::ptrdiff_t>(epoch * 70);
    std::vector<std::int64_t> seen(begin, begin + 70);
    std::sort(seen.begin(), seen.end());
    BOOST_TEST(seen == range(0, 70));
  }
}

BOOST_AUTO_TEST_CASE(a_mixture_reads_from_the_sources_and_without_weights_is_one_set) {
  const Counting a(5), b(300);
  const data::Mixture mixture({{&a}, {&b}}, false);
  BOOST_TEST(!mixture.order(1));
  BOOST_TEST(values_of<std::int64_t>(read_samples(mixture, {4, 5, 0, 304, 303})["y"]) ==
             (std::vector<std::int64_t>{4, 0, 0, 299, 298}));
  BOOST_CHECK_THROW(read_samples(mixture, {305}), UsageError);
}

/// Another field than Counting's.
class Other final : public data::Dataset {
 public:
  std::int64_t size() const override { return 3; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  std::string name() const override { return "other"; }
  void read(std::span<const std::int64_t>, std::span<const Tensor>) const override {}

 private:
  std::vector<data::Field> fields_{{.name = "x", .shape = {3}}, {.name = "y", .dtype = DType::int64}};
};

/// Counting, with an option, of requests for as many classes as it says.
class Wanted final : public Counting {
 public:
  struct Options {
    std::int64_t size = 3;
    LOCKSTEP_KEYS(size, "samples")
  };
  Wanted(const Options& options, const std::vector<std::string>& files)
      : Counting(options.size, fmt::format("{}", files.size())) {}
  static bool fits(const data::Request& request) { return request.classes == 7; }
};
/// The same for whoever names it.
struct Named final : Counting {
  explicit Named(const std::vector<std::string>&) : Counting(1) {}
};

BOOST_AUTO_TEST_CASE(the_kind_that_is_named_or_the_last_registered_that_fits_is_opened) {
  data::Registry kinds;
  data::add_built_in(kinds);
  kinds.add<Wanted>("wanted").add<Named>("named");
  const auto kind = [&](const std::string& name, const data::Request& request) {
    return data::kind_of(kinds, name, request).name();
  };
  const TemporaryFolder folder;
  const std::string images = make_images(folder, "i.h5", 3), text = make_text(folder, "t.h5", 9);
  BOOST_TEST(kind("", {.files = {images}}) == "images");
  BOOST_TEST(kind("", {.files = {images}, .normalizes = true}) == "arrays");
  BOOST_TEST(kind("", {.files = {images}, .fields = {"x"}}) == "arrays");
  BOOST_TEST(kind("", {.files = {text}, .context = 4}) == "text");
  BOOST_TEST(kind("", {.files = {text}}) == "arrays");
  BOOST_TEST(kind("", {.files = {text}, .takes_images = true}) ==
             "images");  // which then says what is missing
  BOOST_TEST(kind("", {.files = {images}, .classes = 7}) == "wanted");
  BOOST_TEST(kind("named", {.files = {images}, .classes = 7}) == "named");
  BOOST_CHECK_THROW(kind("imgaes", {.files = {images}}), UsageError);
  data::Registry::Choice wanted = kinds.configure("wanted");
  wanted.options_of<Wanted>()->size = 5;
  const auto dataset = wanted.make({.files = {"a", "b"}});
  BOOST_TEST(dataset->size() == 5);
  BOOST_TEST(dataset->name() == "2");
}

/// y is the epoch of a training read, and -1 of others.
struct Told final : Counting {
  using Counting::Counting;
  void read_to_train(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                     const data::Moment& moment) const override {
    read(samples, into);
    for (std::size_t i = 0; i < samples.size(); ++i)
      into[1].data<std::int64_t>()[i] = 1000 * moment.epoch + moment.step;
  }
};

BOOST_AUTO_TEST_CASE(a_data_set_knows_when_training_reads_through_every_view) {
  const Told a(6), b(2);
  const data::Subset part(a, 0, 6);
  const data::Mixture mixture({{&part}, {&b}}, false);
  data::Normalized view(std::make_unique<data::Mixture>(mixture));
  data::Loader loader(view, {.global_batch = 4, .shards = 1, .seed = 3}, 0, 1);
  for (const std::int64_t step : {0, 1, 2, 5, 3})
    for (const std::int64_t y : values_of<std::int64_t>(loader.at(step).shards.front()["y"]))
      BOOST_TEST(y == 1000 * (step / 2) + step);
  BOOST_TEST(values_of<std::int64_t>(read_samples(view, {1})["y"]) == (std::vector<std::int64_t>{1}));
}

BOOST_AUTO_TEST_CASE(a_view_normalises_the_fields_of_any_data_set) {
  data::Normalized view(std::make_unique<Counting>(5));
  view.normalize("x", data::Normalization{{1, -1}, {2, 4}});
  view.normalize("y", data::Normalization{{2}, {2}});
  BOOST_TEST((view.fields()[1].dtype == DType::float32));
  const Batch batch = read_samples(view, {4, 0});
  BOOST_TEST(values_of<float>(batch["x"]) == (std::vector<float>{1.5f, -0.75f, -0.5f, 0.25f}));
  BOOST_TEST(values_of<float>(batch["y"]) == (std::vector<float>{1, -1}));
  BOOST_TEST(view.meaning("y").by->mean == std::vector<double>{2});
  view.normalize("y", std::nullopt);
  BOOST_TEST(values_of<std::int64_t>(read_samples(view, {4})["y"]) == std::vector<std::int64_t>{4});
  BOOST_CHECK_THROW(view.normalize("z", std::nullopt), DataError);
  BOOST_CHECK_THROW(view.normalize("y", data::Normalization{{1, 2}, {1, 1}}), DataError);
  view.normalize("x", data::Normalization{{0, -1e30}, {1, 1e-30}});
  BOOST_CHECK_EXCEPTION(read_samples(view, {2}), DataError,
                        mentions("counting: sample 2 of field x has values in channel 1"));
  Counting plain(2);
  BOOST_CHECK_THROW(plain.normalize("x", std::nullopt), UsageError);
}

BOOST_AUTO_TEST_CASE(sources_that_do_not_fit_and_weights_of_nothing_are_refused) {
  const Counting a(5);
  const Other other;
  BOOST_CHECK_EXCEPTION(
      data::Mixture({{&a}, {&other}}, true), DataError,
      mentions("other: samples have x float32 [3], but those of counting have x float32 [2]"));
  BOOST_CHECK_EXCEPTION(data::Mixture({{&a, 0}}, true), UsageError, mentions("counting: its weight"));
  BOOST_CHECK_THROW(data::Mixture({}, true), UsageError);
}

/// Takes its samples backwards, as one position says.
class Backwards final : public data::Dataset {
 public:
  std::int64_t size() const override { return base_.size(); }
  const std::vector<data::Field>& fields() const override { return base_.fields(); }
  std::string name() const override { return "backwards"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    base_.read(samples, into);
  }
  std::unique_ptr<data::Order> order(std::uint64_t) const override {
    struct FromTheEnd final : data::Order {
      void samples(std::int64_t first, std::span<std::int64_t> out) const override {
        for (std::size_t i = 0; i < out.size(); ++i)
          out[i] = 39 - (first + static_cast<std::int64_t>(i)) % 40;
      }
    };
    return std::make_unique<FromTheEnd>();
  }

 private:
  Counting base_{40};
};

BOOST_AUTO_TEST_CASE(a_loader_takes_the_order_of_the_data) {
  const Backwards dataset;
  for (const int ranks : {1, 2}) {
    std::vector<std::int64_t> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      data::Loader loader(dataset, {.global_batch = 8, .shards = 2}, rank, ranks);
      for (const Batch& shard : loader.at(5)) {
        for (const std::int64_t y : values_of<std::int64_t>(shard["y"])) seen.push_back(y);
      }
    }
    BOOST_TEST(seen == (std::vector<std::int64_t>{39, 38, 37, 36, 35, 34, 33, 32}));
  }
}

/// Counting, in an order that has a wrong sample at position 21.
class Wrong final : public data::Dataset {
 public:
  explicit Wrong(std::int64_t sample) : sample_(sample) {}
  std::int64_t size() const override { return base_.size(); }
  const std::vector<data::Field>& fields() const override { return base_.fields(); }
  std::string name() const override { return "wrong.txt"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    base_.read(samples, into);
  }
  std::unique_ptr<data::Order> order(std::uint64_t) const override {
    struct WrongOnce final : data::Order {
      explicit WrongOnce(std::int64_t wrong_) : wrong(wrong_) {}
      void samples(std::int64_t first, std::span<std::int64_t> out) const override {
        for (std::size_t i = 0; i < out.size(); ++i) {
          const std::int64_t position = first + static_cast<std::int64_t>(i);
          out[i] = position == 21 ? wrong : position % 40;
        }
      }
      std::int64_t wrong;
    };
    return std::make_unique<WrongOnce>(sample_);
  }

 private:
  Counting base_{40};
  std::int64_t sample_;
};

BOOST_AUTO_TEST_CASE(an_order_with_a_sample_that_is_not_there_is_an_error_with_data_position_and_sample) {
  for (const std::int64_t sample : {std::int64_t{-1}, std::int64_t{40}, std::int64_t{1} << 50}) {
    const Wrong dataset(sample);
    const auto named = mentions(fmt::format(
        "wrong.txt: its order has sample {} at position 21, but samples are numbered 0 to 39", sample));
    data::Loader loader(dataset, {.global_batch = 8, .shards = 2}, 0, 1);
    BOOST_CHECK_NO_THROW(loader.at(1));
    BOOST_CHECK_EXCEPTION(loader.at(2), UsageError, named);
    const data::Split parts = data::split(dataset, 0.25, 5);
    BOOST_CHECK_EXCEPTION(drawn(*parts.train.order(7), 0, 10), UsageError, named);
    const Counting other(60);
    const data::Mixture mixture({{&dataset, 1}, {&other, 1}}, true);
    BOOST_CHECK_EXCEPTION(drawn(*mixture.order(7), 0, 60), UsageError, named);
  }
}

/// Counting, taken in permutations of another kind than the usual, or with some samples more often.
class Ordered final : public data::Dataset {
 public:
  Ordered(std::int64_t size, bool draws) : base_(size), draws_(draws) {}
  std::int64_t size() const override { return base_.size(); }
  const std::vector<data::Field>& fields() const override { return base_.fields(); }
  std::string name() const override { return "ordered"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    base_.read(samples, into);
  }
  std::unique_ptr<data::Order> order(std::uint64_t seed) const override {
    if (!draws_) return std::make_unique<data::Shuffle>(size(), seed + 1);
    std::vector<double> weights(static_cast<std::size_t>(size()), 1);
    std::fill_n(weights.begin(), size() / 2, 3);
    return std::make_unique<data::WeightedDraws>(weights, seed);
  }

 private:
  Counting base_;
  bool draws_;
};

BOOST_AUTO_TEST_CASE(a_part_of_the_data_is_taken_in_the_order_of_the_whole_without_the_others) {
  const Ordered dataset(100, false);
  const data::Split parts = data::split(dataset, 0.3, 5);
  const auto whole = dataset.order(7), part = parts.train.order(7);
  BOOST_REQUIRE(part);
  check_pure(*part);
  for (const std::int64_t epoch : {0, 1, 8}) {
    std::vector<std::int64_t> wanted, got;
    const std::vector<std::int64_t> numbers = range(0, 70);
    for (const std::int64_t sample : drawn(*whole, epoch * 100, 100)) {
      for (const std::int64_t i : numbers)
        if (parts.train.base_sample(i) == sample) wanted.push_back(sample);
    }
    for (const std::int64_t i : drawn(*part, epoch * 70, 70)) got.push_back(parts.train.base_sample(i));
    BOOST_TEST(got == wanted, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(the_weights_of_samples_hold_within_a_part_and_within_a_mixture_of_parts) {
  const Ordered dataset(100, true), other(40, true);
  const data::Split parts = data::split(dataset, 0.2, 5), others = data::split(other, 0.25, 5);
  const auto heavy_share = [](const data::Subset& part, const data::Order& order, std::int64_t half,
                              std::int64_t first, std::int64_t end) {
    double weight = 0, sum = 0, heavy = 0, all = 0;
    for (std::int64_t i = 0; i < part.size(); ++i) {
      const bool is_heavy = part.base_sample(i) < half;
      sum += is_heavy ? 3 : 1;
      weight += is_heavy ? 3 : 0;
    }
    for (const std::int64_t sample : drawn(order, 0, 80'000)) {
      if (sample < first || sample >= end) continue;
      ++all;
      heavy += part.base_sample(sample - first) < half ? 1 : 0;
    }
    // Six standard deviations of a binomial count.
    const double p = weight / sum;
    BOOST_TEST(std::abs(heavy - p * all) < 6 * std::sqrt(all * p * (1 - p)));
  };
  const auto part = parts.train.order(7);
  check_pure(*part);
  heavy_share(parts.train, *part, 50, 0, 80);
  const data::Mixture mixture({{&parts.train, 1}, {&others.train, 2}}, true);
  const auto mixed = mixture.order(7);
  check_pure(*mixed);
  heavy_share(parts.train, *mixed, 50, 0, 80);
  heavy_share(others.train, *mixed, 20, 80, 110);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
