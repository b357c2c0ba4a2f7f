// PNG pictures: what libpng reads again is what was written, the same bytes every time, and grids.
#include "report/png.h"

#include <png.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/base/error.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(png)

using report::Picture;

/// As libpng reads it.
Picture read(const std::string& file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  BOOST_TEST_REQUIRE(png_image_begin_read_from_memory(&image, file.data(), file.size()) != 0);
  BOOST_TEST((image.format & PNG_FORMAT_FLAG_ALPHA) == 0u);
  Picture picture{.width = image.width,
                  .height = image.height,
                  .channels = (image.format & PNG_FORMAT_FLAG_COLOR) != 0 ? 3 : 1};
  image.format = picture.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  picture.pixels.resize(PNG_IMAGE_SIZE(image));
  BOOST_TEST_REQUIRE(png_image_finish_read(&image, nullptr, picture.pixels.data(), 0, nullptr) != 0);
  return picture;
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read_again_and_holds_no_time) {
  for (const int channels : {1, 3}) {
    Picture picture{.width = 37, .height = 5, .channels = channels};
    picture.pixels.resize(static_cast<std::size_t>(37 * 5 * channels));
    for (std::size_t i = 0; i < picture.pixels.size(); ++i)
      picture.pixels[i] = static_cast<std::uint8_t>(i * 31);
    const std::string file = report::png_of(picture);
    BOOST_TEST(file.find("tIME") == std::string::npos);
    BOOST_TEST((file == report::png_of(picture)));
    const Picture again = read(file);
    BOOST_TEST(again.width == 37);
    BOOST_TEST(again.height == 5);
    BOOST_TEST(again.channels == channels);
    BOOST_TEST(again.pixels == picture.pixels, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(values_become_bytes_rounded_and_clamped) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values{-1, 1, 0, -7, 7, -0.5f, 0.996f, nan};
  const Picture picture = report::grid_of(values, 1, {1, 1, 8});
  BOOST_TEST(picture.width == 10);
  BOOST_TEST(picture.height == 3);
  const std::vector<int> row(picture.pixels.begin() + 11, picture.pixels.begin() + 19);
  BOOST_TEST(row == (std::vector<int>{0, 255, 128, 0, 255, 64, 254, 0}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(images_come_by_rows_with_lines_around_them) {
  std::vector<float> values(static_cast<std::size_t>(5 * 3 * 2 * 2), -1);
  for (std::size_t i = 0; i < 5; ++i) values[i * 12 + 4 * (i % 3)] = 1;  // upper left, in one colour
  const Picture picture = report::grid_of(values, 5, {3, 2, 2});
  BOOST_TEST(picture.width == 10);  // 3 columns
  BOOST_TEST(picture.height == 7);  // 2 rows
  std::vector<std::size_t> lit;
  for (std::size_t i = 0; i < picture.pixels.size(); ++i)
    if (picture.pixels[i] != 0) lit.push_back(i);
  const auto at = [](std::size_t row, std::size_t column, std::size_t c) {
    return ((row * 3 + 1) * 10 + column * 3 + 1) * 3 + c;
  };
  BOOST_TEST(
      lit == (std::vector<std::size_t>{at(0, 0, 0), at(0, 1, 1), at(0, 2, 2), at(1, 0, 0), at(1, 1, 1)}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_a_picture_is_refused) {
  const auto refused = [](std::int64_t count, const Shape& image, const std::string& why) {
    BOOST_CHECK_EXCEPTION(report::check_grid(count, image), UsageError, mentions(why));
  };
  refused(0, {1, 8, 8}, "at least 1");
  refused(1, {2, 8, 8}, "[2, 8, 8]");
  refused(1, {64}, "[64]");
  refused(1000000, {3, 64, 64}, "exceeds 16384 pixels per side");
  refused(std::numeric_limits<std::int64_t>::max(), {1, 1, 1}, "too large for a picture");
  refused(1, {1, 1, std::int64_t{1} << 40}, "pixels per side");
  BOOST_CHECK_NO_THROW(report::check_grid(10000, {1, 8, 8}));
  BOOST_CHECK_THROW(
      report::png_of({.width = 2, .height = 2, .channels = 2, .pixels = std::vector<std::uint8_t>(8)}),
      UsageError);
  BOOST_CHECK_THROW(report::png_of({.width = 2, .height = 2, .channels = 1, .pixels = {1}}), UsageError);
  BOOST_CHECK_THROW(report::grid_of(std::vector<float>(3), 1, {1, 2, 2}), UsageError);
}

BOOST_AUTO_TEST_CASE(a_grid_is_as_square_as_it_can_be) {
  for (std::int64_t count = 1; count < 3000; ++count) {
    const std::int64_t columns = report::columns_of_grid(count);
    BOOST_TEST_REQUIRE(columns * columns >= count);
    BOOST_TEST_REQUIRE((columns - 1) * (columns - 1) < count);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
