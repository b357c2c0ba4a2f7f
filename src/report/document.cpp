#include "report/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "lockstep/base/error.h"

namespace lockstep::report {

extern const char* const page_template;  // made by CMake of assets/

namespace {

constexpr std::string_view page_start = "<!DOCTYPE html>\n<!-- lockstep report -->\n";
constexpr std::size_t max_value_bytes = 1'000;

std::string replaced(std::string_view text, char letter, std::string_view by) {
  std::string all;
  for (const char c : text) c == letter ? all += by : all += c;
  return all;
}

/// For the text of HTML.
std::string escaped_html(std::string_view text) {
  return replaced(replaced(text, '&', "&amp;"), '<', "&lt;");
}

json without_nulls(const json& all) {
  json kept = json::array();
  for (const json& one : all)
    if (!one.is_null()) kept.push_back(one);
  return kept;
}

}  // namespace

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

std::string cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; };
  while (most > 0 && continues(text[most])) --most;  // not within a letter
  return std::string(text.substr(0, most)) + "...";
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

Points reduced(const Points& points, std::size_t most) {
  const std::size_t count = points.x.size();
  if (count <= most) return points;
  Points few;
  const auto keep = [&](std::size_t p) {
    few.x.push_back(points.x[p]);
    few.y.push_back(points.y[p]);
  };
  keep(0);
  const std::size_t parts = std::max<std::size_t>(1, (most - 2) / 2), inner = count - 2;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = 1 + part * inner / parts, end = 1 + (part + 1) * inner / parts;
    const auto [least, greatest] =
        std::minmax_element(points.y.begin() + std::ptrdiff_t(begin), points.y.begin() + std::ptrdiff_t(end));
    const auto a = static_cast<std::size_t>(least - points.y.begin()),
               b = static_cast<std::size_t>(greatest - points.y.begin());
    keep(std::min(a, b));
    if (a != b) keep(std::max(a, b));
  }
  keep(count - 1);
  return few;
}

Points smoothed(const Points& points, std::size_t most) {
  const std::size_t count = points.x.size(), half = std::max<std::size_t>(1, count / 50);
  // It begins and ends where a window of half the width fits, so that its ends are means, too.
  const std::size_t first = std::min((half + 1) / 2, (count - std::min<std::size_t>(1, count)) / 2);
  std::vector<double> sums(count + 1, 0);
  for (std::size_t p = 0; p < count; ++p) sums[p + 1] = sums[p] + points.y[p];
  Points smooth;
  const std::size_t few = std::min(most, count);
  for (std::size_t i = 0; i < few; ++i) {
    const std::size_t p = first + (few == 1 ? 0 : i * (count - 1 - 2 * first) / (few - 1));
    const std::size_t reach = std::min({half, p, count - 1 - p});  // symmetric, so that ends do not lag
    smooth.x.push_back(points.x[p]);
    smooth.y.push_back((sums[p + reach + 1] - sums[p - reach]) / static_cast<double>(2 * reach + 1));
  }
  return smooth;
}

json curve(std::string_view label, std::string_view style, const Points& points) {
  const auto [least, greatest] = std::ranges::minmax(points.y);
  const bool logarithmic = least > 0 && greatest / least > 50;
  const auto place = [&](double y) { return logarithmic ? std::log10(y) : y; };
  const double low = place(least) / 2, range = place(greatest) / 2 - low;  // halves do not overflow
  const double unit = range * 2e-6 > 0 ? range * 2e-6 : 1;
  json x = json::array(), y = json::array();  // differences: whole numbers of few digits
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

std::string to_html(json document) {
  document["sections"] = without_nulls(document["sections"]);
  const auto text_of = [&](const char* key) { return escaped_html(document.value(key, "")); };
  std::string facts, html;
  for (const auto& [name, value] : document.value("facts", Pairs{}))
    facts += fmt::format("<div><span>{}</span><b>{}</b></div>\n", escaped_html(name),
                         escaped_html(cut(value, max_value_bytes)));
  std::string_view rest = page_template;
  constexpr std::string_view begin = "<!--=", end = "-->";  // "<!--=title-->"
  for (std::size_t at = rest.find(begin); at != rest.npos; at = rest.find(begin)) {
    const std::size_t stop = rest.find(end, at);
    const std::string name(rest.substr(at + begin.size(), stop - at - begin.size()));
    html += rest.substr(0, at);
    html += name == "facts" ? facts
            : name == "data"
                ? replaced(json_text(document), '<', "\\u003c")  // no end of the script, no comment
                : text_of(name.c_str());
    rest.remove_prefix(stop + end.size());
  }
  return html += rest;
}

void check_page(const std::string& out) {
  check_output(out, {.replace = true});
  if (!exists(out)) return;
  const OpenFile file(out, OpenFile::Mode::read);
  std::string start(std::min<std::uint64_t>(page_start.size(), file.size()), '\0');
  file.read_at(0, start.data(), start.size());
  if (start != page_start)
    throw UsageError("{}: exists and is not a page that lockstep has written; choose another name", out);
}

void write_page(const std::string& out, const json& document) {
  check_page(out);
  write_text_atomically(out, to_html(document));
}

}  // namespace lockstep::report
