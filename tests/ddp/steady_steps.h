// Counts what steps allocate once they are steady.
#pragma once

#include <boost/test/unit_test.hpp>
#include <optional>

#include "lockstep/kernels/backend.h"
#include "support/allocations.h"

namespace lockstep::test {

/// Runs step(1) .. step(7); returns the allocations of our code from step 4 on, in which the pool must not
/// grow.
template <class Step>
long steady_allocations(kernels::Backend& backend, const Step& step) {
  std::optional<AllocationCount> count;
  std::size_t pool_before = 0;
  for (std::uint64_t number = 1; number <= 7; ++number) {
    if (number == 4) {
      pool_before = backend.reserved_bytes();
      count.emplace();
    }
    step(number);
  }
  const long made = count->made().own;
  BOOST_TEST(backend.reserved_bytes() == pool_before);
  return made;
}

}  // namespace lockstep::test
