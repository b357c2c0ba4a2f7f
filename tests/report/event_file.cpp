// Event files: what a run that continues keeps of earlier starts.
#include "report/event_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(event_file)

using namespace report;

Event scalar(std::int64_t step, const std::string& tag = "loss") {
  Event event(step);
  event.add_scalar(tag, static_cast<double>(step));
  return event;
}

std::vector<std::string> files_of(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    paths.push_back(entry.path().string());
  std::ranges::sort(paths);
  return paths;
}

struct Start {
  std::int64_t restart = -1;  // the step that the file says to forget from; -1: it says nothing
  std::vector<std::int64_t> steps;
  bool whole = true;
};

Start read(const std::string& path) {
  Start start;
  const OpenFile file(path, OpenFile::Mode::read);
  RecordReader records(file);
  BOOST_TEST(records.next().has_value());  // the version
  while (const auto record = records.next()) {
    const EventView event(*record);
    if (event.has_values)
      start.steps.push_back(event.step);
    else
      start.restart = event.step;
  }
  start.whole = records.position() == file.size();
  return start;
}

using Steps = std::vector<std::int64_t>;

BOOST_AUTO_TEST_CASE(a_new_run_has_one_file_that_starts_with_its_version) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("run/tensorboard");
  EventFile file(directory, {});
  file.append(scalar(1));
  file.append(Event(2));  // nothing
  file.append(scalar(3));
  BOOST_REQUIRE(files_of(directory) == std::vector<std::string>{file.path()});
  const Start start = read(file.path());
  BOOST_TEST(start.restart == -1);
  BOOST_TEST(start.steps == (Steps{1, 3}));
  BOOST_TEST(start.whole);
}

BOOST_AUTO_TEST_CASE(an_event_of_an_earlier_start_is_found_by_its_step_and_tag) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("tensorboard");
  {
    EventFile file(directory, {});
    for (std::int64_t step = 0; step <= 6; ++step) file.append(scalar(step, step == 4 ? "picture" : "loss"));
    file.append(scalar(6, "picture"));
  }
  for (int start = 0; start < 2; ++start) {  // which log other things of the same step
    EventFile file(directory, {.step = 6});
    file.append(scalar(6, "text"));
  }
  BOOST_TEST(has_event(directory, 6, "picture"));
  BOOST_TEST(has_event(directory, 4, "picture"));
  BOOST_TEST(!has_event(directory, 4, "loss"));
  BOOST_TEST(!has_event(directory, 5, "picture"));
  BOOST_TEST(!has_event(directory, 7, "picture"));
}

BOOST_AUTO_TEST_CASE(a_run_that_continues_removes_later_steps_and_says_so) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("tensorboard");
  {
    EventFile file(directory, {});
    for (std::int64_t step = 0; step <= 9; ++step) file.append(scalar(step));
  }
  EventFile file(directory, {.step = 6});
  file.append(scalar(7));
  const std::vector<std::string> paths = files_of(directory);
  BOOST_REQUIRE(paths.size() == 2U);
  BOOST_TEST(paths[1] == file.path());
  BOOST_TEST(read(paths[0]).steps == (Steps{0, 1, 2, 3, 4, 5, 6}));
  BOOST_TEST(read(paths[1]).steps == Steps{7});
  BOOST_TEST(read(paths[1]).restart == 7);
}

BOOST_AUTO_TEST_CASE(files_of_later_steps_alone_are_removed) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("tensorboard");
  for (const std::int64_t step : {0, 4, 8}) {
    EventFile file(directory, {.step = step});
    for (std::int64_t s = 1; s <= 4; ++s) file.append(scalar(step + s));
  }
  const std::vector<std::string> before = files_of(directory);
  BOOST_REQUIRE(before.size() == 3U);
  const EventFile file(directory, {.step = 3});
  const std::vector<std::string> after = files_of(directory);
  BOOST_REQUIRE(after == (std::vector<std::string>{before[0], file.path()}));
  BOOST_TEST(file.path() > before[2]);
  BOOST_TEST(read(after[0]).steps == (Steps{1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(an_evaluation_that_is_repeated_is_removed) {
  for (const bool evaluated : {false, true}) {
    const TemporaryFolder folder;
    const std::string directory = folder.file("tensorboard");
    {
      EventFile file(directory, {});
      for (const std::int64_t step : {2, 4}) {
        file.append(scalar(step));
        file.append(scalar(step, "eval_loss"));
      }
    }
    const EventFile file(directory, {.step = 4, .evaluated = evaluated});
    BOOST_TEST(read(files_of(directory)[0]).steps == (evaluated ? Steps{2, 2, 4, 4} : Steps{2, 2, 4}));
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_ends_anywhere_keeps_its_whole_events) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("tensorboard");
  std::string path;
  {
    EventFile file(directory, {});
    for (std::int64_t step = 1; step <= 3; ++step) file.append(scalar(step));
    path = file.path();
  }
  const std::string whole = read_text(path);
  const std::size_t event_bytes = record_of(scalar(1).encoded(0)).size();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    for (const std::string& other : files_of(directory)) std::filesystem::remove(other);
    std::ofstream(path, std::ios::binary) << whole.substr(0, bytes);
    const EventFile file(directory, {.step = 100});
    const std::size_t lost = (whole.size() - bytes + event_bytes - 1) / event_bytes;
    const std::vector<std::string> paths = files_of(directory);
    if (lost >= 3) {
      BOOST_TEST(paths == std::vector<std::string>{file.path()});
      continue;
    }
    const Start start = read(paths[0]);
    BOOST_TEST(start.whole);
    BOOST_TEST(start.steps.size() == 3 - lost);
  }
}

BOOST_AUTO_TEST_CASE(a_damaged_event_and_what_follows_are_removed) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("tensorboard");
  std::string path;
  {
    EventFile file(directory, {});
    for (std::int64_t step = 1; step <= 3; ++step) file.append(scalar(step));
    path = file.path();
  }
  const std::size_t event_bytes = record_of(scalar(1).encoded(0)).size();
  std::string text = read_text(path);
  text[text.size() - event_bytes - 6] ^= 1;  // in the data of step 2
  std::ofstream(path, std::ios::binary) << text;
  const EventFile file(directory, {.step = 3});
  BOOST_TEST(read(path).steps == Steps{1});
}

BOOST_AUTO_TEST_CASE(records_larger_than_the_buffer_are_read) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("tensorboard");
  EventFile file(directory, {});
  Event large(1);
  large.add_text("text", std::string(3 << 20, 'x'));
  file.append(large);
  for (std::int64_t step = 2; step <= 40000; ++step) file.append(scalar(step));
  const Start start = read(file.path());
  BOOST_TEST(start.whole);
  BOOST_TEST(start.steps.size() == 40000U);
}

BOOST_AUTO_TEST_CASE(files_of_other_programs_are_left_alone) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("events.out.tfevents.1700000000.other")) << "another program's";
  const EventFile file(folder.path().string(), {});
  BOOST_TEST(read_text(folder.file("events.out.tfevents.1700000000.other")) == "another program's");
}

BOOST_AUTO_TEST_CASE(a_file_that_has_been_removed_is_an_error) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("tensorboard");
  EventFile file(directory, {});
  std::filesystem::remove_all(directory);
  BOOST_CHECK_EXCEPTION(file.append(scalar(1)), DataError, mentions("the file has been removed"));
}

BOOST_AUTO_TEST_CASE(a_directory_that_cannot_be_made_is_an_error) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("tensorboard")) << "a file";
  BOOST_CHECK_THROW(EventFile(folder.file("tensorboard"), {}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
