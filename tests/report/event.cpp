// Records and events: the bytes that TensorFlow's and TensorBoard's own libraries write.
#include "report/event.h"

#include <boost/test/unit_test.hpp>

#include "lockstep/base/error.h"
#include "report/event_file.h"
#include "report/png.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(event)

using namespace report;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

constexpr double time_s = 1.5;
const std::string png = png_of({.width = 3, .height = 2, .channels = 3, .pixels = std::vector<std::uint8_t>(18)});

BOOST_AUTO_TEST_CASE(checksums_are_those_of_the_standard) {  // RFC 3720, B.4
  BOOST_TEST(crc32c("") == 0U);
  BOOST_TEST(crc32c("123456789") == 0xe3069283U);
  BOOST_TEST(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
  BOOST_TEST(crc32c(std::string(32, '\xff')) == 0x62a8ab43U);
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) ascending += byte;
  BOOST_TEST(crc32c(ascending) == 0x46dd794eU);
}

BOOST_AUTO_TEST_CASE(a_checksum_does_not_depend_on_where_the_words_begin) {
  const std::string text = "a text that is longer than three words of eight bytes";
  for (std::size_t first = 0; first < 8; ++first)
    BOOST_TEST(crc32c(std::string(first, 'x').append(text).substr(first)) == crc32c(text));
}

BOOST_AUTO_TEST_CASE(a_record_frames_its_data_with_masked_checksums) {
  BOOST_TEST(hex(record_of(encoded_version(time_s))) ==
             "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
}

BOOST_AUTO_TEST_CASE(the_version_is_that_of_event_files) {
  BOOST_TEST(hex(encoded_version(time_s)) == "09000000000000f83f1a0d627261696e2e4576656e743a32");
}

BOOST_AUTO_TEST_CASE(scalars_are_float32_by_tag) {
  Event event(300);
  BOOST_TEST(event.empty());
  event.add_scalar("loss", 0.25);
  event.add_scalar("lr", 0);
  BOOST_TEST(!event.empty());
  BOOST_TEST(hex(event.encoded(time_s)) ==
             "09000000000000f83f10ac022a180a0b0a046c6f7373150000803e0a090a026c721500000000");
}

BOOST_AUTO_TEST_CASE(a_restart_is_a_session_that_starts) {
  BOOST_TEST(hex(encoded_restart(time_s, 301)) == "09000000000000f83f10ad023a020801");
}

BOOST_AUTO_TEST_CASE(a_text_is_a_scalar_string_tensor_of_the_text_plugin) {
  Event event(1);
  event.add_text("t", "# a");
  BOOST_TEST(hex(event.encoded(time_s)) ==
             "09000000000000f83f10012a1a0a180a017442090807120042032320614a080a060a0474657874");
}

BOOST_AUTO_TEST_CASE(preformatted_text_is_indented_line_by_line) {
  BOOST_TEST(preformatted("[a]\n\nb = 1\n") == "    [a]\n    \n    b = 1\n");
  BOOST_TEST(preformatted("no end") == "    no end\n");
  BOOST_TEST(preformatted("").empty());
}

BOOST_AUTO_TEST_CASE(an_image_has_the_sizes_of_its_png) {
  Event event(1);
  event.add_image("i", png);
  BOOST_TEST(hex(event.encoded(time_s)) ==
             "09000000000000f83f10012a" + hex(std::string{char(png.size() + 15), 0x0a, char(png.size() + 13)}) +
                 "0a016922" + hex(std::string{char(png.size() + 8)}) + "08021003180322" +
                 hex(std::string{char(png.size())}) + hex(png));
}

BOOST_AUTO_TEST_CASE(an_image_that_is_no_png_is_refused) {
  Event event(1);
  for (const std::string& other : {std::string(), png.substr(0, 25), "x" + png, std::string(100, '\0')})
    BOOST_CHECK_EXCEPTION(event.add_image("i", other), UsageError,
                          mentions("must be a PNG file"));
  BOOST_TEST(event.empty());
}

BOOST_AUTO_TEST_CASE(a_histogram_has_its_numbers_and_packed_buckets) {
  Histogram histogram;
  const float values[] = {-1, 0.5F, 2};
  histogram.add(values);
  Event event(1);
  event.add_histogram("h", histogram);
  // Limits -1, 0.5, 0.5625, 2, 2.25 with counts 1, 0, 1, 0, 1.
  BOOST_TEST(hex(event.encoded(time_s)) ==
             "09000000000000f83f10012a8a010a87010a01682a8101"
             "09000000000000f0bf11000000000000004019000000000000084021000000000000f83f290000000000001540"
             "3228000000000000f0bf000000000000e03f000000000000e23f00000000000000400000000000000240"
             "3a28000000000000f03f0000000000000000000000000000f03f0000000000000000000000000000f03f");
}

BOOST_AUTO_TEST_CASE(an_empty_histogram_adds_nothing) {
  Event event(1);
  event.add_histogram("h", Histogram());
  BOOST_TEST(event.empty());
}

BOOST_AUTO_TEST_CASE(a_view_has_the_step_and_the_tags) {
  Event event(300);
  event.add_text("configuration", "a long text");
  event.add_scalar("eval_loss", 1);
  const std::string encoded = event.encoded(time_s);
  const EventView view(encoded);
  BOOST_TEST(view.step == 300);
  BOOST_TEST(view.has_values);
  BOOST_TEST(view.has_tag("eval_loss"));
  BOOST_TEST(view.has_tag("configuration"));
  BOOST_TEST(!view.has_tag("eval"));
  BOOST_TEST(!EventView(encoded_version(time_s)).has_values);
  BOOST_TEST(EventView(encoded_restart(time_s, 7)).step == 7);
}

BOOST_AUTO_TEST_CASE(a_view_of_damaged_bytes_ends_within_them) {
  Event event(300);
  event.add_text("t", "text");
  const std::string encoded = event.encoded(time_s);
  for (std::size_t bytes = 0; bytes < encoded.size(); ++bytes)
    BOOST_TEST(!EventView(encoded.substr(0, bytes)).has_values);
  for (std::size_t at = 0; at < encoded.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = encoded;
      damaged[at] = static_cast<char>(value);
      EventView(damaged).has_tag("nothing");  // does not leave the memory: sanitizers
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
