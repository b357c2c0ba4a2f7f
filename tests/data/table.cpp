// Tables of columns of every kind: what they become, what is learned from training rows alone, and how other
// tables with the same columns are read.
#include "data/table.h"

#include <fmt/format.h>
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "data/files.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(table)

using namespace data;

struct TableFolder {
  TemporaryFolder folder;

  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder.file(name), std::ios::binary) << bytes;
    return folder.file(name);
  }
  Summary make(const std::string& lines, const CsvOptions& options, const std::string& out = "out.h5") const {
    return prepare_csv(std::vector{put("in.csv", lines)}, {folder.file(out), true}, options);
  }
  template <class T>
  std::vector<T> read(const std::string& name, const std::string& out = "out.h5") const {
    return hdf5::File::open(folder.file(out)).open_dataset(name).read_all<T>();
  }
  std::string text(const std::string& name, const char* attribute, const std::string& out = "out.h5") const {
    return hdf5::File::open(folder.file(out)).open_dataset(name).text_attribute(attribute);
  }
};

constexpr const char* mixed =
    "id,area (m2),colour,when,price [EUR]\n"
    "a7,50,red,2020-01-01,1.5\nb8,NA,blue,2020-01-02 "
    "06:00,2.5\nc9,70,red,2020-01-03,4.5\nd0,90,,2020-01-04,5\n";

BOOST_FIXTURE_TEST_CASE(columns_become_numbers_categories_and_dates, TableFolder) {
  const Summary summary = make(mixed, {.target = "price [EUR]",
                                       .categorical = {"colour"},
                                       .dates = {"when"},
                                       .drop = {"id"},
                                       .missing = {"median"}});
  const double day = 86400, first = 18262 * day;
  BOOST_TEST(summary.target == "price [EUR]");
  BOOST_TEST(read<double>("x") == (std::vector<double>{50, 0, 1, first, 70, 1, 0, first + 1.25 * day, 70, 0,
                                                       1, first + 2 * day, 90, 0, 0, first + 3 * day}));
  BOOST_TEST(read<float>("y") == (std::vector<float>{1.5, 2.5, 4.5, 5}));
  BOOST_TEST(text("x", "names") == "area (m2)\ncolour=blue\ncolour=red\nwhen");
  BOOST_TEST(text("y", "names") == "price [EUR]");
  BOOST_TEST(text("y", "units") == "EUR");
  BOOST_TEST(contains(text("x", "table"), "\"units\":\"m2\""));
}

BOOST_FIXTURE_TEST_CASE(a_target_of_names_is_classes_and_of_numbers_values, TableFolder) {
  const Summary names = make("a,y\n1.5,rose\n2,iris\n", {.target = "y"});
  BOOST_TEST(names.class_names == (std::vector<std::string>{"iris", "rose"}));
  BOOST_TEST(make("a,y\n1.5,1\n2,250000\n", {.target = "y"}).classes == 0);
  BOOST_TEST(read<float>("y") == (std::vector<float>{1, 250000}));
  BOOST_CHECK_EXCEPTION(make("a,y\n1.5,1\n2,x\n", {.target = "y"}), DataError,
                        mentions("in.csv:3: field 2 ('y') is 'x', not a number"));
  BOOST_CHECK_EXCEPTION(make("a,y\n1.5,1\n2,\n", {.target = "y"}), DataError,
                        mentions("in.csv:3: field 2 ('y') is missing", "--missing drop"));
}

BOOST_FIXTURE_TEST_CASE(a_table_without_labels_has_values_alone, TableFolder) {
  make("a,b\n1,2\n3,4.5\n", {.label = "none"});
  BOOST_TEST(read<float>("x") == (std::vector<float>{1, 2, 3, 4.5}));
  BOOST_TEST(!hdf5::File::open(folder.file("out.h5")).exists("/y"));
}

