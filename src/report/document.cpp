#include "report/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "base/files.h"
#include "base/output.h"
#include "lockstep/base/error.h"
#include "report/assets.h"
#include "report/chart.h"

namespace lockstep::report {
namespace {

constexpr std::string_view page_start = "<!DOCTYPE html>\n<!-- lockstep report -->\n";
constexpr std::size_t most_rows_in_sight = 16;

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

std::string cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; };
  while (most > 0 && continues(text[most])) --most;  // not within a letter
  return std::string(text.substr(0, most)) + "...";
}

std::string section(std::string_view title, const std::string& content) {
  return content.empty() ? ""
                         : fmt::format("<section><h2>{}</h2>\n{}</section>\n", escape_html(title), content);
}

std::string note(std::string_view text) {
  return text.empty() ? "" : "<p class=\"note\">" + escape_html(text) + "</p>";
}

std::string facts(Pairs pairs) {
  std::string html = "<div class=\"facts\">";
  for (const auto& [label, value] : pairs)
    html += fmt::format("<div><span>{}</span><b>{}</b></div>", escape_html(label), escape_html(value));
  return html + "</div>\n";
}

std::string key_table(Pairs pairs) {
  std::string rows;
  for (const auto& [name, value] : pairs)
    if (!value.empty())
      rows += fmt::format("<tr><td>{}</td><td class=\"v\">{}</td></tr>\n", escape_html(name),
                          escape_html(cut(value, 1'000)));
  return rows.empty() ? "" : "<table class=\"keys\"><tbody>" + rows + "</tbody></table>";
}

std::string configuration_html(Pairs pairs) {
  std::vector<std::string> sections;
  std::map<std::string, std::string> rows;
  for (const auto& [key, value] : pairs) {
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos || value.empty()) continue;
    const std::string section = key.substr(0, dot);
    if (std::ranges::find(sections, section) == sections.end()) sections.push_back(section);
    rows[section] += fmt::format("<tr><td>{}</td><td class=\"v\">{}</td></tr>",
                                 escape_html(key.substr(dot + 1)), escape_html(cut(value, 1'000)));
  }
  std::string html;
  for (const std::string& section : sections)
    html += "<table class=\"keys\"><thead><tr><th colspan=\"2\">" + escape_html(section) +
            "</th></tr></thead><tbody>" + rows[section] + "</tbody></table>";
  return html.empty() ? "" : "<div class=\"columns\">" + html + "</div>";
}

Cell cell(double value) { return {.text = number(value), .value = value}; }
Cell cell(double value, std::string text) { return {.text = std::move(text), .value = value}; }

std::string Table::to_html() const {
  const auto is_number = [this](std::size_t column) { return !rows_.empty() && rows_[0][column].value; };
  std::string html = fmt::format(R"(<div class="scroll{}"><table class="sortable"><thead><tr>)",
                                 rows_.size() > most_rows_in_sight ? " tall" : "");
  const auto out = std::back_inserter(html);
  for (std::size_t column = 0; column < headings_.size(); ++column)
    fmt::format_to(out, "<th{}><button>{}</button></th>", is_number(column) ? " class=\"n\"" : "",
                   escape_html(headings_[column]));
  html += "</tr></thead><tbody>\n";
  for (const std::vector<Cell>& row : rows_) {
    html += "<tr>";
    for (const Cell& one : row) {
      if (one.value)
        fmt::format_to(out, R"(<td class="n" data-v="{:.9g}">{}</td>)", *one.value, escape_html(one.text));
      else
        fmt::format_to(out, "<td>{}</td>", escape_html(one.text));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string to_html(const Page& page) {
  const std::string title = escape_html(page.title);
  return std::string(page_start) +
         "<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<title>" +
         title + " – Lockstep</title>\n<style>\n" + page_style + "</style></head><body><main>\n<header><h1>" +
         title + "</h1><p class=\"lead\">" + escape_html(page.lead) + "</p></header>\n" + page.body +
         "<footer>" + escape_html(page.footer) + "</footer>\n</main><script>\n" + page_script +
         "</script></body></html>\n";
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

void write_page(const std::string& out, const std::string& html) {
  check_page(out);
  write_text_atomically(out, html);
}

}  // namespace lockstep::report
