#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>

namespace lockstep::report {
namespace {

constexpr double levels = 1e6;  // of a path's y
constexpr double right = 12, top = 10, bottom = 38;

/// What labels of the y axis take, left of the plot.
double left_of_plot(const std::vector<double>& ticks) {
  std::size_t longest = 0;
  for (const double tick : ticks) longest = std::max(longest, tick_text(tick).size());
  return std::max(62.0, std::ceil(12 + 7.6 * static_cast<double>(longest)));
}

struct Axis {
  double low = 0, high = 1;  // of the values; logarithms on a logarithmic axis
  bool logarithmic = false;

  double place(double value) const {
    return ((logarithmic ? std::log10(value) : value) - low) / (high - low);
  }
};

/// Logarithmic where values are positive and a linear axis would show most of them as one line.
bool wants_logarithm(std::vector<double> values) {
  const auto [least, greatest] = std::ranges::minmax(values);
  if (least <= 0 || greatest / least < 5) return false;
  if (greatest / least > 50) return true;
  std::ranges::sort(values);
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * double(values.size() - 1))];
  };
  return greatest - least > 4 * (at(0.98) - at(0.02));
}

Axis y_axis(const Chart& chart) {
  std::vector<double> all;
  for (const Curve& curve : chart.curves) all.insert(all.end(), curve.points.y.begin(), curve.points.y.end());
  Axis axis{.low = 0, .high = 1, .logarithmic = !chart.linear && wants_logarithm(all)};
  const auto [least, greatest] = std::ranges::minmax(all);
  axis.low = axis.logarithmic ? std::log10(least) : least;
  axis.high = axis.logarithmic ? std::log10(greatest) : greatest;
  constexpr double least_part = 5e-6;                              // ticks, of six digits, would be the same
  if (axis.high - axis.low <= least_part * std::abs(axis.high)) {  // a constant is in the middle
    const double half = axis.high == 0 ? 1 : std::abs(axis.high) / 2;
    axis.low -= half;
    axis.high += half;
  }
  return axis;
}

bool has_logarithmic_x(const Chart& chart) { return chart.x.kind != XAxis::Kind::whole_numbers; }

/// Of positions, which are steps, or millionths of a power of ten.
double position_of(double x, bool logarithmic) { return logarithmic ? std::log10(x) * levels : x; }
double value_at(double position, bool logarithmic) {
  return logarithmic ? std::pow(10, position / levels) : position;
}

Axis x_axis(const Chart& chart) {
  const bool logarithmic = has_logarithmic_x(chart);
  Axis axis{.low = INFINITY, .high = -INFINITY};
  for (const Curve& curve : chart.curves) {
    axis.low = std::min(axis.low, position_of(curve.points.x.front(), logarithmic));
    axis.high = std::max(axis.high, position_of(curve.points.x.back(), logarithmic));
    for (const double x : curve.also_x) {
      axis.low = std::min(axis.low, position_of(x, logarithmic));
      axis.high = std::max(axis.high, position_of(x, logarithmic));
    }
  }
  if (axis.high == axis.low) {
    axis.high += logarithmic ? levels / 2 : 1;
    if (logarithmic) axis.low -= levels / 2;
  }
  if (chart.dots) {  // which are whole at the ends, too
    double margin = (axis.high - axis.low) / 40;
    if (!logarithmic) margin = std::ceil(margin);  // paths have whole steps
    axis.low -= margin;
    axis.high += margin;
  }
  return axis;
}

/// Where the x axis has ticks, as values.
std::vector<double> x_ticks(const Chart& chart, const Axis& x, int wanted) {
  if (chart.x.kind == XAxis::Kind::whole_numbers) return ticks(x.low, x.high, wanted);
  if (chart.x.kind == XAxis::Kind::bytes)
    return bytes_ticks(value_at(x.low, true), value_at(x.high, true), wanted);
  std::vector<double> all, apart;
  for (const Curve& curve : chart.curves) all.insert(all.end(), curve.points.x.begin(), curve.points.x.end());
  std::ranges::sort(all);
  for (const double value : all)
    if (apart.empty() || std::log10(value / apart.back()) * levels > (x.high - x.low) / (3 * wanted))
      apart.push_back(value);
  return apart;
}

