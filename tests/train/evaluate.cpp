#include "lockstep/train/evaluate.h"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "lockstep/base/random.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(evaluate, *ranks(1, 2, 3, 4))

/// 150 made-up samples of 4 numbers and 3 classes: not a multiple of any chunk or number of ranks.
class MadeUp final : public data::Dataset {
 public:
  std::int64_t size() const override { return 150; }
  Shape x_shape() const override { return {4, 1, 1}; }
  DType x_dtype() const override { return DType::float32; }
  Shape y_shape() const override { return {}; }
  std::int64_t classes() const override { return 3; }
  std::string name() const override { return "made up"; }
  void read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const override {
    check_read(samples, x, y);
    const Random random({3, purpose_of("made up"), 0, 0});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      for (std::size_t k = 0; k < 4; ++k) {
        x.data<float>()[i * 4 + k] = random.normal(static_cast<std::uint64_t>(samples[i]) * 4 + k);
      }
      y.data<std::int64_t>()[i] = samples[i] % 3;
    }
  }
};

BOOST_AUTO_TEST_CASE(every_sample_counts_once_at_any_number_of_ranks) {
  const MadeUp dataset;
  const auto backend = kernels::make_cpu_backend();
  const auto model = models::make_model({.name = "mlp", .sizes = {4, 8, 3}}, 5);
  Tape tape(*backend);
  const train::Evaluation shared = train::evaluate(*model, tape, dataset, world());
  BOOST_TEST(shared.samples == 150);

  const auto alone = comm::make_self_communicator();
  const train::Evaluation serial = train::evaluate(*model, tape, dataset, *alone);
  BOOST_TEST(shared.loss == serial.loss);  // the same bits
  BOOST_TEST(shared.accuracy.value() == serial.accuracy.value());
  BOOST_TEST(std::isfinite(serial.loss));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
