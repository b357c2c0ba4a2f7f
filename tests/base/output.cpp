// What may be written where, and drafts that nobody finished.
#include "base/output.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(output)

struct Folder {
  TemporaryFolder folder;
  std::string path(const std::string& name) const { return folder.file(name); }
  std::string folder_of_a_draft() const {
    ::mkdir(path("folder").c_str(), 0777);
    with("folder/in it", "half");
    return path("folder");
  }
  std::string with(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
};

const OutputCheck forced{.replace = true};

BOOST_FIXTURE_TEST_CASE(a_file_that_is_there_goes_only_when_that_is_asked, Folder) {
  const std::string notes = with("notes", "precious");
  BOOST_CHECK_EXCEPTION(check_output(notes), UsageError, mentions("already exists; --force replaces it"));
  BOOST_CHECK_NO_THROW(check_output(notes, forced));
  BOOST_CHECK_NO_THROW(check_output(path("free")));
}

BOOST_FIXTURE_TEST_CASE(an_input_never_goes, Folder) {
  const std::string input = with("in.csv", "1,2,0");
  ::mkdir(path("texts").c_str(), 0777);
  ::mkdir(path("texts/deep").c_str(), 0777);
  const std::string inside = with("texts/deep/a.txt", "a");
  ::link(input.c_str(), path("twin").c_str());
  const std::vector<std::string> inputs{input, path("texts")};
  const OutputCheck check{.replace = true, .inputs = inputs};
  for (const std::string& output : {input, path("./in.csv"), path("texts/../in.csv"), path("twin"), inside})
    BOOST_CHECK_EXCEPTION(check_output(output, check), UsageError, mentions("is an input"));
  BOOST_CHECK_NO_THROW(check_output(path("texts/new.h5"), check));
}

BOOST_FIXTURE_TEST_CASE(what_is_no_regular_file_never_goes, Folder) {
  with("target", "precious");
  ::mkfifo(path("pipe").c_str(), 0666);
  ::symlink("target", path("link").c_str());
  ::symlink("nowhere", path("dangling").c_str());
  BOOST_CHECK_EXCEPTION(check_output(path("pipe"), forced), UsageError, mentions("is a named pipe"));
  BOOST_CHECK_EXCEPTION(check_output(path("link"), forced), UsageError, mentions("is a symbolic link"));
  BOOST_CHECK_EXCEPTION(check_output(path("dangling"), forced), UsageError, mentions("is a symbolic link"));
  BOOST_CHECK_EXCEPTION(check_output("/dev/null", forced), UsageError, mentions("is a device"));
  BOOST_CHECK_EXCEPTION(check_output(path(""), forced), UsageError, mentions("is a directory"));
}

BOOST_FIXTURE_TEST_CASE(a_name_that_cannot_be_is_refused, Folder) {
  BOOST_CHECK_EXCEPTION(check_output(""), UsageError, mentions("the name of the output file is empty"));
  BOOST_CHECK_EXCEPTION(check_output(path("no/out.h5")), UsageError, mentions("there is no directory"));
  BOOST_CHECK_EXCEPTION(check_output(path("new/")), UsageError, mentions("there is no directory"));
}

BOOST_FIXTURE_TEST_CASE(files_are_not_written_through_links, Folder) {
  const std::string victim = with("victim", "precious");
  ::symlink(victim.c_str(), path("link").c_str());
  using Mode = OpenFile::Mode;
  for (const Mode mode : {Mode::write, Mode::create_or_truncate, Mode::read_write_or_create})
    BOOST_CHECK_EXCEPTION(OpenFile(path("link"), mode), UsageError, mentions("is a symbolic link"));
  BOOST_TEST(read_text(path("link")) == "precious");
}

BOOST_FIXTURE_TEST_CASE(a_named_pipe_is_refused_at_once_however_it_is_opened, Folder) {
  ::mkfifo(path("pipe").c_str(), 0666);
  using Mode = OpenFile::Mode;
  BOOST_CHECK_EXCEPTION(OpenFile(path("pipe"), Mode::read), DataError, mentions("not a regular file"));
  for (const Mode mode : {Mode::write, Mode::create_or_truncate, Mode::read_write_or_create})
    BOOST_CHECK_EXCEPTION(OpenFile(path("pipe"), mode), UsageError, mentions("not a regular file"));
}

BOOST_FIXTURE_TEST_CASE(a_name_that_appears_late_is_waited_for, Folder) {
  std::thread other([&] { with("late", "text"); });
  const OpenFile file(path("late"), OpenFile::Mode::read, 60);
  other.join();
  BOOST_TEST(file.size() == 4U);
  BOOST_CHECK_EXCEPTION(OpenFile(path("never"), OpenFile::Mode::read, 0.001), DataError,
                        mentions("never: cannot open: No such file"));
}

BOOST_FIXTURE_TEST_CASE(a_draft_that_is_not_published_goes, Folder) {
  { const Draft file(with("file", "half")), directory(folder_of_a_draft(), Draft::Kind::directory); }
  BOOST_TEST(!exists(path("file")));
  BOOST_TEST(!exists(path("folder")));
}

BOOST_FIXTURE_TEST_CASE(what_somebody_else_has_at_the_name_of_a_draft_stays, Folder) {
  ::mkdir(path(".out.tmp").c_str(), 0777);
  with(".out.tmp/precious", "kept");
  BOOST_CHECK_THROW(write_text_atomically(path("out"), "new"), Error);
  BOOST_TEST(read_text(path(".out.tmp/precious")) == "kept");
  ::mkfifo(path(".pipe.tmp").c_str(), 0666);
  BOOST_CHECK_THROW(write_text_atomically(path("pipe"), "new"), UsageError);
  BOOST_TEST(::access(path(".pipe.tmp").c_str(), F_OK) == 0);
}

BOOST_FIXTURE_TEST_CASE(a_published_draft_has_its_name_and_replaces_only_if_it_may, Folder) {
  Draft draft(with("draft", "new"));
  with("out", "old");
  BOOST_CHECK_EXCEPTION(draft.publish(path("out"), false), UsageError,
                        mentions("another process created it meanwhile"));
  BOOST_TEST(read_text(path("out")) == "old");
  draft.publish(path("out"));
  BOOST_TEST(read_text(path("out")) == "new");
  BOOST_TEST(!exists(path("draft")));
}

BOOST_DATA_TEST_CASE_F(Folder, a_signal_that_ends_the_process_takes_its_drafts_along,
                       boost::unit_test::data::make({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}), number) {
  int ready[2];
  BOOST_REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(number, SIG_DFL);
    const Draft file(with("file", "half")), directory(folder_of_a_draft(), Draft::Kind::directory);
    [[maybe_unused]] const ssize_t said = ::write(ready[1], "x", 1);
    while (true) ::pause();
  }
  char byte = 0;
  BOOST_REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::kill(child, number);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  BOOST_TEST((WIFSIGNALED(status) && WTERMSIG(status) == number));
  BOOST_TEST(!exists(path("file")));
  BOOST_TEST(!exists(path("folder")));
  ::close(ready[0]);
  ::close(ready[1]);
}

BOOST_FIXTURE_TEST_CASE(a_handler_of_the_program_stays, Folder) {
  struct sigaction before {
  }, during{}, after{};
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, [](int) {});
  ::sigaction(SIGTERM, nullptr, &before);
  {
    const Draft draft(path("draft"));
    ::sigaction(SIGTERM, nullptr, &during);
  }
  ::sigaction(SIGINT, nullptr, &after);
  BOOST_TEST((before.sa_handler == during.sa_handler));
  BOOST_TEST((after.sa_handler == SIG_DFL));
  ::signal(SIGTERM, SIG_DFL);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
