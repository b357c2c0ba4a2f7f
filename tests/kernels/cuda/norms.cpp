// Layer norm, RMS norm and group norm.
#include "kernels/cuda/twins.h"
#include "ops/norm.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(norms, Twins)

using kernels::Backend;

BOOST_AUTO_TEST_CASE(layer_norm_is_that_of_the_cpu) {
  Draw draw;
  for (const auto& [rows, width] : {std::pair<int, int>{0, 8},
                                    {1, 1},
                                    {3, 7},
                                    {5, 64},
                                    {300, 96},
                                    {700, 40},
                                    {70, 264},
                                    {9, 768},
                                    {4, 1024},
                                    {3, 2048},
                                    {2, 3000},
                                    {2, 4099}}) {
    const Operand x = activation(draw.normal({rows, width}, 3)), dy = activation(draw.normal({rows, width})),
                  weight = fixed(draw.normal({width})), bias = fixed(draw.normal({width}));
    const Operand y = activation(unwritten({rows, width})), row = fixed(unwritten({rows}));
    const std::string what = " of [" + std::to_string(rows) + ", " + std::to_string(width) + "]";
    compare("layer_norm" + what, {x, weight, bias}, {y, row, row},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::LayerNorm{in[0], {}, in[1], in[2], 1e-5f, {}, out[0], out[1], out[2]});
            });
    const Operand other = activation(draw.normal({rows, width}));
    compare("add_layer_norm" + what, {x, other, weight, bias}, {y, y, row, row},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::LayerNorm{in[0], in[1], in[2], in[3], 1e-5f, out[0], out[1], out[2], out[3]});
            });
    for (const bool accumulate : {false, true}) {
      const Operand parameter = fixed(accumulate ? draw.normal({width}) : unwritten({width}));
      compare("layer_norm_backward beside" + what, {x, dy, weight, bias, other}, {y, parameter, parameter},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const Shape items{in[0].size(0)};
                const Tensor mean = on.empty(items), inv_std = on.empty(items);
                const Tensor unread = on.empty(in[0].shape(), in[0].dtype());
                on.run(ops::LayerNorm{in[0], {}, in[2], in[3], 1e-5f, {}, unread, mean, inv_std});
                on.run(ops::LayerNormBackward{in[1], in[0], in[2], mean, inv_std, in[4], out[0], out[1],
                                              out[2], accumulate});
              });
      compare("layer_norm_backward" + what, {x, dy, weight, bias}, {y, parameter, parameter},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const Shape items{in[0].size(0)};
                const Tensor mean = on.empty(items), inv_std = on.empty(items);
                const Tensor unread = on.empty(in[0].shape(), in[0].dtype());
                on.run(ops::LayerNorm{in[0], {}, in[2], in[3], 1e-5f, {}, unread, mean, inv_std});
                on.run(ops::LayerNormBackward{
                    in[1], in[0], in[2], mean, inv_std, {}, out[0], out[1], out[2], accumulate});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(rms_norm_is_that_of_the_cpu) {
  Draw draw;
  for (const auto& [rows, width] :
       {std::pair<int, int>{0, 8}, {1, 1}, {3, 7}, {5, 64}, {300, 96}, {3, 2048}, {2, 4099}}) {
    const Operand x = activation(draw.normal({rows, width}, 3)), dy = activation(draw.normal({rows, width})),
                  other = activation(draw.normal({rows, width})), weight = fixed(draw.normal({width}));
    const Operand y = activation(unwritten({rows, width})), row = fixed(unwritten({rows}));
    const std::string what = " of [" + std::to_string(rows) + ", " + std::to_string(width) + "]";
    compare("rms_norm" + what, {x, weight}, {y, row}, [](Backend& on, const Tensors& in, const Tensors& out) {
      on.run(ops::RmsNorm{in[0], in[1], 1e-5f, out[0], out[1]});
    });
    for (const bool accumulate : {false, true}) {
      const Operand parameter = fixed(accumulate ? draw.normal({width}) : unwritten({width}));
      compare("rms_norm_backward" + what, {x, dy, weight, other}, {y, parameter},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const Tensor inv_rms = on.empty({in[0].size(0)}),
                             unread = on.empty(in[0].shape(), in[0].dtype());
                on.run(ops::RmsNorm{in[0], in[2], 1e-5f, unread, inv_rms});
                on.run(ops::RmsNormBackward{in[1], in[0], in[2], inv_rms, accumulate ? in[3] : Tensor{},
                                            out[0], out[1], accumulate});
              });
    }
  }
}

