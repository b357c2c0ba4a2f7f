// The lines of CSV files as rows of a table: which column is what, by CsvOptions or by a table that is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/csv_file.h"
#include "data/prepare.h"
#include "data/table.h"

namespace lockstep::data {

/// By name the first column and how many have this name; also by names without units, "price" of
/// "price [EUR]", that no column has.
using ColumnIndex = std::unordered_map<std::string, std::pair<std::size_t, std::size_t>>;
ColumnIndex index_of(std::span<const std::string> names);

/// Reads the values and the target of every line, and checks that all lines of all files have the same
/// columns.
class TableRows {
 public:
  /// Reads the headings and the first lines after them. `known`: the table that training learned from, whose
  /// columns are found by name, in any order; null: all columns but those that the options name otherwise.
  /// UsageError if the options name no column; DataError, with their names, if known columns are missing.
  TableRows(std::span<const std::string> inputs, const CsvOptions& options, const Table* known);

  /// Its categories and fills are those of `known`, or to be learned.
  Table& table() { return table_; }
  const Table& table() const { return table_; }
  /// Whether columns must be learned before values() works.
  bool must_learn() const;

  /// Calls use(file) for each line with a sample, also for those that skips() tells.
  template <class Use>
  void read(const std::string& path, const Use& use) {
    CsvFile file(path, options_);
    for (bool first = true; file.next(); first = false) {
      check_fields(file, first);
      check_index_columns(file);
      if (first && known_) find_known(file);
      use(file);
    }
    if (file.has_decimal_commas()) note(path + ": commas are decimal signs: 1,5 is 1.5");
  }
  /// Whether the line is left out, because a value is missing whose column drops such lines.
  bool skips(const CsvFile& file) const;
  /// The text of a column in the line.
  std::string_view field(const CsvFile& file, std::size_t column) const {
    return file.fields()[fields_[column]];
  }
  std::size_t field_index(std::size_t column) const { return fields_[column]; }
  /// The index of the target's field; none: there is no target.
  std::optional<std::size_t> target_field() const { return target_field_; }
  /// The number of the column in the line, also of a missing value. DataError if it has none; the error
  /// proposes options.
  double number(CsvFile& file, std::size_t column);
  /// The value to predict. DataError if it is missing, or no number.
  double target(CsvFile& file) const;
  /// The values of the line, in x and in /codes.
  void values(CsvFile& file, std::vector<double>& x, std::vector<std::int64_t>& codes);

  const std::vector<std::string>& notes() const { return notes_; }
  /// The column of a value, without categories and dates: "column 3", with its name if there is a heading.
  std::string column_of(std::size_t value) const { return numbered_name("column", fields_[value], names_); }
  bool has_heading() const { return !names_.empty(); }
  const std::string& heading_where() const { return where_; }
  /// Options that help with columns that hold other texts than numbers, or nothing: "; try --date when
  /// --categorical kind --missing median". Reads the start of the file.
  std::string advice(const std::string& path) const;

 private:
  void note(std::string text) {  // once
    if (std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(std::move(text));
  }
  void see_heading(const CsvFile& file);
  void keep_values(const std::string& path);
  void assign_columns(std::size_t columns, const CsvFile& file);
  void find_known(const CsvFile& file);
  void find_target_kind(std::span<const std::string> inputs);
  bool has_target() const { return options_.label != "none" || !options_.target.empty(); }
  void check_index_columns(const CsvFile& file) const;
  void check_fields(const CsvFile& file, bool first);
  std::string name_of(std::size_t column) const {
    return column < names_.size() ? names_[column] : fmt::format("column {}", column + 1);
  }
  std::optional<std::size_t> column_named(const std::string& name, std::size_t columns) const;
  std::size_t target_column(const CsvFile& file, std::size_t columns) const;

  CsvOptions options_;
  const Table* known_;
  Table table_;
  std::vector<std::size_t> fields_;  // by column: its field in a line
  std::optional<std::size_t> target_field_;
  std::vector<std::string> notes_, names_;  // names_: the first heading
  ColumnIndex index_;                       // of names_
  std::string where_;                       // FILE:LINE of the first heading
  bool row_names_ = false;
  std::set<std::size_t> index_columns_;   // nameless columns that number or name the rows
  std::size_t values_ = 0, dropped_ = 0;  // columns with values, 0: not yet known; columns of --drop
};

/// DataError unless names are equal in the same order: only names tell what a value is.
void check_same_names(const std::string& where, std::span<const std::string> names,
                      const std::string& other_where, std::span<const std::string> others, const char* what);

}  // namespace lockstep::data
