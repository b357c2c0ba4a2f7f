// Making data files: round trips, and what bad input says and leaves behind.
#include "data/prepare.h"

#include <zlib.h>

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/text.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(prepare)

namespace h5 = hdf5;
using namespace data;

struct Folder {
  TemporaryFolder folder;
  std::string out = folder.file("out.h5");

  std::string put(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    std::ofstream(folder.file(name), std::ios::binary) << bytes;
    return folder.file(name);
  }
  std::string put_gzipped(const std::string& name, const std::string& bytes) const {
    const gzFile file = gzopen(folder.file(name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return folder.file(name);
  }
  Summary csv(const std::vector<std::string>& inputs, const CsvOptions& options = {}) const {
    return prepare_csv(inputs, {out, true}, options);
  }
  Summary csv_text(const std::string& lines, const CsvOptions& options = {}) const {
    return csv({put("in.csv", lines)}, options);
  }
  template <class T>
  std::vector<T> read(const std::string& name) const {
    return h5::File::open(out).open_dataset(name).read_all<T>();
  }
  /// Nothing but what the test itself put there.
  bool nothing_written() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (entry.path().filename().string().starts_with("out.h5")) return false;
    }
    return true;
  }
};

std::string idx(std::vector<std::uint32_t> extents, const std::string& values) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(extents.size())};
  for (const std::uint32_t extent : extents) {
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(extent >> shift));
  }
  return bytes + values;
}

BOOST_FIXTURE_TEST_CASE(the_sample_digits_become_a_data_file, Folder) {
  const std::string digits = std::string(std::getenv("LOCKSTEP_SOURCE_DIR")) + "/share/data/digits.csv.gz";
  const Summary summary = csv({digits}, {.image = {1, 8, 8}});
  BOOST_TEST(summary.samples == 1797);
  BOOST_TEST(summary.classes == 10);
  BOOST_TEST(summary.element_type == "uint8");
  const Images images(out);
  BOOST_TEST(images.size() == 1797);
  BOOST_TEST((images.fields()[0].shape == Shape{1, 8, 8}));
  const Samples all(images, range(0, 1797));
  double sum = 0, squares = 0;
  for (const float v : values_of<float>(all.x)) sum += v, squares += static_cast<double>(v) * v;
  const double count = 1797 * 64;
  BOOST_TEST(std::abs(sum / count) < 1e-6);
  BOOST_TEST(std::abs(squares / count - 1) < 1e-5);
  BOOST_TEST(std::abs(images.meaning("x").by->mean[0] - 4.884165) < 1e-5);
}

BOOST_FIXTURE_TEST_CASE(csv_keeps_bytes_as_bytes_and_everything_else_as_floats, Folder) {
  BOOST_TEST(csv_text("1,2,255,4,7\n5,6,7,8,0\n", {.image = {1, 2, 2}}).element_type == "uint8");
  BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{1, 2, 255, 4, 5, 6, 7, 8}));
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{7, 0}));
  BOOST_TEST(csv_text("3,1,2\n1,0.5,-1e3\n", {.label = "first"}).element_type == "float32");
  BOOST_TEST(read<float>("x") == (std::vector<float>{1, 2, 0.5f, -1000}));
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{3, 1}));
  BOOST_TEST(h5::File::open(out).open_dataset("x").shape() == (std::vector<std::int64_t>{2, 2, 1, 1}));
  BOOST_TEST(csv_text("1,256,0\n").element_type == "float32");
}

BOOST_FIXTURE_TEST_CASE(csv_statistics_are_per_channel_and_constant_channels_keep_their_scale, Folder) {
  csv_text("1,3,9,9,0\n5,7,9,9,1\n", {.image = {2, 1, 2}});
  const h5::File file = h5::File::open(out);
  const h5::Dataset x = file.open_dataset("x");
  BOOST_TEST(x.doubles_attribute("mean") == (std::vector<double>{4, 9}));
  BOOST_TEST(x.doubles_attribute("std") == (std::vector<double>{std::sqrt(5.0), 1}));
}

