// Images from lines of numbers.
#include <fmt/ranges.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "data/class_names.h"
#include "data/csv_file.h"
#include "data/image_writer.h"
#include "data/prepare.h"
#include "data/whole_file.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// How errors call a field: "field 3", and its column's name in quotes if there is a heading.
std::string describe(const CsvFile& file, std::size_t field) {
  if (field >= file.heading().size()) return fmt::format("field {}", field + 1);
  return fmt::format("field {} ('{}')", field + 1, file.heading()[field]);
}

std::string_view shortened(std::string_view field) { return field.substr(0, 40); }

[[noreturn]] void throw_missing(const CsvFile& file, std::size_t field) {
  throw DataError("{}: {} is missing ('{}'): give it a value, or leave the line out", file.where(),
                  describe(file, field), file.fields()[field]);
}

/// The values and the label of every line; what lines have in common is kept from file to file.
class CsvSamples {
 public:
  explicit CsvSamples(const CsvOptions& options) : options_(options) {
    if (options.image.rank() == 3) values_ = static_cast<std::size_t>(options.image.numel());
  }

  /// Calls use(values, file, label) for each sample, with the number of the field that is its label.
  template <class Use>
  void read(const std::string& path, const Use& use) {
    CsvFile file(path, options_.separator);
    if (!file.heading().empty()) headings_.push_back(file.heading_where());
    std::vector<double> values;
    std::optional<std::size_t> label;
    while (file.next()) {
      check_fields(file);
      if (!label) label = label_column(file);
      values.clear();
      for (std::size_t i = 0; i < file.fields().size(); ++i) {
        if (i != *label) values.push_back(value_of(file, i));
      }
      use(std::span<const double>(values), file, *label);
    }
  }

  const std::vector<std::string>& headings() const { return headings_; }
  Shape image() const {
    return options_.image.rank() == 3 ? options_.image : Shape{static_cast<std::int64_t>(values_), 1, 1};
  }

 private:
  void check_fields(const CsvFile& file) {
    const std::size_t fields = file.fields().size();
    if (values_ == 0 && fields > 1) values_ = fields - 1;
    if (fields == values_ + 1 && fields > 1) return;
    const std::string wanted = values_ == 0 ? "values" : fmt::format("{} values", values_);
    throw DataError("{}: {} field{}, but {} and a label are expected; fields are separated by {} here",
                    file.where(), fields, fields == 1 ? "" : "s", wanted, file.separator_name());
  }

  std::size_t label_column(const CsvFile& file) const {
    const std::string& label = options_.label;
    const std::size_t columns = file.fields().size();
    if (label == "last") return columns - 1;
    if (label == "first") return 0;
    const auto& names = file.heading();
    if (const auto found = std::ranges::find(names, label); found != names.end())
      return static_cast<std::size_t>(found - names.begin());
    std::size_t number = 0;
    const char* const end = label.data() + label.size();
    const auto [stop, error] = std::from_chars(label.data(), end, number);
    if (error == std::errc() && stop == end && number >= 1 && number <= columns) return number - 1;
    throw UsageError(
        "{}: no column is called '{}', to be the label: there are {} columns{}", file.where(), label, columns,
        names.empty() ? ", and no heading names them" : fmt::format(", {}", fmt::join(names, ", ")));
  }

  static double value_of(const CsvFile& file, std::size_t field) {
    const std::string_view text = file.fields()[field];
    double value = 0;
    if (is_missing(text)) throw_missing(file, field);
    if (!parse_number(text, value))
      throw DataError("{}: {} is '{}', not a number", file.where(), describe(file, field), shortened(text));
    if (!(std::abs(value) <= std::numeric_limits<float>::max()))
      throw DataError("{}: {} is '{}', not a number that float32 holds", file.where(), describe(file, field),
                      shortened(text));
    return value;
  }

  const CsvOptions& options_;
  std::vector<std::string> headings_;
  std::size_t values_ = 0;  // per sample; 0: not yet known
};

/// Labels, which are integers or names: all of them the same.
class CsvLabels {
 public:
  /// The names of the classes in `from`, a data file; if it has none, names are numbered in their order.
  explicit CsvLabels(const std::string& from) : from_(from) {
    if (from.empty()) return;
    const hdf5::File file = hdf5::File::open(from);
    if (file.exists("/y")) names_ = class_names_of(file.open_dataset("/y"));
    given_ = !names_.empty();
  }

