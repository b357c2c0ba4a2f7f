// .safetensors files: what is written reads back, what describes itself wrongly is refused, and no bytes at
// all can make reading do more than throw one DataError.
#include "checkpoint/weights/safetensors.h"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <numeric>

#include "checkpoint/damage.h"
#include "checkpoint/sample.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(safetensors)

namespace lc = checkpoint;

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header + data;
}

std::string entry(const std::string& name, const char* dtype, const char* shape, int begin, int end) {
  return fmt::format("\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", name, dtype, shape,
                     begin, end);
}

struct Folder {
  TemporaryFolder folder;
  std::string path = folder.file("a.safetensors");

  void refused(const std::string& header, const std::string& data, const char* text) {
    write_bytes(path, file_of(header, data));
    BOOST_TEST_CONTEXT(header) {
      BOOST_CHECK_EXCEPTION(lc::SafetensorsFile{path}, DataError, mentions("a.safetensors", text));
    }
  }
  void accepted(const std::string& header, const std::string& data) {
    write_bytes(path, file_of(header, data));
    BOOST_TEST_CONTEXT(header) { BOOST_CHECK_NO_THROW(lc::SafetensorsFile{path}); }
  }
};

/// Tensors of every type, one empty, one scalar, bytes as they come.
std::vector<lc::NamedTensor> sample() {
  std::vector<lc::NamedTensor> tensors = {{"bytes", Tensor::empty({3}, DType::uint8)},
                                          {"wide", Tensor::empty({2, 3}, DType::float64)},
                                          {"brain", Tensor::empty({5}, DType::bfloat16)},
                                          {"half", Tensor::empty({1, 5, 1}, DType::float16)},
                                          {"layer.0.weight", Tensor::empty({4, 2}, DType::float32)},
                                          {"count", Tensor::empty({}, DType::int64)},
                                          {"none", Tensor::empty({0, 7}, DType::float32)},
                                          {"odd \"name\"\n\\ \xC3\xA9", Tensor::empty({2}, DType::int32)}};
  unsigned char next = 0;
  for (const lc::NamedTensor& tensor : tensors) {
    auto* const at = static_cast<unsigned char*>(tensor.value.raw());
    for (std::size_t i = 0; i < tensor.value.bytes(); ++i) at[i] = next += 37;
  }
  return tensors;
}

/// Everything that parse_safetensors_header promises.
void check_promises(const lc::SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const lc::SafetensorsEntry& tensor : header.tensors) {
    BOOST_REQUIRE_EQUAL(tensor.offset, end);
    end += tensor.bytes;
    BOOST_REQUIRE_LE(tensor.shape.size(), 32u);
    const std::uint64_t elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::uint64_t{1},
                                                   [](std::uint64_t product, std::int64_t extent) {
                                                     return product * static_cast<std::uint64_t>(extent);
                                                   });
    BOOST_REQUIRE(elements == 0 ? tensor.bytes == 0 : tensor.bytes % elements == 0);
  }
  BOOST_REQUIRE_EQUAL(end, data_bytes);
}

BOOST_FIXTURE_TEST_CASE(every_type_name_and_byte_comes_back_and_elements_are_aligned, Folder) {
  const std::vector<lc::NamedTensor> tensors = sample();
  lc::write_safetensors(path, tensors, {{"format", "pt"}, {"two\nlines", "\"x\""}});
  BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"a.safetensors"});
  const lc::SafetensorsFile file(path);
  BOOST_TEST(file.header().metadata.at("format") == "pt");
  BOOST_TEST(file.header().metadata.at("two\nlines") == "\"x\"");
  BOOST_REQUIRE_EQUAL(file.header().tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const lc::SafetensorsEntry& found = file.header().tensors[i];
    const auto wanted = std::find_if(tensors.begin(), tensors.end(), [&](const lc::NamedTensor& tensor) {
      return tensor.name == found.name;
    });
    BOOST_REQUIRE(wanted != tensors.end());
    BOOST_TEST(found.type_name == to_string(wanted->value.dtype()));
    BOOST_TEST(std::ranges::equal(found.shape, wanted->value.shape().extents()));
    BOOST_TEST(found.offset % bytes_of(wanted->value.dtype()) == 0u);
    std::vector<std::byte> bytes(found.bytes);
    file.read(i, bytes);
    BOOST_TEST(std::ranges::equal(
        bytes, std::span(static_cast<const std::byte*>(wanted->value.raw()), wanted->value.bytes())));
  }
}

BOOST_FIXTURE_TEST_CASE(files_without_tensors_padding_and_other_orders_are_fine, Folder) {
  accepted("{}", "");
  accepted("{}       ", "");
  accepted("{\"__metadata__\":{}}", "");
  accepted("{" + entry("b", "F32", "[1]", 4, 8) + "," + entry("a", "I32", "[1]", 0, 4) + "}", "12345678");
  accepted("{" + entry("e", "F32", "[0]", 4, 4) + "," + entry("a", "BOOL", "[2,2]", 0, 4) + "}", "1234");
  accepted("{" + entry("e", "F32", "[0,1152921504606846976]", 0, 0) + "}", "");
  accepted("{\"a\":{\"data_offsets\":[0,2],\"shape\":[2],\"dtype\":\"F8_E4M3\"}}", "12");
}

