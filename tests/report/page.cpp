// Documents of runs and of results of benches, and that no run makes a page of more than 2 MB.
#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "report/report.h"
#include "support/page_data.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(page)

using namespace report;

std::string page_of(std::span<const RunLog> runs) { return to_html(document_of(runs)); }

/// The first part of this kind in the section, or null.
json part_of(const json& document, std::string_view section, const char* kind) {
  for (const json& one : document["sections"]) {
    if (one["title"] != section) continue;
    for (const json& part : one["parts"])
      if (part.contains(kind)) return part[kind];
  }
  return {};
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
  BOOST_TEST(page.size() < max_page_bytes);
  const json charts = part_of(data_of(page), "Curves", "charts")["charts"];
  BOOST_TEST(charts.size() == 15u);
  double greatest = 0;
  for (const json& curve : charts[0]["curves"]) {
    BOOST_TEST(curve["x"].size() <= max_points);
    for (const double value : drawn(curve).y) greatest = std::max(greatest, value);
  }
  BOOST_TEST(greatest == 77.5, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(a_page_of_many_runs_is_small) {
  for (const auto& [count, metrics] : {std::pair{50, 15}, {600, 15}}) {
    std::vector<RunLog> runs;
    for (int r = 0; r < count; ++r) {
      runs.push_back(long_run("run-" + std::to_string(r), 2'000, metrics));
      runs.back().config = {{"optimizer.lr", std::to_string(r)}, {"data.train", std::string(50'000, 'x')}};
    }
    const std::string page = page_of(runs);
    BOOST_TEST(page.size() < max_page_bytes);
    BOOST_TEST(page.find("Training loss") != page.npos);
    if (count == 50) BOOST_TEST(part_of(data_of(page), "Runs", "table")["runs"].size() == 50u);
    if (count == 600) BOOST_TEST(page.find("Shows the best 400 of 600 runs.") != page.npos);
  }
}

BOOST_AUTO_TEST_CASE(a_page_of_a_run_with_thousands_of_events_is_small) {
  RunLog run = long_run("restless", 5'000, 30);
  for (int e = 0; e < 5'000; ++e)
    run.events.push_back({RunEvent::Kind::slow_rank, e, "2026-01-01T00:00:00Z", std::string(2'000, 'y')});
  const std::string page = page_of({&run, 1});
  BOOST_TEST(page.size() < max_page_bytes);
  BOOST_TEST(page.find("Shows the first 200 of 5000 events.") != page.npos);
}

BOOST_AUTO_TEST_CASE(every_start_but_the_first_is_a_restart) {
  using Kind = RunEvent::Kind;
  RunLog run = long_run("killed", 10, 1);
  const auto restarts = [&](std::initializer_list<Kind> starts) {
    run.events.clear();
    for (const Kind kind : starts) run.events.push_back({kind, 0, "", ""});
    int found = 0;
    for (const auto& [name, value] : document_of({&run, 1})["facts"].get<Pairs>())
      if (name == "restarts") found = std::stoi(value);
    return found;
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
  const json table = part_of(document_of(runs), "Runs", "table");
  BOOST_TEST(
      table["columns"].dump() ==
      R"(["run","loss","eval_loss","eval_accuracy","step_ms","optimizer.lr","state","step","ranks","restarts"])");
  BOOST_TEST(table["rows"][0][5] == "a");
  BOOST_TEST(table["rows"][0][2] == 1);
}

/// What its script draws.
json page_data(std::span<const RunLog> runs) { return data_of(page_of(runs)); }

/// The chart of this title, or null.
json chart_of(const json& document, std::string_view title) {
  const json charts = part_of(document, "Curves", "charts")["charts"];
  for (const json& chart : charts)
    if (chart["title"] == title) return chart;
  return {};
}

using Labels = std::vector<std::string>;

Labels labels_in(const json& chart) {
  Labels labels;
  for (const json& one : chart["curves"]) labels.push_back(one["label"]);
  return labels;
}

BOOST_AUTO_TEST_CASE(the_table_of_runs_begins_with_the_best_and_ends_with_what_failed) {
  std::vector<RunLog> runs{long_run("worse", 10, 1), long_run("refused", 0, 0), long_run("better", 10, 1)};
  runs[0].series.push_back({.name = "eval_accuracy", .steps = {10}, .values = {0.5}});
  runs[2].series.push_back({.name = "eval_accuracy", .steps = {10}, .values = {0.75}});
  for (RunLog& run : runs) run.config = {{"checkpoint.keep_best", "eval_accuracy"}};
  runs[1].config.clear();
  runs[1].series.clear();
  runs[1].ending = {.code = ExitCode::data, .why = "no such file"};
  const json document = page_data(runs), table = part_of(document, "Runs", "table");
  BOOST_TEST(document["lead"] == "Best: better, eval_accuracy 0.75. Ordered by eval_accuracy.");
  BOOST_TEST(table["rows"][0][0] == "better (best)");
  BOOST_TEST(table["rows"][1][0] == "worse");
  BOOST_TEST(table["rows"][2].dump().find("failed, exit code 3: no such file") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(training_and_evaluation_loss_share_a_chart_of_up_to_three_runs) {
  std::vector<RunLog> runs(4, long_run("r", 10, 1));
  for (std::size_t r = 0; r < runs.size(); ++r) {
    runs[r].name = "r" + std::to_string(r);
    runs[r].series.push_back({.name = "eval_ema_0.9_loss", .steps = {10}, .values = {1}});
    runs[r].series.push_back({.name = "eval_loss", .steps = {10}, .values = {1}});
  }
  BOOST_TEST((labels_in(chart_of(page_data({runs.data(), 1}), "Loss")) ==
              Labels{"training", "evaluation", "evaluation, EMA 0.9"}));
  BOOST_TEST((labels_in(chart_of(page_data({runs.data(), 2}), "Loss")) ==
              Labels{"r0", "r0, evaluation", "r0, evaluation, EMA 0.9", "r1", "r1, evaluation",
                     "r1, evaluation, EMA 0.9"}));
  const json four = page_data(runs);
  BOOST_TEST(chart_of(four, "Training loss")["curves"].size() == 4u);
  BOOST_TEST(chart_of(four, "Evaluation: loss")["curves"].size() == 8u);
  const RunLog plain = long_run("plain", 10, 1);
  BOOST_TEST((labels_in(chart_of(page_data({&plain, 1}), "Training loss")) == Labels{"loss"}));
}

BOOST_AUTO_TEST_CASE(metrics_of_classes_are_curves_of_one_chart) {
  RunLog run = long_run("classes", 10, 1);
  for (int k = 0; k < 10; ++k)
    run.series.push_back(
        {.name = "eval_accuracy_class_" + std::to_string(k), .steps = {10}, .values = {k / 10.0}});
  const json chart = chart_of(page_data({&run, 1}), "Evaluation: accuracy by class");
  BOOST_TEST(chart["curves"].size() == 10u);
  BOOST_TEST(labels_in(chart).back() == "class 9");  // above the others
  const json facts = document_of({&run, 1})["facts"];
  BOOST_TEST(facts.dump().find("class_") == std::string::npos);
  BOOST_TEST(chart["linear"] == true);
}

BOOST_AUTO_TEST_CASE(only_a_metric_that_is_better_when_higher_and_bounded_by_1_has_a_linear_axis) {
  RunLog run = long_run("linear", 10, 1);
  for (const auto& [name, value] : {std::pair{"eval_r2", 0.98}, {"eval_rmse", 0.1}, {"eval_accuracy_sum", 7.0}})
    run.series.push_back({.name = name, .steps = {5, 10}, .values = {0.001, value}});
  const json document = page_data({&run, 1});
  BOOST_TEST(chart_of(document, "Evaluation: r2")["linear"] == true);
  BOOST_TEST(!chart_of(document, "Evaluation: rmse").value("linear", false));
  BOOST_TEST(!chart_of(document, "Evaluation: accuracy_sum").value("linear", false));
  add_lines(run, R"({"start":"new","step":0,"higher_is_better":[]})");
  BOOST_TEST(!chart_of(page_data({&run, 1}), "Evaluation: r2").value("linear", false));
}

BOOST_AUTO_TEST_CASE(runs_are_named_by_what_differs_and_not_by_what_was_measured) {
  std::vector<RunLog> runs(3, long_run("r", 10, 1));
  for (std::size_t r = 0; r < runs.size(); ++r) {
    runs[r].name = std::to_string(r);
    runs[r].config = {{"optimizer.lr", fmt::format("0.{}", r)},
                      {"checkpoint.every", std::to_string(3'441'709 + r)},
                      {"model.depth", r == 2 ? "8" : "4"}};
  }
  BOOST_TEST((labels_of(runs) == Labels{"depth 4, lr 0.0", "depth 4, lr 0.1", "depth 8, lr 0.2"}));
  const json columns = part_of(page_data(runs), "Runs", "table")["columns"];
  BOOST_TEST(std::ranges::count(columns, json("checkpoint.every")) == 0);
  for (RunLog& run : runs) run.config = {{"checkpoint.every", run.name}};
  BOOST_TEST((labels_of(runs) == Labels{"every 0", "every 1", "every 2"}));  // nothing else differs
  for (RunLog& run : runs) run.config = {{"optimizer.lr", run.name == "0" ? "1" : "2"}};
  BOOST_TEST((labels_of(runs) == Labels{"0", "1", "2"}));  // two have the same
  for (RunLog& run : runs)
    run.config = {{"a.a", run.name}, {"a.b", run.name}, {"a.c", run.name}, {"a.d", run.name}};
  BOOST_TEST((labels_of(runs) == Labels{"0", "1", "2"}));  // too much differs
}

BOOST_AUTO_TEST_CASE(keys_with_their_default_values_are_apart_from_the_others) {
  RunLog run = long_run("keys", 10, 1);
  run.config = {{"optimizer.lr", "0.1"}, {"optimizer.eps", "1e-08"}, {"model.mine", "3"}};
  const auto parts = [&] {
    json found;
    const json document = page_data({&run, 1});
    for (const json& one : document["sections"])
      if (one["title"] == "Configuration") found = one["parts"];
    return found;
  };
  BOOST_TEST(parts().size() == 1u);  // an older run does not say which keys were set
  add_lines(run, R"({"start":"new","step":0,"settings":{"optimizer.lr":"0.1","model.mine":"3"}})");
  const json found = parts();
  BOOST_REQUIRE(found.size() == 3u);
  BOOST_TEST(found[0]["columns"].dump() ==
             R"([{"keys":[["lr","0.1"]],"title":"optimizer"},{"keys":[["mine","3"]],"title":"model"}])");
  BOOST_TEST(found[1]["heading"] == "Keys with their default values");
  BOOST_TEST(found[2]["columns"].dump() == R"([{"keys":[["eps","1e-08"]],"title":"optimizer"}])");
}

BOOST_AUTO_TEST_CASE(times_of_steps_are_there_for_an_axis_of_time_unless_the_run_is_too_short) {
  RunLog run = long_run("timed", 10, 1);
  run.times = {.name = "time", .steps = {0, 5, 10}, .values = {0, 60, 600}};
  run.duration_s = 3'723;
  const json document = page_data({&run, 1});
  BOOST_TEST(part_of(document, "Curves", "charts")["times"].dump() ==
             R"([{"seconds":[0.0,60.0,600.0],"steps":[0.0,5.0,10.0]}])");
  BOOST_TEST((document["facts"].get<Pairs>()[2] == std::pair<std::string, std::string>("duration", "1:02:03")));
  run.times.values = {0, 1, 2};
  BOOST_TEST(part_of(page_data({&run, 1}), "Curves", "charts")["times"].is_null());
}

BOOST_AUTO_TEST_CASE(an_evaluation_shows_its_confusion_matrix_and_a_damaged_one_is_none) {
  const json values = json::parse(
      R"({"weights":"model","step":1,"samples":3,"loss":0.5,"classes":["a","b"],"confusion":[[2,0],[1,0]]})");
  const Result result{"e.json", values};
  BOOST_TEST(is_evaluation(result));
  const std::vector<json> parts = evaluations_of({&result, 1});
  BOOST_TEST(parts[0]["heading"] == "e.json");
  BOOST_TEST(parts[2]["table"]["columns"].dump() == R"(["class","samples","accuracy","as a","as b"])");
  BOOST_TEST(parts[2]["table"]["rows"].dump() == R"([["a",2,1.0,2,0],["b",1,0.0,1,0]])");
  for (const char* const change :
       {R"({"confusion":[[2,0]]})", R"({"confusion":[[2],[1]]})", R"({"confusion":[[2,0],[1,"x"]]})",
        R"({"classes":["a"]})", R"({"classes":[1,2]})", R"({"confusion":1})", R"({"weights":1})",
        R"({"samples":"3"})", R"({"confusion":[[2,-1],[1,0]]})"}) {
    Result damaged = result;
    damaged.values.update(json::parse(change));
    BOOST_TEST(!is_evaluation(damaged), change);
  }
  BOOST_TEST(!is_evaluation({"x.json", json()}));
  BOOST_TEST(!is_evaluation({"x.json", json::array()}));
}

BOOST_AUTO_TEST_CASE(restarts_are_marked_once_for_all_curves) {
  RunLog run = long_run("resumed", 10, 3);
  run.events.push_back({RunEvent::Kind::resumed, 6, "", "on 2 ranks"});
  const json charts = part_of(data_of(page_of({&run, 1})), "Curves", "charts");
  BOOST_TEST(charts["marks"].dump() == R"([{"kind":"resumed","text":"resumed: on 2 ranks","x":6}])");
  BOOST_TEST(charts["charts"].size() == 3u);
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
  std::vector<json> parts = samples_of(run, 700'000);
  BOOST_TEST(json(parts).dump().size() < 700'000u);
  const json strip = parts[0]["strip"];
  BOOST_TEST(strip.size() > 10u);
  BOOST_TEST(parts[1]["note"] ==
             fmt::format("Shows {} of 300 samples, to limit the size of the page.", strip.size()));
  BOOST_TEST(strip.front()["name"] == "step-000000000");  // the oldest and the newest
  BOOST_TEST(strip.back()["name"] == "step-000000299");

  parts = samples_of(run, 50'000);  // room for one: the newest
  BOOST_TEST(parts[0]["strip"].size() == 1u);
  BOOST_TEST(parts[0]["strip"][0]["name"] == "step-000000299");
  parts = samples_of(run, 10'000);
  BOOST_TEST(parts.size() == 1u);
  BOOST_TEST(parts[0]["note"] == "Shows 0 of 300 samples, to limit the size of the page.");
}

BOOST_AUTO_TEST_CASE(a_few_samples_are_all_shown_and_long_texts_cut) {
  const TemporaryFolder folder;
  const RunLog run = run_in(folder);
  BOOST_TEST(samples_of(run, 700'000).empty());
  std::filesystem::create_directory(run.path + "/samples");
  std::ofstream(run.path + "/samples/step-000000001.txt") << std::string(1'000'000, '<');
  picture(run.path + "/samples/step-000000002.png", 100);
  const std::vector<json> parts = samples_of(run, 700'000);
  BOOST_TEST(parts[0]["strip"].size() == 2u);
  BOOST_TEST(parts[0]["strip"][0]["text"] == std::string(4'000, '<') + "...");
  BOOST_TEST(parts[0]["strip"][1]["png"].get<std::string>().starts_with("iVBORw0KG"));
  BOOST_TEST((parts.size() == 1 || parts[1].is_null()));
}

BOOST_AUTO_TEST_CASE(results_of_benches_are_drawn_as_they_are) {
  const Result one{"a/1.json",
                   json::parse(R"({"model":"m","ranks":1,"samples_per_second":10,"step_ms":2.5})")};
  const Result two{"2.json", json::parse(R"({"model":"m","ranks":2,"samples_per_second":19,"step_ms":2.6})")};
  const json alone = document_of(std::vector{one}), together = document_of(std::vector{one, two});
  BOOST_TEST(part_of(alone, "Results", "results") == json::array({one.values}));
  const json results = part_of(together, "Results", "results");
  BOOST_TEST(results[0]["file"] == "1.json");
  BOOST_TEST(results[1]["samples_per_second"] == 19);
  for (const char* const rows :
       {R"({"rows":[{"bytes":4,"ranks":1,"lockstep_ms":0.1,"mpi_ms":null}]})",
        R"({"rows":[{"mode":"flat","step_ms":1,"compute_ms":1,"critical_path_ms":1}]})",
        R"({"model":"m","operations":[{"name":"add","calls":1,"ms":1,"gb_s":1}]})",
        R"({"ranks":1,"write_mb_s":1,"raw_mb_s":1})"})
    BOOST_CHECK_NO_THROW(document_of(std::vector<Result>{{"x.json", json::parse(rows)}}));
}

BOOST_AUTO_TEST_CASE(what_no_bench_prints_is_refused_by_its_name) {
  for (const char* const text :
       {"1", "[]", "{}", R"({"rows": 1})", R"({"rows": []})", R"({"rows": [1]})", R"({"lines": "x"})",
        R"({"model":"m","ranks":0,"samples_per_second":1,"step_ms":1})",
        R"({"model":"m","ranks":"2","samples_per_second":1,"step_ms":1})",
        R"({"model":"m","ranks":2,"samples_per_second":1e305,"step_ms":1})",
        R"({"model":1,"ranks":2,"samples_per_second":1,"step_ms":1})",
        R"({"rows":[{"bytes":4,"ranks":1,"lockstep_ms":1},{"bytes":4,"ranks":1}]})"}) {
    const Result result{"wrong.json", json::parse(text)};
    BOOST_CHECK_EXCEPTION(document_of({&result, 1}), DataError, [](const DataError& error) {
      return std::string(error.what()).starts_with("wrong.json: is not a result that lockstep bench --json printed");
    });
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
