// Tables as other programs write them: what is a heading, a row's number, a missing value, a class, and what
// must agree between files.
#include <fmt/format.h>
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "data/files.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(prepare_tables)

using namespace data;

struct Tables {
  TemporaryFolder folder;

  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder.file(name), std::ios::binary) << bytes;
    return folder.file(name);
  }
  Summary make(const std::vector<std::string>& inputs, const CsvOptions& options = {},
               const std::string& out = "out.h5") const {
    return prepare_csv(inputs, {folder.file(out), true}, options);
  }
  Summary make(const std::string& lines, const CsvOptions& options = {},
               const std::string& out = "out.h5") const {
    return make(std::vector{put("in.csv", lines)}, options, out);
  }
  template <class T>
  std::vector<T> read(const std::string& name) const {
    return hdf5::File::open(folder.file("out.h5")).open_dataset(name).read_all<T>();
  }
};

/// Lines of `columns` numbers with a fraction, and a label of three classes.
std::string samples(int columns, bool names, int lines = 30) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    for (int c = 0; c < columns; ++c) text += fmt::format("{}.25,", (i * 7 + c * 3) % 11 - 3);
    text += names ? fmt::format("class{}\n", i % 3) : fmt::format("{}\n", i % 3);
  }
  return text;
}

BOOST_FIXTURE_TEST_CASE(numbers_over_a_named_label_are_a_heading, Tables) {
  for (const std::string heading : {"0,1,2,species\n", "1990,1991,1992,country\n"}) {
    const Summary summary = make(heading + samples(3, true));
    BOOST_TEST(summary.samples == 30, heading);
    BOOST_TEST(summary.classes == 3, heading);
  }
  BOOST_TEST(make("0,1,species\n5.1,3.5,setosa\n").samples == 1);
  BOOST_TEST(make("target,0,1\nrose,1.5,2\niris,3,4\n", {.label = "target"}).samples == 2);
  std::string lines = ",0,1,2,species\n";  // pandas: numbers of rows, too
  for (int i = 0; i < 30; ++i) lines += fmt::format("{},{}.5,2,3,class{}\n", i, i % 7, i % 3);
  BOOST_TEST(make(lines).image.numel() == 3);
  BOOST_TEST(make(lines).classes == 3);
}

BOOST_FIXTURE_TEST_CASE(numbers_in_order_over_a_named_label_may_be_a_heading, Tables) {
  for (const std::string heading :
       {"1990,1995,2000,group\n", "400.5,401,401.5,402,402.5,403,403.5,404,kind\n"}) {
    const std::string lines = heading + samples(static_cast<int>(std::ranges::count(heading, ',')), true);
    BOOST_CHECK_EXCEPTION(make(lines), DataError, mentions("in.csv:1: may be a heading", "--heading"));
    BOOST_TEST(make(lines, {.heading = true}).samples == 30);
  }
}

BOOST_FIXTURE_TEST_CASE(first_sample_of_a_class_is_no_heading, Tables) {
  for (const std::string first :
       {"5.1,3.5,1.4,class0\n", "1,2,3,class0\n", "0,1,2,class0\n", "7,2,5,rare\n", "5.1,3.5,1.4,rare\n"})
    BOOST_TEST(make(first + samples(3, true)).samples == 31, first);
  BOOST_TEST(make("1,2,3,rose\n3,4,5,iris\n").samples == 2);
  BOOST_TEST(make("0,1,rose\n").samples == 1);
  BOOST_TEST(make("0,rose\n5,iris\n").samples == 2);
  BOOST_CHECK_EXCEPTION(make("0,kind\n1.5,iris\n2,iris\n"), DataError, mentions("--heading"));
  BOOST_CHECK_EXCEPTION(make("?,rose\n1.5,iris\n"), DataError, mentions("in.csv:1: may be a heading"));
}

BOOST_FIXTURE_TEST_CASE(a_damaged_first_sample_among_numbers_is_asked_about, Tables) {
  for (const std::string first : {"4,n/k,5\n", "7,n/k,8\n", "3,4,n/k\n"})
    BOOST_CHECK_EXCEPTION(make(first + "3,1,0\n"), DataError,
                          mentions("in.csv:1: may be a heading", "--heading"));
  for (const std::string first : {"0,1,species\n", "1,2,species\n", "1990,1991,1992,group\n"})
    BOOST_TEST(make(first + (first.size() > 14 ? "3,1,0,0\n" : "3,1,0\n")).samples == 1, first);
}

