// The timeline: one trace file in which every rank's spans and every bucket of every step are.
#include "lockstep/ddp/timeline.h"

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "checkpoint/sample.h"
#include "ddp/training.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(timeline, *ranks(1, 2, 3, 4))

using Json = nlohmann::json;

/// The file, read by every rank after it was written.
Json read(const std::string& path) {
  world().barrier();
  return Json::parse(std::ifstream(path));
}

constexpr double rounding_us = 0.2;  // of the file's numbers

struct Span {
  double start_us, end_us;
};

/// Of one rank, by row and name, in the order of time.
using Spans = std::map<std::pair<int, std::string>, std::vector<Span>>;

Spans spans_of(const Json& trace, int rank, std::int64_t step) {
  Spans spans;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("pid") != rank || event.at("args").at("step") != step) continue;
    const double start = event.at("ts").get<double>(), duration = event.at("dur").get<double>();
    if (start < 0 || duration < 0) BOOST_ERROR("a span runs backwards: " << event);
    spans[{event.at("tid").get<int>(), event.at("name").get<std::string>()}].push_back(
        {start, start + duration});
  }
  return spans;
}

BOOST_AUTO_TEST_CASE(every_rank_step_pass_and_bucket_has_its_spans_in_one_file) {
  const SharedFolder folder(world());
  constexpr int pieces = 2;
  ToyRun run(tiny({.shards = world().size() + 1, .micro_batches = pieces}));
  ddp::Timeline timeline(folder.file("trace.json"), world());
  run.step(0);  // before recording
  run.replicas.record(&timeline);
  run.step(1);
  run.step(2);
  run.replicas.record(nullptr);
  run.step(3);
  BOOST_TEST(timeline.write() == 0);
  const Json trace = read(folder.file("trace.json"));

  std::set<int> ranks;
  for (const Json& event : trace.at("traceEvents")) {
    ranks.insert(event.at("pid").get<int>());
    if (event.at("ph") == "M" && event.at("name") == "process_name")
      BOOST_TEST(event.at("args").at("name") == fmt::format("rank {}", event.at("pid").get<int>()));
  }
  BOOST_TEST(static_cast<int>(ranks.size()) == world().size());

  for (int rank = 0; rank < world().size(); ++rank) {
    BOOST_TEST(spans_of(trace, rank, 0).empty());
    BOOST_TEST(spans_of(trace, rank, 3).empty());
    for (const std::int64_t step : {1, 2}) {
      const Spans spans = spans_of(trace, rank, step);
      const auto of = [&](int row, const std::string& name) {
        const auto found = spans.find({row, name});
        return found == spans.end() ? std::vector<Span>{} : found->second;
      };
      const auto whole = of(ddp::Timeline::steps, "step");
      BOOST_TEST_REQUIRE(whole.size() == 1u);
      for (const auto& [key, of_row] : spans) {
        for (const Span& span : of_row) {
          BOOST_TEST(span.start_us >= whole[0].start_us - rounding_us, key.second);
          BOOST_TEST(span.end_us <= whole[0].end_us + rounding_us, key.second);
        }
      }
      const std::size_t passes =
          pieces * static_cast<std::size_t>(run.replicas.shard_map().block(rank).count);
      const auto forward = of(ddp::Timeline::compute, "forward");
      const auto backward = of(ddp::Timeline::compute, "backward");
      BOOST_TEST_REQUIRE(forward.size() == passes);
      BOOST_TEST_REQUIRE(backward.size() == passes);
      for (std::size_t pass = 0; pass < passes; ++pass) {
        BOOST_TEST(forward[pass].end_us <= backward[pass].start_us + rounding_us);
        if (pass > 0) BOOST_TEST(backward[pass - 1].end_us <= forward[pass].start_us + rounding_us);
      }
      const int buckets = static_cast<int>(run.replicas.plan().buckets().size());
      for (int bucket = 0; bucket < buckets; ++bucket) {
        const int row = ddp::Timeline::buckets + bucket;
        const auto waits = of(row, "waits for its turn"), sums = of(row, "sum");
        BOOST_TEST_REQUIRE(sums.size() == 1u);
        BOOST_TEST_REQUIRE(waits.size() == 1u);
        BOOST_TEST(waits[0].end_us <= sums[0].start_us + rounding_us);
        if (bucket > 0) BOOST_TEST(of(row - 1, "sum")[0].start_us <= sums[0].start_us + rounding_us);
      }
      BOOST_TEST((spans.lower_bound({ddp::Timeline::buckets + buckets, ""}) == spans.end()));
    }
    // Steps follow one another.
    BOOST_TEST(spans_of(trace, rank, 1).at({ddp::Timeline::steps, "step"})[0].end_us <=
               spans_of(trace, rank, 2).at({ddp::Timeline::steps, "step"})[0].start_us + rounding_us);
  }
}

