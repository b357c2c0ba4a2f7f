// Charts: round ticks, curves of few points that keep every peak, names that cannot leave their attribute.
#include "report/chart.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(chart)

using namespace report;

BOOST_AUTO_TEST_CASE(ticks_are_round_and_within_the_axis) {
  const std::vector<double> expected{0, 200, 400, 600, 800, 1000};
  BOOST_TEST(ticks(0, 1000, 5) == expected, boost::test_tools::per_element());
  for (const auto& [low, high] : {std::pair{-0.013, 0.42}, {3e-7, 4e-7}, {1e9, 1.5e9}, {-5.0, -1.0}}) {
    const std::vector<double> all = ticks(low, high, 5);
    BOOST_TEST(all.size() >= 3);
    BOOST_TEST(all.size() <= 9);
    const double slack = 1e-6 * (high - low);
    BOOST_TEST(all.front() >= low - slack);
    BOOST_TEST(all.back() <= high + slack);
  }
  BOOST_TEST(ticks(7, 7, 5).size() == 1);
}

BOOST_AUTO_TEST_CASE(logarithmic_ticks_are_powers_of_ten_over_many_decades) {
  for (const double tick : log_ticks(2e-6, 300))
    BOOST_TEST(std::abs(std::log10(tick) - std::round(std::log10(tick))) < 1e-9);
  const std::vector<double> expected{0.1, 0.2, 0.5, 1, 2};
  BOOST_TEST(log_ticks(0.06, 3) == expected, boost::test_tools::tolerance(1e-9)
                                                 << boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_tick_is_written_shortly) {
  BOOST_TEST(tick_text(0) == "0");
  BOOST_TEST(tick_text(0.25) == "0.25");
  BOOST_TEST(tick_text(5000) == "5000");
  BOOST_TEST(tick_text(100'000) == "100,000");
  BOOST_TEST(tick_text(2.5e6) == "2.5M");
  BOOST_TEST(tick_text(3e-4) == "3e-4");
}

BOOST_AUTO_TEST_CASE(a_reduced_curve_keeps_its_ends_and_every_peak) {
  Points points;
  for (int p = 0; p < 100'000; ++p) {
    points.x.push_back(p);
    points.y.push_back(p == 77'777 ? 50 : p == 12'345 ? -50 : std::sin(p));
  }
  const Points few = reduced(points, 2'000);
  BOOST_TEST(few.x.size() <= 2'000U);
  BOOST_TEST(few.x.size() >= 1'000U);
  BOOST_TEST(few.x.front() == 0);
  BOOST_TEST(few.x.back() == 99'999);
  BOOST_TEST(std::ranges::max(few.y) == 50);
  BOOST_TEST(std::ranges::min(few.y) == -50);
  BOOST_TEST(std::ranges::is_sorted(few.x));
  for (std::size_t p = 0; p < few.x.size(); ++p)
    BOOST_REQUIRE_EQUAL(few.y[p], points.y[static_cast<std::size_t>(few.x[p])]);
  BOOST_TEST(reduced(few, 2'000).x.size() == few.x.size());
}

BOOST_AUTO_TEST_CASE(a_smoothed_curve_does_not_lag) {
  Points line;
  for (int p = 0; p < 1'000; ++p) {
    line.x.push_back(p);
    line.y.push_back(3.0 * p);
  }
  const Points smooth = smoothed(line, 100);
  BOOST_TEST(smooth.x.size() == 100U);
  for (std::size_t p = 0; p < smooth.x.size(); ++p)
    BOOST_TEST(smooth.y[p] == 3 * smooth.x[p], boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(the_ends_of_a_smoothed_curve_are_means) {
  Points spikes;
  for (int p = 0; p < 1'000; ++p) {
    spikes.x.push_back(p);
    spikes.y.push_back(p == 0 || p == 999 ? 100 : 0);
  }
  const Points smooth = smoothed(spikes, 100);
  BOOST_TEST(std::ranges::max(smooth.y) < 100 / 20.0);
  BOOST_TEST(smooth.x.front() <= 10);
  BOOST_TEST(smooth.x.back() >= 989);
  for (std::size_t count = 0; count < 5; ++count) {
    const Points few = smoothed({std::vector<double>(count, 2), std::vector<double>(count, 3)}, 100);
    BOOST_TEST(few.y == std::vector<double>(few.y.size(), 3), boost::test_tools::per_element());
    BOOST_TEST(few.y.empty() == (count == 0));
  }
}

BOOST_AUTO_TEST_CASE(names_cannot_leave_their_place_in_html) {
  BOOST_TEST(escape_html("<a b=\"c\" d='e'>&") == "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
  Chart chart;
  chart.title = "<script>x</script>";
  chart.curves.push_back({.label = "\"><script>", .style = "c0", .run = "\"", .points = {{0, 1}, {1, 2}}});
  BOOST_TEST(to_html(chart).find("<script>") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_curve_of_one_point_and_a_constant_one_are_drawn) {
  Chart chart;
  chart.curves.push_back({.label = "one", .style = "c0", .run = "", .points = {{5}, {0}}});
  const std::string html = to_html(chart);
  BOOST_TEST(html.find("nan") == std::string::npos);
  BOOST_TEST(html.find("inf") == std::string::npos);
  BOOST_TEST(html.find("M0 500000l0 0") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_constant_with_rounding_errors_is_a_constant) {
  Chart chart{.title = "t", .unit = "ms", .note = ""};
  chart.curves = {
      {.label = "a", .style = "c0", .run = "", .points = {{1, 2, 3}, {0.05, 0.05 + 1e-9, 0.05 - 1e-9}}}};
  const std::string html = to_html(chart);
  std::size_t labels = 0;
  for (std::size_t at = html.find("class=\"y\">0.05<"); at != html.npos;
       at = html.find("class=\"y\">0.05<", at + 1))
    ++labels;
  BOOST_TEST(labels == 1u);
}

BOOST_AUTO_TEST_CASE(long_labels_have_room) {
  Chart chart{.title = "t", .unit = "ms", .note = "", .linear = true};
  chart.curves = {{.label = "a", .style = "c0", .run = "", .points = {{1, 2}, {-0.00123456, -0.0012343}}}};
  const std::string html = to_html(chart);
  const std::size_t y = html.find("\" class=\"y\">"), text = html.find("<text x=\"", y - 40);
  const std::string label = html.substr(y + 12, html.find('<', y + 12) - y - 12);
  BOOST_TEST(label.size() >= 9u);
  BOOST_TEST(std::stod(html.substr(text + 9)) >= 7 * static_cast<double>(label.size()));
}

BOOST_AUTO_TEST_CASE(bytes_have_units_and_ticks_are_powers_of_two) {
  BOOST_TEST(bytes_text(1000) == "1000 B");
  BOOST_TEST(bytes_text(65536) == "64 KiB");
  BOOST_TEST(bytes_text(25 * 1048576.0 - 4) == "25 MiB");
  const std::vector<double> expected{65536, 1048576, 16777216};
  BOOST_TEST(bytes_ticks(65536, 26214396, 3) == expected, boost::test_tools::per_element());
  BOOST_TEST(bytes_ticks(65536, 26214396, 10).size() == 9u);
  BOOST_TEST(bytes_ticks(1, 1e15, 5).size() <= 5u);
}

BOOST_AUTO_TEST_CASE(a_logarithmic_axis_of_bytes_keeps_its_values) {
  Chart chart{.title = "t", .unit = "ms", .note = "", .dots = true};
  chart.x = {.name = "size", .kind = XAxis::Kind::bytes};
  chart.curves = {
      {.label = "a", .style = "c0", .run = "", .points = {{65536, 1048576, 26214396}, {1, 2, 3}}}};
  const std::string html = to_html(chart);
  BOOST_TEST(html.find("data-xkind=\"bytes\"") != html.npos);
  BOOST_TEST(html.find(">64 KiB</text>") != html.npos);
  BOOST_TEST(html.find("size (log scale)") != html.npos);
  const auto number_after = [&](const std::string& what) {
    return std::stod(html.substr(html.find(what) + what.size()));
  };
  const double x0 = number_after("data-x0=\"");
  BOOST_TEST(std::pow(10, (x0 + number_after("data-label=\"a\" d=\"M")) / 1e6) == 65536,
             boost::test_tools::tolerance(1e-5));
  BOOST_TEST(html.find("class=\"c0 at\"") != html.npos);
}

BOOST_AUTO_TEST_CASE(dots_of_whole_numbers_stay_on_them) {
  Chart chart{.title = "t", .unit = "ms", .note = "", .dots = true};
  chart.curves = {
      {.label = "a", .style = "c0", .run = "", .points = {{1, 2, 3, 4, 5, 6}, {1, 2, 1, 2, 1, 2}}}};
  const std::string html = to_html(chart);
  BOOST_TEST(html.find("data-x0=\"0\"") != html.npos);
  BOOST_TEST(html.find("data-label=\"a\" d=\"M1 ") != html.npos);
}

BOOST_AUTO_TEST_CASE(bars_are_parts_of_the_longest) {
  Timeline bars{
      .title = "t", .unit = "ms", .axis = "ms", .rows = {"head", "a", "b<"}, .spans = {}, .key = true};
  BOOST_TEST(to_html(bars).empty());
  bars.spans = {{.row = 1, .kind = "comm", .name = "first", .start = 0, .length = 50, .text = "50"},
                {.row = 2, .kind = "", .name = "second", .start = 150, .length = 50}};
  const std::string html = to_html(bars);
  BOOST_TEST(html.find("left:0.000%;width:25.000%") != html.npos);
  BOOST_TEST(html.find("left:75.000%;width:25.000%") != html.npos);
  BOOST_TEST(html.find("<span class=\"head\">head</span>") != html.npos);
  BOOST_TEST(html.find("b&lt;") != html.npos);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
