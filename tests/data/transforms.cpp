// What transforms draw, and what they do to pixels.
#include "data/transforms.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "data/pictures.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(transforms)

using data::Box, data::Draws, data::Picture;

Draws draws_of(std::int64_t sample, std::string_view transform = "test") {
  return Draws(3, transform, 11, sample);
}

/// No two bytes of a row of up to 80 pixels are alike.
Picture recognisable(std::int64_t height, std::int64_t width) {
  Picture picture;
  picture.resize(height, width);
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t i = 0; i < 3 * width; ++i) picture.row(y)[i] = static_cast<std::uint8_t>(7 * y + i);
  return picture;
}

BOOST_AUTO_TEST_CASE(draws_depend_on_seed_transform_step_and_sample) {
  std::set<double> values;
  for (const std::uint64_t seed : {1, 2})
    for (const char* const transform : {"flip", "crop"})
      for (const std::int64_t step : {0, 1, 1 << 20})
        for (const std::int64_t sample : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 33}) {
          const double value = Draws(seed, transform, step, sample).uniform();
          BOOST_TEST(value == Draws(seed, transform, step, sample).uniform());
          values.insert(value);
        }
  BOOST_TEST(values.size() == 36u);
  Draws draws = draws_of(0);
  BOOST_TEST(draws.uniform() != draws.uniform());
}

BOOST_AUTO_TEST_CASE(beta_has_the_mean_and_variance_of_its_distribution) {
  for (const double shape : {0.01, 0.2, 1.0, 4.0}) {
    const int count = 20'000;
    double sum = 0, squares = 0;
    for (int i = 0; i < count; ++i) {
      const double value = draws_of(i).beta(shape);
      BOOST_REQUIRE((value >= 0 && value <= 1));
      sum += value, squares += (value - 0.5) * (value - 0.5);
    }
    BOOST_TEST(std::abs(sum / count - 0.5) < 0.015, shape);
    BOOST_TEST(std::abs(squares / count - 0.25 / (2 * shape + 1)) < 0.005, shape);
  }
}

BOOST_AUTO_TEST_CASE(a_crop_is_within_the_picture_its_share_and_its_ratio) {
  const std::int64_t height = 300, width = 400;
  double shares = 0;
  const int count = 5000;
  for (int i = 0; i < count; ++i) {
    Draws draws = draws_of(i);
    const auto box = data::draw_resized_crop(draws, height, width);
    BOOST_REQUIRE(
        (box.top >= 0 && box.left >= 0 && box.top + box.height <= height && box.left + box.width <= width));
    const double share = static_cast<double>(box.height * box.width) / (height * width);
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    BOOST_REQUIRE((share > 0.079 && share <= 1));
    BOOST_REQUIRE((ratio > 0.74 && ratio < 1.35));
    shares += share;
  }
  BOOST_TEST(std::abs(shares / count - 0.435) < 0.015);  // 20,000 of torchvision's: 0.435
}

BOOST_AUTO_TEST_CASE(a_crop_of_a_long_picture_is_its_centre) {
  Draws draws = draws_of(0);
  BOOST_TEST((data::draw_resized_crop(draws, 10, 1000) == Box<std::int64_t>{0, 493, 10, 13}));
  BOOST_TEST((data::draw_resized_crop(draws, 1000, 30) == Box<std::int64_t>{480, 0, 40, 30}));
}

BOOST_AUTO_TEST_CASE(half_of_the_pictures_are_flipped) {
  int flips = 0;
  for (int i = 0; i < 4000; ++i) {
    Draws draws = draws_of(i);
    flips += data::draw_flip(draws);
  }
  BOOST_TEST(std::abs(flips - 2000) < 120);
}

BOOST_AUTO_TEST_CASE(a_flip_mirrors_each_row) {
  for (const std::int64_t width : {1, 4, 5}) {
    const Picture before = recognisable(3, width);
    Picture after = before;
    data::flip(after);
    for (std::int64_t y = 0; y < 3; ++y)
      for (std::int64_t x = 0; x < width; ++x)
        BOOST_TEST(
            std::equal(before.row(y) + 3 * x, before.row(y) + 3 * x + 3, after.row(y) + 3 * (width - 1 - x)));
  }
}

BOOST_AUTO_TEST_CASE(the_size_that_a_picture_has_changes_nothing) {
  const Picture picture = recognisable(9, 20);
  Picture into;
  data::Resizer().resize(picture, {0, 0, 9, 20}, 9, 20, into);
  BOOST_TEST(difference(into, picture) == 0);
}

BOOST_AUTO_TEST_CASE(pixels_outside_of_the_part_have_no_influence) {
  Picture picture = recognisable(20, 30), once, again;
  data::Resizer resizer;
  const Box<std::int64_t> part{5, 7, 9, 11};
  resizer.resize(picture, {5, 7, 9, 11}, 6, 17, once);
  resizer.resize(part_of(picture, part), {0, 0, 9, 11}, 6, 17, again);
  BOOST_TEST(difference(once, again) == 0);
}

BOOST_AUTO_TEST_CASE(a_window_is_a_part_of_the_new_picture) {
  const Picture picture = recognisable(40, 50);
  Picture whole, window;
  data::Resizer resizer;
  resizer.resize(picture, {0, 0, 40, 50}, 31, 23, whole);
  resizer.resize(picture, {0, 0, 40, 50}, 31, 23, {4, 5, 20, 10}, window);
  BOOST_TEST(difference(window, part_of(whole, {4, 5, 20, 10})) == 0);
}