BOOST_AUTO_TEST_CASE(group_norm_is_that_of_the_cpu) {
  Draw draw;
  for (const auto& [shape, groups] : {std::pair<Shape, int>{{2, 6, 5, 7}, 3},
                                      {{0, 4, 3, 3}, 2},
                                      {{1, 1, 1, 1}, 1},
                                      {{3, 32, 9, 9}, 8},
                                      {{2, 4, 40, 40}, 1},
                                      {{2, 300, 2, 2}, 1},
                                      {{2, 3, 1, 1}, 3},
                                      {{2, 12, 1, 1}, 3},
                                      {{3, 9, 1, 3}, 3},
                                      {{2, 8, 1, 3}, 2},
                                      {{2, 4, 7, 7}, 4},
                                      {{2, 6, 7, 7}, 2},
                                      {{70, 8, 7, 7}, 2},
                                      {{2, 8, 4, 4}, 8},
                                      {{2, 12, 4, 4}, 4},
                                      {{2, 96, 2, 4}, 2},
                                      {{2, 6, 72, 48}, 2}}) {
    const std::int64_t channels = shape[1];
    const Operand x = activation(draw.normal(shape, 3)), dy = activation(draw.normal(shape)),
                  weight = fixed(draw.normal({channels})), bias = fixed(draw.normal({channels}));
    const Operand y = activation(unwritten(shape)), item = fixed(unwritten({shape[0], groups}));
    const int count = groups;
    const std::string what = " of " + to_string(shape) + " in " + std::to_string(groups);
    compare("group_norm" + what, {x, weight, bias}, {y, item, item},
            [=](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::GroupNorm{in[0], count, in[1], in[2], 1e-5f, out[0], out[1], out[2]});
            });
    for (const bool accumulate : {false, true}) {
      const Operand parameter = fixed(accumulate ? draw.normal({channels}) : unwritten({channels}));
      compare("group_norm_backward" + what, {x, dy, weight, bias}, {y, parameter, parameter},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const Shape items{in[0].size(0), count};
                const Tensor mean = on.empty(items), inv_std = on.empty(items);
                const Tensor unread = on.empty(in[0].shape(), in[0].dtype());
                on.run(ops::GroupNorm{in[0], count, in[2], in[3], 1e-5f, unread, mean, inv_std});
                on.run(ops::GroupNormBackward{in[1], in[0], count, in[2], mean, inv_std, out[0], out[1],
                                              out[2], accumulate});
              });
    }
  }
}

/// The same numbers where packs of 16 bytes are not aligned.
Tensor moved(Backend& on, const Tensor& tensor) {
  const Tensor more = on.empty({tensor.numel() + 1}, tensor.dtype());
  on.fill(more, 0);
  const Tensor there = more.rows(1, more.size(0)).reshape(tensor.shape());
  on.copy(tensor, there);
  return there;
}

BOOST_AUTO_TEST_CASE(group_norm_of_unaligned_images_is_that_of_the_cpu) {
  Draw draw;
  const Shape shape{2, 12, 4, 4}, items{2, 3};
  const Operand x = activation(draw.normal(shape, 3)), dy = activation(draw.normal(shape)),
                weight = fixed(draw.normal({12})), bias = fixed(draw.normal({12}));
  const Operand y = activation(unwritten(shape)), parameter = fixed(unwritten({12}));
  for (const int unaligned : {0, 1, 2}) {
    const auto at = [=](Backend& on, int operand, const Tensor& tensor) {
      return operand == unaligned ? moved(on, tensor) : tensor;
    };
    compare("group_norm and its backward, unaligned operand " + std::to_string(unaligned),
            {x, dy, weight, bias}, {y, y, parameter, parameter},
            [=](Backend& on, const Tensors& in, const Tensors& out) {
              const Tensor mean = on.empty(items), inv_std = on.empty(items);
              const Tensor images = at(on, 0, in[0]), upstream = at(on, 1, in[1]), to = at(on, 2, out[0]),
                           gradient = at(on, 2, out[1]);
              on.run(ops::GroupNorm{images, 3, in[2], in[3], 1e-5f, to, mean, inv_std});
              on.run(ops::GroupNormBackward{upstream, images, 3, in[2], mean, inv_std, gradient, out[2],
                                            out[3], false});
              if (unaligned == 2) {
                on.copy(to, out[0]);
                on.copy(gradient, out[1]);
              }
            });
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
