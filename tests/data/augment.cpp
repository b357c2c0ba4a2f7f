// Augmentation: what a crop and a flip may do, and what decides about them.
#include "lockstep/data/loader.h"

#include <boost/test/unit_test.hpp>
#include <map>

#include "data/files.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(augment)

using data::Augment;

/// Images whose pixel (n, c, h, w) is 1000 c + 10 h + w + 1: no zero, and every place recognisable.
Tensor recognisable(std::int64_t images, std::int64_t height, std::int64_t width) {
  Tensor x = Tensor::zeros({images, 2, height, width});
  float* value = x.data<float>();
  for (std::int64_t n = 0; n < images; ++n) {
    for (std::int64_t c = 0; c < 2; ++c) {
      for (std::int64_t h = 0; h < height; ++h) {
        for (std::int64_t w = 0; w < width; ++w) *value++ = static_cast<float>(1000 * c + 10 * h + w + 1);
      }
    }
  }
  return x;
}

Tensor augmented(const Augment& augment, std::uint64_t seed, std::int64_t step, int shard,
                 std::int64_t images) {
  const Tensor x = recognisable(images, 5, 6);
  std::vector<float> scratch(60);
  data::augment_images(augment, seed, step, shard, x, scratch);
  return x;
}

BOOST_AUTO_TEST_CASE(every_image_is_moved_and_flipped_as_a_whole_with_zeros_from_outside) {
  const int padding = 2;
  const std::int64_t images = 2000;
  const Tensor x = augmented({.crop_padding = padding, .flip = true}, 1, 0, 0, images);
  std::map<std::tuple<int, int, bool>, int> seen;
  const float* image = x.data<float>();
  for (std::int64_t n = 0; n < images; ++n, image += 60) {
    int matches = 0;
    for (int down = -padding; down <= padding; ++down) {
      for (int right = -padding; right <= padding; ++right) {
        for (const bool flip : {false, true}) {
          bool same = true;
          for (int c = 0; c < 2; ++c) {
            for (int h = 0; h < 5; ++h) {
              for (int w = 0; w < 6; ++w) {
                const int row = h + down, column = w + right;
                const bool inside = row >= 0 && row < 5 && column >= 0 && column < 6;
                const int wanted = inside ? 1000 * c + 10 * row + (flip ? 5 - column : column) + 1 : 0;
                same = same && image[c * 30 + h * 6 + w] == static_cast<float>(wanted);
              }
            }
          }
          if (same) ++matches, ++seen[{down, right, flip}];
        }
      }
    }
    BOOST_REQUIRE(matches == 1);
  }
  BOOST_TEST(seen.size() == 50u);  // 5 x 5 moves, flipped or not
  for (const auto& [change, count] : seen) BOOST_TEST(std::abs(count - 40) < 35);
}

BOOST_AUTO_TEST_CASE(draws_depend_on_seed_step_shard_and_place_and_on_nothing_else) {
  const Augment augment{.crop_padding = 2, .flip = true};
  const auto values = [&](std::uint64_t seed, std::int64_t step, int shard, std::int64_t images) {
    return values_of<float>(augmented(augment, seed, step, shard, images));
  };
  const auto first = values(1, 7, 2, 16);
  BOOST_TEST(first == values(1, 7, 2, 16));
  BOOST_TEST(first != values(2, 7, 2, 16));
  BOOST_TEST(first != values(1, 8, 2, 16));
  BOOST_TEST(first != values(1, 7, 3, 16));
  const auto fewer = values(1, 7, 2, 5);
  BOOST_TEST(std::equal(fewer.begin(), fewer.end(), first.begin()));
}

BOOST_AUTO_TEST_CASE(off_means_untouched) {
  BOOST_TEST(values_of<float>(augmented({}, 1, 0, 0, 3)) == values_of<float>(recognisable(3, 5, 6)));
}

BOOST_AUTO_TEST_CASE(misuse_is_refused) {
  std::vector<float> scratch(60), small(59);
  const Tensor flat = Tensor::zeros({4, 8}), x = recognisable(1, 5, 6);
  BOOST_CHECK_THROW(data::augment_images({.flip = true}, 1, 0, 0, flat, scratch), UsageError);
  BOOST_CHECK_THROW(data::augment_images({.flip = true}, 1, 0, 0, x, small), UsageError);
  BOOST_CHECK_THROW(data::augment_images({.crop_padding = 6}, 1, 0, 0, x, scratch), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
