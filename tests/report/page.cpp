// Pages: their parts, and that no run makes one of more than 2 MB.
#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "report/document.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(page)

using namespace report;

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Noise that does not compress, the same each time.
double noise(int seed) {
  return std::abs(std::sin(12.9898 * seed) * 43758.5453 - std::floor(std::sin(12.9898 * seed) * 43758.5453));
}

/// A run that logs `metrics` metrics, each step.
RunLog long_run(const std::string& name, int steps, int metrics) {
  RunLog run;
  run.path = run.name = name;
  run.lines = steps;
  run.last_step = steps;
  for (int m = 0; m < metrics; ++m) {
    Series series{.name = m == 0 ? "loss" : "metric_" + std::to_string(m), .steps = {}, .values = {}};
    for (int step = 1; step <= steps; ++step) {
      series.steps.push_back(step);
      series.values.push_back(noise(step + 7919 * m));
    }
    run.series.push_back(std::move(series));
  }
  return run;
}

BOOST_AUTO_TEST_CASE(a_page_of_a_long_run_is_small_and_keeps_its_peaks) {
  RunLog run = long_run("long", 100'000, 15);
  run.series[0].values[54'321] = 77.5;
  const std::string page = page_of({&run, 1});
  BOOST_TEST(page.size() < most_page_bytes);
  BOOST_TEST(count_of(page, "<figure class=\"chart") == 15u);
  const std::vector<Chart> charts = charts_of({&run, 1}, most_page_bytes);
  double greatest = 0;
  for (const Curve& curve : charts[0].curves)
    for (const double value : curve.points.y) greatest = std::max(greatest, value);
  BOOST_TEST(greatest == 77.5);
}

BOOST_AUTO_TEST_CASE(a_page_of_many_runs_is_small) {
  for (const auto& [count, metrics] : {std::pair{50, 15}, {600, 15}}) {
    std::vector<RunLog> runs;
    for (int r = 0; r < count; ++r) {
      runs.push_back(long_run("run-" + std::to_string(r), 2'000, metrics));
      runs.back().config = {{"optimizer.lr", std::to_string(r)}, {"data.train", std::string(50'000, 'x')}};
    }
    const std::string page = page_of(runs);
    BOOST_TEST(page.size() < most_page_bytes);
    BOOST_TEST(page.find("Training loss") != page.npos);
    if (count == 50) BOOST_TEST(count_of(page, "<tr data-run=") == 50u);
    if (count == 600) BOOST_TEST(page.find("The best 400 of 600 runs.") != page.npos);
  }
}

BOOST_AUTO_TEST_CASE(a_page_of_a_run_with_thousands_of_events_is_small) {
  RunLog run = long_run("restless", 5'000, 30);
  for (int e = 0; e < 5'000; ++e)
    run.events.push_back({RunEvent::Kind::slow_rank, e, "2026-01-01T00:00:00Z", std::string(2'000, 'y')});
  const std::string page = page_of({&run, 1});
  BOOST_TEST(page.size() < most_page_bytes);
  BOOST_TEST(page.find("The first 200 of 5000.") != page.npos);
}

BOOST_AUTO_TEST_CASE(every_start_but_the_first_is_a_restart) {
  using Kind = RunEvent::Kind;
  RunLog run = long_run("killed", 10, 1);
  const auto restarts = [&](std::initializer_list<Kind> starts) {
    run.events.clear();
    for (const Kind kind : starts) run.events.push_back({kind, 0, "", ""});
    const std::string page = page_of({&run, 1}), word = "restarts</";
    const std::size_t at = page.find(word);
    return at == page.npos ? 0 : page[page.find_first_of("0123456789", at)] - '0';
  };
  BOOST_TEST(restarts({}) == 0);
  BOOST_TEST(restarts({Kind::started}) == 0);
  BOOST_TEST(restarts({Kind::started, Kind::started, Kind::note, Kind::resumed}) == 2);  // killed twice
  BOOST_TEST(restarts({Kind::forked, Kind::preempted, Kind::resumed}) == 1);
}

BOOST_AUTO_TEST_CASE(the_table_of_runs_begins_with_what_judges_them) {
  std::vector<RunLog> runs{long_run("a", 10, 1), long_run("b", 10, 1)};
  for (RunLog& run : runs) {
    for (const char* const name : {"step_ms", "eval_accuracy", "eval_loss"})
      run.series.push_back({.name = name, .steps = {10}, .values = {1}});
    run.config = {{"optimizer.lr", run.name}};
  }
  const std::string page = page_of(runs);
  std::size_t last = 0;
  for (const char* const heading :
       {"run", "loss", "eval_loss", "eval_accuracy", "step_ms", "optimizer.lr", "state"}) {
    const std::size_t at = page.find(fmt::format("<button>{}</button>", heading));
    BOOST_TEST(at != page.npos, heading);
    BOOST_TEST(at > last, heading);
    last = at;
  }
  const std::size_t row = page.find("<tr data-run=\"0\">"), key = page.find("<td class=\"n\">a</td>", row);
  BOOST_TEST(page.find("<td class=\"n\" data-v=", row) < key);  // cells as their headings
}

RunLog run_in(const TemporaryFolder& folder) {
  RunLog run;
  run.path = folder.path().string();
  return run;
}

/// A file of this size with the first bytes of a picture.
void picture(const std::string& path, std::size_t bytes) {
  std::string data = "\x89PNG\r\n\x1a\n";
  data.resize(bytes, 'p');
  std::ofstream(path, std::ios::binary) << data;
}

BOOST_AUTO_TEST_CASE(many_samples_are_thinned_out_and_the_page_says_so) {
  const TemporaryFolder folder;
  const RunLog run = run_in(folder);
  std::filesystem::create_directory(run.path + "/samples");
  for (int s = 0; s < 300; ++s) picture(fmt::format("{}/samples/step-{:09d}.png", run.path, s), 30'000);
  std::string html = samples_html(run, 700'000);
  BOOST_TEST(html.size() < 700'000u);
  const std::size_t shown = count_of(html, "<img ");
  BOOST_TEST(shown > 10u);
  BOOST_TEST(html.find(fmt::format("{} of 300 samples: all would make the page too large.", shown)) !=
             html.npos);
  BOOST_TEST(html.find("step-000000000") != html.npos);  // the oldest and the newest
  BOOST_TEST(html.find("step-000000299") != html.npos);

  html = samples_html(run, 50'000);  // room for one: the newest
  BOOST_TEST(count_of(html, "<img ") == 1u);
  BOOST_TEST(html.find("step-000000299") != html.npos);
  html = samples_html(run, 10'000);
  BOOST_TEST(count_of(html, "<img ") == 0u);
  BOOST_TEST(html.find("0 of 300 samples: they are too large for a page.") != html.npos);
}

BOOST_AUTO_TEST_CASE(a_few_samples_are_all_shown_and_long_texts_cut) {
  const TemporaryFolder folder;
  const RunLog run = run_in(folder);
  BOOST_TEST(samples_html(run, 700'000).empty());
  std::filesystem::create_directory(run.path + "/samples");
  std::ofstream(run.path + "/samples/step-000000001.txt") << std::string(1'000'000, '<');
  picture(run.path + "/samples/step-000000002.png", 100);
  const std::string html = samples_html(run, 700'000);
  BOOST_TEST(count_of(html, "<figure>") == 2u);
  BOOST_TEST(count_of(html, "&lt;") == 4'000u);
  BOOST_TEST(html.find("samples:") == html.npos);
}

BOOST_AUTO_TEST_CASE(parts_are_text_and_cannot_become_html) {
  Table table({"a<b", "n"});
  table.add({{"<script>"}, cell(1234.5)});
  const std::string html = table.to_html();
  BOOST_TEST(html.find("<script>") == html.npos);
  BOOST_TEST(html.find("a&lt;b") != html.npos);
  BOOST_TEST(html.find("data-v=\"1234.5\">1,235<") != html.npos);
  BOOST_TEST(cut("grün", 3) == "gr...");  // not within the letter of two bytes
  BOOST_TEST(cut("grün", 5) == "grün");
  BOOST_TEST(whole(-1234567) == "-1,234,567");
  BOOST_TEST(whole(-123) == "-123");
  BOOST_TEST(section("Empty", "").empty());
}

BOOST_AUTO_TEST_CASE(another_file_is_not_replaced_by_a_page) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string() + "/page.html";
  std::ofstream(path) << "<!DOCTYPE html>\nmine\n";
  BOOST_CHECK_THROW(check_page(path), UsageError);
  BOOST_CHECK_THROW(write_page(path, "x"), UsageError);
  std::filesystem::remove(path);
  write_page(path, to_html(Page{.title = "one", .lead = "", .body = "", .footer = ""}));
  write_page(path, to_html(Page{.title = "two", .lead = "", .body = "", .footer = ""}));
  BOOST_CHECK_THROW(check_page(folder.path().string() + "/nowhere/page.html"), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