BOOST_FIXTURE_TEST_CASE(heading_of_one_name_fewer_names_no_rows, Tables) {
  for (const std::string row : {"\"1\"", "\"Mazda RX4\""}) {
    const Summary summary = make("\"a\",\"b\",\"y\"\n" + row + ",5,6,1\n\"2\",7,8,0\n", {.label = "b"});
    BOOST_TEST(contains(summary.notes.at(1), "names the rows: skipped"), row);
    BOOST_TEST(read<std::uint8_t>("x") == (std::vector<std::uint8_t>{5, 1, 7, 0}));
    BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{6, 8}));
  }
  make("a,b\n1,5,6\n2,7,8\n", {.label = "first"});
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{5, 7}));
  BOOST_CHECK_EXCEPTION(make("a,b\n0.5,2,0\n1.5,3,1\n"), DataError,
                        mentions("in.csv:2: has 3 fields, but the heading has 2"));
  BOOST_CHECK_EXCEPTION(make("1,2,0\n1,2,3,0\n"), DataError,
                        mentions("in.csv:2: has 4 fields, expected 2 values"));
}

BOOST_FIXTURE_TEST_CASE(heading_of_more_names_than_fields_is_an_error, Tables) {
  BOOST_CHECK_EXCEPTION(make("a,b,c,y\n1,2,0\n3,4,1\n"), DataError,
                        mentions("in.csv:2: has 3 fields, expected 3 values"));
  BOOST_TEST(make("a,b,y,\n1,2,0\n3,4,1\n").image.numel() == 2);  // its line ends in a separator
}

BOOST_FIXTURE_TEST_CASE(row_numbers_without_a_name_are_left_out, Tables) {
  for (const std::string lines : {",a,b,y\n0,5,6,1\n1,7,8,0\n0,5,6,1\n",         // pd.concat
                                  ",Unnamed: 0,a,b,y\n0,0,5,6,1\n1,1,7,8,0\n",   // saved twice
                                  "Unnamed: 0.1,Unnamed: 0,a,b,y\n0,3,5,6,1\n",  // one row
                                  "...1,a,b,y\n1,5,6,1\n2,7,8,0\n",              // readr
                                  "a,b,y,\n5,6,1,0\n7,8,0,1\n"}) {
    make(lines, {.label = "y"});
    BOOST_TEST(read<std::uint8_t>("x").size() == 2 * read<std::int64_t>("y").size(), lines);
    BOOST_TEST(read<std::uint8_t>("x")[1] == 6, lines);
  }
  BOOST_TEST(make({put("a.csv", ",a,y\n0,5,1\n"), put("b.csv", "1,7,0\n")}).image.numel() == 1);  // split -l
  BOOST_TEST(make({put("a.csv", ",a,y\n0,5,1\n"), put("b.csv", "1.5,7,0\n")}).image.numel() == 2);
  BOOST_TEST(make("Unnamed: 0,Unnamed: 1,Unnamed: 2\n5,6,1\n7,8,0\n").image.numel() == 2);
  BOOST_CHECK_EXCEPTION(make(",a,y\n20,5,1\n21.5,7,0\n"), DataError,
                        mentions("in.csv:3: field 1 ('') is '21.5'", "if it holds values, name it"));
}

BOOST_FIXTURE_TEST_CASE(files_of_other_columns_are_refused_by_name, Tables) {
  const std::string a = put("a.csv", "width,height,y\n1,2,0\n");
  const auto both = [&](const std::string& lines) { make({a, put("b.csv", lines)}); };
  BOOST_CHECK_EXCEPTION(both("height,width,y\n1,2,0\n"), DataError,
                        mentions("b.csv:1: field 1 is 'height', but in ", "a.csv:1 it is 'width'"));
  BOOST_CHECK_EXCEPTION(both("width,price,y\n1,2,0\n"), DataError,
                        mentions("field 2 is 'price'", "'height'"));
  both("width,height,y\n1,2,0\n");
  both("1,2,0\n");
}