BOOST_AUTO_TEST_CASE(ranks_of_one_machine_share_a_clock) {
  // Nobody leaves a step before everybody has entered it: the header needs all.
  const SharedFolder folder(world());
  ToyRun run(tiny({.shards = world().size() + 1}));
  ddp::Timeline timeline(folder.file("trace.json"), world());
  run.replicas.record(&timeline);
  for (std::uint64_t step = 0; step < 3; ++step) run.step(step);
  timeline.write();
  const Json trace = read(folder.file("trace.json"));
  for (const std::int64_t step : {0, 1, 2}) {
    double last_start = 0, first_end = 1e300;
    for (int rank = 0; rank < world().size(); ++rank) {
      const Span span = spans_of(trace, rank, step).at({ddp::Timeline::steps, "step"}).at(0);
      last_start = std::max(last_start, span.start_us);
      first_end = std::min(first_end, span.end_us);
    }
    BOOST_TEST(last_start <= first_end + rounding_us);
  }
}

BOOST_AUTO_TEST_CASE(a_trace_may_be_written_again_and_replaces_the_one_before) {
  const SharedFolder folder(world());
  ToyRun run(tiny({.shards = world().size() + 1}));
  ddp::Timeline timeline(folder.file("trace.json"), world());
  run.replicas.record(&timeline);
  run.step(0);
  timeline.write();
  const std::size_t before = read(folder.file("trace.json")).at("traceEvents").size();
  world().barrier();
  run.step(1);
  timeline.write();
  BOOST_TEST(read(folder.file("trace.json")).at("traceEvents").size() > before);
  // Nothing else is left in the folder.
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  BOOST_TEST(files == 1u);
}

BOOST_AUTO_TEST_CASE(spans_beyond_the_room_are_counted_and_not_kept) {
  const SharedFolder folder(world());
  ddp::Timeline timeline(folder.file("trace.json"), world());
  const double now_s = monotonic_s();
  if (world().rank() == 0) {
    for (std::size_t i = 0; i < ddp::Timeline::max_spans + 7; ++i)
      timeline.add("span", ddp::Timeline::compute, 0, now_s, now_s + 1e-6);
  }
  BOOST_TEST(timeline.write() == 7);  // on every rank
  std::ifstream file(folder.file("trace.json"));
  std::size_t kept = 0;
  for (std::string line; std::getline(file, line);) kept += contains(line, "\"name\":\"span\"");
  BOOST_TEST(kept == ddp::Timeline::max_spans);
  world().barrier();
}

BOOST_AUTO_TEST_CASE(a_trace_that_cannot_be_written_is_the_same_error_on_all_ranks) {
  const SharedFolder folder(world());
  std::string text;
  try {
    ddp::Timeline timeline(folder.file("absent/trace.json"), world());
    timeline.write();
  } catch (const Error& error) {
    text = error.what();
  }
  BOOST_TEST(contains(text, "absent/trace.json"));
  for (const std::string& theirs : world().all_gather_texts(text)) BOOST_TEST(theirs == text);
}

BOOST_AUTO_TEST_CASE(a_file_that_is_no_trace_is_never_replaced) {
  const SharedFolder folder(world());
  const std::string path = folder.file("data.h5");
  if (world().rank() == 0) std::ofstream(path) << "somebody's data";
  world().barrier();
  same_error(ExitCode::usage, [&] { ddp::Timeline timeline(path, world()); });
  same_error(ExitCode::usage, [&] { ddp::Timeline timeline(folder.file("nowhere/trace.json"), world()); });
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  BOOST_TEST(line == "somebody's data");
  world().barrier();
}

BOOST_AUTO_TEST_CASE(a_pipe_in_the_place_of_a_trace_is_refused_and_not_waited_for) {
  const SharedFolder folder(world());
  const std::string path = folder.file("pipe");
  if (world().rank() == 0) BOOST_REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  same_error(ExitCode::usage, [&] { ddp::Timeline timeline(path, world()); });
}

BOOST_AUTO_TEST_CASE(a_trace_of_nothing_leaves_the_one_before) {
  const SharedFolder folder(world());
  const std::string path = folder.file("trace.json");
  {
    ddp::Timeline timeline(path, world());
    timeline.add("span", ddp::Timeline::compute, 0, monotonic_s(), monotonic_s());
    timeline.write();
  }
  ddp::Timeline(path, world()).write();
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  BOOST_TEST(contains(text, "span"));
  world().barrier();
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