BOOST_FIXTURE_TEST_CASE(missing_values_become_what_the_options_say, TableFolder) {
  const std::string lines = "a,b,c,y\n1,,red,0\n,2,,1\n5,4,blue,0\n6,9,red,1\n";
  const auto x = [&](const std::vector<std::string>& missing) {
    make(lines, {.label = "y", .categorical = {"c"}, .missing = missing});
    return read<float>("x");
  };
  using Values = std::vector<float>;
  BOOST_TEST(x({"drop"}) == (Values{5, 4, 1, 0, 6, 9, 0, 1}));
  BOOST_TEST(x({"mean"}) == (Values{1, 5, 0, 1, 4, 2, 0, 0, 5, 4, 1, 0, 6, 9, 0, 1}));
  BOOST_TEST(x({"median"}) == (Values{1, 4, 0, 1, 5, 2, 0, 0, 5, 4, 1, 0, 6, 9, 0, 1}));
  BOOST_TEST(x({"a=-1", "b=drop", "c=red"}) == (Values{-1, 2, 0, 1, 5, 4, 1, 0, 6, 9, 0, 1}));
  BOOST_CHECK_EXCEPTION(x({"a=0"}), DataError, mentions("in.csv:2: field 2 ('b') is missing"));
  BOOST_CHECK_EXCEPTION(x({"a=many"}), UsageError, mentions("--missing a=many: must be drop, mean, median"));
  BOOST_CHECK_EXCEPTION(x({"q=0"}), UsageError,
                        mentions("--missing", "q", "no column of this name", "a, b, c"));
}

BOOST_FIXTURE_TEST_CASE(options_that_contradict_each_other_are_refused, TableFolder) {
  const std::string lines = "when,c,b,y\n2020-01-01,red,1,0\n,,,1\n2020-01-03,red,5,0\n";
  const auto check = [&](const CsvOptions& options, const char* what) {
    BOOST_CHECK_EXCEPTION(make(lines, options), UsageError, mentions(what));
  };
  using Names = std::vector<std::string>;
  const Names when{"when"}, c{"c"};
  check({.categorical = {"when", "c"}, .dates = when},
        "--date \"when\": is the column of --categorical, too");
  check({.categorical = c, .dates = when, .drop = c}, "--categorical \"c\": is the column of --drop, too");
  check({.label = "c", .dates = when, .drop = c}, "--drop \"c\": is the column of --label, too");
  check({.dates = when, .drop = {"c", "c"}}, "--drop: names \"c\" twice");
  check({.dates = when, .drop = c, .missing = {"c=0"}}, "--missing \"c\": is the column of --drop");
  check({.dates = when, .drop = c, .missing = {"b=median", "b=0"}}, "--missing: names \"b\" twice");
  check({.dates = when, .drop = c, .missing = {"b=median", "median", "0"}}, "--missing median, 0: give one");
  check({.dates = when, .drop = c, .missing = {"y=mean"}}, "--missing y=mean: is of the target");
  check({.dates = when, .drop = c, .missing = {"never"}}, "--missing \"never\": must be drop, mean, median");
  // A number for all columns fills no date, and leaves a category without a hot value.
  CsvOptions options{.categorical = c, .dates = when, .missing = {"0"}};
  BOOST_CHECK_EXCEPTION(make(lines, options), DataError,
                        mentions("in.csv:3: field 1 ('when') is missing", "try --missing 0,when=median"));
  options.missing.push_back("when=2020-01-02");
  make(lines, options);
  const double day = 86400, first = 18262 * day;
  BOOST_TEST(read<double>("x") ==
             (std::vector<double>{first, 1, 1, first + day, 0, 0, first + 2 * day, 1, 5}));
}

BOOST_FIXTURE_TEST_CASE(a_class_that_looks_missing_is_dropped_if_the_column_is_named, TableFolder) {
  const std::string lines = "a,y\n1,NA\n2,rose\n3,\n4,iris\n";
  BOOST_TEST(make(lines, {.target = "y", .missing = {"drop"}}).class_names.size() == 3u);
  for (const bool is_target : {true, false}) {
    CsvOptions options{.missing = {"y=drop"}};
    if (is_target) options.target = "y";
    const Summary named = make(lines, options, "train.h5");
    BOOST_TEST(named.class_names == (std::vector<std::string>{"iris", "rose"}));
    BOOST_TEST(named.samples == 2);
    BOOST_TEST(make(lines, {.statistics = folder.file("train.h5")}).samples == 2);
  }
  // All passes leave out the same lines, though the first targets are missing.
  CsvOptions halves{.target = "y", .missing = {"y=drop"}, .eval_fraction = 0.5};
  const Summary numbers = make("a,y\n1,NA\n2,NA\n3,1.5\n4,2.5\n5,3.5\n6,1\n", halves);
  BOOST_TEST(numbers.samples == 2);
  BOOST_TEST(numbers.held_out == 2);
}

