// A table: what its columns are and which values of a sample they become. Data files and checkpoints
// store it as JSON, so that other tables with these columns mean the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

class CsvFile;

/// Seconds since 1970-01-01 in UTC of a date such as 2020-02-29, with a time of day and a time zone or
/// without; false if it is none.
bool parse_date(std::string_view text, double& seconds);

/// A column that becomes values of a sample.
struct TableColumn {
  /// How: a number; one of `categories` as one-hot values, or as its number in /codes; a date as seconds, or
  /// with it sine and cosine of its time of day, day of the week and day of the year.
  enum class Kind { number, one_hot, code, date, date_and_sines };

  /// What becomes of a missing value: an error, a value, the mean or median of the training rows, or its line
  /// is left out.
  enum class Fill { none, value, mean, median, drop };

  std::string name{};  ///< in the heading; "column 3": without one
  Kind kind = Kind::number;
  std::vector<std::string>
      categories{};  ///< the code of the first is 1; 0 is a missing one, without a hot value
  Fill fill_by = Fill::none;
  double fill = 0;  ///< number, seconds or code of a missing value, once it is known

  bool is_category() const { return kind == Kind::one_hot || kind == Kind::code; }
  bool is_filled() const { return fill_by != Fill::none && fill_by != Fill::drop; }
  bool is_date() const { return kind == Kind::date || kind == Kind::date_and_sines; }
  /// Appends the names of its values in x: "width", "colour=red", "when", "when day sin".
  void add_names(std::vector<std::string>& names) const;
  /// The number of a field that is not missing: itself, its seconds, or its code. DataError, which names
  /// file, line and column, for any other text; for an unknown category unless it counts as missing.
  double number_of(std::string_view field, std::size_t index, CsvFile& file, bool unknown_as_missing) const;
  /// Appends its values in x, or its code.
  void add_values(double number, std::vector<double>& x, std::vector<std::int64_t>& codes) const;
};

/// The columns of a table that a model learned from.
struct Table {
  std::vector<TableColumn> columns{};   ///< in the order of the values; of those in x and in /codes
  std::optional<TableColumn> target{};  ///< of kind number: values, or of classes
  bool has_classes = false;             ///< the target names classes
  bool drops_marks = false;             ///< a class such as NA stands for a missing value of the target, too
  std::vector<std::string> dropped{};   ///< columns that training left out on purpose
  bool decimal_commas = false;          ///< the options said that commas are decimal signs

  std::vector<std::string> value_names() const;  ///< of x
  std::vector<std::string> code_names() const;   ///< of /codes
  /// As JSON. DataError, which names `path`, if names are not UTF-8.
  std::string text(const std::string& path) const;
  /// What text() wrote. DataError, which names `path`, if it is damaged.
  static Table parse(const std::string& text, const std::string& path);
  /// Of columns of numbers, for files of which only the names are known.
  static Table of_numbers(const std::vector<std::string>& names);
};

/// The units in a name such as "width [cm]" or "width (cm)"; empty without any.
std::string_view units_of(std::string_view name);

/// "width" of "width [cm]".
std::string_view without_units(std::string_view name);

}  // namespace lockstep::data
