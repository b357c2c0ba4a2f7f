// The global gradient norm and clipping.
#include "lockstep/optim/gradient_norm.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "optim/made_up_model.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(gradient_norms)

using namespace optim;

/// The definition, spelled out: blocks of 4096 in name order, float64.
double defined_norm(const MadeUpModel& model) {
  std::vector<const Param*> params(model.params().begin(), model.params().end());
  std::sort(params.begin(), params.end(), [](const Param* a, const Param* b) { return a->name < b->name; });
  double total = 0;
  for (const Param* const param : params) {
    if (!param->gradient) continue;
    const std::vector<float> gradient = values(param->gradient);
    for (std::size_t begin = 0; begin < gradient.size(); begin += 4096) {
      double block = 0;
      for (std::size_t i = begin; i < std::min(begin + 4096, gradient.size()); ++i)
        block += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
      total += block;
    }
  }
  return std::sqrt(total) / model.count();
}

BOOST_FIXTURE_TEST_CASE(norm_is_that_of_the_mean_gradient, UsualModel) {
  model.make_gradients(3);
  const double norm = gradient_norm(model);
  BOOST_TEST(norm == defined_norm(model), boost::test_tools::tolerance(1e-14));
  BOOST_TEST(norm > 60);  // about the root of 4862 normal draws
  model.set_count(8);
  BOOST_TEST(gradient_norm(model) == norm / 8);
}

BOOST_AUTO_TEST_CASE(norm_does_not_depend_on_the_order_of_the_tree) {
  MadeUpModel forward, backward;
  for (char name = 'a'; name <= 'z'; ++name) forward.add({name}, {5000});
  for (char name = 'z'; name >= 'a'; --name) backward.add({name}, {5000});
  for (MadeUpModel* const model : {&forward, &backward}) {
    model->make_gradients(1);
    // Beside this block's sum each other one alone is lost in rounding, while all together are not.
    (*model)["a"].gradient.data<float>()[0] = 1e10f;
  }
  BOOST_TEST(gradient_norm(forward) == gradient_norm(backward));
}

BOOST_FIXTURE_TEST_CASE(a_missing_gradient_counts_as_zeros, UsualModel) {
  model.make_gradients(0);
  GradientNorm norm(model);
  const double whole = norm.measure();
  model["hidden.weight"].gradient = {};
  BOOST_TEST(norm.measure() == defined_norm(model), boost::test_tools::tolerance(1e-14));
  BOOST_TEST(norm.measure() < whole);
}

BOOST_FIXTURE_TEST_CASE(slices_cut_at_block_edges_give_the_same_bits, UsualModel) {
  model.make_gradients(5);
  GradientNorm whole(model), sliced(model);
  const double expected = whole.measure();
  model.backend().fill(sliced.blocks(), -1);
  for (std::size_t i = 0; i < model.params().size(); ++i) {
    if (sliced.block_count(i) == 0) continue;
    const std::int64_t elements = model.params()[i]->value.numel();
    const std::int64_t cut = std::min(elements, GradientNorm::block_elements);
    if (cut < elements) sliced.fill_blocks(i, cut, elements);
    sliced.fill_blocks(i, 0, cut);
  }
  BOOST_TEST(sliced.combine() == expected);
  const std::size_t last = model.params().size() - 2;
  BOOST_TEST(sliced.block_count(last) == 1u);
  BOOST_CHECK_THROW(sliced.fill_blocks(1, 0, 100), UsageError);  // 71 * 67 elements: not at an edge
  BOOST_CHECK_THROW(sliced.fill_blocks(1, 7, 4096), UsageError);
  BOOST_CHECK_THROW(sliced.fill_blocks(1, 0, 8192), UsageError);
}

BOOST_FIXTURE_TEST_CASE(a_gradient_that_is_not_finite_is_named, UsualModel) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    model.make_gradients(1);
    model["hidden.weight"].gradient.data<float>()[4200] = bad;
    BOOST_CHECK_EXCEPTION(gradient_norm(model), TrainingError, mentions("'hidden.weight'", "4096 to 4756"));
  }
}

BOOST_FIXTURE_TEST_CASE(large_gradients_do_not_overflow, UsualModel) {
  model.make_gradients(1);
  model["norm.scale"].gradient.data<float>()[0] = 3e38f;
  BOOST_TEST(gradient_norm(model) == 3e38, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(clipping_is_pytorchs) {
  BOOST_TEST(clip_factor(4, 1) == 1 / (4 + 1e-6));
  BOOST_TEST(clip_factor(0.5, 1) == 1);
  BOOST_TEST(clip_factor(1, 1) == 1 / (1 + 1e-6));
  BOOST_TEST(clip_factor(0, 1) == 1);
  BOOST_TEST(clip_factor(1e30, 0) == 1);  // 0: no clipping
  BOOST_CHECK_THROW(clip_factor(1, -1), UsageError);
  BOOST_CHECK_THROW(clip_factor(1, std::nan("")), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
