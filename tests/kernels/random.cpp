// Tensors of random numbers: each is that of its element, on any number of threads.
#include "lockstep/ops/random.h"

#include "kernels/reference.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(random_numbers)

using ops::Distribution;

const RandomKey key{.seed = 5, .purpose = purpose_of("noise"), .step = 71, .shard = 3};
const Random random_of_key(key);

template <class T, class Wanted>
void check_each(const ops::Draw& draw, const Wanted& wanted) {
  for (const int threads : {1, 2}) {
    const auto backend = kernels::make_cpu_backend(threads);
    for (const std::int64_t count : {0, 1, 3, 4, 5, 4099}) {
      ops::Draw one = draw;
      one.y = Tensor::empty({count}, dtype_of<T>);
      backend->run(one);
      for (std::int64_t i = 0; i < count; ++i)
        BOOST_REQUIRE(one.y.data<T>()[i] == wanted(static_cast<std::uint64_t>(i)));
    }
  }
}

BOOST_AUTO_TEST_CASE(each_is_drawn_by_its_number) {
  check_each<float>({.key = key}, [](std::uint64_t i) { return random_of_key.normal(i); });
  check_each<std::int64_t>({.distribution = Distribution::integer, .key = key, .parameter = 1000},
                           [](std::uint64_t i) { return random_of_key.below(i, 1000); });
  check_each<std::uint8_t>({.distribution = Distribution::coin, .key = key, .parameter = 0.3},
                           [](std::uint64_t i) { return random_of_key.bits(i) * 0x1p-32 >= 0.3; });
}

BOOST_AUTO_TEST_CASE(weighted_ones_are_as_frequent_as_their_weights_and_never_what_weighs_nothing) {
  constexpr std::int64_t count = 100000;
  const Tensor sums = Tensor::empty({4}, DType::float64), y = Tensor::empty({count}, DType::int64);
  const double up_to[] = {1, 1, 4, 8};
  std::copy_n(up_to, 4, sums.data<double>());
  kernels::make_cpu_backend()->run(
      ops::Draw{.distribution = Distribution::weighted, .key = key, .sums = sums, .y = y});
  std::array<double, 4> found{};
  for (std::int64_t i = 0; i < count; ++i)
    found.at(static_cast<std::size_t>(y.data<std::int64_t>()[i])) += 1.0 / count;
  BOOST_TEST(found[1] == 0);
  for (const auto& [position, share] : {std::pair{0, 0.125}, {2, 0.375}, {3, 0.5}})
    BOOST_TEST(std::abs(found.at(static_cast<std::size_t>(position)) - share) < 0.01);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_drawn_is_refused) {
  const auto backend = kernels::make_cpu_backend();
  const Tensor floats = Tensor::empty({2}), integers = Tensor::empty({2}, DType::int64);
  const auto refused = [&](const ops::Draw& draw) { BOOST_CHECK_THROW(backend->run(draw), UsageError); };
  refused({.distribution = Distribution::integer, .parameter = 3, .y = floats});
  refused({.distribution = Distribution::integer, .parameter = 0, .y = integers});
  refused({.distribution = Distribution::weighted, .y = integers});
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
