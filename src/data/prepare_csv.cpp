// Images from lines of numbers.
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "data/image_table.h"
#include "data/input.h"
#include "data/whole_file.h"
#include "lockstep/base/error.h"
#include "lockstep/data/prepare.h"

namespace lockstep::data {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

std::optional<double> number(std::string_view field) {
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || end != field.data() + field.size()) return {};
  return value;
}

/// One file; what lines have in common is kept from file to file.
class CsvReader {
 public:
  CsvReader(const CsvOptions& options, ImageTable& table) : options_(options), table_(table) {
    if (options.image.rank() == 3) values_ = options.image.numel();
  }

  void read(const std::string& path) {
    Input input(path);
    std::string line;
    bool first = true;
    while (input.read_line(line)) {
      if (trimmed(line).empty()) continue;
      const std::vector<std::string_view> fields = fields_of(line);
      std::string where = fmt::format("{}:{}", path, input.lines());
      if (std::exchange(first, false) && is_heading(fields)) {
        headings_.push_back(where);
      } else {
        add(fields, where);
      }
    }
  }

  const std::vector<std::string>& headings() const { return headings_; }
  Shape image() const { return options_.image.rank() == 3 ? options_.image : Shape{values_, 1, 1}; }

 private:
  static bool is_heading(const std::vector<std::string_view>& fields) {
    for (const std::string_view field : fields) {
      if (number(field)) return false;
    }
    return true;
  }

  void add(const std::vector<std::string_view>& fields, const std::string& where) {
    const auto values = static_cast<std::int64_t>(fields.size()) - 1;
    if (values_ == 0) values_ = values;
    if (values != values_ || values < 1) {
      throw DataError("{}: {} fields, but {} values and a label are expected", where, fields.size(), values_);
    }
    const std::size_t label = options_.label == CsvOptions::Label::last ? fields.size() - 1 : 0;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const std::optional<double> value = number(fields[i]);
      if (!value || !std::isfinite(static_cast<float>(*value))) {
        throw DataError("{}: field {} is '{}', not a number", where, i + 1, fields[i].substr(0, 40));
      }
      if (i != label) {
        table_.add_value(*value);
      } else if (*value >= 0 && *value < 9e15 && std::floor(*value) == *value) {
        table_.add_label(static_cast<std::int64_t>(*value));
      } else {
        throw DataError("{}: the label, field {}, is '{}': labels are integers from 0 on", where, i + 1,
                        fields[i]);
      }
    }
  }

  const CsvOptions& options_;
  ImageTable& table_;
  std::vector<std::string> headings_;
  std::int64_t values_ = 0;  // per sample; 0: not yet known
};

}  // namespace

Prepared prepare_csv(std::span<const std::string> inputs, const Output& output, const CsvOptions& options) {
  if (inputs.empty()) throw UsageError("no CSV files were named");
  if (options.image.rank() != 0 && (options.image.rank() != 3 || options.image.numel() < 1)) {
    throw UsageError("images of shape {} were asked: it is channels, height, width",
                     to_string(options.image));
  }
  check_output(inputs, output, options.statistics.from);
  ImageTable table;
  CsvReader reader(options, table);
  for (const std::string& input : inputs) reader.read(input);
  Prepared prepared = table.write(output, reader.image(), options.statistics);
  prepared.skipped = reader.headings();
  return prepared;
}

}  // namespace lockstep::data
