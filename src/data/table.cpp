#include "data/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "base/text.h"
#include "data/csv_file.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr double day_s = 86400;
/// What the sines of a date repeat after.
constexpr std::array<std::pair<const char*, double>, 3> cycles{
    {{"day", day_s}, {"week", 7 * day_s}, {"year", 365.2425 * day_s}}};
constexpr std::array<const char*, 5> kind_names{"number", "one-hot", "code", "date", "date and sines"};

}  // namespace

bool parse_date(std::string_view field, double& seconds) {
  if (field.size() < 8 || (field[4] != '-' && field[4] != '/')) return false;
  std::string text(field);
  std::replace(text.begin(), text.begin() + 8, '/', '-');
  std::tm time{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%d", &time);
  if (!rest) return false;
  double fraction = 0;
  if (*rest == 'T') text[static_cast<std::size_t>(rest - text.c_str())] = ' ';
  if (const char* const clock = ::strptime(rest, " %H:%M", &time)) {
    rest = clock;
    if (const char* const with_seconds = ::strptime(rest, ":%S", &time)) rest = with_seconds;
    const std::string_view digits(rest, *rest == '.' ? 1 + std::strspn(rest + 1, "0123456789") : 0);
    if (digits.size() > 1 && parse_number(digits, fraction)) rest += digits.size();
    if (const char* const zone = ::strptime(rest, " %z", &time)) rest = zone;
  }
  const int day = time.tm_mday;
  const long offset_s = time.tm_gmtoff;
  seconds = static_cast<double>(::timegm(&time) - offset_s) + fraction;
  return *rest == '\0' && time.tm_mday == day && std::abs(offset_s) <= 18 * 3600L;  // no 30th of February
}

void TableColumn::add_names(std::vector<std::string>& names) const {
  if (kind == Kind::code) return;
  if (kind != Kind::one_hot) names.push_back(name);
  if (kind == Kind::one_hot)
    for (const std::string& category : categories) names.push_back(fmt::format("{}={}", name, category));
  if (kind == Kind::date_and_sines)
    for (const auto& [cycle, length_s] : cycles)
      for (const char* const wave : {"sin", "cos"})
        names.push_back(fmt::format("{} {} {}", name, cycle, wave));
}

double TableColumn::number_of(std::string_view field, std::size_t index, CsvFile& file,
                              bool unknown_as_missing) const {
  double value = 0;
  if (is_category()) {
    const auto found = std::ranges::lower_bound(categories, field);
    if (found != categories.end() && *found == field)
      return static_cast<double>(found - categories.begin() + 1);
    if (unknown_as_missing) return is_filled() ? fill : 0;
    throw DataError(
        "{}: {} is '{}', a category that training did not see: it knows {} (--unknown as-missing takes "
        "others as missing values)",
        file.where(), describe(file, index), short_text(field), list_of(categories));
  }
  if (is_date()) {
    if (parse_date(field, value)) return value;
    throw DataError(
        "{}: {} is '{}', not a date such as 2020-02-29 or 2020-02-29 13:05:00; convert the column (in "
        "Python: pandas.to_datetime)",
        file.where(), describe(file, index), short_text(field));
  }
  const bool number = file.number(field, value);
  if (number && std::abs(value) <= std::numeric_limits<float>::max()) return value;
  const bool other_sign = !number && parse_value(field, value, ".,");
  throw DataError("{}: {} is '{}', not a number{}", file.where(), describe(file, index), short_text(field),
                  number || is_too_large(field) ? " in the range of float32"
                  : other_sign ? ": the decimal sign is another one (prepare csv --decimal point or comma)"
                               : "");
}

void TableColumn::add_values(double number, std::vector<double>& x, std::vector<std::int64_t>& codes) const {
  if (kind == Kind::code) return codes.push_back(static_cast<std::int64_t>(number));
  if (kind == Kind::one_hot) {
    for (std::size_t i = 1; i <= categories.size(); ++i) x.push_back(static_cast<double>(i) == number);
    return;
  }
  x.push_back(number);
  if (kind != Kind::date_and_sines) return;
  for (const auto& [cycle, length_s] : cycles) {
    // 1970-01-01 was a Thursday; weeks begin on Monday.
    const double since = length_s == 7 * day_s ? number + 3 * day_s : number,
                 angle = 2 * std::numbers::pi * (since / length_s - std::floor(since / length_s));
    x.push_back(std::sin(angle));
    x.push_back(std::cos(angle));
  }
}

std::vector<std::string> Table::value_names() const {
  std::vector<std::string> names;
  for (const TableColumn& column : columns) column.add_names(names);
  return names;
}

std::vector<std::string> Table::code_names() const {
  std::vector<std::string> names;
  for (const TableColumn& column : columns)
    if (column.kind == TableColumn::Kind::code) names.push_back(column.name);
  return names;
}

std::string Table::text(const std::string& path) const {
  const auto json_of = [](const TableColumn& column) {
    nlohmann::json json{{"name", column.name}, {"as", kind_names[static_cast<std::size_t>(column.kind)]}};
    if (column.is_category()) json["categories"] = column.categories;
    if (column.is_filled()) json["fill"] = column.fill;
    if (column.fill_by == TableColumn::Fill::drop) json["missing"] = "drop";
    const std::string_view units = column.is_date() ? "seconds since 1970-01-01" : units_of(column.name);
    if (!units.empty()) json["units"] = units;
    return json;
  };
  nlohmann::json json{{"columns", nlohmann::json::array()}};
  for (const TableColumn& column : columns) json["columns"].push_back(json_of(column));
  if (target) {
    json["target"] = json_of(*target);
    json["target"]["as"] = has_classes ? "classes" : "number";
    if (drops_marks) json["target"]["marks"] = "missing";
  }
  if (!dropped.empty()) json["dropped"] = dropped;
  if (decimal_commas) json["decimal"] = ",";
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    throw DataError("{}: names of columns or categories are not UTF-8; {}", path,
                    python_command(path, R"(read_csv(sys.argv[1], encoding="latin-1"))"));
  }
}