std::string path_of(const Points& points, const Axis& x, const Axis& y, bool logarithmic_x) {
  std::string path;
  std::int64_t from_x = 0, from_y = 0;
  for (std::size_t p = 0; p < points.x.size(); ++p) {
    const std::int64_t to_x = std::llround(position_of(points.x[p], logarithmic_x) - x.low);
    const std::int64_t to_y = std::llround(y.place(points.y[p]) * levels);
    fmt::format_to(std::back_inserter(path), "{}{} {}",
                   p == 0   ? "M"
                   : p == 1 ? "l"
                            : " ",
                   to_x - from_x, to_y - from_y);
    from_x = to_x;
    from_y = to_y;
  }
  if (points.x.size() == 1) path += "l0 0";  // a dot, by its round cap
  return path;
}

/// A line of no length at each point: a dot, by its round cap.
std::string dots_of(const Points& points, const Axis& x, const Axis& y, bool logarithmic_x) {
  std::string path;
  for (std::size_t p = 0; p < points.x.size(); ++p)
    fmt::format_to(std::back_inserter(path), "M{} {}h0",
                   std::llround(position_of(points.x[p], logarithmic_x) - x.low),
                   std::llround(y.place(points.y[p]) * levels));
  return path;
}

}  // namespace

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

std::vector<double> ticks(double low, double high, int wanted) {
  std::vector<double> all;
  if (!(high > low)) return {low};
  const double rough = (high - low) / std::max(1, wanted);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double ratio = rough / power;
  const double step = power * (ratio <= 1.5 ? 1 : ratio <= 3.5 ? 2 : ratio <= 7.5 ? 5 : 10);
  const double slack = 1e-9 * step;
  for (double k = std::ceil((low - slack) / step); k * step <= high + slack; ++k)
    all.push_back(k == 0 ? 0 : k * step);
  return all;
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> all;
  const double decades = std::log10(high / low);
  if (decades < 0.7) return ticks(low, high, 4);
  const double every = std::max(1.0, std::ceil(decades / 6));
  for (double k = std::floor(std::log10(low)); k <= std::log10(high); ++k) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && decades > 2) continue;
      const double value = factor * std::pow(10, k);
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9) && std::fmod(k, every) == 0)
        all.push_back(value);
    }
  }
  return all;
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e12) return fmt::format("{:.6g}", value);
  if (size >= 1e9) return fmt::format("{:.6g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.6g}M", value / 1e6);
  if (size >= 1e4) {
    std::string text = fmt::format("{:.0f}", value);
    return text.insert(text.size() - 3, ",");
  }
  if (size > 0 && size < 1e-3) {
    const double power = std::floor(std::log10(size) + 1e-9);
    return fmt::format("{:.4g}e{:.0f}", value / std::pow(10, power), power);
  }
  return fmt::format("{:.6g}", value);
}

std::string bytes_text(double bytes) {
  constexpr std::array units{"", " KiB", " MiB", " GiB", " TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.4g}{}", bytes, unit == 0 ? " B" : units[unit]);
}

std::vector<double> bytes_ticks(double low, double high, int most) {
  const double first = std::ceil(std::log2(low) - 1e-9), last = std::floor(std::log2(high) + 1e-9);
  double every = 1;
  while (std::floor(last / every) - std::ceil(first / every) + 1 > std::max(1, most)) every *= 2;
  std::vector<double> all;
  for (double power = std::ceil(first / every) * every; power <= last; power += every)
    all.push_back(std::exp2(power));
  return all;
}

