// Private to the module: the lines of a CSV file, taken apart.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "data/input.h"

namespace lockstep::data {

/// A field's number; false if it is none, as the whole field.
bool parse_number(std::string_view field, double& value);
/// Whether a field stands for a value that is not known: empty, ?, NA, N/A, nan or null, in any case.
bool is_missing(std::string_view field);

/// Fields are separated by one character, and may be quoted ("a; ""b"""); blanks around them do not count,
/// and blank lines are passed over. The first line is a heading if it has no number, or has something else
/// than a number where the line below has one.
class CsvFile {
 public:
  /// `separator` '\0': the one of comma, semicolon and tab that makes most sense of the first line. DataError
  /// as Input, and on quotes that do not end.
  CsvFile(const std::string& path, char separator);

  /// The next line below the heading; false at the end of the file.
  bool next();
  /// Of that line, until the next one is read.
  const std::vector<std::string_view>& fields() const { return fields_; }
  std::string where() const;  ///< FILE:LINE of that line

  const std::vector<std::string>& heading() const { return heading_; }  ///< names of columns; empty: none
  std::string heading_where() const;                                    ///< FILE:LINE of the heading
  /// "comma", "semicolon", "tab" or the character in quotes.
  std::string separator_name() const;

 private:
  struct Line {
    std::string text;
    std::int64_t number = 0;
  };

  bool read_line(Line& line);
  void split(Line& line, std::vector<std::string_view>& fields) const;
  void find_heading();

  Input input_;
  char separator_;
  std::vector<std::string> heading_;
  std::int64_t heading_line_ = 0;
  std::deque<Line> waiting_;  // read already, to tell whether there is a heading
  Line line_;
  std::vector<std::string_view> fields_;
};

}  // namespace lockstep::data
