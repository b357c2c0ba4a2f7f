// More rows, heads, matrices and positions than a grid has blocks in its second dimension, 65535.
#include "kernels/cuda/twins.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/strided_copy.h"
#include "support/gpu_labels.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(thresholds, Twins)

using kernels::Backend;
using ops::StridedView;

constexpr std::int64_t many = 65537, few = 3;

BOOST_AUTO_TEST_CASE(many_rows_are_added_summed_and_copied_as_on_the_cpu) {
  Draw draw;
  const Operand x = fixed(draw.normal({many, few})), row = fixed(draw.normal({few}));
  compare(
      "add_rows", {x, row}, {fixed(unwritten({many, few}))},
      [](Backend& on, const Tensors& in, const Tensors& out) { on.run(ops::add_rows(in[0], in[1], out[0])); },
      {plain_float});
  compare("sum_rows", {x}, {fixed(unwritten({few}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::SumRows{in[0], out[0], false});
          },
          {plain_float});
  compare("turned", {x}, {fixed(unwritten({few, many}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            const std::array order{1, 0};
            on.run(ops::StridedCopy{StridedView(in[0]).permuted(order), StridedView(out[0])});
          },
          {plain_float});
  compare("every second row", {x}, {fixed(unwritten({many, 2}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::StridedCopy{StridedView(in[0]).narrowed(1, 1, 2), StridedView(out[0])});
          },
          {plain_float});
}

BOOST_AUTO_TEST_CASE(losses_and_norms_of_many_rows_are_those_of_the_cpu, *large()) {
  Draw draw;
  const Operand x = fixed(draw.normal({many, few})), dy = fixed(draw.normal({many, few})),
                weight = fixed(draw.normal({few})), bias = fixed(draw.normal({few})),
                row = fixed(unwritten({many})), y = fixed(unwritten({many, few})),
                targets = fixed(draw.indices({many}, few));
  compare("cross_entropy", {x, targets, fixed(scalar(0.37f))},
          {row, fixed(unwritten({2}, DType::float64)), y},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::CrossEntropy{in[0], in[1], {}, out[0], out[1]});
            on.run(ops::CrossEntropyBackward{in[0], in[1], {}, out[0], in[2], out[2]});
          },
          {plain_float});
  compare("layer_norm", {x, weight, bias, dy},
          {y, row, row, y, fixed(unwritten({few})), fixed(unwritten({few}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::LayerNorm{in[0], {}, in[1], in[2], 1e-5f, {}, out[0], out[1], out[2]});
            on.run(ops::LayerNormBackward{
                in[3], in[0], in[1], out[1], out[2], {}, out[3], out[4], out[5], false});
          },
          {plain_float});
}

BOOST_AUTO_TEST_CASE(many_heads_are_turned_as_on_the_cpu) {
  Draw draw;
  compare("rotary", {fixed(draw.normal({many, 1, 2, 4}))}, {fixed(unwritten({many, 1, 2, 4}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            ops::Rotary turned{.x = in[0], .y = out[0]};
            on.run(turned);
          },
          {plain_float});
}

BOOST_AUTO_TEST_CASE(many_matrices_are_multiplied_as_on_the_cpu) {
  Draw draw;
  const Operand a = activation(draw.normal({many, 2, 3})), b = activation(draw.normal({many, 3, 1}));
  compare("matmul", {a, b}, {activation(unwritten({many, 2, 1}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::MatMul{in[0], in[1], ops::Transposed::none, out[0]});
          });
}

BOOST_AUTO_TEST_CASE(attention_of_many_images_is_that_of_the_cpu, *large()) {
  Draw draw;
  const Operand q = fixed(draw.normal({many, 1, 4}));
  compare("attention", {q}, {fixed(unwritten({many, 1, 4}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            const ops::Columns all = ops::all_columns(in[0]);
            const Tensor saved = on.empty(on.attention_saved_shape(many, 1, 1, 1));
            on.run(ops::Attention{.q = all, .k = all, .v = all, .heads = 1, .y = out[0], .saved = saved});
          },
          {plain_float});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
