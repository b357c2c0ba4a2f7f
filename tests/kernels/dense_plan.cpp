// Products prepared for packed weights, in float32, which every processor has: the lines that serve bf16.
#include "kernels/cpu/native_bfloat16.h"
#include "kernels/reference.h"
#include "ops/matmul.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(dense_plan)

using kernels::DensePass;
using kernels::DenseProblem;

BOOST_AUTO_TEST_CASE(products_with_packed_weights_are_those_of_the_backend) {
  Draw draw(81);
  const auto backend = kernels::make_cpu_backend(1);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::stream stream(engine);
  kernels::DenseCache cache;
  int packed_plans = 0;
  const auto run = [&](const DenseProblem& problem, const Tensor& inner, const Tensor& weight,
                       const Tensor& bias, const Tensor& outer) {
    kernels::DensePlan& plan = cache.plan(problem, engine);
    BOOST_REQUIRE(plan.usable());
    BOOST_TEST(&plan == &cache.plan(problem, engine));
    packed_plans += plan.packed_bytes() > 0;
    const Tensor packed = backend->empty({plan.packed_bytes()}, DType::uint8),
                 scratchpad = backend->empty({plan.scratchpad_bytes()}, DType::uint8);
    plan.run(stream, inner.raw(), weight.raw(), bias ? bias.data<float>() : nullptr, outer.raw(),
             packed.raw(), scratchpad.raw());
  };
  const auto near = [](const Tensor& found, const Tensor& wanted, const char* what) {
    const auto values = floats(wanted);
    check_close(found, {values.begin(), values.end()}, what);
  };
  for (const auto& [rows, in, out] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {5, 17, 3}, {64, 256, 768}, {33, 1024, 256}, {130, 31, 67}}) {
    const Tensor x = draw.normal({rows, in}), weight = draw.normal({out, in}), bias = draw.normal({out}),
                 dy = draw.normal({rows, out});
    const Tensor y = Tensor::empty({rows, out}), dx = Tensor::empty({rows, in}),
                 dweight = Tensor::empty({out, in});
    const Tensor y_found = Tensor::empty({rows, out}), dx_found = Tensor::empty({rows, in}),
                 dweight_found = Tensor::empty({out, in});
    for (const bool with_bias : {false, true}) {
      backend->run(ops::linear(x, weight, with_bias ? bias : Tensor(), y));
      run({.rows = rows, .in = in, .out = out, .bias = with_bias}, x, weight, with_bias ? bias : Tensor(),
          y_found);
      near(y_found, y, "y");
    }
    backend->run(ops::linear_backward_input(dy, weight, dx));
    run({.pass = DensePass::backward_input, .rows = rows, .in = in, .out = out}, dx_found, weight, {}, dy);
    near(dx_found, dx, "dx");
    for (const bool accumulate : {false, true}) {
      backend->run(ops::linear_backward_weight(x, dy, dweight, accumulate));
      run({.pass = DensePass::backward_weight, .rows = rows, .in = in, .out = out, .accumulate = accumulate},
          x, dweight_found, {}, dy);
      near(dweight_found, dweight, "dweight");
    }
  }
  BOOST_TEST(packed_plans > 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