BOOST_FIXTURE_TEST_CASE(a_column_is_named_with_or_without_its_units, TableFolder) {
  BOOST_TEST(make(mixed, {.target = "price", .drop = {"id", "colour", "when"}, .missing = {"0"}}).target ==
             "price [EUR]");
  BOOST_CHECK_EXCEPTION(make("a [m],a [s],y\n1,2,3\n", {.target = "y", .drop = {"a"}}), UsageError,
                        mentions("several columns are named 'a'"));
}

BOOST_FIXTURE_TEST_CASE(a_table_keeps_the_decimal_sign_for_other_tables, TableFolder) {
  const std::string lines = "a\tb\ty\n1,5\t2\t0,5\n3\t4,25\t1\n";
  CsvOptions options{.decimal = ',', .target = "y"};
  make(lines, options, "train.h5");
  const CsvOptions like{.statistics = folder.file("train.h5")};
  make(lines, like);
  BOOST_TEST(read<float>("x") == (std::vector<float>{1.5, 2, 3, 4.25}));
  for (const char* const other : {"a,b,y\n1.5,2,0.5\n3,4.25,1\n", "a\tb\ty\n1.5\t2\t0.5\n3\t4.25\t1\n"}) {
    make(other, like);
    BOOST_TEST(read<float>("x") == (std::vector<float>{1.5, 2, 3, 4.25}));
  }
}

BOOST_FIXTURE_TEST_CASE(proposed_options_can_be_pasted, TableFolder) {
  std::string lines = "\"a \"\"b\"\", c's\",y\n";
  for (int i = 0; i < 30; ++i) lines += fmt::format("n{},{}.5\n", i, i);
  BOOST_CHECK_EXCEPTION(make(lines, {.target = "y"}), DataError,
                        mentions("try --drop '\"a \"\"b\"\", c'\\''s\"'"));
}

BOOST_FIXTURE_TEST_CASE(codes_count_categories_from_1_and_missing_ones_as_0, TableFolder) {
  make("a,c,y\n1.5,red,0\n2,,1\n3,blue,0\n", {.label = "y", .categorical = {"c=code"}, .missing = {"mean"}});
  BOOST_TEST(read<std::int64_t>("codes") == (std::vector<std::int64_t>{2, 0, 1}));
  BOOST_TEST(read<float>("x") == (std::vector<float>{1.5, 2, 3}));
  BOOST_TEST(text("codes", "names") == "c");
  BOOST_CHECK_EXCEPTION(make("c,y\nred,0\nblue,1\n", {.label = "y", .categorical = {"c=code"}}), UsageError,
                        mentions("none is left for /x"));
}

BOOST_FIXTURE_TEST_CASE(errors_propose_the_options_that_columns_need, TableFolder) {
  std::string lines = "name,when,kind,a,y\n";
  for (int i = 0; i < 30; ++i)
    lines += fmt::format("n{0},2020-01-{1:02},{2},{3},{4}.5\n", i, i % 28 + 1, i % 2 ? "p" : "q",
                         i % 7 ? "1" : "", i);
  BOOST_CHECK_EXCEPTION(make(lines, {.target = "y"}), DataError,
                        mentions("in.csv:2: field 1 ('name') is 'n0', not a number; try --date when "
                                 "--categorical kind --drop name --missing median"));
  BOOST_TEST(make(lines, {.target = "y",
                          .categorical = {"kind"},
                          .dates = {"when"},
                          .drop = {"name"},
                          .missing = {"median"}})
                 .samples == 30);
}