BOOST_FIXTURE_TEST_CASE(statistics_can_come_from_another_file, Folder) {
  const std::string train = make_images(folder, "train.h5", 4, 0, {3, 5}, {2, 2});
  csv_text("1,3,9,9,0\n", {.image = {2, 1, 2}, .statistics = {train}});
  BOOST_TEST(h5::File::open(out).open_dataset("x").doubles_attribute("mean") == (std::vector<double>{3, 5}));
  BOOST_CHECK_EXCEPTION(csv_text("1,3,0\n", {.image = {1, 1, 2}, .statistics = {train}}), DataError,
                        mentions("train.h5: attribute 'mean' of /x has 2 numbers"));
}

BOOST_FIXTURE_TEST_CASE(csv_passes_over_blank_lines_headings_and_carriage_returns, Folder) {
  const Summary summary = csv_text("a,b,label\r\n 1 , 2 ,0\r\n\r\n3,4,1");
  BOOST_TEST(summary.samples == 2);
  BOOST_REQUIRE(summary.notes.size() == 1u);
  BOOST_TEST(summary.notes[0].ends_with("in.csv:1 is a heading, skipped"));
  BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{1, 2, 3, 4}));
}

BOOST_FIXTURE_TEST_CASE(csv_takes_commas_semicolons_and_tabs_as_the_first_line_tells, Folder) {
  const std::vector<std::uint8_t> wanted{1, 2, 3, 4};
  for (const std::string s : {",", ";", "\t"}) {
    const auto line = [&](const char* a, const char* b, const char* c) { return a + s + b + s + c + "\n"; };
    csv_text(line("1", "2", "0") + line("3", "4", "1"));
    BOOST_TEST(read<std::uint8_t>("x") == wanted);
    csv_text("\xEF\xBB\xBF" + line("width", "\"height, or; what\"", "kind") + line("1", "2", "0") +
             line("3", "4", "1"));
    BOOST_TEST(read<std::uint8_t>("x") == wanted);
  }
  csv_text("1;2;0\n3;4;1\n", {.separator = ';'});
  BOOST_TEST(read<std::uint8_t>("x") == wanted);
  BOOST_CHECK_EXCEPTION(
      csv_text("1;2;0\n", {.separator = ','}), DataError,
      mentions("in.csv:1: has 1 field, expected values and a label; the separator is comma"));
}

BOOST_FIXTURE_TEST_CASE(decimal_commas_are_read_between_semicolons, Folder) {
  const Summary summary = csv_text("0,5;1,5;2\n2,25;-1;0\n");
  BOOST_TEST(read<float>("x") == (std::vector<float>{0.5, 1.5, 2.25, -1}));
  BOOST_TEST(summary.samples == 2);
  BOOST_TEST(contains(summary.notes.at(0), "commas are decimal signs"));
  BOOST_TEST(csv_text("a;b;y\n0,5;1,5;2\n").samples == 1);
  BOOST_CHECK_EXCEPTION(csv_text("0,5;1;2\n1;1.5;0\n"), DataError,
                        mentions("in.csv:2: field 2 is '1.5', not a number", "--decimal point or comma"));
  BOOST_CHECK_EXCEPTION(csv_text("0,5;1;2\n", {.decimal = '.'}), DataError, mentions("'0,5', not a number"));
  csv_text("0,5\t1\t2\n", {.decimal = ','});
  BOOST_TEST(read<float>("x") == (std::vector<float>{0.5, 1}));
  BOOST_CHECK_EXCEPTION(csv_text("0,5\t1\t2\n"), DataError, mentions("--decimal point or comma"));
}

BOOST_FIXTURE_TEST_CASE(quoted_fields_may_have_line_breaks, Folder) {
  const Summary summary = csv_text("a,\"the\r\nkind\"\r\n1,\"New\nYork, \"\"NY\"\"\"\r\n3,Paris\r\n");
  BOOST_TEST(summary.class_names == (std::vector<std::string>{"New York, \"NY\"", "Paris"}));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,\"a\nb\"\n1,x,b\n"), DataError, mentions("in.csv:3: field 2"));
  std::string open = "1,2,a\n1,\"2,a\n";
  for (int i = 0; i < 300'000; ++i) open += "3,4,b\n";  // a stray quote ends the reading, in bounded time
  BOOST_CHECK_EXCEPTION(csv_text(open), DataError,
                        mentions("in.csv:2: field 2 begins with a quote, but has no closing quote"));
}