std::string escape_html(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string to_html(const Chart& chart) {
  const double width = chart.wide ? 1100 : 540, height = chart.wide ? 330 : 230;
  const Axis x = x_axis(chart), y = y_axis(chart);
  const double pad = 0.06;  // above and below the values
  const double span = (y.high - y.low) * pad, low = y.low - span, high = y.high + span;
  const std::vector<double> y_ticks =
      y.logarithmic ? log_ticks(std::pow(10, low), std::pow(10, high)) : ticks(low, high, 5);
  const double left = left_of_plot(y_ticks);
  const double plot_width = width - left - right, plot_height = height - top - bottom;
  const auto y_at = [&](double place) { return top + plot_height * (1 - (place + pad) / (1 + 2 * pad)); };
  const auto x_at = [&](double value) { return left + plot_width * x.place(value); };

  const bool logarithmic_x = has_logarithmic_x(chart), in_bytes = chart.x.kind == XAxis::Kind::bytes;
  const auto x_text = [&](double value) { return in_bytes ? bytes_text(value) : tick_text(value); };
  std::string attributes = fmt::format(R"( data-x="{}")", escape_html(chart.x.name));
  if (logarithmic_x) attributes += in_bytes ? R"( data-xkind="bytes")" : R"( data-xkind="counts")";
  std::string html = fmt::format(
      R"(<figure class="chart{}"{} data-x0="{:.17g}" data-x1="{:.17g}" data-y0="{:.17g}" data-y1="{:.17g}" data-log="{:d}">)"
      "\n<figcaption><b>{}</b> <span>{}</span></figcaption>\n",
      chart.wide ? " wide" : "", attributes, x.low, x.high, y.low, y.high, y.logarithmic,
      escape_html(chart.title),
      escape_html(chart.unit + (y.logarithmic ? (chart.unit.empty() ? "log scale" : ", log scale") : "")));
  const auto out = std::back_inserter(html);
  fmt::format_to(out, R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}"><g class="grid">)", width,
                 height, escape_html(chart.title));
  for (const double tick : y_ticks) {
    const double at = y_at(y.place(tick));
    fmt::format_to(out, R"(<path d="M{} {:.1f}h{}"/><text x="{}" y="{:.1f}" class="y">{}</text>)", left, at,
                   plot_width, left - 7, at + 4, tick_text(tick));
  }
  for (const double tick : x_ticks(chart, x, chart.wide ? 10 : 5)) {
    const double at = x_at(position_of(tick, logarithmic_x));
    fmt::format_to(
        out, R"(<path d="M{:.1f} {:.1f}v5" class="tick"/><text x="{:.1f}" y="{:.1f}" class="x">{}</text>)",
        at, top + plot_height, at, top + plot_height + 18, x_text(tick));
  }
  fmt::format_to(
      out, R"(<path d="M{} {:.1f}h{}" class="axis"/><text x="{:.1f}" y="{}" class="x name">{}</text></g>)",
      left, top + plot_height, plot_width, left + plot_width / 2, height - 4,
      escape_html(chart.x.name + (logarithmic_x ? " (log scale)" : "")));
  fmt::format_to(out, R"(<svg class="plot" x="{}" y="{}" width="{}" height="{:.1f}"><g class="marks">)", left,
                 top, plot_width, plot_height);
  for (const Mark& mark : chart.marks)
    fmt::format_to(out,
                   R"(<path class="mark {}" data-x="{:.17g}" d="M{:.1f} 0V{:.1f}"><title>{}</title></path>)",
                   mark.kind, mark.x, x_at(mark.x) - left, plot_height, escape_html(mark.text));
  fmt::format_to(out, R"svg(</g><g class="curves" transform="matrix({:.9g} 0 0 {:.9g} 0 {:.6g})">)svg",
                 plot_width / (x.high - x.low), -plot_height / (1 + 2 * pad) / levels, y_at(0) - top);
  for (const Curve& curve : chart.curves) {
    fmt::format_to(out, "<path class=\"{}\" data-label=\"{}\"{} d=\"{}\"/>\n", curve.style,
                   escape_html(curve.label),
                   curve.run.empty() ? "" : fmt::format(" data-run=\"{}\"", escape_html(curve.run)),
                   path_of(curve.points, x, y, logarithmic_x));
    if (chart.dots)
      fmt::format_to(out, "<path class=\"{} at\" d=\"{}\"/>\n", curve.style,
                     dots_of(curve.points, x, y, logarithmic_x));
  }
  html += "</g></svg></svg>";
  const auto is_line = [](const Curve& curve) { return curve.style.find("raw") == std::string::npos; };
  if (chart.legend && std::ranges::count_if(chart.curves, is_line) > 1) {
    html += "<ul class=\"legend\">";
    for (const Curve& curve : chart.curves)
      if (is_line(curve))
        fmt::format_to(out, R"(<li><svg viewBox="0 0 22 8"><path class="{}" d="M1 4h20"/></svg>{}</li>)",
                       curve.style, escape_html(curve.label));
    html += "</ul>";
  }
  if (!chart.note.empty()) html += "<p class=\"note\">" + escape_html(chart.note) + "</p>";
  return html + "</figure>\n";
}

}  // namespace lockstep::report