BOOST_FIXTURE_TEST_CASE(held_out_rows_change_nothing_that_is_learned, TableFolder) {
  // Row i has the value i, so that a row's place is known from its content.
  const auto table_of = [&](const std::vector<float>& changed) {
    std::string lines = "a,b,c,y\n";
    for (int i = 0; i < 40; ++i) {
      const bool other = std::ranges::count(changed, static_cast<float>(i)) > 0;
      lines += fmt::format("{},{},{},{}\n", i,
                           i == 3  ? ""
                           : other ? "1e6"
                                   : "2.5",
                           i % 2 ? "p" : "q", other ? 1e7 : i);
    }
    return lines;
  };
  const CsvOptions options{.target = "y", .categorical = {"c"}, .missing = {"mean"}, .eval_fraction = 0.25};
  const Summary summary = make(table_of({}), options);
  BOOST_TEST(summary.samples == 30);
  BOOST_TEST(summary.held_out == 10);
  const std::string table = text("x", "table");
  const auto x = read<float>("x"), held_out = read<float>("x", "out-eval.h5");
  std::vector<float> rows;
  for (std::size_t i = 0; i < held_out.size(); i += 4) rows.push_back(held_out[i]);
  for (std::size_t i = 0; i < x.size(); i += 4) BOOST_TEST(std::ranges::count(rows, x[i]) == 0);
  make(table_of(rows), options, "other.h5");
  BOOST_TEST(text("x", "table", "other.h5") == table);
  BOOST_TEST(read<float>("x", "other.h5") == x);
  const auto mean = [&](const char* out, const char* array) {
    return hdf5::File::open(folder.file(out)).open_dataset(array).doubles_attribute("mean");
  };
  for (const char* const array : {"x", "y"}) {
    BOOST_TEST(mean("out.h5", array) == mean("other.h5", array));
    BOOST_TEST(mean("out.h5", array) == mean("out-eval.h5", array));
  }
}

BOOST_FIXTURE_TEST_CASE(a_category_of_held_out_rows_alone_is_unknown, TableFolder) {
  std::string lines = "a,c,y\n";
  for (int i = 0; i < 40; ++i) lines += fmt::format("{},k{},0\n", i, i);  // each row has its own
  CsvOptions options{.label = "y", .categorical = {"c"}, .eval_fraction = 0.25};
  BOOST_CHECK_EXCEPTION(make(lines, options), DataError,
                        mentions("a category that training did not see", "--unknown as-missing"));
  BOOST_TEST(!std::filesystem::exists(folder.file("out.h5")));
  BOOST_TEST(!std::filesystem::exists(folder.file("out-eval.h5")));
  options.unknown_as_missing = true;
  make(lines, options);
  const auto held_out = read<float>("x", "out-eval.h5");
  BOOST_TEST(held_out.size() == 10 * 31u);
  for (std::size_t i = 0; i < held_out.size(); ++i) BOOST_TEST((i % 31 == 0 || held_out[i] == 0));
}

BOOST_FIXTURE_TEST_CASE(other_tables_are_read_by_the_names_of_the_training_data, TableFolder) {
  make(mixed,
       {.target = "price [EUR]",
        .categorical = {"colour"},
        .dates = {"when"},
        .drop = {"id"},
        .missing = {"median"}},
       "train.h5");
  const CsvOptions like{.statistics = folder.file("train.h5")};
  const Summary summary =
      make("when,price [EUR],shop,colour,area (m2)\n2020-01-05,3,12,blue,\n2020-01-06,4,13,,20\n", like);
  BOOST_TEST(contains(summary.notes.at(1), "this column: shop"));
  const double first = 18266 * 86400.;
  BOOST_TEST(read<double>("x") == (std::vector<double>{70, 1, 0, first, 20, 0, 0, first + 86400}));
  BOOST_TEST(text("x", "table") == text("x", "table", "train.h5"));
  BOOST_CHECK_EXCEPTION(
      make("when,price [EUR]\n2020-01-05,3\n", like), DataError,
      mentions("in.csv:1: columns that training learned from are missing: area (m2), colour"));
  const std::string heading = "colour,area (m2),when";
  BOOST_CHECK_EXCEPTION(make(heading + "\nblue,1,2020-01-05\n", like), DataError,
                        mentions("missing: price [EUR]"));
  CsvOptions unlabelled = like;
  unlabelled.label = "none";
  make(heading + "\nblue,1,2020-01-05\n", unlabelled);
  BOOST_CHECK_EXCEPTION(make(heading + "\ngreen,1,2020-01-05\n", unlabelled), DataError,
                        mentions("in.csv:2: field 1 ('colour') is 'green'", "it knows blue, red"));
  unlabelled.unknown_as_missing = true;
  make(heading + "\ngreen,1,2020-01-05\n", unlabelled);
  BOOST_TEST(read<double>("x") == (std::vector<double>{1, 0, 0, first}));
  BOOST_CHECK_EXCEPTION(
      make(heading + "\nblue,1,2020-01-05\n", {.statistics = folder.file("train.h5"), .drop = {"when"}}),
      UsageError, mentions("--statistics"));
}

