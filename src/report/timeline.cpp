// Bars in rows over one axis: the spans of a step, or what was measured of each of several things. They are
// boxes of HTML, which fit every width.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "report/chart.h"

namespace lockstep::report {
namespace {

/// One line a kind: a bar of its colour and the name of its first span.
std::string key_of(const Timeline& timeline) {
  std::string html;
  std::vector<std::string> seen;
  for (const Timeline::Span& span : timeline.spans) {
    if (std::ranges::find(seen, span.kind) != seen.end()) continue;
    seen.push_back(span.kind);
    html += fmt::format(R"(<li><i class="bar {}"></i>{}</li>)", span.kind, escape_html(span.name));
  }
  return "<ul class=\"legend key\">" + html + "</ul>";
}

}  // namespace

std::string to_html(const Timeline& timeline) {
  if (timeline.spans.empty()) return "";
  double end = 0;
  std::size_t longest_text = 0;
  std::vector<std::string> tracks(timeline.rows.size());
  for (const Timeline::Span& span : timeline.spans) {
    end = std::max(end, span.start + span.length);
    longest_text = std::max(longest_text, span.text.size());
  }
  end = std::max(end, 1e-9);
  const auto percent = [&](double value) { return 100 * value / end; };
  for (const Timeline::Span& span : timeline.spans) {
    const auto out = std::back_inserter(tracks[span.row]);
    fmt::format_to(out, R"(<i class="bar {}" style="left:{:.3f}%;width:{:.3f}%" title="{}"></i>)", span.kind,
                   percent(span.start), percent(span.length), escape_html(span.name));
    if (!span.text.empty())
      fmt::format_to(out, R"(<b style="left:{:.3f}%">{}</b>)", percent(span.start + span.length),
                     escape_html(span.text));
  }
  std::string html = "<figure class=\"timeline\">";
  if (!timeline.title.empty())
    html += fmt::format("<figcaption><b>{}</b> <span>{}</span></figcaption>", escape_html(timeline.title),
                        escape_html(timeline.unit));
  if (timeline.key) html += key_of(timeline);
  const auto out = std::back_inserter(html);
  fmt::format_to(out, R"(<div class="bars" role="img" aria-label="{}" style="--rows:{};--right:{}ch">)",
                 escape_html(timeline.title.empty() ? timeline.axis : timeline.title), timeline.rows.size(),
                 longest_text == 0 ? 1 : longest_text + 2);
  for (std::size_t row = 0; row < timeline.rows.size(); ++row)
    fmt::format_to(out, "<span{}>{}</span><div>{}</div>\n", tracks[row].empty() ? " class=\"head\"" : "",
                   escape_html(timeline.rows[row]), tracks[row]);
  html += "<span></span><div class=\"axis\">";
  for (const double tick : ticks(0, end, 3))
    fmt::format_to(out, R"(<u style="left:{:.3f}%">{}</u>)", percent(tick), tick_text(tick));
  html += "</div><span></span><div class=\"unit\">" + escape_html(timeline.axis) + "</div></div>";
  if (!timeline.note.empty()) html += "<p class=\"note\">" + escape_html(timeline.note) + "</p>";
  return html + "</figure>\n";
}

}  // namespace lockstep::report
