#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "lockstep/base/error.h"

namespace lockstep::report {

extern const char* const page_template;  // CMake makes it from assets/

namespace {

constexpr std::string_view page_start = "<!DOCTYPE html>\n<!-- lockstep report -->\n";

std::string replace_all(std::string_view text, char letter, std::string_view by) {
  std::string all;
  for (const char c : text) c == letter ? all += by : all += c;
  return all;
}

std::string escape_html(std::string_view text) {
  return replace_all(replace_all(text, '&', "&amp;"), '<', "&lt;");
}

}  // namespace

std::string to_html(json document) {
  auto sections = document["sections"].get<std::vector<json>>();
  std::erase(sections, json());
  document["sections"] = std::move(sections);
  const auto text_of = [&](const char* key) { return escape_html(document.value(key, "")); };
  std::string facts, html;
  for (const auto& [name, value] : document.value("facts", Pairs{}))
    facts += fmt::format("<div><span>{}</span><b>{}</b></div>\n", escape_html(name),
                         escape_html(cut(value, max_value_bytes)));
  std::string_view rest = page_template;
  constexpr std::string_view begin = "<!--=", end = "-->";  // "<!--=title-->"
  for (std::size_t at = rest.find(begin); at != rest.npos; at = rest.find(begin)) {
    const std::size_t stop = rest.find(end, at);
    const std::string name(rest.substr(at + begin.size(), stop - at - begin.size()));
    html += rest.substr(0, at);
    html += name == "facts"  ? facts
            : name == "data" ? replace_all(json_text(document), '<', "\\u003c")  // neither </script> nor <!--
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
    throw UsageError("{}: exists and is not a page written by lockstep; choose another name", out);
}

void write_page(const std::string& out, const json& document) {
  check_page(out);
  write_text_atomically(out, to_html(document));
}

}  // namespace lockstep::report