BOOST_FIXTURE_TEST_CASE(empty_columns_at_the_end_are_no_columns, Folder) {
  for (const std::string lines : {"a,b,c,\n1,2,0,\n3,4,1,\n", "1,2,0,\n3,4,1,\n", "1,2,0,,\n3,4,1,,\n",
                                  "a;b;c;\r\n1;2;0;\r\n3;4;1;\r\n", "1,2,0,\n3,4,1,\n5,6,0\n"}) {
    const Summary summary = csv_text(lines);
    BOOST_TEST(summary.image.numel() == 2, lines);
    BOOST_TEST(contains(summary.notes.at(0), "at the end, without a name or a value"), lines);
  }
  BOOST_CHECK_EXCEPTION(csv_text("1,2,0,\n3,4,1,\n5,6,0,7\n"), DataError,
                        mentions("in.csv:3: field 4 is '7'"));
}

BOOST_FIXTURE_TEST_CASE(csv_fields_may_be_quoted, Folder) {
  const Summary summary = csv_text("\"1\", 2 ,\"a, \"\"b\"\"\"\n \"3\" ,4,c\n");
  BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{1, 2, 3, 4}));
  BOOST_TEST(summary.class_names == (std::vector<std::string>{"a, \"b\"", "c"}));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,a\n1,\"2,a\n"), DataError,
                        mentions("in.csv:2: field 2 begins with a quote, but has no closing quote"));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,a\n1,\"2\"3,a\n"), DataError,
                        mentions("in.csv:2: field 2 begins with a quote, but text follows"));
  BOOST_TEST(!std::filesystem::exists(folder.file(".out.h5.tmp")));
}

BOOST_FIXTURE_TEST_CASE(csv_labels_may_be_names, Folder) {
  const Summary summary = csv_text("a,b,kind\n1,2,rose\n3,4,iris\n5,6,rose\n");
  BOOST_TEST(summary.class_names == (std::vector<std::string>{"iris", "rose"}));
  BOOST_TEST(summary.classes == 2);
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{1, 0, 1}));
  BOOST_TEST(h5::File::open(out).open_dataset("y").text_attribute("classes") == "iris\nrose");
  BOOST_CHECK_EXCEPTION(csv_text("1,2,rose\n1,2,iris\n1,2,7\n"), DataError,
                        mentions("in.csv:3: the label, field 3, is '7', but earlier labels are names"));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,7\n1,2,rose\n"), DataError,
                        mentions("in.csv:2: the label, field 3, is 'rose', but earlier labels are integers"));
}

BOOST_FIXTURE_TEST_CASE(csv_lines_with_null_bytes_are_an_error, Folder) {
  BOOST_CHECK_EXCEPTION(csv_text(std::string("1,2,a\0b\n", 8)), DataError,
                        mentions("in.csv:1: contains a null byte"));
}

BOOST_FIXTURE_TEST_CASE(csv_names_keep_the_numbers_of_the_training_data, Folder) {
  csv_text("1,2,rose\n3,5,iris\n5,6,aster\n");
  std::filesystem::rename(out, folder.file("train.h5"));
  const Summary summary = csv_text("1,2,rose\n3,4,iris\n", {.statistics = {folder.file("train.h5")}});
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{2, 1}));
  BOOST_TEST(summary.class_names == (std::vector<std::string>{"aster", "iris", "rose"}));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,tulip\n", {.statistics = {folder.file("train.h5")}}), DataError,
                        mentions("train.h5; its classes are aster, iris, rose"));
}

BOOST_FIXTURE_TEST_CASE(csv_names_that_a_file_cannot_keep_are_refused, Folder) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += fmt::format("1,2,name{}\n", i);
  BOOST_CHECK_EXCEPTION(csv_text(lines), DataError, mentions("different names so far"));
  lines.clear();
  for (int i = 0; i < 1000; ++i) lines += fmt::format("1,2,{:n<56}{}\n", "", 100 + i % 900);
  BOOST_TEST(csv_text(lines).classes == 900);
}

