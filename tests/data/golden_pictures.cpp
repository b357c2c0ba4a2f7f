// Files of pictures: the bytes that Pillow decodes, regions and reductions of them, and what is refused.
#include "data/pictures.h"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "support/mentions.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_pictures, *golden())

using data::Box, data::DecodeOptions, data::Picture, data::PictureDecoder;
using Bytes = std::vector<std::uint8_t>;

struct Decoding {
  PictureDecoder decoder;  // one for all files, as a thread has
  Box<double> place;       // of the last region

  Picture decode(const Bytes& file, const DecodeOptions& options = {}) {
    Picture picture;
    place = decoder.decode(std::as_bytes(std::span(file)), options, picture);
    return picture;
  }
  Picture decode(const std::string& text) { return decode(Bytes(text.begin(), text.end())); }
};

/// use(case, file) for all that Pillow decodes.
template <class Use>
void for_each_file(const Use& use) {
  for_each_golden_case(
      "pictures", [&](const GoldenCase& golden) { use(golden, bytes_of(golden, "file")); }, "decode");
}

bool is_jpeg(const GoldenCase& golden) { return golden.name().find("jpeg") != std::string::npos; }

BOOST_FIXTURE_TEST_CASE(every_file_becomes_the_bytes_that_pillow_makes_of_it, Decoding) {
  int files = 0;
  for_each_file([&](const GoldenCase& golden, const Bytes& file) {
    const Picture wanted = picture_of(golden, "rgb");
    const data::PictureHeader header = decoder.header(std::as_bytes(std::span(file)));
    BOOST_TEST(header.height == wanted.height, golden.name());
    BOOST_TEST(header.width == wanted.width, golden.name());
    BOOST_TEST((header.format == data::PictureFormat::jpeg) == is_jpeg(golden), golden.name());
    BOOST_TEST(difference(decode(file), wanted) == 0, golden.name());
    BOOST_TEST(decoder.warning() == "", golden.name());
    ++files;
  });
  BOOST_TEST(files > 50);
}

BOOST_FIXTURE_TEST_CASE(without_exif_a_picture_stays_as_it_is_stored, Decoding) {
  for_each_file([&](const GoldenCase& golden, const Bytes& file) {
    const Picture wanted = picture_of(golden, golden.has("stored") ? "stored" : "rgb");
    BOOST_TEST(difference(decode(file, {.exif = false}), wanted) == 0, golden.name());
  });
}

BOOST_FIXTURE_TEST_CASE(a_region_has_the_pixels_of_the_whole_picture, Decoding) {
  const Random random({.seed = 5});
  std::uint64_t draw = 0;
  for_each_file([&](const GoldenCase& golden, const Bytes& file) {
    const Picture whole = decode(file);
    const auto below = [&](std::int64_t bound) {
      return static_cast<std::int64_t>(random.below(draw++, static_cast<std::uint32_t>(bound)));
    };
    for (int i = 0; i < 20; ++i) {
      Box<std::int64_t> box{.height = 1 + below(whole.height), .width = 1 + below(whole.width)};
      box.top = below(whole.height - box.height + 1), box.left = below(whole.width - box.width + 1);
      BOOST_TEST(difference(decode(file, {.region = box}), part_of(whole, box)) == 0, golden.name());
    }
  });
}

BOOST_FIXTURE_TEST_CASE(a_reduction_has_the_pixels_of_pillows_draft, Decoding) {
  int pictures = 0;
  for_each_file([&](const GoldenCase& golden, const Bytes& file) {
    for (const auto& [name, reduction] : {std::pair("half", 2), {"quarter", 4}, {"eighth", 8}}) {
      if (!golden.has(name)) continue;
      const Picture wanted = picture_of(golden, name);
      BOOST_TEST(difference(decode(file, {.exif = false, .reduction = reduction}), wanted) == 0,
                 golden.name());
      ++pictures;
    }
  });
  BOOST_TEST(pictures >= 12);
}

BOOST_FIXTURE_TEST_CASE(a_reduced_region_says_where_it_lies_in_its_pixels, Decoding) {
  for_each_file([&](const GoldenCase& golden, const Bytes& file) {
    if (golden.name().find("exif_") == std::string::npos || !is_jpeg(golden)) return;
    const data::PictureHeader header = decoder.header(std::as_bytes(std::span(file)));
    const Picture whole = decode(file, {.reduction = 4}),
                  part = decode(file, {.region = {{3, 2, 6, 6}}, .reduction = 4});
    // The part of the whole that has these pixels, and the region in it by where it is in the part.
    int matches = 0;
    for (std::int64_t top = 0; top + part.height <= whole.height; ++top)
      for (std::int64_t left = 0; left + part.width <= whole.width; ++left) {
        if (difference(part_of(whole, {top, left, part.height, part.width}), part) != 0) continue;
        ++matches;
        // Mirrored pictures have the pixel that is cut short first, not last.
        const double shift_y = static_cast<double>(4 * whole.height - header.height) / 4,
                     shift_x = static_cast<double>(4 * whole.width - header.width) / 4;
        const double y = static_cast<double>(top) + place.top - 0.75,
                     x = static_cast<double>(left) + place.left - 0.5;
        BOOST_TEST((y == 0 || y == shift_y), golden.name());
        BOOST_TEST((x == 0 || x == shift_x), golden.name());
      }
    BOOST_TEST(matches == 1, golden.name());
    BOOST_TEST(place.height == 6.0 / 4);
    BOOST_TEST(place.width == 6.0 / 4);
  });
}

