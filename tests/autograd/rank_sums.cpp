// Sums over ranks in the middle of a pass.
#include <boost/test/unit_test.hpp>
#include <vector>

#include "lockstep/autograd/tape.h"
#include "lockstep/base/random.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(rank_sums, *ranks(1, 2, 3, 4))

/// What a rank brings to the sum of this number.
std::vector<double> numbers_of(int rank, std::uint64_t sum, std::int64_t count) {
  const Random random({.seed = sum, .purpose = purpose_of("sums"), .step = static_cast<std::uint64_t>(rank)});
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(random.normal(static_cast<std::uint64_t>(i)));
  return numbers;
}

// Lengths that come again, that need a larger flat buffer, and none.
BOOST_AUTO_TEST_CASE(sums_have_the_bits_of_rank_order_for_any_length) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  std::uint64_t number = 0;
  for (const std::int64_t count : {3, 1, 0, 2049, 7000, 3, 64}) {
    ++number;
    std::vector<double> mine = numbers_of(world().rank(), number, count), wanted(mine.size(), 0.0);
    for (int rank = 0; rank < world().size(); ++rank) {
      const std::vector<double> other = numbers_of(rank, number, count);
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += other[i];
    }
    const Tensor sum = tape.sum_over_ranks(world(), Tensor::view(mine.data(), {1, count}, DType::float64));
    BOOST_TEST((sum.shape() == Shape{1, count}));
    const double* const found = sum.data<double>();
    BOOST_TEST(std::vector<double>(found, found + count) == wanted, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