Table Table::parse(const std::string& text, const std::string& path) {
  const auto column_of = [](const nlohmann::json& json) {
    TableColumn column;
    json.at("name").get_to(column.name);
    const auto kind = std::ranges::find(kind_names, json.at("as").get<std::string>());
    if (kind != kind_names.end()) column.kind = static_cast<TableColumn::Kind>(kind - kind_names.begin());
    if (json.contains("categories")) json["categories"].get_to(column.categories);
    if (json.contains("missing")) column.fill_by = TableColumn::Fill::drop;
    if (json.contains("fill")) {
      column.fill_by = TableColumn::Fill::value;
      json["fill"].get_to(column.fill);
    }
    const bool is_code = column.fill == std::floor(column.fill) && column.fill >= 0 &&
                         column.fill <= static_cast<double>(column.categories.size());
    if (!std::ranges::is_sorted(column.categories) || (column.is_category() && !is_code))
      throw DataError("column '{}'", column.name);
    return column;
  };
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    Table table;
    for (const nlohmann::json& column : json.at("columns")) table.columns.push_back(column_of(column));
    if (json.contains("target")) {
      table.target = column_of(json["target"]);
      table.has_classes = json["target"]["as"] == "classes";
      table.drops_marks = json["target"].contains("marks");
    }
    if (json.contains("dropped")) json["dropped"].get_to(table.dropped);
    table.decimal_commas = json.contains("decimal") && json["decimal"] == ",";
    return table;
  } catch (const std::exception& error) {
    throw DataError("{}: the description of its table is damaged: {}", path, escaped(error.what()));
  }
}

Table Table::of_numbers(const std::vector<std::string>& names) {
  Table table;
  for (const std::string& name : names) table.columns.push_back({.name = name});
  return table;
}

std::string_view units_of(std::string_view name) {
  for (const std::string_view pair : {"[]", "()"}) {
    const std::size_t open = name.rfind(pair[0]);
    if (name.ends_with(pair[1]) && open != std::string_view::npos && open > 0)
      return without_blanks(name.substr(open + 1, name.size() - open - 2));
  }
  return {};
}

std::string_view without_units(std::string_view name) {
  if (units_of(name).empty()) return name;
  return without_blanks(name.substr(0, name.rfind(name.back() == ']' ? '[' : '(')));
}

}  // namespace lockstep::data
