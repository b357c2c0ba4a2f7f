#include "report/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::report {

std::string whole(std::int64_t value) {
  std::string text = std::to_string(value);
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string number(double value) {
  return std::abs(value) >= 1000 && std::abs(value) < 1e15 ? whole(std::llround(value))
                                                           : fmt::format("{:.4g}", value);
}

std::string bytes_text(double bytes) {
  constexpr std::array units{" B", " KiB", " MiB", " GiB", " TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.4g}{}", bytes, units[unit]);
}

std::string cut(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; };
  while (max_bytes > 0 && continues(text[max_bytes])) --max_bytes;  // does not split a letter
  return std::string(text.substr(0, max_bytes)) + "...";
}

json section(std::string_view title, std::vector<json> parts) {
  std::erase(parts, json());
  return parts.empty() ? json() : json{{"title", title}, {"parts", std::move(parts)}};
}

json note(std::string_view text) { return text.empty() ? json() : json{{"note", text}}; }

json key_table(const Pairs& pairs) {
  Pairs rows;
  for (const auto& [name, value] : pairs)
    if (!value.empty()) rows.emplace_back(name, cut(value, max_value_bytes));
  return rows.empty() ? json() : json{{"keys", rows}};
}

json configuration(const Pairs& pairs) {
  json tables = json::array();
  for (const auto& [key, value] : pairs) {
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos || value.empty()) continue;
    const std::string title = key.substr(0, dot);
    auto found =
        std::find_if(tables.begin(), tables.end(), [&](const json& one) { return one["title"] == title; });
    if (found == tables.end()) found = tables.insert(found, json{{"title", title}, {"keys", json::array()}});
    (*found)["keys"].push_back(json::array({key.substr(dot + 1), cut(value, max_value_bytes)}));
  }
  return tables.empty() ? json() : json{{"columns", std::move(tables)}};
}

json table(json columns, json rows) {
  return {{"table", {{"columns", std::move(columns)}, {"rows", std::move(rows)}}}};
}

json bars(std::string_view title, std::string_view unit, const std::vector<Bar>& all) {
  if (all.empty()) return {};
  json rows = json::array(), spans = json::array();
  for (const Bar& bar : all) {
    spans.push_back({{"row", rows.size()},
                     {"kind", bar.kind},
                     {"name", bar.name},
                     {"start", 0},
                     {"length", bar.length},
                     {"text", bar.text.empty() ? number(bar.length) : bar.text}});
    rows.push_back(bar.name);
  }
  return {{"bars",
           {{"title", title}, {"unit", unit}, {"axis", unit}, {"rows", std::move(rows)}, {"spans", spans}}}};
}

Points reduce(const Points& points, std::size_t max_count) {
  const std::size_t count = points.x.size();
  if (count <= max_count) return points;
  Points few;
  const auto keep = [&](std::size_t p) {
    few.x.push_back(points.x[p]);
    few.y.push_back(points.y[p]);
  };
  keep(0);
  const std::size_t parts = std::max<std::size_t>(1, (max_count - 2) / 2), inner = count - 2;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = 1 + part * inner / parts, end = 1 + (part + 1) * inner / parts;
    const auto [low, high] =
        std::minmax_element(points.y.begin() + std::ptrdiff_t(begin), points.y.begin() + std::ptrdiff_t(end));
    const auto a = static_cast<std::size_t>(low - points.y.begin()),
               b = static_cast<std::size_t>(high - points.y.begin());
    keep(std::min(a, b));
    if (a != b) keep(std::max(a, b));
  }
  keep(count - 1);
  return few;
}

Points smooth(const Points& points, std::size_t max_count) {
  const std::size_t count = points.x.size(), half = std::max<std::size_t>(1, count / 50);
  // The first and the last window have half the width, so that the ends of the curve are means as well.
  const std::size_t first = std::min((half + 1) / 2, (count - std::min<std::size_t>(1, count)) / 2);
  std::vector<double> sums(count + 1, 0);
  for (std::size_t p = 0; p < count; ++p) sums[p + 1] = sums[p] + points.y[p];
  Points means;
  const std::size_t few = std::min(max_count, count);
  for (std::size_t i = 0; i < few; ++i) {
    const std::size_t p = first + (few == 1 ? 0 : i * (count - 1 - 2 * first) / (few - 1));
    const std::size_t reach =
        std::min({half, p, count - 1 - p});  // a symmetric window, so that ends do not lag
    means.x.push_back(points.x[p]);
    means.y.push_back((sums[p + reach + 1] - sums[p - reach]) / static_cast<double>(2 * reach + 1));
  }
  return means;
}

json curve(std::string_view label, std::string_view style, const Points& points) {
  const auto [min, max] = std::ranges::minmax(points.y);
  const bool logarithmic = min > 0 && max / min > 50;
  const auto place = [&](double y) { return logarithmic ? std::log10(y) : y; };
  const double low = place(min) / 2, range = place(max) / 2 - low;  // halves, because the range may overflow
  const double unit = range * 2e-6 > 0 ? range * 2e-6 : 1;
  json x = json::array(), y = json::array();  // differences: integers of few digits
  std::int64_t x_before = 0, y_before = 0;
  for (std::size_t p = 0; p < points.x.size(); ++p) {
    const std::int64_t at_x = std::llround(points.x[p]);
    const std::int64_t at_y = std::llround((place(points.y[p]) / 2 - low) / unit * 2);
    x.push_back(at_x - std::exchange(x_before, at_x));
    y.push_back(at_y - std::exchange(y_before, at_y));
  }
  return {{"label", label}, {"style", style}, {"x", std::move(x)}, {"y", std::move(y)},
          {"low", 2 * low}, {"unit", unit},   {"log", logarithmic}};
}

}  // namespace lockstep::report