BOOST_FIXTURE_TEST_CASE(csv_label_may_be_a_column_by_name_or_number, Folder) {
  for (const std::string label : {"kind", "2"}) {
    csv_text("a,kind,b\n1,7,2\n3,8,4\n", {.label = label});
    BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{7, 8}));
    BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{1, 2, 3, 4}));
  }
  BOOST_CHECK_EXCEPTION(
      csv_text("a,kind,b\n1,7,2\n", {.label = "sort"}), UsageError,
      mentions("in.csv:1: no column is named 'sort', the label: there are 3 columns, a, kind, b"));
  BOOST_CHECK_THROW(csv_text("1,7,2\n", {.label = "4"}), UsageError);
  BOOST_CHECK_THROW(csv_text("1,7,2\n", {.label = "0"}), UsageError);
}

BOOST_FIXTURE_TEST_CASE(csv_heading_may_hold_numbers_that_name_columns, Folder) {
  for (const char* const lines :
       {",0,1,label\n0,5,6,1\n1,7,8,0\n",  // pandas: a column of row numbers
        "0,1,2\n5,6,1\n7,8,0\n", ",0,1,2\n0,5,6,1\n1,7,8,0\n", "0,1\n5.5,1\n7,0\n",
        "country,1990,1991,label\n1,5,6,1\n2,7,8,0\n", "1stFloor,2ndFloor,label\n5,6,1\n7,8,0\n"}) {
    const Summary summary = csv_text(lines);
    BOOST_TEST(summary.samples == 2, lines);
    BOOST_TEST(contains(summary.notes.at(0), "in.csv:1 is a heading"), lines);
  }
  for (const char* const lines : {"1,2,rose\n3,4,iris\n", "0,1\n5,1\n", "1,2,3\n5,6,1\n", "0,1,5\n5,6,1\n"}) {
    BOOST_TEST(csv_text(lines).samples == 2, lines);
    BOOST_TEST(csv_text(lines).notes.empty(), lines);
  }
}

BOOST_FIXTURE_TEST_CASE(csv_sample_with_a_damaged_number_is_no_heading, Folder) {
  for (const std::string damaged : {"1e400", "0x1f", "3.5x", "1.2.3", "-", "#N/A", "None"})
    BOOST_CHECK_EXCEPTION(csv_text("1," + damaged + ",2.5,1\n1,2,3,0\n"), DataError,
                          mentions("in.csv:1: field 2 is"));
  const std::string may_be_either = "4,O.5,2.5,1\n1,2,3,0\n";
  BOOST_CHECK_EXCEPTION(csv_text(may_be_either), DataError,
                        mentions("in.csv:1: may be a heading", "--heading"));
  BOOST_TEST(csv_text(may_be_either, {.heading = true}).samples == 1);
  BOOST_CHECK_EXCEPTION(csv_text(may_be_either, {.heading = false}), DataError,
                        mentions("'O.5', not a number"));
}

BOOST_FIXTURE_TEST_CASE(csv_heading_is_what_the_caller_says, Folder) {
  BOOST_TEST(csv_text("1,2,0\n3,4,1\n", {.heading = true}).samples == 1);
  BOOST_TEST(csv_text("0,1,2\n3,4,1\n", {.heading = false}).samples == 2);
}

BOOST_FIXTURE_TEST_CASE(csv_nameless_column_of_row_numbers_is_left_out, Folder) {
  for (const char* const lines :
       {",a,b,label\n0,5,6,1\n1,7,8,0\n", "Unnamed: 0,a,b,label\n7,5,6,1\n3,7,8,0\n"}) {
    const Summary summary = csv_text(lines);
    BOOST_TEST(summary.image.numel() == 2, lines);
    BOOST_TEST(contains(summary.notes.at(1), "numbers the rows: skipped"), lines);
    BOOST_TEST(read<std::uint8_t>("x").front() == 5, lines);
  }
  for (const char* const lines :
       {",a,label\n0.5,5,1\n1,7,0\n", "id,a,label\n0,5,1\n1,7,0\n", "a,,b,label\n5,0,.5,1\n6,1,.5,0\n"})
    BOOST_TEST(csv_text(lines).image.numel() >= 2, lines);
  csv_text(",a,b\n1,5,6\n0,7,8\n", {.label = "first"});
  BOOST_TEST(read<std::int64_t>("y").front() == 1);
}

BOOST_FIXTURE_TEST_CASE(csv_labels_that_may_be_values_are_warned_of, Folder) {
  const Summary prices = csv_text("1,2,250000\n3,4,310000\n5,6,199000\n");
  BOOST_TEST(contains(prices.warnings.at(0), "310001 classes, and 3 of them occur"));
  BOOST_TEST(csv_text("1,2,0\n3,4,2\n5,6,3\n").warnings.empty());
}

