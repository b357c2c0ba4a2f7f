// What is left of a job's time, as Slurm says it.
#include "lockstep/train/time_limit.h"

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

#include "support/environment.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(time_limit)

BOOST_AUTO_TEST_CASE(times_of_slurm_are_read) {
  BOOST_TEST(train::seconds_of("1-02:03:04").value() == 86400 + 2 * 3600 + 3 * 60 + 4);
  BOOST_TEST(train::seconds_of("02:03:04").value() == 2 * 3600 + 3 * 60 + 4);
  BOOST_TEST(train::seconds_of("  3:04\r").value() == 3 * 60 + 4);
  BOOST_TEST(train::seconds_of("0:00").value() == 0);
  BOOST_TEST(train::seconds_of("17").value() == 17);
  for (const char* const text :
       {"", "UNLIMITED", "NOT_SET", "INVALID", "1:2:3:4", ":", "1:", "-1:00", "x-1:00", "1.5"})
    BOOST_TEST(!train::seconds_of(text).has_value(), text);
}

struct Slurm {
  Slurm() { environment.set("SLURM_JOB_ID", "12"); }
  /// A program `squeue` of these lines of shell.
  void answer(const TemporaryFolder& folder, const std::string& lines) {
    const std::string program = folder.file("squeue");
    std::ofstream(program) << "#!/bin/sh\n" << lines << "\n";
    ::chmod(program.c_str(), 0755);
    environment.set("PATH", folder.file("") + ":" + std::getenv("PATH"));
  }
  Environment environment;
};

BOOST_AUTO_TEST_CASE(without_slurm_there_is_no_limit) {
  BOOST_TEST(std::isinf(train::TimeLimit(true).left_s()));
  const Slurm slurm;
  BOOST_TEST(std::isinf(train::TimeLimit(false).left_s()));
}

BOOST_AUTO_TEST_CASE(the_end_that_slurm_puts_into_the_environment_is_known_at_once) {
  Slurm slurm;
  slurm.environment.set("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 1000));
  const train::TimeLimit limit(true);
  BOOST_TEST(limit.left_s() > 900);
  BOOST_TEST(limit.left_s() < 1001);
}

BOOST_AUTO_TEST_CASE(it_is_up_when_two_of_the_longest_steps_and_saves_no_longer_fit) {
  Slurm slurm;
  slurm.environment.set("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 1000));
  train::TimeLimit limit(true);
  BOOST_TEST(!limit.is_up(0));
  BOOST_TEST(!limit.is_up(10'000'000'000));  // a first save of 400 s
  BOOST_TEST(limit.is_up(20'000'000'000));   // of 800 s
  limit.note_save(300);
  limit.note_save(1);
  BOOST_TEST(!limit.is_up(20'000'000'000));
  limit.note_step(150);
  BOOST_TEST(!limit.is_up(0));
  limit.note_step(250);
  BOOST_TEST(limit.is_up(0));
}

BOOST_AUTO_TEST_CASE(squeue_is_asked_for_this_job) {
  const TemporaryFolder folder;
  Slurm slurm;
  slurm.answer(folder, "[ \"$*\" = '-h -j 12 -o %L' ] && echo 1:40");
  const train::TimeLimit limit(true);
  while (std::isinf(limit.left_s())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  BOOST_TEST(limit.left_s() < 100.1);
  BOOST_TEST(limit.left_s() > 10);
}

BOOST_AUTO_TEST_CASE(a_squeue_that_does_not_answer_holds_up_nothing) {
  const TemporaryFolder folder;
  const std::string asked = folder.file("asked");
  Slurm slurm;
  slurm.answer(folder, ": >" + asked + "\nexec sleep 1000");
  {
    const train::TimeLimit limit(true);
    while (!std::ifstream(asked)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    BOOST_TEST(std::isinf(limit.left_s()));
  }  // the thread ends here, or the test does not
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
