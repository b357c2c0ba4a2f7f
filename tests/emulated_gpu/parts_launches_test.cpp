// Parts at once take the launches of one part.
#include "emulated_gpu/runtime.h"
#include "kernels/cuda/parts.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(parts_launches_test, Twins)

/// The launches of each operation that make() makes of so many parts.
template <class Make>
std::vector<int> launches(Twins& twins, int parts, const Make& make) {
  const emulated_gpu::WithFaults end;
  constexpr int many = 1 << 30;
  std::vector<int> counts;
  PartsOnGpu on_gpu(twins, parts, [&](const ops::AnyOperation& operation) {
    cudaDeviceSynchronize();
    emulated_gpu::faults().good_launches = many;
    if (parts == 1)
      operation.with_part(0, 1, [&](const ops::AnyOperation& one) { twins.gpu().run(one); });
    else
      twins.gpu().run_parts(operation, parts);
    cudaDeviceSynchronize();
    counts.push_back(many - emulated_gpu::faults().good_launches);
  });
  make(on_gpu);
  return counts;
}

BOOST_AUTO_TEST_CASE(all_parts_take_the_launches_of_one) {
  const auto make = [](PartsOnGpu& parts) {
    parts.sums();
    parts.norms();
    parts.adaptive_norms({last_float, last_bf16});
    parts.random();
    parts.losses();
    parts.tables();
    parts.folds();
    parts.batch_norms();
  };
  const std::vector<int> of_one = launches(*this, 1, make), of_eight = launches(*this, 8, make);
  BOOST_TEST(of_one == of_eight, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
