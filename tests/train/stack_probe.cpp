// The stack of a thread, also inside code that a library has generated.
#include <sys/mman.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>

#include "base/thread.h"
#include "train/generated_code.h"
#include "train/watch/probes.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(stack_probe)

/// The stack that another thread takes while this one is in run(), which sets `runs` and returns once `stop`
/// is not 0.
template <class Run>
std::string stack_within(const Run& run) {
  const train::StackProbe probe;
  std::atomic<int> runs{0}, stop{0};
  std::string stack;
  std::thread other = start_background_thread("a test", [&] {
    while (runs == 0) std::this_thread::yield();
    stack = probe.take();
    stop = 1;
  });
  run(runs, stop);
  other.join();
  return stack;
}

BOOST_AUTO_TEST_CASE(a_stack_begins_where_the_thread_is_and_ends_in_its_program) {
  const std::string stack = stack_within([](std::atomic<int>& runs, std::atomic<int>& stop) {
    runs = 1;
    while (stop == 0) continue;
  });
  BOOST_TEST(stack.starts_with("  #0 "), stack);
  BOOST_TEST(stack.find("test.train") != std::string::npos, stack);
  BOOST_TEST(stack.find("unwound") == std::string::npos, stack);
}

BOOST_AUTO_TEST_CASE(callers_of_generated_code_are_in_the_stack) {
  const std::span<const std::uint8_t> code = waiting_code();
  void* const memory =
      ::mmap(nullptr, code.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  BOOST_TEST_REQUIRE(memory != MAP_FAILED);
  std::memcpy(memory, code.data(), code.size());
  BOOST_TEST_REQUIRE(::mprotect(memory, code.size(), PROT_READ | PROT_EXEC) == 0);
  __builtin___clear_cache(static_cast<char*>(memory), static_cast<char*>(memory) + code.size());
  const auto generated = reinterpret_cast<void (*)(std::atomic<int>&, std::atomic<int>&)>(memory);
  const std::string stack = stack_within(generated);
  ::munmap(memory, code.size());
  const std::size_t remark = stack.find("unwound");
  BOOST_TEST_REQUIRE(remark != std::string::npos, stack);
  BOOST_TEST(stack.find("test.train") > remark, stack);
  BOOST_TEST(stack.find("test.train", remark) != std::string::npos, stack);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
