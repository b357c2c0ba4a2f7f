// Counts the calls by which a test program obtains memory from the system, on every thread.
//
// A program that links lockstep_test_allocations has operator new and the functions of malloc's family
// replaced by ones that count and pass on, and gets a case that proves the counting. Not for sanitizer
// builds: sanitizers replace the same functions.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>

namespace lockstep::test {

/// Calls by who made them, told apart by the caller's address.
struct Allocations {
  long own = 0;     ///< our code, and the C and C++ libraries on its behalf
  long onednn = 0;  ///< oneDNN, within its own calls
  long others = 0;  ///< malloc and its like in any other library: MPI, HDF5
  long all() const { return own + onednn + others; }
};

/// Allocations of all threads since its construction.
class AllocationCount {
 public:
  AllocationCount();
  Allocations made() const;

 private:
  Allocations before_;
};

/// Calls step(0) to step(steps - 1); returns the allocations from step(warm) on, in which the pool of `pool`,
/// a backend, must not grow.
template <class Pool, class Step>
Allocations steady_allocations(const Pool& pool, int warm, int steps, const Step& step) {
  for (int number = 0; number < warm; ++number) step(static_cast<std::uint64_t>(number));
  const std::size_t reserved = pool.reserved_bytes();
  const AllocationCount count;
  for (int number = warm; number < steps; ++number) step(static_cast<std::uint64_t>(number));
  const Allocations made = count.made();
  BOOST_TEST(pool.reserved_bytes() == reserved);
  return made;
}

}  // namespace lockstep::test
