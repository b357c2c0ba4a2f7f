// What signals do during a run and after it.
#include "lockstep/train/stop.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "base/thread.h"
#include "lockstep/kernels/backend.h"
#include "ops/matmul.h"
#include "support/temporary_folder.h"
#include "train/watch/processes.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(stop)

volatile std::sig_atomic_t heard = 0;

struct Signals {
  Signals() {
    heard = 0;
    for (const int signal : {SIGINT, SIGTERM, SIGUSR2}) std::signal(signal, [](int) { heard = heard + 1; });
  }
  ~Signals() {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR2}) std::signal(signal, SIG_DFL);
  }
  TemporaryFolder folder;
};

BOOST_FIXTURE_TEST_SUITE(stop, Signals)

BOOST_AUTO_TEST_CASE(signals_are_requests_while_a_run_lives) {
  const train::StopRequests requests(folder.path(), true);
  BOOST_TEST(!requests.pending().stop_preempted);
  std::raise(SIGUSR2);
  BOOST_TEST(requests.pending().stop_preempted);
  BOOST_TEST(!requests.pending().stop_user);
  std::raise(SIGINT);
  BOOST_TEST(requests.pending().stop_user);
  BOOST_TEST(heard == 0);
}

BOOST_AUTO_TEST_CASE(a_program_ends_with_the_code_of_what_it_obeyed) {
  BOOST_TEST((train::exit_code({.stop_preempted = true, .stop_user = true}) == ExitCode::preempted));
  BOOST_TEST((train::exit_code({.stop_user = true}) == ExitCode::user_stopped));
  BOOST_TEST(!train::exit_code({.checkpoint = true}).has_value());
}

BOOST_AUTO_TEST_CASE(a_launcher_that_the_loader_of_a_bundle_runs_has_its_own_name) {
  ::Dl_info loader{};
  BOOST_REQUIRE(::dladdr(reinterpret_cast<const void*>(::getauxval(AT_BASE)), &loader) != 0);
  const std::string program = folder.file("mpirun");
  std::filesystem::copy_file("/bin/sleep", program);
  const pid_t process = ::fork();
  if (process == 0) {
    ::execl(loader.dli_fname, loader.dli_fname, "--library-path", "/", program.c_str(), "60", nullptr);
    ::_exit(127);
  }
  std::string name;
  const auto lives = [&] { return ::waitpid(process, nullptr, WNOHANG) == 0; };
  while ((name.empty() || name == train::name_of(::getpid())) && lives()) name = train::name_of(process);
  BOOST_REQUIRE(name == "mpirun");
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
}

BOOST_AUTO_TEST_CASE(signals_amid_products_leave_memory_alone) {
  const train::StopRequests requests(folder.path(), true);
  const auto backend = kernels::make_cpu_backend();
  std::atomic<bool> over = false;
  const pthread_t here = pthread_self();
  std::thread sender = start_background_thread("a sender of signals", [&] {
    while (!over) pthread_kill(here, SIGUSR2);
  });
  int wrong = 0;
  for (int product = 0; product < 3000; ++product) {  // 50 are enough to crash on a handler's usual stack
    const std::int64_t rows = 1 + product % 16, in = 16 + product * 37 % 512, out = 16 + product * 53 % 512;
    const Tensor x = Tensor::empty({rows, in}), weight = Tensor::empty({out, in}),
                 y = Tensor::empty({rows, out});
    backend->fill(x, 1);
    backend->fill(weight, 1);
    backend->run(ops::linear(x, weight, {}, y));
    const float* const sums = y.data<float>();
    wrong +=
        std::all_of(sums, sums + y.numel(), [&](float sum) { return sum == static_cast<float>(in); }) ? 0 : 1;
  }
  over = true;
  sender.join();
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(after_a_run_signals_do_what_they_did_before) {
  { const train::StopRequests requests(folder.path(), true); }
  for (const int signal : {SIGINT, SIGTERM, SIGUSR2}) std::raise(signal);
  BOOST_TEST(heard == 3);
}

// Of a rank that no signal has reached, too: the others told it to stop.
BOOST_AUTO_TEST_CASE(after_a_preemption_was_obeyed_its_signals_end_nothing) {
  {
    train::StopRequests requests(folder.path(), false);
    requests.clear({.stop_preempted = true});
  }
  std::raise(SIGUSR2);
  std::raise(SIGTERM);
  BOOST_TEST(heard == 0);
  std::raise(SIGINT);
  BOOST_TEST(heard == 1);
}

BOOST_AUTO_TEST_CASE(a_handler_of_the_program_hears_what_comes_before_the_run) {
  const train::HeldSignals held;
  std::raise(SIGUSR2);
  std::raise(SIGTERM);
  BOOST_TEST(heard == 2);
}

BOOST_AUTO_TEST_SUITE_END()

struct NoHandlers {
  NoHandlers() { restore(); }
  ~NoHandlers() { restore(); }
  static void restore() {
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) std::signal(signal, SIG_DFL);
  }
  static bool is_default(int signal) {
    struct sigaction action {};
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_DFL;
  }
  TemporaryFolder folder;
};

BOOST_FIXTURE_TEST_CASE(what_comes_before_a_run_is_a_request_to_it_and_to_no_later_one, NoHandlers) {
  for (const int signal : {SIGTERM, SIGUSR2}) {
    {
      const train::HeldSignals held;
      std::raise(SIGUSR1);  // a request for a report: nobody can answer yet
      std::raise(signal);
    }
    BOOST_TEST(is_default(signal));
    {
      const train::StopRequests requests(folder.path(), false);
      BOOST_TEST(requests.pending().stop_preempted);
    }
    BOOST_TEST(is_default(signal));
    BOOST_TEST(!train::StopRequests(folder.path(), false).pending().stop_preempted);
  }
}

BOOST_FIXTURE_TEST_CASE(held_twice_signals_stay_held_to_the_end_of_the_first, NoHandlers) {
  const train::HeldSignals held;
  { const train::HeldSignals again; }
  std::raise(SIGUSR2);
  BOOST_TEST(train::StopRequests(folder.path(), false).pending().stop_preempted);
  std::raise(SIGUSR2);  // after the run, before the end of the program
  BOOST_TEST(!is_default(SIGUSR2));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
