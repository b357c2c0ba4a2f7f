// The run directory: made when missing, locked against a second run, taken over from a dead one.
#include "lockstep/checkpoint/run_directory.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "checkpoint/file_lock.h"
#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "support/environment.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(run_directory)

namespace lc = checkpoint;

constexpr uid_t nobody = 65534;

struct Place {
  std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  TemporaryFolder folder;
  std::string run = folder.file("runs/mine");
  Environment environment;
  Place() {
    environment.unset("SLURM_JOB_ID");
    environment.unset("SLURM_RESTART_COUNT");
  }
};

/// Another process that holds the lock of `run` until it is killed.
class OtherRun {
 public:
  explicit OtherRun(const std::string& run) {
    int ready[2];
    if (::pipe(ready) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto self = comm::make_self_communicator();
      const lc::RunDirectory directory(run, *self, 0);
      char byte = 1;
      if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte = 0;
    ::close(ready[1]);
    held_ = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  ~OtherRun() { kill(); }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  bool held() const { return held_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  bool held_ = false;
};

BOOST_FIXTURE_TEST_CASE(what_is_missing_is_made, Place) {
  const lc::RunDirectory directory(run + "/", *self);
  BOOST_TEST(directory.path() == run);
  BOOST_TEST(std::filesystem::is_directory(run + "/checkpoints"));
  BOOST_TEST(!directory.stored_config());
}

BOOST_FIXTURE_TEST_CASE(the_configuration_is_stored_whole_and_read_back, Place) {
  lc::RunDirectory directory(run, *self);
  directory.write_config("[train]\nsteps = 5\n");
  directory.write_config("");
  BOOST_TEST(directory.stored_config().value() == "");
  directory.write_config("[train]\nsteps = 6\n");
  BOOST_TEST(directory.stored_config().value() == "[train]\nsteps = 6\n");
  BOOST_TEST(names_in(run) == (std::vector<std::string>{"checkpoints", "config.ini", "lock"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_start_that_came_to_nothing_leaves_what_was_there_before, Place) {
  { const lc::RunDirectory directory(run, *self); }
  BOOST_TEST(names_in(folder.path()).empty());
  std::filesystem::create_directories(run);
  { const lc::RunDirectory directory(run, *self); }
  BOOST_TEST(std::filesystem::is_directory(run));
  BOOST_TEST(names_in(run).empty());
  {
    const lc::RunDirectory directory(run, *self);
    write_bytes(run + "/checkpoints/mine", "x");
  }
  BOOST_TEST(std::filesystem::exists(run + "/checkpoints/mine"));
}

BOOST_FIXTURE_TEST_CASE(a_run_that_was_configured_keeps_its_directories, Place) {
  { lc::RunDirectory(run, *self).write_config("[train]\n"); }
  BOOST_TEST(names_in(run) == (std::vector<std::string>{"checkpoints", "config.ini"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_start_whose_lock_was_taken_over_leaves_the_directories_to_the_other, Place) {
  environment.set("SLURM_JOB_ID", "4242");
  environment.set("SLURM_RESTART_COUNT", "1");
  auto first = std::make_unique<lc::RunDirectory>(run, *self, 0);
  environment.set("SLURM_RESTART_COUNT", "2");
  const lc::RunDirectory second(run, *self, 0);
  first.reset();
  BOOST_TEST(std::filesystem::is_directory(run + "/checkpoints"));
}

BOOST_FIXTURE_TEST_CASE(a_live_run_keeps_others_out_and_is_named, Place) {
  const OtherRun other(run);
  BOOST_REQUIRE(other.held());
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(run, *self, 0), UsageError,
                        mentions("runs/mine/lock", "pid " + std::to_string(other.pid())));
}

BOOST_FIXTURE_TEST_CASE(the_lock_of_a_killed_run_is_taken_over, Place) {
  OtherRun other(run);
  BOOST_REQUIRE(other.held());
  other.kill();
  BOOST_TEST(std::filesystem::exists(run + "/lock"));
  const lc::RunDirectory directory(run, *self, 0);
  BOOST_TEST(read_bytes(run + "/lock").find("pid=" + std::to_string(::getpid())) != std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(a_run_that_ended_leaves_no_lock, Place) {
  { const lc::RunDirectory directory(run, *self, 0); }
  BOOST_TEST(!std::filesystem::exists(run + "/lock"));
  const lc::RunDirectory again(run, *self, 0);
}

BOOST_FIXTURE_TEST_CASE(
    the_same_job_with_a_higher_restart_count_takes_over_and_the_old_start_cannot_remove_its_lock, Place) {
  environment.set("SLURM_JOB_ID", "4242");
  environment.set("SLURM_RESTART_COUNT", "1");
  auto first = std::make_unique<lc::RunDirectory>(run, *self, 0);
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(run, *self, 0), UsageError, mentions("Slurm job 4242, restart 1"));
  environment.set("SLURM_RESTART_COUNT", "2");
  const lc::RunDirectory second(run, *self, 0);
  first.reset();
  BOOST_TEST(std::filesystem::exists(run + "/lock"));
  environment.set("SLURM_JOB_ID", "4243");
  environment.set("SLURM_RESTART_COUNT", "9");
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(run, *self, 0), UsageError, mentions("Slurm job 4242, restart 2"));
}

BOOST_FIXTURE_TEST_CASE(a_run_whose_lock_was_taken_over_or_removed_learns_it_and_leaves_the_directory_alone,
                        Place) {
  environment.set("SLURM_JOB_ID", "4242");
  environment.set("SLURM_RESTART_COUNT", "1");
  lc::RunDirectory first(run, *self, 0);
  first.write_config("[train]\nsteps = 5\n");
  first.check_held();
  environment.set("SLURM_RESTART_COUNT", "2");
  lc::RunDirectory second(run, *self, 0);
  BOOST_TEST(first.mark() != second.mark());
  BOOST_CHECK_EXCEPTION(first.check_held(), lc::LostDirectory,
                        mentions("runs/mine/lock", "taken over by", "restart 2"));
  BOOST_CHECK_THROW(first.write_config(""), FailureError);
  BOOST_TEST(second.stored_config().value() == "[train]\nsteps = 5\n");
  second.check_held();
  // What a file system does that gave up the lock of a host it cannot see: another holder in the same file.
  std::ofstream(run + "/lock") << "host=node9\npid=77\n";
  BOOST_CHECK_EXCEPTION(second.check_held(), lc::LostDirectory, mentions("taken over by pid 77 on node9"));
  std::filesystem::remove(run + "/lock");
  BOOST_CHECK_EXCEPTION(second.check_held(), lc::LostDirectory, mentions("the file was removed"));
}

BOOST_FIXTURE_TEST_CASE(a_lock_that_cannot_be_read_is_not_lost, Place) {
  const lc::RunDirectory held(run, *self, 0);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit no_more{0, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &no_more);
  std::string text, lost;
  try {
    held.check_held();
  } catch (const lc::LostDirectory& error) {
    lost = error.what();
  } catch (const FailureError& error) {
    text = error.what();
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  BOOST_TEST(lost == "");
  BOOST_TEST(text.find("Too many open files") != std::string::npos, text);
  BOOST_TEST(held.is_held());
}

BOOST_FIXTURE_TEST_CASE(a_wait_for_a_held_directory_is_said_once_with_the_holder_and_the_time, Place) {
  const OtherRun other(run);
  BOOST_REQUIRE(other.held());
  std::string said;
  const auto take = [&] {
    lc::FileLock(run + "/lock", 0.2, [&](const std::string& line) { said += line + "\n"; });
  };
  BOOST_CHECK_THROW(take(), UsageError);
  BOOST_TEST(said.find("held by pid " + std::to_string(other.pid())) != std::string::npos);
  BOOST_TEST(said.find("waiting up to 0.2 s") != std::string::npos);
  BOOST_TEST(std::count(said.begin(), said.end(), '\n') == 1);
}

BOOST_FIXTURE_TEST_CASE(one_that_is_read_only_makes_nothing_and_refuses_to_write, Place) {
  const lc::RunDirectory none = lc::RunDirectory::read_only(run, *self);
  BOOST_TEST(!none.stored_config().has_value());
  BOOST_CHECK_THROW(none.check_held(), FailureError);
  BOOST_TEST(!std::filesystem::exists(run));
  const lc::RunDirectory held(run, *self);
  lc::RunDirectory read = lc::RunDirectory::read_only(run, *self);
  BOOST_CHECK_THROW(read.write_config("[train]"), FailureError);
  held.check_held();
}

BOOST_AUTO_TEST_CASE(a_holder_is_alive_only_if_the_process_of_that_pid_is_the_one_that_wrote_it) {
  lc::LockHolder holder = lc::LockHolder::this_process();
  BOOST_TEST(holder.is_alive_here());
  BOOST_TEST(lc::LockHolder::parse(holder.to_text()).is_alive_here());
  holder.started += "1";  // the pid was given to another process since
  BOOST_TEST(!holder.is_alive_here());
  holder = lc::LockHolder::this_process();
  holder.host = "elsewhere";
  BOOST_TEST(!holder.is_alive_here());
  BOOST_TEST(!lc::LockHolder::parse("garbage\n=\npid=x\n").is_alive_here());
}

BOOST_FIXTURE_TEST_CASE(a_lock_file_with_garbage_in_it_is_no_obstacle, Place) {
  std::filesystem::create_directories(run);
  write_bytes(run + "/lock", std::string(100'000, '\xff'));
  const lc::RunDirectory directory(run, *self, 0);
}

BOOST_FIXTURE_TEST_CASE(places_that_cannot_hold_a_run_are_usage_errors, Place) {
  write_bytes(folder.file("plain"), "x");
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(folder.file("plain"), *self, 0), UsageError,
                        mentions("plain", "a file has this name"));
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(folder.file("plain/run"), *self, 0), UsageError, mentions("plain"));
  std::filesystem::create_symlink("loop", folder.file("loop"));
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(folder.file("loop/run"), *self, 0), UsageError, mentions("loop"));
  BOOST_CHECK_EXCEPTION(lc::RunDirectory("", *self, 0), UsageError, mentions("empty"));
}

BOOST_FIXTURE_TEST_CASE(a_directory_that_is_not_writable_is_a_usage_error, Place) {
  const std::string locked = folder.file("locked");
  std::filesystem::create_directory(locked);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(locked, std::filesystem::perms(0555));
  const bool root = ::geteuid() == 0;  // whom permissions do not stop
  if (root) BOOST_REQUIRE(::seteuid(nobody) == 0);
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(locked, *self, 0), UsageError,
                        mentions("locked/checkpoints", "Permission denied"));
  BOOST_CHECK_EXCEPTION(lc::RunDirectory(locked + "/run", *self, 0), UsageError,
                        mentions("locked/run", "Permission denied"));
  if (root) BOOST_REQUIRE(::seteuid(0) == 0);
}

BOOST_FIXTURE_TEST_CASE(a_run_may_lie_in_a_directory_that_can_be_written_but_not_read, Place) {
  const std::string drop = folder.file("drop");
  std::filesystem::create_directory(drop);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(drop, std::filesystem::perms(0333));
  const bool root = ::geteuid() == 0;
  if (root) BOOST_REQUIRE(::seteuid(nobody) == 0);
  {
    const lc::RunDirectory directory(drop + "/run", *self, 0);
    BOOST_TEST(std::filesystem::is_directory(drop + "/run/checkpoints"));
  }
  if (root) BOOST_REQUIRE(::seteuid(0) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
