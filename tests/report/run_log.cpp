// The reader of a run's files: what is torn, missing or not ours does not stop it.
#include "report/run_log.h"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(run_log)

using namespace report;
using Kind = RunEvent::Kind;

BOOST_AUTO_TEST_CASE(lines_become_series_and_events) {
  RunLog run;
  add_lines(run, R"({"start":"new","step":0,"time":"t0","ranks":2,"nodes":1,"version":"1.0","changes":{}})"
                 "\n"
                 R"({"step":10,"loss":0.5,"rank_compute_ms":[1.5,2.5],"time":"t1"})"
                 "\n"
                 R"({"step":10,"eval_loss":0.25,"time":"t2"})"
                 "\n"
                 R"({"step":10,"event":"preempted","note":"saved","time":"t3"})"
                 "\n"
                 R"({"start":"resumed","step":10,"ranks":4,"nodes":2,"time":"t4",)"
                 R"("changes":{"optimizer.lr":{"from":"1","to":"2"}}})"
                 "\n"
                 R"({"step":20,"loss":0.125,"rank_compute_ms":{"max":4.5},"time":"t5"})"
                 "\n");
  BOOST_TEST(run.lines == 6);
  BOOST_TEST(run.last_step == 20);
  BOOST_TEST(run.ranks == 4);
  BOOST_TEST(run.first_time == "t0");
  BOOST_TEST(run.last_time == "t5");
  const Series* const loss = run.find("loss");
  BOOST_REQUIRE(loss);
  const std::vector<double> steps{10, 20}, values{0.5, 0.125};
  BOOST_TEST(loss->steps == steps, boost::test_tools::per_element());
  BOOST_TEST(loss->values == values, boost::test_tools::per_element());
  BOOST_REQUIRE(run.find("rank_compute_ms[1]"));
  BOOST_TEST(run.find("rank_compute_ms[1]")->values.at(0) == 2.5);
  BOOST_REQUIRE(run.find("rank_compute_ms[max]"));
  BOOST_TEST(run.find("rank_compute_ms[max]")->values.at(0) == 4.5);
  BOOST_REQUIRE(run.events.size() == 3U);
  BOOST_TEST((run.events[1].kind == Kind::preempted));
  BOOST_TEST((run.events[2].kind == Kind::resumed));
  BOOST_TEST(run.events[2].text == "4 ranks; optimizer.lr = 2 (was 1)");
}

