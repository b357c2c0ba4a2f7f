// Private to the library: curves as SVG, for a page whose script (assets/page.js) zooms and reads values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::report {

struct Points {
  std::vector<double> x, y;  ///< x never decreases
};

/// At most `most` points (4 or more), among them the first, the last, and the least and the greatest of each
/// of equal parts: no peak is lost.
Points reduced(const Points& points, std::size_t most);
/// Means over a window of a twenty-fifth of the points, at most `most` of them.
Points smoothed(const Points& points, std::size_t most);

/// Round numbers (1, 2 or 5 times a power of ten) in [low, high], about `wanted` of them.
std::vector<double> ticks(double low, double high, int wanted);
/// For a logarithmic axis, 0 < low < high: powers of ten, and 2 and 5 times these over few decades.
std::vector<double> log_ticks(double low, double high);
/// "0.25", "20,000", "3M", "3e-4".
std::string tick_text(double value);

/// "1000", "64 KiB", "25 MiB": four digits.
std::string bytes_text(double bytes);
/// Powers of two in [low, high] whose exponents are equally far apart, at most `most`; 0 < low < high.
std::vector<double> bytes_ticks(double low, double high, int most);

/// For the text and the attributes of HTML.
std::string escape_html(std::string_view text);

struct Curve {
  std::string label;
  std::string style;  ///< CSS classes: "c0 dashed"
  std::string run;    ///< which of several; empty: there is one
  Points points;
  std::vector<double> also_x = {};  ///< that the x axis has to reach, too
};

struct Mark {
  double x = 0;
  std::string kind;  ///< CSS class
  std::string text;
};

/// What is below the curves. Charts of one page with the same name are zoomed together.
struct XAxis {
  enum class Kind {
    whole_numbers,  ///< linear
    counts,         ///< logarithmic, with a tick at each x of a curve as far as they fit
    bytes           ///< logarithmic
  };
  std::string name = "step";
  Kind kind = Kind::whole_numbers;
};

struct Chart {
  std::string title, unit, note;
  bool wide = false;
  bool legend = true;
  bool linear = false;  ///< never logarithmic
  bool dots = false;    ///< at each point: a few that were measured
  XAxis x = {};
  std::vector<Curve> curves = {};  ///< of finite values, none empty
  std::vector<Mark> marks = {};
};

/// A <figure>. Each path holds its values: x is exact, or a millionth of a power of ten on a logarithmic
/// axis; y has a millionth of the range, of the logarithm if the axis is logarithmic. So the script needs no
/// other data.
std::string to_html(const Chart& chart);

/// Bars in rows over one axis of milliseconds or of another unit, from 0 on.
struct Timeline {
  struct Span {
    std::size_t row = 0;
    std::string kind;  ///< CSS class: "", "step", "comm", "late" or "other"
    std::string name;  ///< under the pointer, and in the key
    double start = 0, length = 0;
    std::string text = {};  ///< beside it
  };
  std::string title, unit, axis;
  std::vector<std::string> rows;  ///< one without spans is a heading
  std::vector<Span> spans;
  bool key = false;  ///< what the colours are, by the name of the first span of each kind
  std::string note = {};
};
/// Empty without spans.
std::string to_html(const Timeline& timeline);

}  // namespace lockstep::report