BOOST_FIXTURE_TEST_CASE(csv_column_whose_spread_float32_loses_is_warned_of, Folder) {
  std::string lines = "time,a,label\n";
  for (int i = 0; i < 175; ++i) lines += fmt::format("{},0.5,0\n", 1700000000.0 + i);
  const Summary summary = csv_text(lines);
  BOOST_REQUIRE(summary.warnings.size() == 1u);
  BOOST_TEST(contains(summary.warnings[0], "column 1 ('time')"));
  BOOST_TEST(csv_text("1000001,0.5,0\n1000002,0.5,0\n").warnings.empty());  // float32 has whole numbers
}

BOOST_FIXTURE_TEST_CASE(csv_values_that_are_missing_are_named_by_file_line_and_column, Folder) {
  for (const std::string missing : {"", "NA", "?", " ", "NaN", "\"\""}) {
    BOOST_CHECK_EXCEPTION(csv_text("a,width,label\n1,2,0\n1," + missing + ",0\n"), DataError,
                          mentions("in.csv:3: field 2 ('width') is missing"));
    BOOST_CHECK_EXCEPTION(csv_text("1," + missing + ",0\n1,2,0\n"), DataError,
                          mentions("in.csv:1: field 2 is missing"));
    BOOST_CHECK_EXCEPTION(csv_text("a,b,label\n1,2,0\n1,2," + missing + "\n"), DataError,
                          mentions("in.csv:3: field 3 ('label') is missing"));
  }
}

BOOST_FIXTURE_TEST_CASE(float_statistics_are_right_far_from_zero, Folder) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += fmt::format("{},0.1,0\n", 1000000 + i % 3);
  csv_text(lines);
  const h5::File file = h5::File::open(out);
  const std::vector<double> mean = file.open_dataset("x").doubles_attribute("mean"),
                            deviation = file.open_dataset("x").doubles_attribute("std");
  BOOST_TEST(std::abs(mean[0] - 1000001) < 1e-6);
  BOOST_TEST(std::abs(deviation[0] - std::sqrt(2.0 / 3)) < 1e-9);
  BOOST_TEST(deviation[1] == 1);
}

BOOST_FIXTURE_TEST_CASE(values_that_cannot_be_normalised_are_refused_and_leave_nothing, Folder) {
  BOOST_CHECK_EXCEPTION(csv_text("1e35,0\n-1e35,1\n"), DataError,
                        mentions("out.h5: not written: std 1.0000000"));
  const std::string train = make_images(folder, "train.h5", 4, 0, {3, 5}, {2, 1e308});
  BOOST_CHECK_EXCEPTION(csv_text("1,2,0\n", {.statistics = {train}}), DataError,
                        mentions("train.h5: std 1e+308 of channel 1"));
  BOOST_TEST(nothing_written());
}

BOOST_FIXTURE_TEST_CASE(several_csv_files_plain_and_gzipped_follow_one_another, Folder) {
  csv({put("a.csv", "1,2,0\n"), put_gzipped("b.csv.gz", "3,4,1\n5,6,2\n")});
  BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}));
}

BOOST_FIXTURE_TEST_CASE(bad_csv_is_named_by_file_and_line_and_leaves_nothing, Folder) {
  BOOST_CHECK_EXCEPTION(csv_text("1,2,0\n1,abc,0\n"), DataError,
                        mentions("in.csv:2: field 2 is 'abc', not a number"));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,0\n\n1,2,3,0\n"), DataError,
                        mentions("in.csv:3: has 4 fields, expected 2 values"));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,0\n", {.image = {1, 2, 2}}), DataError,
                        mentions("in.csv:1: has 3 fields, expected 4 values"));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,0\n1,2,-1\n"), DataError,
                        mentions("in.csv:2: the label, field 3, is '-1'"));
  BOOST_CHECK_EXCEPTION(csv_text("1,2,0.5\n"), DataError, mentions("in.csv:1: the label"));
  BOOST_CHECK_EXCEPTION(csv_text("1,nan,0\n"), DataError, mentions("in.csv:1: field 2"));
  BOOST_CHECK_EXCEPTION(csv_text("1,1e300,0\n"), DataError, mentions("in.csv:1: field 2"));
  BOOST_CHECK_EXCEPTION(csv_text("1,,0\n"), DataError, mentions("in.csv:1: field 2"));
  BOOST_CHECK_EXCEPTION(csv_text("7\n"), DataError, mentions("in.csv:1"));
  BOOST_CHECK_EXCEPTION(csv_text(""), DataError, mentions("in.csv has no lines with samples"));
  BOOST_CHECK_EXCEPTION(csv({folder.file("none.csv")}), DataError,
                        mentions("none.csv: cannot open: No such file"));
  BOOST_CHECK_THROW(csv({}), UsageError);
  BOOST_TEST(nothing_written());
}

