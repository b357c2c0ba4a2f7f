// Reads images and labels from CSV files.
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "data/array_writer.h"
#include "data/csv_file.h"
#include "data/data_file.h"
#include "data/prepare.h"
#include "data/table_rows.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {
namespace {

/// True for 1,5 and 12.5% and $1,234.50: numbers with signs of money or percent, commas or blanks.
bool is_quantity(std::string text) {
  std::erase_if(text, [](unsigned char c) {
    return c >= 0x80 || std::string_view("$%, '").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return is_number(text);
}

/// The labels, which are all integers or all names.
class CsvLabels {
 public:
  /// Takes the class names of a model, or of the data file `from`; without labels there, names are numbered
  /// in order.
  explicit CsvLabels(const CsvOptions& options)
      : from_(options.table ? "the model" : options.statistics), names_(options.class_names) {
    bool stored = options.table != nullptr;
    if (!options.statistics.empty()) {
      const hdf5::File file = hdf5::File::open(options.statistics);
      stored = file.exists("/y");
      if (stored) names_ = names_of(file.open_dataset("/y"), "classes");
    }
    for (std::size_t i = 0; i < names_.size(); ++i) numbers_[names_[i]] = static_cast<std::int64_t>(i);
    stored_names_ = !names_.empty();
    stored_integers_ = stored && !stored_names_;
  }

  /// Records a label in the first pass. Among numbers NA stands for a missing value; among names it is a name
  /// (the country).
  void see(const CsvFile& file, std::size_t field) {
    const std::string_view text = file.fields()[field];
    const auto invalid = [&](const std::string& why) {
      return DataError("{}: the label, {}, is '{}'{}", file.where(), describe(file, field), short_text(text),
                       why);
    };
    double value = 0;
    const bool mark = is_missing(text),
               number = !stored_names_ && !mark && parse_value(text, value) && std::isfinite(value);
    if (text.empty() || (mark && (stored_integers_ || !integers_.empty())))
      throw DataError("{}", missing_value(file, field));
    if (stored_integers_ && !number)
      throw invalid(fmt::format(", but labels of {} are numbers without names", from_));
    if (number && !first_mark_.empty()) throw DataError("{}", first_mark_);
    if (number ? !numbers_.empty() : !integers_.empty())
      throw invalid(fmt::format(", but earlier labels are {}", number ? "names" : "integers"));
    ++samples_;
    if (number && value >= 0 && value < 9e15 && std::floor(value) == value) {
      integers_.insert(static_cast<std::int64_t>(value));
      return;
    }
    if (number)
      throw invalid(
          ": labels must be integers from 0 to 9e15, or names (for values to predict, task.name = "
          "regression: "
          "--target NAME)");
    if (numbers_.contains(text)) return;
    if (stored_names_)
      throw invalid(
          fmt::format(", which is not a class of {}; its classes are {}", from_, fmt::join(names_, ", ")));
    if (!mark) first_mark_.clear();
    if (mark && numbers_.empty()) first_mark_ = missing_value(file, field);
    numbers_.emplace(text, 0);
    name_bytes_ += text.size() + 1;
    if (name_bytes_ > max_name_bytes)
      throw DataError(
          "{}: the label, {}, has {} different names so far, more than a data file can store: select another "
          "column, or number the classes",
          file.where(), describe(file, field), numbers_.size());
  }

  /// Warnings about labels that may be values to predict, or missing values. Call after the first pass.
  std::vector<std::string> warnings() const {
    constexpr std::int64_t few = 20, many = 256;
    std::vector<std::string> found, marks;
    if (stored_names_ || stored_integers_) return found;
    std::ranges::copy_if(names_, std::back_inserter(marks), is_missing);
    if (!marks.empty())
      found.push_back(
          fmt::format("labels '{}' are classes; if they stand for missing values, remove their lines",
                      fmt::join(marks, "', '")));
    const std::int64_t used = std::ssize(integers_) + std::ssize(names_),
                       classes = names_.empty() ? *std::ranges::max_element(integers_) + 1 : used;
    const bool quantities = !names_.empty() && std::ranges::all_of(names_, is_quantity);
    if ((classes > 2 * used && classes > many) || (used >= few && 2 * used > samples_) || quantities)
      found.push_back(fmt::format(
          "labels {} make {} classes, and {} of them occur in {} samples; to predict values (task.name = "
          "regression), use --target NAME of a column of numbers",
          names_.empty() ? fmt::format("up to {}", classes - 1)
                         : fmt::format("such as '{}'", short_text(names_.front())),
          classes, used, samples_));
    return found;
  }

  void end_first_pass() {
    if (stored_names_) return;
    for (auto& [name, number] : numbers_) {
      number = std::ssize(names_);
      names_.push_back(name);
    }
  }

  /// The number of a label; none if the first pass did not record it.
  std::optional<std::int64_t> number(std::string_view text) const {
    const auto found = numbers_.find(text);
    if (found != numbers_.end()) return found->second;
    double value = 0;
    return names_.empty() && parse_value(text, value) && value >= 0 && value < 9e15
               ? std::optional(static_cast<std::int64_t>(value))
               : std::nullopt;
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  std::string from_;
  bool stored_names_ = false, stored_integers_ = false;
  std::int64_t samples_ = 0;
  std::string first_mark_;  // the error to throw if the labels are numbers
  std::size_t name_bytes_ = 0;
  std::vector<std::string> names_;  // from the data file `from`, or set by end_first_pass()
  std::map<std::string, std::int64_t, std::less<>> numbers_;  // of names
  std::unordered_set<std::int64_t> integers_;
};

/// The distance from |value| to the next float32.
double step_at(double value) {
  const float there = static_cast<float>(std::abs(value));
  return static_cast<double>(std::nextafter(there, std::numeric_limits<float>::infinity()) - there);
}

/// The precision that a column loses when its values are written as float32.
struct CsvSpread {
  double least, largest, last;
  std::int64_t changes = 0, lost = 0;  // differences between adjacent lines
  bool rounded = false;                // whether float32 rounds any value

  void see(double value) {
    constexpr double rounding = 1e-13;  // relative; smaller differences are rounding of sums in double
    const double change = std::abs(value - last);
    rounded |= static_cast<double>(static_cast<float>(value)) != value;
    changes += change > rounding * std::abs(value);
    lost += change > rounding * std::abs(value) && change < step_at(value);
    least = std::min(least, value);
    largest = std::max(largest, value);
    last = value;
  }

  double step() const { return step_at(std::max(-least, largest)); }
  /// Whether the range of the column is narrow for its distance from 0, or adjacent values often become
  /// equal.
  bool is_lost() const {
    const bool narrow = largest - least < 1000 * step();
    return rounded && changes > 0 && (narrow || 4 * lost > changes);
  }
};

bool is_byte(double value) { return value >= 0 && value <= 255 && std::floor(value) == value; }

/// Learns categories, means and medians from the lines with which each_line calls a function.
void learn_columns(TableRows& rows, const auto& each_line) {
  constexpr std::size_t max_categories = 10'000;
  using Fill = TableColumn::Fill;
  std::vector<TableColumn>& columns = rows.table().columns;
  struct Learned {
    std::set<std::string, std::less<>> categories;
    std::vector<double> values{};  // for a median
    double sum = 0, count = 0;     // of numbers
  };
  std::vector<Learned> all;
  for (const TableColumn& column : columns)  // one category may be known, which fills
    all.push_back({{column.categories.begin(), column.categories.end()}});
  each_line([&](CsvFile& file) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string_view text = rows.field(file, i);
      if (is_missing(text)) continue;
      if (columns[i].is_category() && all[i].categories.emplace(text).second &&
          all[i].categories.size() > max_categories)
        throw DataError("{}: {} has more than {} categories; leave it out (--drop), or number them",
                        file.where(), describe(file, rows.field_index(i)), max_categories);
      if (columns[i].fill_by != Fill::mean && columns[i].fill_by != Fill::median) continue;
      const double value = rows.number(file, i);
      ++all[i].count;
      all[i].sum += value;
      if (columns[i].fill_by == Fill::median) all[i].values.push_back(value);
    }
  });
  for (std::size_t i = 0; i < columns.size(); ++i) {
    TableColumn& column = columns[i];
    auto& [categories, values, sum, count] = all[i];
    const bool is_mean = column.fill_by == Fill::mean, is_median = column.fill_by == Fill::median;
    if (column.is_category() ? categories.empty() : (is_mean || is_median) && count == 0)
      throw DataError("{} has no value in the training rows; leave it out: --drop", rows.column_of(i));
    if (!column.categories.empty())
      column.fill = 1 + static_cast<double>(
                            std::distance(categories.begin(), categories.find(column.categories.front())));
    column.categories.assign(categories.begin(), categories.end());
    if (is_mean) column.fill = sum / count;
    if (!is_median) continue;
    const auto middle = values.begin() + std::ssize(values) / 2;
    std::ranges::nth_element(values, middle);
    const double below = values.size() % 2 == 1 ? *middle : *std::max_element(values.begin(), middle);
    column.fill = below + (*middle - below) / 2;
  }
}

/// Which rows are held out: a permutation by nothing but their number decides. The same table has the same.
std::vector<bool> held_out_rows(std::int64_t rows, double fraction, const std::string& path) {
  const std::int64_t count = std::max<std::int64_t>(1, std::llround(fraction * static_cast<double>(rows)));
  if (count >= rows)
    throw DataError("{}: not written: {} are too few to hold out {} of them", path,
                    pluralized(rows, "sample"), fraction);
  std::vector<bool> held_out(static_cast<std::size_t>(rows));
  const Permutation order(rows, mix_bits(purpose_of("held-out rows")), 0);
  for (std::int64_t i = rows - count; i < rows; ++i) held_out[static_cast<std::size_t>(order(i))] = true;
  return held_out;
}

/// Checks options that do not fit each other, or the table of `statistics`.
void check_options(const CsvOptions& options, bool known) {
  if (options.image.rank() != 0 && (options.image.rank() != 3 || options.image.numel() < 1))
    throw UsageError("--shape {}: must be channels,height,width", to_string(options.image));
  if (!(options.eval_fraction >= 0 && options.eval_fraction < 1))
    throw UsageError("--eval-fraction {}: must be below 1", options.eval_fraction);
  if (!options.target.empty() && options.label != "last")
    throw UsageError("--target {}: is the column to predict, and so is --label {}; give one of them",
                     options.target, options.label);
  if (known && options.names_columns())
    throw UsageError(
        "--statistics {}: its table says what the columns are: --target, --categorical, --date, --drop, "
        "--missing and --eval-fraction are not needed",
        options.statistics);
  if (options.image.rank() == 3 && (!options.categorical.empty() || !options.dates.empty()))
    throw UsageError("--shape: an image has no --categorical and no --date");
}

/// The table that a data file describes; none: only names, or nothing.
std::optional<Table> table_of(const std::string& path) {
  if (path.empty()) return {};
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Dataset x = open_images(file);
  if (!x.has_attribute("table")) return {};
  return Table::parse(x.text_attribute("table"), path);
}

}  // namespace

std::string held_out_path(const std::string& path) {
  const std::string_view end = path.ends_with(".hdf5") ? ".hdf5" : path.ends_with(".h5") ? ".h5" : "";
  return fmt::format("{}-eval{}", path.substr(0, path.size() - end.size()), end);
}

Summary prepare_csv(std::span<const std::string> inputs, const Output& output, const CsvOptions& options) {
  if (inputs.empty()) throw UsageError("prepare csv: the list of files is empty");
  check_output(inputs, output, options.statistics);
  const std::optional<Table> known = options.table ? *options.table : table_of(options.statistics);
  check_options(options, known.has_value());
  const Output eval_output{held_out_path(output.path), output.replace};
  if (options.eval_fraction > 0) check_output(inputs, eval_output, options.statistics);

  const bool describes = options.describes_table() || known;
  TableRows rows(inputs, options, known ? &*known : nullptr);
  std::int64_t skipped = 0;
  const auto each_row = [&](const auto& use) {  // use(file, number of the row)
    std::int64_t row = skipped = 0;
    for (const std::string& path : inputs)
      rows.read(path, [&](CsvFile& file) { rows.skips(file) ? void(++skipped) : use(file, row++); });
    if (row == 0)
      throw DataError("{}: not written: {} no lines with samples{}", output.path,
                      inputs.size() == 1 ? inputs.front() + " has" : "the files have",
                      skipped > 0 ? fmt::format(", as a value is missing in all {}", skipped) : "");
    return row;
  };
  std::vector<bool> held_out;
  if (options.eval_fraction > 0)
    held_out =
        held_out_rows(each_row([](const CsvFile&, std::int64_t) {}), options.eval_fraction, output.path);
  const auto is_held_out = [&](std::int64_t row) {
    return row < std::ssize(held_out) && held_out[static_cast<std::size_t>(row)];
  };
  if (rows.must_learn())
    learn_columns(rows, [&](const auto& use) {
      each_row([&](CsvFile& file, std::int64_t row) {
        if (!is_held_out(row)) use(file);
      });
    });

  std::vector<std::string> value_names;
  if (rows.has_heading()) value_names = rows.table().value_names();
  std::optional<DType> dtype;  // of the training data
  if (options.table) {
    dtype = options.dtype;
  } else if (!options.statistics.empty()) {
    const hdf5::File file = hdf5::File::open(options.statistics);
    const hdf5::Dataset x = open_images(file);
    if (!known)
      check_same_names(rows.heading_where(), value_names, options.statistics, names_of(x, "names"), "value");
    dtype = x.dtype() == DType::float64 && !known ? DType::float32 : x.dtype();
  }
  const Table& table = rows.table();
  const bool has_labels = table.target && table.has_classes, has_values = table.target && !table.has_classes;
  bool bytes = dtype ? dtype == DType::uint8 : !describes;
  CsvLabels labels(options);
  std::vector<CsvSpread> spreads;
  std::optional<CsvSpread> target_spread;
  std::vector<double> values;
  std::vector<std::int64_t> codes;
  const std::int64_t samples = each_row([&](CsvFile& file, std::int64_t) {
    rows.values(file, values, codes);
    if (has_labels) labels.see(file, *rows.target_field());
    if (has_values) {
      const double target = rows.target(file);
      if (!target_spread) target_spread = CsvSpread{target, target, target};
      target_spread->see(target);
    }
    if (spreads.empty())
      for (const double value : values) spreads.push_back({value, value, value});
    for (std::size_t i = 0; i < values.size(); ++i) spreads[i].see(values[i]);
    bytes = bytes && std::ranges::all_of(values, is_byte);
  });
  labels.end_first_pass();
  if (spreads.empty())
    throw UsageError(
        "--categorical: all columns are codes, and none is left for /x; make one of them one-hot");
  const bool lost = std::ranges::any_of(spreads, &CsvSpread::is_lost),
             dates = std::ranges::any_of(table.columns, &TableColumn::is_date),
             wide = dtype ? dtype == DType::float64 : describes && (lost || dates),
             is_image = options.image.rank() == 3;
  const Shape image = is_image ? options.image : Shape{std::ssize(spreads), 1, 1};
  const auto lines_of = [](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, "\n"));
  };
  const std::int64_t samples_of_eval = std::ranges::count(held_out, true);
  const bool normalizes = !options.table || options.own_statistics;
  std::vector<NewArray> arrays{
      {.name = "x",
       .rows = samples - samples_of_eval,
       .dtype = bytes  ? DType::uint8
                : wide ? DType::float64
                       : DType::float32,
       .row = describes && !is_image ? Shape{image[0]} : image,
       .normalizes = normalizes,
       .by = statistics_of(options.statistics, "x", image[0]),
       .texts = {
           {"names", lines_of(value_names)},
           {"table", describes && !options.table ? (known ? *known : table).text(inputs.front()) : ""}}}};
  const std::string target_name = describes && table.target ? table.target->name : "";
  if (has_labels)
    arrays.push_back({.name = "y", .dtype = DType::int64, .texts = {{"classes", lines_of(labels.names())}}});
  if (has_values)
    arrays.push_back({.name = "y",
                      .dtype = target_spread->is_lost() ? DType::float64 : DType::float32,
                      .measured_as = DType::float64,
                      .normalizes = normalizes,
                      .by = statistics_of(options.statistics, "y", 1)});
  if (table.target) {
    arrays.back().texts.emplace_back("names", target_name);
    arrays.back().texts.emplace_back("units", units_of(target_name));
  }
  const std::vector<std::string> code_names = table.code_names();
  if (!code_names.empty())
    arrays.push_back({.name = "codes",
                      .dtype = DType::int64,
                      .row = {std::ssize(code_names)},
                      .texts = {{"names", lines_of(code_names)}}});
  const DType type = arrays[0].dtype;

  const auto write = [&](ArrayWriter& writer, bool eval) {
    each_row([&](CsvFile& file, std::int64_t row) {
      if (!held_out.empty() && is_held_out(row) != eval) return;
      rows.values(file, values, codes);
      const bool same_kind = type != DType::uint8 || std::ranges::all_of(values, is_byte);
      std::optional<std::int64_t> label;
      if (has_labels) label = labels.number(file.fields()[*rows.target_field()]);
      if ((has_labels && !label) || !same_kind || std::ssize(values) != image.numel())
        throw DataError("{}: not written: the line changed while the file was read", file.where());
      writer.add(0, std::span<const double>(values));
      if (label) writer.add(1, *label);
      if (has_values) writer.add(1, rows.target(file));
      if (!codes.empty()) writer.add(arrays.size() - 1, std::span<const std::int64_t>(codes));
    });
    writer.finish();
  };
  ArrayWriter training(output, arrays);
  write(training, false);
  std::optional<ArrayWriter> evaluation;
  if (samples_of_eval > 0) {
    for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i].by = training.statistics(i);
    arrays[0].rows = samples_of_eval;
    write(evaluation.emplace(eval_output, arrays), true);
  }
  // Both are complete. A held-out file of an earlier call would have rows of this training file.
  const bool has_older = !output.memory && exists(eval_output.path);
  if (evaluation && has_older) remove_file(eval_output.path);
  training.publish();
  if (evaluation) evaluation->publish();
  Summary summary{.samples = samples - samples_of_eval,
                  .image = image,
                  .element_type = std::string(to_string(type)),
                  .classes = has_labels ? training.largest(1) + 1 : 0,
                  .notes = rows.notes(),
                  .one_label = has_labels && training.smallest(1) == training.largest(1),
                  .class_names = labels.names(),
                  .held_out = samples_of_eval,
                  .target = has_values ? table.target->name : ""};
  if (!evaluation && has_older)
    summary.warnings.push_back(
        fmt::format("holds out no lines; {} is older: remove it if it is of this table", eval_output.path));
  if (skipped > 0)
    summary.notes.push_back(fmt::format("{} with missing values left out", pluralized(skipped, "line")));
  for (std::size_t i = 0; i < spreads.size() && type == DType::float32; ++i)
    if (const CsvSpread& column = spreads[i]; !describes && column.is_lost())
      summary.warnings.push_back(fmt::format(
          "{} has values from {} to {}, which float32 stores in steps of {}: subtract a common offset",
          rows.column_of(i), column.least, column.largest, column.step()));
  if (has_labels) std::ranges::move(labels.warnings(), std::back_inserter(summary.warnings));
  return summary;
}

}  // namespace lockstep::data