BOOST_FIXTURE_TEST_CASE(columns_of_the_statistics_are_compared_by_name, Tables) {
  make(",a,b,y\n0,1.5,2,0\n1,3,4,1\n", {}, "train.h5");
  const CsvOptions options{.statistics = folder.file("train.h5")};
  BOOST_TEST(hdf5::File::open(options.statistics).open_dataset("x").text_attribute("names") == "a\nb");
  BOOST_CHECK_EXCEPTION(make("b,a,y\n1,2,0\n", options), DataError,
                        mentions("in.csv:1: value 1 is 'b', but in ", "train.h5 it is 'a'"));
  make("a,b,label\n1,2,0\n", options);
  make("1,2,0\n", options);
  std::string wide;
  for (int i = 0; i < 700; ++i) wide += fmt::format("{:n>100},", i);
  wide += "y\n";
  for (int i = 0; i < 700; ++i) wide += "1,";
  make(wide + "0\n");
  BOOST_TEST(hdf5::File::open(folder.file("out.h5")).open_dataset("x").text_attribute("names").size() >
             70'000u);
}

BOOST_FIXTURE_TEST_CASE(a_table_may_have_thousands_of_columns, Tables) {
  std::string wide;
  for (int i = 0; i < 20'000; ++i) wide += fmt::format("g{},", i);
  wide += "y\n";
  for (int line = 0; line < 2; ++line) {
    for (int i = 0; i < 20'000; ++i) wide += fmt::format("{}.5,", i + line);
    wide += fmt::format("{}\n", line);
  }
  const Summary summary = make(wide);
  BOOST_TEST(summary.image.numel() == 20'000);
  const hdf5::File file = hdf5::File::open(folder.file("out.h5"));
  BOOST_TEST(file.open_dataset("x").doubles_attribute("mean").at(19'999) == 20'000);
}

BOOST_FIXTURE_TEST_CASE(names_and_numbers_are_no_labels_of_one_run, Tables) {
  make("1,rose\n2,iris\n", {}, "names.h5");
  make("1,0\n2,1\n", {}, "numbers.h5");
  BOOST_CHECK_EXCEPTION(
      make("1,1\n", {.statistics = folder.file("names.h5")}), DataError,
      mentions("field 2, is '1', which is not a class of ", "names.h5; its classes are iris, rose"));
  BOOST_CHECK_EXCEPTION(make("1,rose\n", {.statistics = folder.file("numbers.h5")}), DataError,
                        mentions("field 2, is 'rose', but labels of ", "numbers.h5 are numbers"));
  make("1,rose\n", {.statistics = folder.file("names.h5")});
  make("1,7\n", {.statistics = folder.file("numbers.h5")});
}

BOOST_FIXTURE_TEST_CASE(values_take_the_type_of_the_statistics, Tables) {
  make("0.01,3,0\n900,1,1\n", {}, "train.h5");
  BOOST_TEST(make("1,2,0\n5,1,0\n", {.statistics = folder.file("train.h5")}).element_type == "float32");
}

constexpr const char* marks[] = {"\\N",  ".",      "..",       "#DIV/0!", "#NAME?",  "NaT", "[NULL]", "na",
                                 "none", "(null)", "#N/A N/A", "1.#QNAN", "-1.#IND", "--",  "-",      "?"};

BOOST_FIXTURE_TEST_CASE(names_of_classes_may_look_like_marks_of_missing_values, Tables) {
  for (const std::string mark : marks) {
    const Summary summary = make(fmt::format("a,y\n1,rose\n2,{}\n3,rose\n", mark));
    BOOST_TEST(summary.class_names.size() == 2u, mark);
    BOOST_TEST(std::ranges::count(summary.class_names, mark) == 1, mark);
    BOOST_REQUIRE(summary.warnings.size() == 1u);
    BOOST_TEST(contains(summary.warnings[0], fmt::format("labels '{}' are classes", mark)));
  }
  make("1,2,Na\n2,1,Cl\n3,3,K\n1,1,NA\n");  // also before the first other name, and without a heading
  BOOST_TEST(read<std::int64_t>("y") == (std::vector<std::int64_t>{3, 0, 1, 2}));
  BOOST_TEST(make("a,y\n1,NA\n2,none\n").class_names.size() == 2u);
  BOOST_TEST(make("a,y\n1,inf\n2,nan\n3,rose\n").class_names.size() == 3u);
  make("a,y\n1,rose\n2,NA\n", {}, "train.h5");
  const CsvOptions same{.statistics = folder.file("train.h5")};
  BOOST_TEST(make("a,y\n1,NA\n", same).warnings.empty());
  BOOST_CHECK_EXCEPTION(make("a,y\n1,none\n", same), DataError,
                        mentions("is 'none', which is not a class of"));
  BOOST_CHECK_EXCEPTION(make("a,y\n1,rose\n2,\n"), DataError, mentions("in.csv:3: field 2 ('y') is missing"));
}

BOOST_FIXTURE_TEST_CASE(labels_that_stand_for_no_number_are_missing, Tables) {
  for (const std::string mark : marks)
    for (const std::string& lines : {"1,0\n2," + mark + "\n3,1\n", "1," + mark + "\n3,1\n"})
      BOOST_CHECK_EXCEPTION(
          make("a,y\n" + lines), DataError,
          mentions(fmt::format("in.csv:{}: field 2 ('y') is missing", lines.starts_with("1,0") ? 3 : 2)));
}

BOOST_FIXTURE_TEST_CASE(labels_that_are_values_are_warned_of, Tables) {
  const auto warned = [&](const auto& label, int lines = 30) {
    std::string text = "a,y\n";
    for (int i = 0; i < lines; ++i) text += fmt::format("{},\"{}\"\n", i, label(i));
    const Summary summary = make(text);
    return !summary.warnings.empty() && contains(summary.warnings[0], "task.name = regression");
  };
  BOOST_TEST(warned([](int i) { return fmt::format("${},{:03}.50", 1 + i % 4, i); }));
  BOOST_TEST(warned([](int i) { return fmt::format("{}.5%", i % 5); }));
  BOOST_TEST(warned([](int i) { return fmt::format("{},5", i % 5); }));
  BOOST_TEST(warned([](int i) { return fmt::format("2024-01-{:02}", i + 1); }));
  BOOST_TEST(warned([](int i) { return fmt::format("id{}", i); }));
  BOOST_TEST(warned([](int i) { return i; }));            // each row is a class
  BOOST_TEST(!warned([](int i) { return i % 10 * 2; }));  // ages: 10 of 19
  BOOST_TEST(!warned([](int i) { return i % 2 ? "18-24" : "25-34"; }));
  BOOST_TEST(!warned([](int i) { return fmt::format("id{}", i); }, 3));
}

BOOST_FIXTURE_TEST_CASE(values_that_float32_makes_one_are_warned_of, Tables) {
  const auto warned = [&](const auto& value, int lines = 60) {
    std::string text = "t,y\n";
    for (int i = 0; i < lines; ++i) text += fmt::format("{},{}\n", value(i), i % 2);
    const Summary summary = make(text);
    return !summary.warnings.empty() && contains(summary.warnings[0], "column 1 ('t')");
  };
  BOOST_TEST(warned([](int i) { return i == 0 ? 0 : 1.7e9 + i * 10; }));  // one value is far away
  BOOST_TEST(warned([](int i) { return 16777217 + 2 * i; }));
  BOOST_TEST(warned([](int i) { return fmt::format("{:.3f}", 5412345.678 + i * 0.05); }));
  BOOST_TEST(warned([](int i) { return 1.7e9 + (i * 7919 % 50000); }, 50000));
  BOOST_TEST(!warned([](int i) { return 1990 + i % 31; }));
  BOOST_TEST(!warned([](int) { return 10000000001; }));
  BOOST_TEST(!warned([](int i) { return 300 + i * 1e3; }, 5000));
  BOOST_TEST(!warned([](int i) { return fmt::format("{:.17g}", i % 5 * 0.1 + (i % 3) * 1e-17); }));
}

BOOST_FIXTURE_TEST_CASE(numbers_may_begin_with_a_plus, Tables) {
  make("a,b,y\n+1.5,-2,+1\n+3,+.5,0\n");
  BOOST_TEST(read<float>("x") == (std::vector<float>{1.5, -2, 3, 0.5}));
  BOOST_CHECK_THROW(make("1,+-2,0\n1,2,0\n"), DataError);
}

BOOST_FIXTURE_TEST_CASE(equal_names_of_columns_that_are_used_are_refused, Tables) {
  const std::string lines = "a,b,a,y\n1,2,3,0.5\n4,5,6,1.5\n";
  BOOST_CHECK_EXCEPTION(make(lines, {.target = "y"}), DataError,
                        mentions("in.csv:1: columns 1 and 3 are both named \"a\": rename one"));
  BOOST_CHECK_EXCEPTION(make("y,b,y\n1,2,0\n4,5,1\n"), DataError, mentions("columns 1 and 3"));
  BOOST_TEST(make(lines, {.target = "y", .drop = {"1", "3"}}).samples == 2);
}

BOOST_FIXTURE_TEST_CASE(fills_are_finite_numbers, Tables) {
  for (const std::string fill : {"nan", "inf", "a=nan", "a=1e39"})
    BOOST_CHECK_EXCEPTION(make("a,b,y\n1,2,0.5\n", {.target = "y", .missing = {fill}}), UsageError,
                          mentions("--missing ", "a finite number"));
}

BOOST_FIXTURE_TEST_CASE(no_time_zone_is_further_than_18_hours_from_utc, Tables) {
  const CsvOptions options{.target = "y", .dates = {"d"}};
  BOOST_TEST(make("d,y\n2020-01-01 00:00 +14:00,1\n", options).samples == 1);
  BOOST_CHECK_EXCEPTION(make("d,y\n2020-01-01 00:00 +25:00,1\n", options), DataError,
                        mentions("'2020-01-01 00:00 +25:00', not a date"));
}

BOOST_FIXTURE_TEST_CASE(a_table_without_lines_is_said_whatever_the_options, Tables) {
  for (const CsvOptions& options :
       {CsvOptions{.target = "y"}, CsvOptions{.target = "y", .eval_fraction = 0.2},
        CsvOptions{.target = "y", .categorical = {"a"}}})
    BOOST_CHECK_EXCEPTION(make("a,b,y\n", options), DataError, mentions("in.csv has no lines with samples"));
}

BOOST_FIXTURE_TEST_CASE(a_target_beyond_all_numbers_is_no_class, Tables) {
  for (const std::string lines : {"a,y\n1,1e400\n2,5\n", "a,y\n1,5\n2,-1e400\n"})
    BOOST_CHECK_EXCEPTION(make(lines, {.target = "y"}), DataError,
                          mentions("1e400', not a number in the range"));
}

BOOST_FIXTURE_TEST_CASE(an_older_held_out_file_is_replaced_or_said, Tables) {
  const std::string lines = "a,y\n1,1.5\n2,2.5\n3,3.5\n4,4.5\n";
  BOOST_TEST(make(lines, {.target = "y", .eval_fraction = 0.5}).warnings.empty());
  BOOST_TEST(make(lines, {.target = "y", .eval_fraction = 0.25}).warnings.empty());
  const Summary all = make(lines, {.target = "y"});
  BOOST_TEST_REQUIRE(all.warnings.size() == 1U);
  BOOST_TEST(contains(all.warnings[0], "out-eval.h5 is older: remove it if it is of this table"));
}

BOOST_FIXTURE_TEST_CASE(files_that_are_no_csv_are_refused_by_what_they_are, Tables) {
  std::string tar(257, 'a');  // GCC 14 warns of a sum of both in the list
  tar += "ustar\n";
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"PK\x03\x04 xl/workbook.xml\n1,2\n", "not a CSV file, but a zip archive"},
      {"PAR1 1,2\n", "a Parquet file"},
      {"\xFF\xFE"
       "a,b",
       "UTF-16"},
      {std::string("1\0,\0002\0\n\0", 8), "null byte"},
      {"a,y\r1,2\r3,0\r", "CR (carriage return)"},
      {"PAR1 1,2\n", "pandas.read_parquet(sys.argv[1])"},
      {"PK\x03\x04 xl/workbook.xml\n1,2\n", "pandas.read_excel(sys.argv[1])"},
      {"BZh91AY", "compression=\"bz2\""},
      {tar, "a tar archive"},
      {"\x89HDF\r\n", "an HDF5 file"},
      {"x y label\n1 2 a\n3 4 b\n", "separated by blanks: convert it: python3 -c"},
      {"x|y|label\n1|2|a\n", "separated by pipes"}};
  for (const auto& [bytes, what] : cases)
    BOOST_CHECK_EXCEPTION(make(bytes), DataError, mentions("in.csv", what));
}

BOOST_FIXTURE_TEST_CASE(text_is_looked_at_to_its_end, Tables) {
  const std::string words(20000, 'a'), path = folder.file("text.out.h5");
  const auto text = [&](const std::string& bytes) {
    return prepare_text(std::vector{put("in.txt", bytes)}, {path, true}).samples;
  };
  BOOST_CHECK_EXCEPTION(text(words + std::string(20000, '\0')), DataError,
                        mentions("not text: it contains binary data from byte 16384"));
  BOOST_TEST(text(words + std::string(1, '\0') + words) == 40001);  // a stray one
  BOOST_TEST(text(words + "\x1A") == 20001);
  BOOST_CHECK_EXCEPTION(text("\x04\x22\x4D\x18" + words), DataError, mentions("lz4"));
}

BOOST_FIXTURE_TEST_CASE(a_folder_of_other_files_gives_a_few_notes_and_a_count, Tables) {
  put("a.txt", "text");
  for (int i = 0; i < 20; ++i) put(fmt::format("{}.png", i), "\x89PNG\r\n\x1A\n");
  const std::string out = folder.file("text.out.h5");
  const Summary summary = prepare_text(std::vector{folder.file("")}, {out, true});
  BOOST_TEST(summary.samples == 4);
  BOOST_TEST(summary.notes.size() == 6u);
  BOOST_TEST(contains(summary.notes.back(), "15 other files"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