BOOST_FIXTURE_TEST_CASE(damaged_gzip_is_an_error, Folder) {
  std::string lines;
  for (int i = 0; i < 2000; ++i)
    lines += std::to_string(i % 200) + "," + std::to_string((i * 7919) % 251) + ",0\n";
  put_gzipped("a.csv.gz", lines);
  std::ostringstream whole;
  whole << std::ifstream(folder.file("a.csv.gz"), std::ios::binary).rdbuf();
  std::string bytes = whole.str();
  const std::string cut = put("cut.csv.gz", bytes.substr(0, bytes.size() / 2));
  BOOST_CHECK_EXCEPTION(csv({cut}), DataError,
                        mentions("cut.csv.gz: cannot unpack: the compressed data ends too early"));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
  BOOST_CHECK_EXCEPTION(csv({put("bad.csv.gz", bytes)}), DataError, mentions("bad.csv.gz"));
  BOOST_TEST(nothing_written());
}

BOOST_FIXTURE_TEST_CASE(failure_keeps_what_was_there_before, Folder) {
  csv_text("1,2,0\n");
  BOOST_CHECK_THROW(csv_text("1,x,0\n"), DataError);
  BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{1, 2}));
}

BOOST_FIXTURE_TEST_CASE(a_place_that_cannot_be_written_is_refused_under_the_name_given, Folder) {
  const std::vector<std::string> inputs{put("in.csv", "1,2,0\n")};
  BOOST_CHECK_EXCEPTION(prepare_csv(inputs, {folder.file("no/out.h5")}), UsageError,
                        mentions("no/out.h5: cannot write: there is no directory"));
  BOOST_CHECK_EXCEPTION(prepare_csv(inputs, {folder.path().string()}), UsageError,
                        mentions("is a directory"));
}

BOOST_FIXTURE_TEST_CASE(images_that_all_have_one_label_are_told, Folder) {
  BOOST_TEST(csv_text("1,2,3\n4,5,3\n").one_label);
  BOOST_TEST(!csv_text("1,2,3\n4,5,2\n").one_label);
}

BOOST_FIXTURE_TEST_CASE(idx_files_are_told_apart_by_their_headers, Folder) {
  const std::vector<std::string> inputs{put("labels", idx({2}, "\x03\x01")),
                                        put_gzipped("images.gz", idx({2, 1, 2}, "abcd"))};
  const Summary summary = prepare_idx(inputs, {out, true});
  BOOST_TEST(summary.samples == 2);
  BOOST_TEST(summary.classes == 4);
  BOOST_TEST((summary.image == Shape{1, 1, 2}));
  BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{'a', 'b', 'c', 'd'}));
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{3, 1}));
}

BOOST_FIXTURE_TEST_CASE(images_larger_and_smaller_than_what_is_held_at_once_are_whole, Folder) {
  std::string values(3 * 1200 * 1000, ' ');
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * 31 % 251);
  const std::string large = put("large", idx({3, 1200, 1000}, values)),
                    small = put("small", idx({1200 * 1000, 1, 3}, values)),
                    three = put("three", idx({3}, "abc")),
                    many = put_gzipped("many", idx({1200 * 1000}, values.substr(0, 1200 * 1000)));
  for (const auto& [images, labels] : {std::pair(large, three), std::pair(small, many)}) {
    prepare_idx(std::vector{images, labels}, {out, true});
    const std::vector<std::uint8_t> x = read<std::uint8_t>("x");
    BOOST_TEST(std::equal(x.begin(), x.end(), values.begin(), values.end(),
                          [](std::uint8_t a, char b) { return a == static_cast<std::uint8_t>(b); }));
    double sum = 0, squares = 0;
    for (const std::uint8_t v : x) sum += v, squares += static_cast<double>(v) * v;
    const double count = static_cast<double>(x.size()), mean = sum / count;
    const h5::File file = h5::File::open(out);
    BOOST_TEST(file.open_dataset("x").doubles_attribute("mean")[0] == mean);
    BOOST_TEST(std::abs(file.open_dataset("x").doubles_attribute("std")[0] -
                        std::sqrt(squares / count - mean * mean)) < 1e-9);
  }
  const std::vector<std::int64_t> y = read<std::int64_t>("y");
  BOOST_TEST(y.size() == 1200u * 1000u);
  BOOST_TEST(y[1'100'000] == static_cast<std::uint8_t>(values[1'100'000]));
}