BOOST_FIXTURE_TEST_CASE(headers_that_break_the_format_are_refused_with_tensor_and_reason, Folder) {
  refused("[]", "", "does not begin with '{'");
  refused(" {}", "", "does not begin with '{'");
  refused("{", "", "not JSON at its byte");
  refused("{} x", "", "not JSON at its byte");
  refused("{\"a\":1}", "", "\"a\" has a number in a wrong place");
  refused("{\"a\":null}", "", "\"a\" holds null");
  refused("{\"a\":[]}", "", "\"a\" has a list in a wrong place");
  refused("{\"a\":{}}", "", "\"a\" lacks one of dtype, shape and data_offsets");
  refused("{\"a\":{\"dtype\":\"F33\"}}", "", "\"a\" has the unknown dtype \"F33\"");
  refused("{\"a\":{\"dtype\":7}}", "", "\"a\" has a number in a wrong place");
  refused("{\"a\":{\"shape\":\"x\"}}", "", "\"a\" has a text in a wrong place");
  refused("{\"a\":{\"shape\":{\"b\":1}}}", "", "\"a\" has an object in a wrong place");
  refused("{\"a\":{\"shape\":[[1]]}}", "", "\"a\" has a list in a wrong place");
  refused("{\"a\":{\"shape\":[-1]}}", "", "\"a\" has the number -1");
  refused("{\"a\":{\"shape\":[1.0]}}", "", "not an integer, or too large");
  refused("{\"a\":{\"shape\":[1e300]}}", "", "not an integer, or too large");
  refused("{\"a\":{\"shape\":[99999999999999999999]}}", "", "not an integer, or too large");
  refused("{\"a\":{\"shape\":[9223372036854775808]}}", "", "more elements than any machine could hold");
  refused("{\"a\":{\"stride\":[1]}}", "", "\"a\" has the unknown field \"stride\"");
  refused("{\"a\":{\"shape\":[],\"shape\":[]}}", "", "\"a\" has shape twice");
  refused("{\"a\":{\"data_offsets\":[0,1,2]}}", "", "more than two data_offsets");
  refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1]}}", "1", "not a begin and an end");
  refused("{" + entry("a", "U8", "[1]", 1, 0) + "}", "1", "not a begin and an end");
  refused("{\"__metadata__\":{\"a\":1}}", "", "\"__metadata__\" has a number in a wrong place");
  refused("{\"__metadata__\":{\"a\":{}}}", "", "\"__metadata__\" has an object in a wrong place");
  refused("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", "", "\"__metadata__\" has \"a\" twice");
  refused("{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("a", "U8", "[1]", 1, 2) + "}", "12",
          "\"a\" occurs twice");
  refused("{\"a\xff\":{}}", "", "not JSON at its byte");
  std::string extents = "[1";
  for (int i = 0; i < 32; ++i) extents += ",1";
  refused("{" + entry("a", "U8", (extents + "]").c_str(), 0, 1) + "}", "1", "more than 32 dimensions");
  refused("{\"" + std::string(5000, 'n') + "\":7}", "", "nnn\"... has a number");
  refused("{\"" + std::string(119, 'n') + "\xe2\x82\xac\":7}", "", "nnn\"... has a number");
}

BOOST_FIXTURE_TEST_CASE(sizes_overlaps_holes_and_ends_are_refused, Folder) {
  refused("{" + entry("a", "F32", "[2]", 0, 4) + "}", "1234", "\"a\" has 4 bytes, but F32 [2] takes 8");
  refused("{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("b", "F32", "[1]", 2, 6) + "}", "123456",
          "\"b\" overlaps \"a\"");
  refused("{" + entry("a", "F32", "[1]", 0, 4) + "," + entry("b", "F32", "[1]", 0, 4) + "}", "1234",
          "overlaps");
  refused("{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("b", "U8", "[1]", 3, 4) + "}", "1234",
          "2 bytes before \"b\" belong to no tensor");
  refused("{" + entry("a", "U8", "[2]", 0, 2) + "}", "1234", "2 bytes at the end belong to no tensor");
  refused("{" + entry("a", "U8", "[9]", 0, 9) + "}", "1234", "is not within the 4 bytes");
  refused("{" + entry("a", "F64", "[4611686018427387904,2]", 0, 0) + "}", "",
          "\"a\" claims more elements than any machine could hold");
  refused("{" + entry("a", "F64", "[0,4611686018427387904,4611686018427387904]", 0, 0) + "}", "",
          "\"a\" claims more elements than any machine could hold");
}

