// Dropout: what each element becomes, in any layout and on any number of threads.
#include "kernels/reference.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/random.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(dropout)

using kernels::make_cpu_backend;

const RandomKey key{.seed = 5, .purpose = purpose_of("dropout:h.0"), .step = 71, .shard = 3};

BOOST_AUTO_TEST_CASE(each_element_follows_its_own_draw) {
  Draw draw(41);
  const Random random(key);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const std::int64_t count : {0, 1, 3, 255, 256, 257, 20003}) {
      const Tensor x = draw.normal({count}), y = Tensor::empty({count});
      backend->run(ops::Dropout{x, 0.3f, key, y});
      for (std::int64_t i = 0; i < count; ++i) {
        const bool kept = random.uniform(static_cast<std::uint64_t>(i)) >= 0.3f;
        BOOST_REQUIRE(y.data<float>()[i] == (kept ? x.data<float>()[i] * (1.0f / (1.0f - 0.3f)) : 0.0f));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_blocked_layout_draws_by_logical_number) {
  Draw draw(42);
  const auto backend = make_cpu_backend(2);
  constexpr int images = 2, channels = 11, places = 6, lanes = 8;
  const Tensor plain = draw.normal({images, channels, 2, 3}), plain_y = Tensor::empty(plain.shape());
  const Tensor blocked = backend->empty(plain.shape(), DType::float32, lanes),
               blocked_y = backend->empty(plain.shape(), DType::float32, lanes);
  const auto place_of = [](int image, int channel, int place) {
    return ((image * 2 + channel / lanes) * places + place) * lanes + channel % lanes;
  };
  backend->fill(blocked, 0);
  for (int i = 0; i < plain.numel(); ++i) {
    blocked.data<float>()[place_of(i / (channels * places), i / places % channels, i % places)] =
        plain.data<float>()[i];
  }
  backend->run(ops::Dropout{plain, 0.5f, key, plain_y});
  backend->run(ops::Dropout{blocked, 0.5f, key, blocked_y});
  double sum = 0;
  for (int i = 0; i < plain.numel(); ++i) {
    const float value =
        blocked_y.data<float>()[place_of(i / (channels * places), i / places % channels, i % places)];
    BOOST_TEST(value == plain_y.data<float>()[i]);
    sum += std::abs(value);
  }
  double stored = 0;
  for (const float value : floats(blocked_y)) stored += std::abs(value);
  BOOST_TEST(stored == sum, boost::test_tools::tolerance(1e-12));  // nothing in the padding lanes
}

BOOST_AUTO_TEST_CASE(p_of_zero_keeps_everything_and_p_of_one_is_refused) {
  Draw draw(43);
  const auto backend = make_cpu_backend();
  const Tensor x = draw.normal({100}), y = Tensor::empty({100});
  backend->run(ops::Dropout{x, 0, key, y});
  BOOST_TEST(same_bits(x, y));
  for (const float p : {1.0f, -0.1f, NAN})
    BOOST_CHECK_THROW(backend->run(ops::Dropout{x, p, key, y}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