BOOST_AUTO_TEST_CASE(a_part_may_begin_within_a_pixel) {
  Picture ramp, into;
  ramp.resize(8, 8);
  for (std::int64_t y = 0; y < 8; ++y)
    for (std::int64_t x = 0; x < 8; ++x)
      std::fill_n(ramp.row(y) + 3 * x, 3, static_cast<std::uint8_t>(10 * y + 20 * x));
  data::Resizer().resize(ramp, {1.5, 2.5, 4, 4}, 4, 4, into);
  for (std::int64_t y = 0; y < 4; ++y)
    for (std::int64_t x = 0; x < 4; ++x) BOOST_TEST(into.row(y)[3 * x] == 10 * y + 20 * x + 15 + 50);
}

BOOST_AUTO_TEST_CASE(jitter_draws_factors_around_1_in_every_order) {
  std::map<std::vector<int>, int> orders;
  double least = 9, most = 0, hue = 0;
  for (int i = 0; i < 4800; ++i) {
    Draws draws = draws_of(i);
    const data::Jitter jitter = data::draw_jitter(draws, 0.4);
    std::vector<int> order;
    for (const auto step : jitter.order) order.push_back(static_cast<int>(step));
    ++orders[order];
    for (const double factor : {jitter.brightness, jitter.contrast, jitter.saturation})
      least = std::min(least, factor), most = std::max(most, factor);
    hue = std::max(hue, std::abs(jitter.hue));
  }
  BOOST_TEST(orders.size() == 24u);
  for (const auto& [order, count] : orders) BOOST_TEST(std::abs(count - 200) < 70);
  BOOST_TEST((least >= 0.6 && least < 0.602 && most <= 1.4 && most > 1.398));
  BOOST_TEST((hue <= 0.1 && hue > 0.099));
}

BOOST_AUTO_TEST_CASE(jitter_without_a_change_changes_nothing) {
  const Picture before = recognisable(17, 80);
  Picture after = before;
  data::apply(data::Jitter{}, after);
  BOOST_TEST(difference(before, after) == 0);
}

BOOST_AUTO_TEST_CASE(erasing_draws_boxes_smaller_than_the_image_as_often_as_it_should) {
  int boxes = 0;
  for (int i = 0; i < 4000; ++i) {
    Draws draws = draws_of(i);
    const auto box = data::draw_erasing(draws, 0.25, 50, 60);
    if (!box) continue;
    ++boxes;
    BOOST_REQUIRE(
        (box->top >= 0 && box->left >= 0 && box->top + box->height <= 50 && box->left + box->width <= 60));
    BOOST_REQUIRE((box->height < 50 && box->width < 60));
    BOOST_REQUIRE((box->height * box->width > 45 && box->height * box->width < 1050));
  }
  BOOST_TEST(std::abs(boxes - 1000) < 100);
}

BOOST_AUTO_TEST_CASE(erasing_makes_zeros_in_the_box_of_each_channel) {
  std::vector<float> image(2 * 4 * 5, 1.0f);
  data::erase({1, 2, 2, 3}, image.data(), 2, 4, 5);
  for (std::size_t i = 0; i < image.size(); ++i) {
    const std::size_t y = i / 5 % 4, x = i % 5;
    BOOST_TEST(image[i] == (y >= 1 && y < 3 && x >= 2 ? 0 : 1));
  }
}

BOOST_AUTO_TEST_CASE(mixup_adds_shares_of_two_images) {
  Draws draws = draws_of(0);
  const data::Mix mix = data::draw_mix(draws, {.mixup = 0.2}, 0, 8, 4, 5);
  BOOST_TEST(mix.partner == 7);
  BOOST_TEST(!mix.box);
  std::vector<float> image(20, 1.0f);
  const std::vector<float> partner(20, 3.0f);
  data::apply(data::Mix{.partner = 1, .share = 0.75}, partner.data(), image.data(), 1, 4, 5);
  for (const float value : image) BOOST_TEST(value == 1.5f);
}

BOOST_AUTO_TEST_CASE(cutmix_shares_are_those_of_the_pixels) {
  for (int i = 0; i < 500; ++i) {
    Draws draws = draws_of(i);
    const data::Mix mix = data::draw_mix(draws, {.cutmix = 1}, 3, 8, 12, 15);
    BOOST_REQUIRE(mix.partner == 2);
    BOOST_REQUIRE(mix.box.has_value());
    std::vector<float> image(2 * 12 * 15, 1.0f);
    const std::vector<float> partner(image.size(), 0.0f);
    data::apply(mix, partner.data(), image.data(), 2, 12, 15);
    const double own = std::accumulate(image.begin(), image.end(), 0.0) / static_cast<double>(image.size());
    BOOST_REQUIRE(std::abs(own - mix.share) < 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(with_mixup_and_cutmix_each_sample_gets_one_of_them) {
  int cut = 0;
  for (int i = 0; i < 2000; ++i) {
    Draws draws = draws_of(i);
    cut += data::draw_mix(draws, {.mixup = 0.2, .cutmix = 1}, 0, 4, 8, 8).box.has_value();
  }
  BOOST_TEST(std::abs(cut - 1000) < 90);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
