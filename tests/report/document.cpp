// Documents: curves of few points that keep every peak, numbers as text, pages that no name can leave.
#include "report/page.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "support/page_data.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(document)

using namespace report;

BOOST_AUTO_TEST_CASE(a_reduced_curve_keeps_its_ends_and_every_peak) {
  Points points;
  for (int p = 0; p < 100'000; ++p) {
    points.x.push_back(p);
    points.y.push_back(p == 77'777 ? 50 : p == 12'345 ? -50 : std::sin(p));
  }
  const Points few = reduce(points, 2'000);
  BOOST_TEST(few.x.size() <= 2'000U);
  BOOST_TEST(few.x.size() >= 1'000U);
  BOOST_TEST(few.x.front() == 0);
  BOOST_TEST(few.x.back() == 99'999);
  BOOST_TEST(std::ranges::max(few.y) == 50);
  BOOST_TEST(std::ranges::min(few.y) == -50);
  BOOST_TEST(std::ranges::is_sorted(few.x));
  for (std::size_t p = 0; p < few.x.size(); ++p)
    BOOST_REQUIRE_EQUAL(few.y[p], points.y[static_cast<std::size_t>(few.x[p])]);
  BOOST_TEST(reduce(few, 2'000).x.size() == few.x.size());
}

BOOST_AUTO_TEST_CASE(a_smoothed_curve_does_not_lag) {
  Points line;
  for (int p = 0; p < 1'000; ++p) {
    line.x.push_back(p);
    line.y.push_back(3.0 * p);
  }
  const Points means = smooth(line, 100);
  BOOST_TEST(means.x.size() == 100U);
  for (std::size_t p = 0; p < means.x.size(); ++p)
    BOOST_TEST(means.y[p] == 3 * means.x[p], boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(the_ends_of_a_smoothed_curve_are_means) {
  Points spikes;
  for (int p = 0; p < 1'000; ++p) {
    spikes.x.push_back(p);
    spikes.y.push_back(p == 0 || p == 999 ? 100 : 0);
  }
  const Points means = smooth(spikes, 100);
  BOOST_TEST(std::ranges::max(means.y) < 100 / 20.0);
  BOOST_TEST(means.x.front() <= 10);
  BOOST_TEST(means.x.back() >= 989);
  for (std::size_t count = 0; count < 5; ++count) {
    const Points few = smooth({std::vector<double>(count, 2), std::vector<double>(count, 3)}, 100);
    BOOST_TEST(few.y == std::vector<double>(few.y.size(), 3), boost::test_tools::per_element());
    BOOST_TEST(few.y.empty() == (count == 0));
  }
}

BOOST_AUTO_TEST_CASE(a_curve_is_exact_to_a_millionth_of_its_range) {
  const Points exact{{1, 2, 1048576, 26214396}, {0.05, 0.05 + 1e-7, 0.05 - 1e-9, 0.0500001}};
  for (const double factor : {1.0, 1e-5, -3e7, 1e300, 1e308}) {
    Points points = exact;
    for (double& y : points.y) y *= factor;
    const Points found = drawn(curve("a", "c0", points));
    BOOST_TEST(found.x == exact.x, boost::test_tools::per_element());
    const auto [least, greatest] = std::ranges::minmax(points.y);
    for (std::size_t p = 0; p < points.y.size(); ++p)
      BOOST_TEST(std::abs(found.y[p] - points.y[p]) <= 1e-6 * (greatest - least));
  }
  // Where a logarithmic axis may be, small values are as exact as large ones.
  BOOST_TEST(drawn(curve("a", "c0", {{1, 2, 3}, {1e-9, 1.2345e-8, 1e3}})).y[1] == 1.2345e-8,
             boost::test_tools::tolerance(1e-4));
  BOOST_TEST(curve("a", "c0", {{1, 2, 4}, {0, 0.5, 1}})["y"].dump() == "[0,500000,500000]");
  BOOST_TEST(curve("a", "c0", {{1, 2, 4}, {0, 0.5, 1}})["x"].dump() == "[1,1,2]");
  const Points one = drawn(curve("one", "c0", {{5}, {0}})), same = drawn(curve("a", "c0", {{1, 2}, {7, 7}}));
  BOOST_TEST(one.x[0] == 5);
  BOOST_TEST(one.y[0] == 0);
  BOOST_TEST(same.y[1] == 7);
}

BOOST_AUTO_TEST_CASE(texts_are_short_and_cut_between_letters) {
  BOOST_TEST(bytes_text(1000) == "1000 B");
  BOOST_TEST(bytes_text(65536) == "64 KiB");
  BOOST_TEST(bytes_text(25 * 1048576.0 - 4) == "25 MiB");
  BOOST_TEST(number(1234.4) == "1,234");
  BOOST_TEST(number(0.123456) == "0.1235");
  BOOST_TEST(cut("grün", 3) == "gr...");  // not within the letter of two bytes
  BOOST_TEST(cut("grün", 5) == "grün");
  BOOST_TEST(whole(-1234567) == "-1,234,567");
  BOOST_TEST(whole(-123) == "-123");
}

BOOST_AUTO_TEST_CASE(what_has_no_content_is_left_out) {
  BOOST_TEST(section("Empty", {note(""), key_table({{"a", ""}}), configuration({})}).is_null());
  const json document = data_of(to_html({{"title", "t"}, {"sections", {json(), section("s", {note("n")})}}}));
  BOOST_TEST(document["sections"].dump() == R"([{"parts":[{"note":"n"}],"title":"s"}])");
  BOOST_TEST(configuration({{"a.x", "1"}, {"b.y", "2"}, {"a.z", "3"}}).dump() ==
             R"({"columns":[{"keys":[["x","1"],["z","3"]],"title":"a"},{"keys":[["y","2"]],"title":"b"}]})");
}

BOOST_AUTO_TEST_CASE(names_cannot_leave_their_place) {
  const std::string evil = "</script><script>x</script><!-- \xff & \"";
  const json written{{"title", evil},
                     {"lead", evil},
                     {"facts", Pairs{{evil, evil}}},
                     {"failure", evil},
                     {"sections", {section(evil, {note(evil)})}},
                     {"footer", evil}};
  const std::string html = to_html(written), empty = to_html({{"title", ""}, {"sections", json::array()}});
  BOOST_TEST(count_of(html, "<script") == count_of(empty, "<script"));
  BOOST_TEST(count_of(html, "</script") == count_of(empty, "</script"));
  BOOST_TEST(count_of(html, "<!--") == 1u);  // its own first line
  BOOST_TEST(data_of(html)["sections"][0]["title"] == "</script><script>x</script><!-- \ufffd & \"");
  // Without a script there are title, facts, why a run failed, and a word about it.
  const std::string shown = html.substr(0, html.find("<script"));
  BOOST_TEST(count_of(shown, "&lt;/script>&lt;script>x&lt;/script>") == 7u);
  BOOST_TEST(count_of(shown, "<noscript>") == 1u);
}

BOOST_AUTO_TEST_CASE(another_file_is_not_replaced_by_a_page) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string() + "/page.html";
  const json one{{"title", "one"}, {"sections", json::array()}};
  std::ofstream(path) << "<!DOCTYPE html>\nmine\n";
  BOOST_CHECK_THROW(check_page(path), UsageError);
  BOOST_CHECK_THROW(write_page(path, one), UsageError);
  std::filesystem::remove(path);
  write_page(path, one);
  write_page(path, {{"title", "two"}, {"sections", json::array()}});
  BOOST_CHECK_THROW(check_page(folder.path().string() + "/nowhere/page.html"), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
