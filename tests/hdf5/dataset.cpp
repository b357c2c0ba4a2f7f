// Datasets: every element type, rows, where they are in the file, and what is refused.
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(dataset)

namespace h5 = hdf5;

struct OneFile {
  TemporaryFolder folder;
  std::string path = folder.file("d.h5");
};

template <class T>
void round_trip(h5::File& file) {
  std::vector<T> values(24);
  std::iota(values.begin(), values.end(), T{3});
  const std::string name(to_string(dtype_of<T>));
  h5::Dataset written = file.create_dataset(name, dtype_of<T>, {2, 3, 4});
  written.write(std::span<const T>(values));
  const h5::Dataset read = file.open_dataset(name);
  BOOST_TEST((read.dtype() == dtype_of<T>));
  BOOST_TEST(read.shape() == (std::vector<std::int64_t>{2, 3, 4}));
  BOOST_TEST(read.read_all<T>() == values);
}

BOOST_FIXTURE_TEST_CASE(texts_of_a_fixed_length_have_an_extent_of_their_own, OneFile) {
  h5::File file = h5::File::create(path);
  const std::int64_t count = 3;
  const h5::Dataset names = file.create_texts("names", 4, {&count, 1});
  BOOST_TEST(names.extent().bytes == 15u);  // each with a null byte
  BOOST_TEST(names.type_name() == "text");
  BOOST_TEST(names.shape() == (std::vector<std::int64_t>{3}));
}

BOOST_FIXTURE_TEST_CASE(every_element_type_comes_back_with_its_type_and_shape, OneFile) {
  h5::File file = h5::File::create(path);
  round_trip<double>(file);
  round_trip<float>(file);
  round_trip<std::int64_t>(file);
  round_trip<std::int32_t>(file);
  round_trip<std::int16_t>(file);
  round_trip<std::int8_t>(file);
  round_trip<std::uint64_t>(file);
  round_trip<std::uint32_t>(file);
  round_trip<std::uint16_t>(file);
  round_trip<std::uint8_t>(file);
}

BOOST_FIXTURE_TEST_CASE(sixteen_bit_floats_keep_their_bits_and_read_as_floats, OneFile) {
  h5::File file = h5::File::create(path);
  const std::vector<std::uint16_t> brain{0x3f80, 0xc040, 0x7f80, 0x3e80},
      half{0x3c00, 0xc200, 0x7c00, 0x3400};
  const std::vector<float> expected{1.0f, -3.0f, std::numeric_limits<float>::infinity(), 0.25f};
  const h5::NamedType named = file.create_type("bfloat16", DType::bfloat16);
  const std::int64_t shape[] = {4};
  for (const DType type : {DType::bfloat16, DType::float16}) {
    const auto& bits = type == DType::bfloat16 ? brain : half;
    const std::string name = "as_" + std::string(to_string(type));
    h5::Dataset data = type == DType::bfloat16 ? file.create_dataset(name, named, shape)
                                               : file.create_dataset(name, type, shape);
    data.write(type, std::as_bytes(std::span(bits)));
    const h5::Dataset read = file.open_dataset(name);
    BOOST_TEST((read.dtype() == type));
    std::vector<std::uint16_t> back(4);
    read.read(type, std::as_writable_bytes(std::span(back)));
    BOOST_TEST(back == bits);
    BOOST_TEST(read.read_all<float>() == expected);
  }
  BOOST_TEST((file.kind("bfloat16") == h5::ObjectKind::named_type));
}

BOOST_FIXTURE_TEST_CASE(rows_are_written_and_read_in_place, OneFile) {
  h5::File file = h5::File::create(path);
  h5::Dataset data = file.create_dataset("x", DType::int32, {5, 2});
  for (int row = 4; row >= 0; --row) {
    const std::vector<std::int32_t> values{10 * row, 10 * row + 1};
    data.write_rows(row, 1, std::span<const std::int32_t>(values));
  }
  std::vector<std::int32_t> middle(4);
  data.read_rows(1, 2, std::span(middle));
  BOOST_TEST(middle == (std::vector<std::int32_t>{10, 11, 20, 21}));
  std::vector<float> last(2);
  data.read_rows(4, 1, std::span(last));
  BOOST_TEST(last == (std::vector<float>{40, 41}));
}

