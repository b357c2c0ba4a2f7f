// A CSV file: its lines, their fields, and its heading.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/input.h"
#include "data/prepare.h"

namespace lockstep::data {

/// Parses a complete field as a number, which may begin with a plus; false if it is not a number. `decimals`:
/// the characters that may begin its fraction.
bool parse_value(std::string_view field, double& value, std::string_view decimals = ".");
bool is_whole(std::string_view field);
/// True if a field is a number beyond those of double, such as 1e400.
bool is_too_large(std::string_view field);
/// True if a field is a number, and does not stand for a missing value (nan).
bool is_number(std::string_view field, std::string_view decimals = ".");
/// True if a field stands for a missing value (docs/data.md lists them).
bool is_missing(std::string_view field);
/// True for the names of nameless columns: an empty one, "Unnamed: 0" (pandas), "...1" (readr).
bool is_nameless(std::string_view name);

/// Reads a CSV file. One character separates fields, which may be quoted ("a; ""b"""). A line break in a
/// quoted field becomes a blank. Skips blank lines, blanks around fields, a heading, which is_heading()
/// detects, and columns at the end that have neither a name nor values.
class CsvFile {
 public:
  /// Uses separator, decimal, heading and names of CsvOptions. DataError from Input, for unterminated quotes,
  /// for files that are not text, and for a first line that may be a heading or a sample.
  CsvFile(const std::string& path, const CsvOptions& options);

  /// Reads the next line after the heading; false at the end of the file. DataError for a value in a column
  /// that is empty in the first lines.
  bool next();
  /// Parses a field of that line as a number. Where CsvOptions do not name the decimal sign, the first one
  /// does.
  bool number(std::string_view field, double& value);
  /// The fields of that line, valid until the next one is read.
  const std::vector<std::string_view>& fields() const { return fields_; }
  const std::string& path() const { return input_.path(); }
  std::string where() const;  ///< FILE:LINE of that line

  /// Names of columns; empty: no heading.
  const std::vector<std::string>& heading() const { return heading_; }
  /// Whether the first column holds row names without a field in the heading, as R writes them.
  bool row_names() const { return row_names_; }
  std::string heading_where() const;  ///< FILE:LINE of the heading
  /// "comma", "semicolon", "tab" or the character in quotes.
  std::string separator_name() const;
  std::size_t empty_columns() const { return empty_columns_; }  ///< skipped at the end of each line
  bool has_decimal_commas() const { return decimal_ == ','; }   ///< in numbers so far
  /// What separates the fields of a line in which there is one only, for an error: "fields seem to be ...".
  std::string other_separator() const;

 private:
  struct Line {
    std::string text;
    std::int64_t number = 0;
  };
  using Fields = std::vector<std::string_view>;

  bool read_line(Line& line);
  void split(Line& line, Fields& fields) const;
  void find_heading(const CsvOptions& options);
  std::optional<bool> is_heading(const Fields& names, const Fields& below);
  std::string_view decimals() const;
  std::optional<bool> numbers_are_names(std::string_view text, std::size_t column,
                                        const std::vector<double>& numbers, bool fractions_below);

  Input input_;
  char separator_, decimal_;
  bool may_have_commas_;
  std::size_t width_ = 0, empty_columns_ = 0;  // fields before the empty ones, and how many are empty
  std::vector<std::string> heading_;
  std::int64_t heading_line_ = 0;
  bool row_names_ = false;
  std::deque<Line> waiting_;  // lines read to detect a heading, not yet returned
  Line line_;
  Fields fields_;
};

/// "column 3 ('width')", or "column 3" without a name.
std::string numbered_name(const char* what, std::size_t index, const std::vector<std::string>& names);
/// "field 3 ('width')", of a line.
std::string describe(const CsvFile& file, std::size_t field);
/// The first characters of a field, for errors.
std::string_view short_text(std::string_view field);
/// The error text for a missing value.
std::string missing_value(const CsvFile& file, std::size_t field);
/// A command in Python, to be pasted into a shell, that makes table.csv of a file: pandas reads it by
/// "read_csv(sys.argv[1])".
std::string python_command(const std::string& path, std::string_view reader);

}  // namespace lockstep::data