BOOST_AUTO_TEST_CASE(dates_are_seconds_since_1970_in_utc) {
  const auto seconds = [](const char* text) {
    double found = -1;
    return parse_date(text, found) ? found : -1;
  };
  BOOST_TEST(seconds("1970-01-02") == 86400);
  BOOST_TEST(seconds("2020/02/29") == 1582934400);
  BOOST_TEST(seconds("2020-02-29 13:05") == 1582934400 + 13 * 3600 + 300);
  BOOST_TEST(seconds("2020-02-29T13:05:06.5Z") == 1582934400 + 13 * 3600 + 306.5);
  BOOST_TEST(seconds("2020-02-29 13:05:06+01:30") == 1582934400 + 13 * 3600 + 306 - 5400);
  for (const char* const bad :
       {"", "2020", "2020-13-01", "2021-02-29", "29.02.2020", "01-02-2020", "10-12-14", "2020-02-29 25:00",
        "2020-02-29 x", "2020-02-29 13:05:06 CET", "1582934400"})
    BOOST_TEST(seconds(bad) == -1, bad);
}

BOOST_AUTO_TEST_CASE(sines_of_a_date_repeat_after_a_day_a_week_and_a_year) {
  const TableColumn column{.name = "t", .kind = TableColumn::Kind::date_and_sines};
  std::vector<std::string> names;
  column.add_names(names);
  BOOST_TEST(names.size() == 7u);
  BOOST_TEST(names[1] == "t day sin");
  const auto values = [&](const char* date) {
    double seconds = 0;
    BOOST_TEST(parse_date(date, seconds));
    std::vector<double> found;
    std::vector<std::int64_t> codes;
    column.add_values(seconds, found, codes);
    return found;
  };
  const std::vector<double> noon = values("2024-01-01 12:00");  // a Monday
  BOOST_TEST(std::abs(noon[2] + 1) < 1e-9);
  BOOST_TEST(std::abs(noon[3] - std::sin(2 * 3.141592653589793 / 14)) < 1e-9);
  for (const std::size_t i : {1, 2, 3, 4})
    BOOST_TEST(std::abs(noon[i] - values("2024-01-08 12:00")[i]) < 1e-6);
}

BOOST_AUTO_TEST_CASE(a_damaged_description_is_an_error) {
  Table one = Table::of_numbers({"a", "b"});
  one.columns[1].kind = TableColumn::Kind::one_hot;
  one.columns[1].categories = {"p", "q"};
  one.columns[1].fill_by = TableColumn::Fill::value;
  one.columns[1].fill = 2;
  const std::string text = one.text("in.csv");
  BOOST_TEST(Table::parse(text, "x.h5").text("in.csv") == text);
  for (std::size_t i = 0; i < text.size(); ++i)
    BOOST_CHECK_EXCEPTION(Table::parse(text.substr(0, i), "x.h5"), DataError, mentions("x.h5", "is damaged"));
  for (const char* const bad : {"[]", "{}", "{\"columns\":[1]}", "{\"columns\":[{\"name\":3}]}"})
    BOOST_CHECK_THROW(Table::parse(bad, "x.h5"), DataError);
  std::string other = text;
  other.replace(other.find("2.0"), 3, "9.0");  // a code that there is not
  BOOST_CHECK_THROW(Table::parse(other, "x.h5"), DataError);
  one.columns[1].categories = {"K\xF6ln"};
  BOOST_CHECK_EXCEPTION(one.text("in.csv"), DataError, mentions("in.csv", "not UTF-8", "latin-1"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