BOOST_AUTO_TEST_CASE(the_duration_is_that_of_the_starts_without_the_time_between_them) {
  RunLog run;
  add_lines(run, R"({"start":"new","step":0,"time":"2026-11-28T10:00:00Z"})"
                 "\n"
                 R"({"step":10,"loss":0.5,"time":"2026-11-28T10:01:00Z"})"
                 "\n"
                 R"({"start":"resumed","step":10,"time":"2026-11-29T10:00:00Z"})"
                 "\n"
                 R"({"step":20,"loss":0.5,"time":"2026-11-29T10:00:30Z"})"
                 "\n"
                 R"({"step":30,"loss":0.5,"time":"2026-11-29T09:00:00Z"})"  // a clock that was set back
                 "\n"
                 R"({"step":40,"loss":0.5,"time":"soon"})"
                 "\n");
  BOOST_TEST(run.duration_s == 90);
  const std::vector<double> steps{0, 10, 10, 20, 30}, seconds{0, 60, 86'400, 86'430, 86'430};
  BOOST_TEST(run.times.steps == steps, boost::test_tools::per_element());
  BOOST_TEST(run.times.values == seconds, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(torn_and_foreign_lines_are_counted_and_left_out) {
  RunLog run;
  add_lines(run,
            "{\"step\":1,\"loss\":2}\nnot "
            "json\n[1]\n{\"step\":\"x\"}\n\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"lo");
  BOOST_TEST(run.lines == 2);
  BOOST_TEST(run.unreadable_lines == 4);
  BOOST_REQUIRE(run.find("loss"));
  BOOST_TEST(run.find("loss")->values.size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_line_of_metrics_is_an_object_with_a_step) {
  BOOST_TEST(parse_metrics_line(R"({"step":3,"loss":null})").has_value());
  for (const char* const other :
       {"", "{", "[1]", "{}", R"({"step":"3"})", R"({"step":1.5})", R"({"step":3} x)"})
    BOOST_TEST(!parse_metrics_line(other).has_value(), other);
}

BOOST_AUTO_TEST_CASE(the_best_value_of_a_metric_is_by_its_direction_which_the_run_says) {
  const auto best_of = [](const std::string& start, const char* metric) {
    RunLog run;
    add_lines(run, start + "\n" + R"({"step":1,"eval_f1":0.5,"eval_accuracy":0.5,"eval_loss":0.5,"loss":3})" +
                       "\n" + R"({"step":2,"eval_f1":0.25,"eval_accuracy":0.75,"eval_loss":0.75,"loss":4})" +
                       "\n" + R"({"step":2,"eval_err2":2})" + "\n" + R"({"step":3,"eval_err2":1})");
    return summary_of(run, *run.find(metric));
  };
  const std::string says = R"({"start":"new","step":0,"higher_is_better":["eval_f1"]})", silent = "";
  BOOST_TEST(best_of(says, "eval_f1") == 0.5);
  BOOST_TEST(best_of(silent, "eval_f1") == 0.25);
  BOOST_TEST(best_of(silent, "eval_accuracy") == 0.75);
  BOOST_TEST(best_of(silent, "eval_loss") == 0.5);
  BOOST_TEST(best_of(silent, "loss") == 4);  // the last one
  BOOST_TEST(best_of(R"({"start":"new","step":0,"higher_is_better":[]})", "eval_err2") == 1);
  BOOST_TEST(best_of(says, "eval_accuracy") == 0.5);  // names count only if the run says nothing
}

BOOST_AUTO_TEST_CASE(runs_are_ranked_by_keep_best_with_those_without_a_value_and_failed_ones_last) {
  const auto run = [](const char* line, ExitCode code = ExitCode::done) {
    RunLog log;
    add_lines(log, line);
    log.config = {{"checkpoint.keep_best", "eval_accuracy"}};
    log.ending = {.code = code};
    return log;
  };
  std::vector<RunLog> runs{run(R"({"step":1,"eval_accuracy":0.9,"eval_loss":1})", ExitCode::training),
                           run(R"({"step":1,"loss":0.1})"),
                           run(R"({"step":1,"eval_accuracy":0.5,"eval_loss":1})"),
                           run(R"({"step":1,"eval_accuracy":0.7,"eval_loss":2})")};
  using Order = std::vector<std::size_t>;
  BOOST_TEST((rank(runs).order == Order{3, 2, 1, 0}));
  BOOST_TEST(rank(runs).metric == "eval_accuracy");
  BOOST_TEST(rank(runs).has_best);
  BOOST_TEST((rank(runs, "eval_loss").order == Order{2, 3, 1, 0}));
  for (RunLog& one : runs) one.config.clear();
  BOOST_TEST(rank(runs).metric == "eval_loss");
  BOOST_TEST((rank(runs, "loss").order[0] == 1));
  BOOST_TEST(!rank({runs.data(), 1}).has_best);  // it has failed
  BOOST_TEST(rank(runs, "eval_los").metric.empty());
  BOOST_TEST(!rank({}).has_best);
}

BOOST_AUTO_TEST_CASE(keys_that_differ_are_those_that_users_set) {
  const auto run = [](const char* config) {
    RunLog log;
    log.config = keys_of_ini(config);
    return log;
  };
  const std::vector<RunLog> runs{run(""), run("[optimizer]\nlr = 1\n[checkpoint]\nevery = 5\n"),
                                 run("[optimizer]\nlr = 2\n[checkpoint]\nevery = 6\n")};
  const std::set<std::string> lr{"optimizer.lr"}, every{"checkpoint.every"};
  BOOST_TEST(
      (different_keys(runs) == lr));  // not what was measured for auto, nor a run without a configuration
  const std::vector<RunLog> others{run("[checkpoint]\nevery = 5\n"), run("[checkpoint]\nevery = 6\n")};
  BOOST_TEST((different_keys(others) == every));
  std::vector<RunLog> told = others;
  for (RunLog& one : told) one.user_keys = {"optimizer.lr"};
  BOOST_TEST(different_keys(told).empty());
  told = runs;
  for (RunLog& one : told) one.user_keys = {"optimizer.lr", "checkpoint.every"};
  BOOST_TEST((different_keys(told) == std::set<std::string>{"optimizer.lr", "checkpoint.every"}));
  BOOST_TEST(different_keys({}).empty());
}

BOOST_AUTO_TEST_CASE(keys_have_the_names_of_their_sections) {
  const auto keys = keys_of_ini("# a comment\n[train]\nsteps = 600\n[data]\n train = a.h5 b.h5 \nempty =\n");
  BOOST_REQUIRE(keys.size() == 3U);
  BOOST_TEST(keys[0].first == "train.steps");
  BOOST_TEST(keys[0].second == "600");
  BOOST_TEST(keys[1].second == "a.h5 b.h5");
  BOOST_TEST(keys[2].second == "");
}

BOOST_AUTO_TEST_CASE(a_directory_without_files_of_a_run_is_refused_and_a_partial_run_is_read) {
  const TemporaryFolder folder;
  const std::filesystem::path root = folder.path() / "a-run";
  BOOST_CHECK_THROW(read_run(root.string()), DataError);
  std::filesystem::create_directories(root);
  BOOST_CHECK_THROW(read_run(root.string()), DataError);
  std::ofstream(root / "metrics.jsonl").close();
  const RunLog empty = read_run(root.string() + "/");
  BOOST_TEST(empty.name == "a-run");
  BOOST_TEST(empty.series.empty());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
