// Part of every program that counts allocations: a count of zero means something only where these pass.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "support/allocations.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(allocations, *ranks())

/// Own allocations within `obtain`, which returns a pointer that frees what it obtained.
template <class Obtain>
long own_allocations_of(const Obtain& obtain) {
  const AllocationCount count;
  const auto memory = obtain();
  asm volatile("" : : "r"(memory.get()) : "memory");  // so that no compiler drops the call
  const long own = count.made().own;
  BOOST_TEST(static_cast<bool>(memory));
  return own;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<void, Free>;

struct alignas(128) Aligned {
  int value = 1;
};

BOOST_AUTO_TEST_CASE(the_count_sees_allocations) {
  BOOST_TEST(own_allocations_of([] { return std::make_unique<int>(1); }) == 1);
  BOOST_TEST(own_allocations_of([] { return std::make_unique<int[]>(10); }) == 1);
  BOOST_TEST(own_allocations_of([] { return std::make_unique<Aligned>(); }) == 1);
  BOOST_TEST(own_allocations_of([] { return std::make_unique<Aligned[]>(2); }) == 1);
  BOOST_TEST(own_allocations_of([] { return std::unique_ptr<int>(new (std::nothrow) int(1)); }) == 1);
  BOOST_TEST(own_allocations_of([] { return Block(std::malloc(10)); }) == 1);
  BOOST_TEST(own_allocations_of([] { return Block(std::calloc(10, 1)); }) == 1);
  BOOST_TEST(own_allocations_of([] { return Block(std::realloc(nullptr, 10)); }) == 1);
  BOOST_TEST(own_allocations_of([] { return Block(std::aligned_alloc(64, 64)); }) == 1);
  BOOST_TEST(own_allocations_of([] {
               void* memory = nullptr;
               return posix_memalign(&memory, 64, 64) == 0 ? Block(memory) : nullptr;
             }) == 1);
}

BOOST_AUTO_TEST_CASE(the_count_sees_other_threads_and_no_work) {
  std::vector<int> numbers;
  const AllocationCount count;
  BOOST_TEST(count.made().all() == 0);
  std::thread([] {}).join();
  const long of_a_thread = count.made().own;
  std::thread([&] { numbers.reserve(100); }).join();
  BOOST_TEST(count.made().own == 2 * of_a_thread + 1);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
