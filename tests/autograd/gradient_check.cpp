#include "autograd/gradient_check.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/random.h"

namespace lockstep::test {
namespace {

constexpr Pass checked_pass(bool training, bool record) {
  return {.training = training, .record = record, .seed = 3, .step = 5, .shard = 1};
}

double weighted_sum(const Tensor& y, const Tensor& w) {
  double sum = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i) sum += double{y.data<float>()[i]} * w.data<float>()[i];
  return sum;
}

}  // namespace

Tensor normal_tensor(Shape shape, std::uint64_t seed) {
  const Random random({.seed = seed, .purpose = purpose_of("gradient check")});
  Tensor tensor = Tensor::empty(shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return tensor;
}

Tensor spaced_tensor(Shape shape, std::uint64_t seed) {
  const Random random({.seed = seed, .purpose = purpose_of("spaced")});
  Tensor tensor = Tensor::empty(shape);
  const auto count = static_cast<std::uint32_t>(tensor.numel());
  float* const values = tensor.data<float>();
  for (std::uint32_t i = 0; i < count; ++i)
    values[i] = 0.2f * static_cast<float>(i) + 0.1f - 0.2f * static_cast<float>(count / 2);
  for (std::uint32_t i = count; i > 1; --i) std::swap(values[i - 1], values[random.below(i, i)]);
  return tensor;
}

void check_gradients(const Function& function, const std::vector<Tensor>& inputs,
                     const GradientCheck& options) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  const auto run = [&](bool record, std::vector<Var>& vars) {
    tape.begin(checked_pass(options.training, record));
    vars.clear();
    for (const Tensor& input : inputs) vars.push_back(tape.input(input));
    return to_channel_block(function(tape, vars), 1);
  };
  std::vector<Var> vars;
  const Var y = run(true, vars);
  const Tensor w = normal_tensor(y.shape(), 99);
  tape.backward(y, w);
  std::vector<Tensor> gradients;
  for (const Var& var : vars) gradients.push_back(tape.gradient(var));

  constexpr float h = 0.02f;
  std::vector<Var> unused;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    BOOST_REQUIRE_MESSAGE(gradients[k], "input " << k << " has no gradient");
    BOOST_REQUIRE((gradients[k].shape() == inputs[k].shape()));
    float* const x = inputs[k].data<float>();
    const float* const found = gradients[k].data<float>();
    double largest = 1;
    for (std::int64_t i = 0; i < inputs[k].numel(); ++i)
      largest = std::max(largest, std::abs(double{found[i]}));
    for (std::int64_t i = 0; i < inputs[k].numel(); ++i) {
      const float kept = x[i];
      const auto at = [&](float shift) {
        x[i] = kept + shift;
        return weighted_sum(run(false, unused).value(), w);
      };
      const double wide = (at(2 * h) - at(-2 * h)) / (4 * h), narrow = (at(h) - at(-h)) / (2 * h);
      x[i] = kept;
      const double wanted = (4 * narrow - wide) / 3;
      BOOST_CHECK_MESSAGE(
          std::abs(found[i] - wanted) <= options.tolerance * largest,
          "input " << k << ", element " << i << ": gradient " << found[i] << ", difference " << wanted);
    }
  }
}

}  // namespace lockstep::test