BOOST_FIXTURE_TEST_CASE(bad_idx_is_named_and_leaves_nothing, Folder) {
  const std::string images = put("images", idx({2, 1, 2}, "abcd")),
                    labels = put("labels", idx({2}, "\x03\x01"));
  const auto prepare = [&](const std::vector<std::string>& inputs) { prepare_idx(inputs, {out, true}); };
  BOOST_CHECK_EXCEPTION(prepare({images}), DataError, mentions("1 IDX files of images but 0 of labels"));
  BOOST_CHECK_EXCEPTION(prepare({images, put("few", idx({1}, "\x01"))}), DataError,
                        mentions("images: has 2 images, but"));
  BOOST_CHECK_EXCEPTION(prepare({put("cut", idx({2, 1, 2}, "abc")), labels}), DataError,
                        mentions("cut: holds 3 values, but its header claims 4"));
  BOOST_CHECK_EXCEPTION(prepare({put("long", idx({2, 1, 2}, "abcde")), labels}), DataError,
                        mentions("holds 5 values"));
  BOOST_CHECK_EXCEPTION(prepare({put("huge", idx({0xffffffff, 0xffffffff, 0xffffffff}, "")), labels}),
                        DataError, mentions("huge"));
  BOOST_CHECK_EXCEPTION(prepare({put("other", "hello there"), labels}), DataError,
                        mentions("other: starts with bytes 68 65"));
  BOOST_CHECK_EXCEPTION(prepare({put("short", "ab"), labels}), DataError, mentions("within its header"));
  BOOST_CHECK_EXCEPTION(prepare({put("flat", idx({2, 0, 2}, "")), labels}), DataError, mentions("no pixels"));
  BOOST_TEST(nothing_written());
}

BOOST_FIXTURE_TEST_CASE(cifar_records_of_one_and_two_label_bytes_are_read, Folder) {
  std::string ten, hundred;
  for (int record = 0; record < 3; ++record) {
    const std::string pixels(3072, static_cast<char>(10 * record));
    ten += static_cast<char>(record + 1) + pixels;
    hundred += std::string{static_cast<char>(record), static_cast<char>(90 + record)} + pixels;
  }
  const std::vector<std::string> c10{put("c10", ten), put("c10b", ten)}, c100{put("c100", hundred)};
  BOOST_TEST(prepare_cifar(c10, {out, true}).samples == 6);
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{1, 2, 3, 1, 2, 3}));
  BOOST_TEST(read<std::uint8_t>("x")[3072] == 10);
  prepare_cifar(c100, {out, true});
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{90, 91, 92}));
  prepare_cifar(c100, {out, true}, {.coarse = true});
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{0, 1, 2}));
  BOOST_TEST(h5::File::open(out).open_dataset("x").shape() == (std::vector<std::int64_t>{3, 3, 32, 32}));
}

BOOST_FIXTURE_TEST_CASE(bad_cifar_is_named_and_leaves_nothing, Folder) {
  const auto prepare = [&](const std::string& path, const CifarOptions& options = {}) {
    prepare_cifar(std::vector{path}, {out, true}, options);
  };
  BOOST_CHECK_EXCEPTION(prepare(put("cut", std::string(3000, 'x'))), DataError,
                        mentions("cut: 3000 bytes are not a multiple"));
  BOOST_CHECK_EXCEPTION(prepare(put("none", "")), DataError, mentions("none: the file is empty"));
  BOOST_CHECK_EXCEPTION(prepare(put("ten", std::string(3073, 'x')), {.coarse = true}), UsageError,
                        mentions("coarse"));
  BOOST_CHECK_EXCEPTION(prepare(put("ten", std::string(3073, 'x')), {.label_bytes = 2}), DataError,
                        mentions("3074"));
  BOOST_TEST(nothing_written());
}