  /// Takes notice of a label, in the first reading.
  void see(const CsvFile& file, std::size_t field) {
    const std::string_view text = file.fields()[field];
    if (is_missing(text)) throw_missing(file, field);
    double value = 0;
    const Kind kind = parse_number(text, value) ? Kind::numbers : Kind::names;
    if (kind == Kind::numbers && !(value >= 0 && value < 9e15 && std::floor(value) == value)) {
      throw DataError("{}: the label, {}, is '{}': labels are integers from 0 on, or names", file.where(),
                      describe(file, field), shortened(text));
    }
    if (kind_ != Kind::unknown && kind_ != kind) {
      throw DataError("{}: the label, {}, is '{}', but those before are {}", file.where(),
                      describe(file, field), shortened(text), kind_ == Kind::names ? "names" : "integers");
    }
    kind_ = kind;
    if (kind == Kind::names) see_name(file, field, text);
  }

  void end_of_first_reading() {
    if (!given_) names_.assign(seen_.begin(), seen_.end());
    seen_.clear();
    for (std::size_t i = 0; i < names_.size(); ++i) numbers_[names_[i]] = static_cast<std::int64_t>(i);
  }

  /// The number of a label that was seen; none if it is a new one.
  std::optional<std::int64_t> number(std::string_view text) const {
    if (kind_ == Kind::names) {
      const auto found = numbers_.find(text);
      return found == numbers_.end() ? std::nullopt : std::optional(found->second);
    }
    double value = 0;
    return parse_number(text, value) && value >= 0 && value < 9e15
               ? std::optional(static_cast<std::int64_t>(value))
               : std::nullopt;
  }

  std::vector<std::string> names() const {
    return kind_ == Kind::names ? names_ : std::vector<std::string>();
  }

 private:
  enum class Kind { unknown, numbers, names };

  void see_name(const CsvFile& file, std::size_t field, std::string_view text) {
    if (seen_.contains(text)) return;
    if (text.find('\0') != std::string_view::npos)
      throw DataError("{}: the label, {}, has a null byte inside: is it text?", file.where(),
                      describe(file, field));
    if (given_ && std::ranges::find(names_, text) == names_.end()) {
      throw DataError("{}: the label, {}, is '{}', which is no class of {}: those are {}", file.where(),
                      describe(file, field), shortened(text), from_, fmt::join(names_, ", "));
    }
    seen_.emplace(text);
    name_bytes_ += text.size() + 1;
    if (name_bytes_ > most_class_name_bytes) {
      throw DataError(
          "{}: the label, {}, has {} different names by now, more than a data file keeps: is it the right "
          "column? Else number them",
          file.where(), describe(file, field), seen_.size());
    }
  }

  std::string from_;
  bool given_ = false;
  Kind kind_ = Kind::unknown;
  std::set<std::string, std::less<>> seen_;
  std::size_t name_bytes_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, std::int64_t, std::less<>> numbers_;
};

bool is_byte(double value) { return value >= 0 && value <= 255 && std::floor(value) == value; }

}  // namespace

Prepared prepare_csv(std::span<const std::string> inputs, const Output& output, const CsvOptions& options) {
  if (inputs.empty()) throw UsageError("no CSV files were named");
  if (options.image.rank() != 0 && (options.image.rank() != 3 || options.image.numel() < 1)) {
    throw UsageError("images of shape {} were asked: it is channels, height, width",
                     to_string(options.image));
  }
  check_output(inputs, output, options.statistics.from);

  ImageFile contents{.bytes = true};
  CsvSamples samples(options);
  CsvLabels labels(options.statistics.from);
  for (const std::string& path : inputs) {
    samples.read(path, [&](std::span<const double> values, const CsvFile& file, std::size_t label) {
      labels.see(file, label);
      contents.bytes = contents.bytes && std::ranges::all_of(values, is_byte);
      ++contents.images;
    });
  }
  labels.end_of_first_reading();
  contents.image = samples.image();
  contents.class_names = labels.names();

  Prepared prepared = write_images(output, contents, options.statistics, [&](ImageWriter& writer) {
    CsvSamples again(options);
    std::vector<std::uint8_t> bytes;
    std::vector<float> floats;
    for (const std::string& path : inputs) {
      again.read(path, [&](std::span<const double> values, const CsvFile& file, std::size_t label) {
        const std::optional<std::int64_t> number = labels.number(file.fields()[label]);
        const bool same_kind = !contents.bytes || std::ranges::all_of(values, is_byte);
        if (!number || !same_kind || std::ssize(values) != contents.image.numel())
          throw DataError("{}: not written: the line changed while the file was read", file.where());
        writer.add_label(*number);
        if (contents.bytes) {
          bytes.clear();
          for (const double v : values) bytes.push_back(static_cast<std::uint8_t>(v));
          writer.add_image(std::span<const std::uint8_t>(bytes));
        } else {
          floats.clear();
          for (const double v : values) floats.push_back(static_cast<float>(v));
          writer.add_image(std::span<const float>(floats));
        }
      });
    }
  });
  prepared.skipped = samples.headings();
  return prepared;
}

}  // namespace lockstep::data
