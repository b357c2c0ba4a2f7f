// Standard streams: closed, full, and without a reader.
#include "base/streams.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <string>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(streams)

/// The exit code of a child that does this; 128 + the number of a signal that ended it.
template <class Action>
int in_a_child(const Action& action) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(action());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

BOOST_AUTO_TEST_CASE(no_file_gets_the_number_of_a_closed_standard_descriptor) {
  BOOST_TEST(in_a_child([] {
               for (int descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) ::close(descriptor);
               protect_standard_streams();
               return ::open("/dev/null", O_RDONLY) > STDERR_FILENO ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(a_pipe_without_a_reader_is_an_error_not_the_end) {
  BOOST_TEST(in_a_child([] {
               protect_standard_streams();
               int ends[2];
               if (::pipe(ends) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) return 2;
               ::close(ends[0]);
               const bool written = write_standard_error("lost\n");
               return !written && standard_error_trouble() == "Broken pipe" ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(a_full_pipe_takes_what_it_can_and_nobody_waits) {
  BOOST_TEST(in_a_child([] {
               int ends[2];
               if (::pipe(ends) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) return 2;
               const std::string much(1 << 20, 'x');
               const bool written = write_standard_error(much);
               return !written && standard_error_trouble() == "nobody reads it" ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(a_full_device_is_named) {
  BOOST_TEST(in_a_child([] {
               const int full = ::open("/dev/full", O_WRONLY);
               if (full < 0 || ::dup2(full, STDERR_FILENO) < 0) return 2;
               return !write_standard_error("lost\n") && standard_error_trouble() == "No space left on device"
                          ? 0
                          : 1;
             }) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