BOOST_FIXTURE_TEST_CASE(sizes_of_headers_are_checked_before_memory_is_asked_for, Folder) {
  const auto begins_with = [&](std::uint64_t claimed, const std::string& rest, const char* text) {
    write_bytes(path, std::string(reinterpret_cast<const char*>(&claimed), sizeof claimed) + rest);
    BOOST_CHECK_EXCEPTION(lc::SafetensorsFile{path}, DataError, mentions("a.safetensors", text));
  };
  begins_with(~std::uint64_t{0}, "{}", "more than the 100000000 allowed");
  begins_with(100'000'001, "{}", "more than the 100000000 allowed");
  begins_with(100'000'000, "{}", "claims a header of 100000000 bytes, but has 10 in all");
  begins_with(3, "{}", "claims a header of 3 bytes, but has 10 in all");
  begins_with(0, "", "does not begin with '{'");
  for (const char* few : {"", "1", "1234567"}) {
    write_bytes(path, few);
    BOOST_CHECK_EXCEPTION(lc::SafetensorsFile{path}, DataError, mentions("too few"));
  }
  BOOST_CHECK_EXCEPTION(lc::SafetensorsFile{folder.file("none")}, DataError, mentions("none", "cannot open"));
  BOOST_CHECK_EXCEPTION(lc::SafetensorsFile{folder.path()}, DataError, mentions("not a regular file"));
}

BOOST_FIXTURE_TEST_CASE(a_million_opening_brackets_are_refused_at_the_third, Folder) {
  for (const char* opening : {"[", "{\"a\":", "{\"a\":["}) {
    std::string deep = "{\"a\":{\"shape\":";
    for (int i = 0; i < 1'000'000; ++i) deep += opening;
    refused(deep, "", "in a wrong place");
  }
}

BOOST_FIXTURE_TEST_CASE(thousands_of_mutated_and_truncated_files_are_read_right_or_refused, Folder) {
  Chance random{std::mt19937_64(seed_of_test())};
  const auto below = [&](std::size_t n) { return random.below(n); };
  lc::write_safetensors(path, sample(), {{"format", "pt"}, {"key", "value"}});
  const std::string whole = read_bytes(path);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), sizeof header_bytes);
  const std::string header = whole.substr(8, header_bytes);
  const std::uint64_t data_bytes = whole.size() - 8 - header_bytes;
  const std::vector<std::string> words = {"\"a\":",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          ",",
                                          "0",
                                          "-1",
                                          "1e9",
                                          "null",
                                          "\"F32\"",
                                          "\"I8\"",
                                          "4294967296",
                                          "[0,0]",
                                          "\\",
                                          "\"",
                                          "\"shape\"",
                                          "\xff",
                                          "9223372036854775807",
                                          "\\ud800",
                                          "true",
                                          "\"__metadata__\":{}",
                                          std::string(1, '\0'),
                                          "1"};
  std::size_t accepted = 0, refused = 0;
  const auto run = [&](const auto& read) {
    try {
      read();
      ++accepted;
    } catch (const DataError& error) {
      BOOST_REQUIRE(std::string(error.what()).find('\n') == std::string::npos);
      BOOST_REQUIRE_LT(std::string(error.what()).size(), 1000u);
      ++refused;
    }
  };
  // Headers in memory: bytes, words, pieces moved, digits exchanged.
  for (int i = 0; i < 20'000; ++i) {
    std::string text = header;
    for (std::size_t edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = below(text.size()), length = 1 + below(24);
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.insert(at, words[below(words.size())]);
          break;
        case 2:
          text.erase(at, length);
          break;
        case 3:
          text.insert(below(text.size()), text.substr(at, length));
          break;
        default:
          if (const std::size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos)
            text[digit] = static_cast<char>('0' + below(10));
      }
    }
    run([&] { check_promises(lc::parse_safetensors_header(text, data_bytes, "mutated"), data_bytes); });
  }
  // Files: flipped bits and cuts anywhere.
  for (int i = 0; i < 2'000; ++i) {
    std::string bytes = whole;
    if (i % 2 == 0) {
      bytes.resize(below(bytes.size()));
    } else {
      for (std::size_t flips = 1 + below(3); flips > 0; --flips)
        bytes[below(8 + header_bytes)] ^= static_cast<char>(1 << below(8));
    }
    const std::string mutated = folder.file("m" + std::to_string(i));
    write_bytes(mutated, bytes);
    run([&] {
      const lc::SafetensorsFile file(mutated);
      for (std::size_t t = 0; t < file.header().tensors.size(); ++t) {
        std::vector<std::byte> elements(file.header().tensors[t].bytes);
        file.read(t, elements);
      }
    });
    std::filesystem::remove(mutated);
  }
  BOOST_TEST_MESSAGE(accepted << " accepted, " << refused << " refused");
  BOOST_TEST(accepted > 100u);
  BOOST_TEST(refused > 10'000u);
}

BOOST_FIXTURE_TEST_CASE(a_file_that_cannot_be_written_is_there_as_it_was, Folder) {
  write_bytes(path, "old");
  const std::vector<lc::NamedTensor> bad = {{"\xff", Tensor::zeros({1})}};
  BOOST_CHECK_EXCEPTION(lc::write_safetensors(path, bad, {}), DataError,
                        mentions("a.safetensors", "not UTF-8"));
  BOOST_TEST(read_bytes(path) == "old");
  BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"a.safetensors"});
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