BOOST_FIXTURE_TEST_CASE(texts_and_folders_of_texts_become_bytes_as_tokens, Folder) {
  put("texts/b.txt", "second");
  put("texts/a/one.txt", "first ");
  put("texts/c.bin", std::string("ab\0cd", 5));
  std::filesystem::create_symlink("b.txt", folder.path() / "texts" / "d.txt");
  const std::string last = put("last.txt", "\xff!");
  const Summary summary = prepare_text(std::vector{folder.file("texts"), last}, {out, true});
  BOOST_TEST(summary.samples == 14);
  BOOST_TEST(summary.classes == 256);
  BOOST_REQUIRE(summary.notes.size() == 1u);
  BOOST_TEST(contains(summary.notes[0], "c.bin: it is not text"));
  const std::string wanted = "first second\xff!";
  const std::vector<std::uint16_t> tokens = read<std::uint16_t>("tokens");
  BOOST_TEST(tokens.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    BOOST_TEST(tokens[i] == static_cast<unsigned char>(wanted[i]));
  const Text text(out, 13);
  BOOST_TEST(text.vocabulary() == 256);
  BOOST_TEST(text.tokenizer() == "bytes");
}

BOOST_FIXTURE_TEST_CASE(texts_longer_than_the_buffer_are_whole, Folder) {
  std::string bytes(3'000'001, ' ');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>('a' + i * 31 % 26);
  const Summary summary = prepare_text(std::vector{put("long.txt", bytes)}, {out, true});
  BOOST_TEST(summary.samples == 3'000'001);
  const std::vector<std::uint16_t> tokens = read<std::uint16_t>("tokens");
  const bool same = std::equal(tokens.begin(), tokens.end(), bytes.begin(), bytes.end());
  BOOST_TEST(same);
}

BOOST_FIXTURE_TEST_CASE(no_text_is_an_error_that_leaves_nothing, Folder) {
  std::filesystem::create_directory(folder.path() / "empty");
  BOOST_CHECK_EXCEPTION(prepare_text(std::vector{folder.file("empty")}, {out, true}), DataError,
                        mentions("no text in"));
  BOOST_CHECK_EXCEPTION(prepare_text(std::vector{folder.file("none")}, {out, true}), DataError,
                        mentions("none: cannot open"));
  BOOST_CHECK_THROW(prepare_text({}, {out, true}), UsageError);
  BOOST_TEST(nothing_written());
}

BOOST_FIXTURE_TEST_CASE(named_files_that_are_no_text_are_refused_by_what_they_are, Folder) {
  const std::string words = "the quick brown fox jumps over the lazy dog. ";
  const std::pair<std::string, const char*> cases[] = {{"PK\x03\x04" + words, "zip archive"},
                                                       {"BZh91AY&SY" + words, "bzip2"},
                                                       {"\xFD"
                                                        "7zXZ" +
                                                            words,
                                                        "xz"},
                                                       {"\xFF\xFEt" + words, "UTF-16"},
                                                       {std::string("a\0b\0", 4) + words, "not text"},
                                                       {"%PDF-1.7\n" + words, "PDF"}};
  for (const auto& [bytes, what] : cases) {
    const std::string path = put("in.bin", bytes);
    BOOST_CHECK_EXCEPTION(prepare_text(std::vector{path}, {out, true}), DataError,
                          mentions("in.bin is", what));
    BOOST_TEST(nothing_written());
  }
  std::string tokens;  // of two bytes, none of which is null
  for (int i = 0; i < 4000; ++i)
    tokens += {static_cast<char>(1 + i * 37 % 255), static_cast<char>(1 + i * 11 % 195)};
  const std::string path = put("train.bin", tokens);
  BOOST_CHECK_EXCEPTION(prepare_text(std::vector{path}, {out, true}), DataError, mentions("not text"));
  const std::string latin = put("latin.txt", "na\xEFve caf\xE9\n\t" + words);
  BOOST_TEST(prepare_text(std::vector{latin}, {out, true}).samples > 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
