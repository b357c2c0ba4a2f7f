// Counts the calls by which a test program obtains memory from the system, on every thread.
//
// A program that links lockstep_test_allocations has operator new and the functions of malloc's family
// replaced by ones that count and pass on, and gets a case that proves the counting. Not for sanitizer
// builds: sanitizers replace the same functions.
#pragma once

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

}  // namespace lockstep::test