BOOST_FIXTURE_TEST_CASE(an_extent_says_where_the_elements_lie_in_the_file, OneFile) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  h5::Extent extent;
  {
    h5::File file =
        h5::File::create(path, {.checksummed = true, .alignment_bytes = 4096, .alignment_from_bytes = 16});
    h5::Dataset data = file.create_dataset("x", DType::float32, {2, 3});
    extent = data.extent();  // before anything is written
    BOOST_TEST(extent.bytes == 24u);
    BOOST_TEST(data.storage_bytes() == 24u);
    BOOST_TEST(extent.offset % 4096 == 0u);
    file.close();
  }
  BOOST_TEST(std::filesystem::file_size(path) >= extent.offset + extent.bytes);
  std::fstream raw(path, std::ios::in | std::ios::out | std::ios::binary);
  raw.seekp(static_cast<std::streamoff>(extent.offset));
  raw.write(reinterpret_cast<const char*>(values.data()), 24);
  raw.close();
  const h5::File file = h5::File::open(path);
  BOOST_TEST(file.open_dataset("x").read_all<float>() == values);
  BOOST_TEST(file.open_dataset("x").extent().offset == extent.offset);
}

BOOST_FIXTURE_TEST_CASE(scalars_empty_datasets_and_texts_work, OneFile) {
  h5::File file = h5::File::create(path, {.checksummed = true});
  file.create_dataset("scalar", DType::int64, {}).write(std::span<const std::int64_t>({std::int64_t{41}}));
  BOOST_TEST(file.open_dataset("scalar").read_all<std::int64_t>() == std::vector<std::int64_t>{41});
  BOOST_TEST(file.open_dataset("scalar").shape().empty());
  const h5::Dataset empty = file.create_dataset("empty", DType::float32, {0, 3});
  BOOST_TEST(empty.read_all<float>().empty());
  BOOST_TEST(empty.extent().bytes == 0u);
  std::string text = "[model]\nname = mlp\n";
  text.append(200000, 'x');
  file.create_text("config", text);
  BOOST_TEST(file.open_dataset("config").read_text() == text);
  BOOST_TEST(file.open_dataset("config").type_name() == "text");
  file.create_text("nothing", "");
  BOOST_TEST(file.open_dataset("nothing").read_text() == "");
}

BOOST_FIXTURE_TEST_CASE(wrong_sizes_and_ranges_are_usage_errors, OneFile) {
  h5::File file = h5::File::create(path);
  h5::Dataset data = file.create_dataset("x", DType::float32, {3, 2});
  std::vector<float> values(5);
  BOOST_CHECK_EXCEPTION(data.write(std::span<const float>(values)), UsageError, mentions("/x"));
  BOOST_CHECK_EXCEPTION(data.read(std::span(values)), UsageError, mentions("24 bytes"));
  BOOST_CHECK_EXCEPTION(data.read_rows(2, 2, std::span(values)), UsageError,
                        mentions("rows 2 to 4 are out of range; there are 3"));
  BOOST_CHECK_EXCEPTION(data.read_rows(-1, 1, std::span(values)), UsageError, mentions("rows -1"));
}

BOOST_FIXTURE_TEST_CASE(reading_numbers_from_text_is_an_error_and_so_is_the_reverse, OneFile) {
  h5::File file = h5::File::create(path);
  file.create_text("text", "abc");
  const h5::Dataset number = file.create_dataset("number", DType::float32, {1});
  BOOST_CHECK_EXCEPTION(file.open_dataset("text").read_all<float>(), DataError, mentions("/text"));
  BOOST_CHECK_EXCEPTION(number.read_text(), DataError, mentions("/number is not text"));
}

BOOST_FIXTURE_TEST_CASE(blocks_are_the_elements_in_their_order_however_large_a_row_is, OneFile) {
  h5::File file = h5::File::create(path);
  const std::vector<std::int64_t> shape{3, 2, 700, 999};
  h5::Dataset x = file.create_dataset("x", DType::int32, shape);
  std::vector<std::int32_t> values(3 * 2 * 700 * 999);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  x.write(std::span<const std::int32_t>(values));
  std::int64_t next = x.row_numel();
  int blocks = 0;
  x.read_blocks(1, 2, [&](std::int64_t first, std::span<const double> block) {
    BOOST_TEST(first == next);
    BOOST_TEST(block.size_bytes() <= std::size_t{4} << 20);
    for (const double value : block)
      if (value != static_cast<double>(next++)) BOOST_ERROR(fmt::format("{} is not {}", value, next - 1));
    return ++blocks > 0;
  });
  BOOST_TEST(next == x.numel());
  BOOST_TEST(blocks > 4);
  blocks = 0;
  x.read_blocks(0, 3, [&](std::int64_t, std::span<const double>) { return ++blocks < 2; });
  BOOST_TEST(blocks == 2);
}

BOOST_AUTO_TEST_CASE(names_of_element_types_are_those_of_numpy) {
  for (const char* name : {"float64", "float32", "float16", "bfloat16", "int64", "uint16", "uint8"}) {
    BOOST_TEST(to_string(dtype_named(name)) == name);
  }
  BOOST_CHECK_THROW(dtype_named("complex64"), UsageError);
  BOOST_CHECK_THROW(dtype_named("text"), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