BOOST_FIXTURE_TEST_CASE(what_pillow_refuses_is_refused_with_one_line, Decoding) {
  for_each_golden_case(
      "pictures",
      [&](const GoldenCase& golden) {
        const Bytes file = bytes_of(golden, "file");
        BOOST_TEST_CONTEXT(golden.name())
        BOOST_CHECK_EXCEPTION(decode(file), DataError, mentions(golden.what().at("says").get<std::string>()));
      },
      "refuse");
}

BOOST_FIXTURE_TEST_CASE(other_files_are_refused_by_what_they_are, Decoding) {
  const auto refused = [&](std::string start, const char* kind) {
    start.resize(100);
    BOOST_CHECK_EXCEPTION(decode(start), DataError, mentions(kind));
  };
  refused("GIF89a", "a GIF");
  refused(std::string("RIFF\0\0\0\0WEBPVP8 ", 16), "a WebP");
  refused(std::string("II*\0", 4), "a TIFF");
  refused(std::string("MM\0*", 4), "a TIFF");
  refused("BM", "a BMP");
  refused(std::string("\0\0\0\x18"
                      "ftypheic",
                      12),
          "a HEIC");
  refused(std::string("\0\0\0\x18"
                      "ftypavif",
                      12),
          "an AVIF");
  refused("<svg xmlns=", "an SVG");
  refused("\n<!DOCTYPE html>", "a page of HTML");
  refused("text", "neither JPEG nor PNG");
  BOOST_CHECK_EXCEPTION(decode(""), DataError, mentions("empty"));
}

BOOST_FIXTURE_TEST_CASE(a_picture_with_more_pixels_than_the_limit_is_refused_by_its_header, Decoding) {
  for_each_file([&](const GoldenCase& golden, const Bytes& file) {
    const Picture whole = decode(file);
    const std::int64_t pixels = whole.height * whole.width;
    BOOST_CHECK_NO_THROW(decode(file, {.max_pixels = pixels}));
    BOOST_TEST_CONTEXT(golden.name())
    BOOST_CHECK_EXCEPTION(decode(file, {.max_pixels = pixels - 1}), DataError, mentions("pixels"));
  });
  // Bombs: what follows the header claims 100,000 x 100,000 pixels. There is no memory for them.
  const std::string png(
      "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\x86\xa0\0\1\x86\xa0\b\2\0\0\0\0\0\0\0\0\0\0\0IEND\0\0\0\0", 45);
  BOOST_CHECK_EXCEPTION(decode(png), DataError, mentions("100000 x 100000 pixels"));
}

BOOST_FIXTURE_TEST_CASE(a_region_outside_of_the_picture_and_other_reductions_are_refused, Decoding) {
  for_each_file([&](const GoldenCase& golden, const Bytes& file) {
    if (!golden.name().ends_with("jpeg_exif_6")) return;
    const Picture whole = decode(file);
    BOOST_CHECK_THROW(decode(file, {.region = {{0, 0, whole.height + 1, 1}}}), UsageError);
    BOOST_CHECK_THROW(decode(file, {.region = {{0, 1, 1, whole.width}}}), UsageError);
    BOOST_CHECK_THROW(decode(file, {.region = {{-1, 0, 1, 1}}}), UsageError);
    BOOST_CHECK_THROW(decode(file, {.region = {{0, 0, 0, 1}}}), UsageError);
    BOOST_CHECK_THROW(decode(file, {.reduction = 3}), UsageError);
    BOOST_TEST(difference(decode(file), whole) == 0);  // the decoder goes on
  });
}

BOOST_AUTO_TEST_CASE(a_reduction_leaves_the_pixels_that_are_needed) {
  BOOST_TEST(data::reduction_for(1792, 2000, 224) == 8);
  BOOST_TEST(data::reduction_for(1791, 2000, 224) == 4);
  BOOST_TEST(data::reduction_for(2000, 448, 224) == 2);
  BOOST_TEST(data::reduction_for(300, 447, 224) == 1);
  BOOST_TEST(data::reduction_for(10, 10, 224) == 1);
}

/// LOCKSTEP_TEST_MUTATIONS: how many.
BOOST_FIXTURE_TEST_CASE(mutated_files_are_decoded_or_refused, Decoding) {
  const char* const count = std::getenv("LOCKSTEP_TEST_MUTATIONS");
  std::vector<Bytes> files;
  for_each_file([&](const GoldenCase&, const Bytes& file) { files.push_back(file); });
  const Random random({.seed = 7});
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t bound) {
    return random.below(draw++, static_cast<std::uint32_t>(bound));
  };
  int decoded = 0, refused = 0;
  for (int i = 0; i < (count ? std::atoi(count) : 1000); ++i) {
    Bytes file = files[below(files.size())];
    if (below(4) == 0) file.resize(below(file.size()));
    for (std::uint32_t change = 0; change < 4 && !file.empty(); change += 1 + below(3))
      file[below(file.size())] = static_cast<std::uint8_t>(below(256));
    try {
      const Picture picture = decode(file, {.max_pixels = 10'000'000, .reduction = 1 << below(4)});
      BOOST_REQUIRE(std::ssize(picture.pixels) == 3 * picture.height * picture.width);
      ++decoded;
    } catch (const DataError& error) {
      BOOST_REQUIRE(std::string_view(error.what()).find('\n') == std::string_view::npos);
      ++refused;
    }
  }
  BOOST_TEST(decoded > 0);
  BOOST_TEST(refused > 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
