// A transport that breaks while its rank waits where nobody asks it: the watchdog does.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include "support/forwarding.h"
#include "train/watch/probes.h"
#include "train/watch/watchdog.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(broken_transport)

class BrokenTransport final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  std::string async_error() const override { return "NCCL: the network is down"; }
};

struct End {
  int code = -1;
  std::string said;
};

/// How a process ends that runs `body` with a watchdog and a transport that is broken.
End end_of(const std::function<void(train::Watchdog&, comm::CpuCommunicator&)>& body) {
  std::array<int, 2> pipe{};
  BOOST_REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    ::close(pipe[0]);
    ::close(pipe[1]);
    const auto world = comm::make_self_communicator();
    BrokenTransport transport(*world);
    {
      train::Watchdog watchdog(*world, {});
      body(watchdog, transport);
    }
    ::_exit(0);
  }
  ::close(pipe[1]);
  End end;
  std::array<char, 4096> text{};
  for (ssize_t read = 0; (read = ::read(pipe[0], text.data(), text.size())) > 0;)
    end.said.append(text.data(), static_cast<std::size_t>(read));
  ::close(pipe[0]);
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
  return end;
}

BOOST_AUTO_TEST_CASE(it_ends_a_rank_that_waits_for_its_device) {
  const End end = end_of([](train::Watchdog& watchdog, comm::CpuCommunicator& transport) {
    watchdog.watch_transport(&transport);
    progress::at_step(3, 0);
    progress::enter(progress::Phase::evaluation);
    for (;;) ::pause();
  });
  BOOST_TEST(end.code == 5);
  for (const char* part : {"rank 0", "NCCL: the network is down", "in step 3, evaluation", "exit code 5"})
    BOOST_TEST((end.said.find(part) != std::string::npos), part << " in: " << end.said);
}

BOOST_AUTO_TEST_CASE(a_transport_that_is_replaced_is_asked_no_more) {
  class Counting final : public Forwarding {
   public:
    using Forwarding::Forwarding;
    std::string async_error() const override {
      ++asked;
      return {};
    }
    mutable std::atomic<int> asked{0};
  };
  const auto world = comm::make_self_communicator();
  Counting first(*world), second(*world);
  train::TransportProbe probe(0.001);
  probe.watch(&first);
  while (first.asked < 2) std::this_thread::yield();
  probe.watch(&second);
  const int asked = first.asked;
  while (second.asked < 5) std::this_thread::yield();
  BOOST_TEST(first.asked == asked);
}

BOOST_AUTO_TEST_CASE(what_a_transport_has_said_goes_with_it) {
  const auto world = comm::make_self_communicator();
  const BrokenTransport broken(*world);
  train::TransportProbe probe(0.001);
  probe.watch(&broken);
  while (probe.error().empty()) std::this_thread::yield();
  probe.watch(world.get());
  BOOST_TEST(probe.error() == "");
}

BOOST_AUTO_TEST_CASE(a_transport_that_never_answers_holds_up_nobody) {
  class Silent final : public Forwarding {
   public:
    Silent(comm::CpuCommunicator& world, std::atomic<bool>& asked) : Forwarding(world), asked_(asked) {}
    std::string async_error() const override {
      for (asked_ = true;;) ::pause();
    }

   private:
    std::atomic<bool>& asked_;
  };
  static std::atomic<bool> asked{false};  // the thread that asks stays to the end of the process
  const auto world = comm::make_self_communicator();
  const Silent silent(*world, asked);
  const BrokenTransport broken(*world);
  {
    train::TransportProbe probe(0.001, 0.01);
    for (int again = 0; again < 2; ++again) {  // it goes, then the probe does
      asked = false;
      probe.watch(&silent);
      while (!asked) std::this_thread::yield();
      if (again > 0) break;
      probe.watch(nullptr);
      probe.watch(&broken);  // and another one is asked as ever
      while (probe.error().empty()) std::this_thread::yield();
    }
  }
  BOOST_TEST(asked);
}

/// For the thread sanitizer above all.
BOOST_AUTO_TEST_CASE(it_may_be_asked_by_another_thread_while_a_transport_is_left_behind) {
  static std::atomic<bool> released{false};
  static std::atomic<int> asked{0}, gone{0};
  class Slow final : public Forwarding {
   public:
    using Forwarding::Forwarding;
    std::string async_error() const override {
      ++asked;
      while (!released) std::this_thread::yield();
      ++gone;
      return {};
    }
  };
  const auto world = comm::make_self_communicator();
  const Slow slow(*world);
  std::atomic<bool> over{false};
  std::atomic<int> looked{0};
  std::string said;
  constexpr int transports = 8;
  {
    train::TransportProbe probe(0.001, 0.001);
    std::thread looks([&] {
      while (!over) {
        said += probe.error();
        ++looked;
      }
    });
    for (int turn = 1; turn <= transports; ++turn) {
      probe.watch(&slow);
      while (asked < turn) std::this_thread::yield();
      for (const int before = looked; looked < before + 2;) std::this_thread::yield();
    }
    over = true;
    looks.join();
  }
  BOOST_TEST(said.empty());
  released = true;
  while (gone < transports) std::this_thread::yield();  // they have the transport in their hands
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
