// What a suite or a case says about where it runs:
// - BOOST_AUTO_TEST_SUITE(gradients, *ranks(1, 2, 3, 4))
//   at each of these rank counts, under mpirun; without ranks() alone
// - BOOST_AUTO_TEST_SUITE(allocations, *ranks())
//   alone and at any rank count, whichever its program is started with
// - BOOST_AUTO_TEST_CASE(every_seed, *slow())
//   in the full suite only
// - BOOST_AUTO_TEST_SUITE(golden_train, *golden() * ranks(1, 2, 4))
//   compared with files that PyTorch wrote
#pragma once

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

namespace lockstep::test {

class ranks final : public boost::unit_test::decorator::base {
 public:
  template <class... Counts>
  explicit ranks(Counts... counts) : counts_{counts...} {}
  const std::vector<int>& counts() const { return counts_; }

 private:
  void apply(boost::unit_test::test_unit&) override {}  // selection.h has read it by then
  boost::unit_test::decorator::base_ptr clone() const override {
    return boost::unit_test::decorator::base_ptr(new ranks(*this));
  }

  std::vector<int> counts_;
};

/// A label, as --run_test=@NAME takes it. Boost's keeps its name to itself, and selection.h must read it.
class Labelled final : public boost::unit_test::decorator::base {
 public:
  explicit Labelled(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

 private:
  void apply(boost::unit_test::test_unit& unit) override { unit.add_label(name_); }
  boost::unit_test::decorator::base_ptr clone() const override {
    return boost::unit_test::decorator::base_ptr(new Labelled(*this));
  }

  std::string name_;
};

inline Labelled slow() { return Labelled("slow"); }
inline Labelled golden() { return Labelled("golden"); }

}  // namespace lockstep::test
