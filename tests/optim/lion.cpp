// Lion against the formula of its paper, computed with NumPy in float32.
#include "lockstep/optim/lion.h"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "optim/made_up_model.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(lion)

using namespace optim;

/// m = {"w": zeros, "b": zeros}, then for each of 4 steps and k in w, b, with i = arange(size):
///   g = ((7 i + 3 step) % 5 - 1.5) / 2;  c = 0.9 m[k] + 0.1 g
///   value[k] = value[k] * (1 - 0.01 * (0.1 if k == "w" else 0)) - 0.01 * sign(c);  m[k] = 0.99 m[k] + 0.01 g
struct Golden {
  std::string name;
  Shape shape;
  std::vector<float> initial, values, exp_avg;
};
const std::vector<Golden> golden{
    {"w",
     {2, 2},
     {0.5f, -1.25f, 2, 0.125f},
     {0.497983098f, -1.24498749f, 1.9720521f, 0.124500781f},
     {0.0100985067f, -2.56113708e-09f, 0.0146539863f, 0.00480050081f}},
    {"b",
     {3},
     {0.75f, -0.5f, 0.25f},
     {0.75f, -0.5f, 0.229999989f},
     {0.0100985067f, -2.56113708e-09f, 0.0146539863f}},
};

BOOST_AUTO_TEST_CASE(four_steps_are_those_of_numpy) {
  MadeUpModel model;
  for (const Golden& one : golden)
    std::ranges::copy(one.initial, model.add(one.name, one.shape).value.data<float>());
  Lion optimizer(model, {.lr = 0.01, .weight_decay = 0.1});
  for (int step = 0; step < 4; ++step) {
    for (Param* const param : model.params()) {
      param->gradient = Tensor::empty(param->value.shape());
      for (int i = 0; i < param->value.numel(); ++i)
        param->gradient.data<float>()[i] = (static_cast<float>((7 * i + 3 * step) % 5) - 1.5f) / 2;
    }
    optimizer.step();
  }
  const std::vector<Slot> slots = optimizer.slots();
  BOOST_REQUIRE(slots.size() == 1u);
  BOOST_TEST(slots[0].name == "exp_avg");
  for (std::size_t p = 0; p < golden.size(); ++p)
    for (std::size_t i = 0; i < golden[p].values.size(); ++i) {
      BOOST_TEST(std::abs(values(model[golden[p].name].value)[i] - golden[p].values[i]) < 1e-6f);
      BOOST_TEST(std::abs(values(slots[0].entries[p].tensor)[i] - golden[p].exp_avg[i]) < 1e-7f);
    }
}

BOOST_AUTO_TEST_CASE(an_element_without_gradient_stays) {
  MadeUpModel model;
  Param& param = model.add("x", {3});
  const std::vector<float> before = values(param.value);
  param.gradient = Tensor::zeros({3});
  Lion(model).step();
  BOOST_TEST(values(param.value) == before, boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(bad_options_are_errors, UsualModel) {
  BOOST_CHECK_EXCEPTION(Lion(model, {.betas = {1, 0.99}}), UsageError, mentions("optimizer.betas", "[0, 1)"));
  BOOST_CHECK_THROW(Lion(model, {.weight_decay = -1}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
