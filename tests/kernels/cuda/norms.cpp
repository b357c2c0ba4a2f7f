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

BOOST_AUTO_TEST_CASE(adaptive_group_norm_is_that_of_the_cpu_in_every_layout) {
  Draw draw;
  for (const auto& [shape, groups] : {std::pair<Shape, int>{{2, 32, 5, 7}, 8},
                                      {{3, 24, 4, 4}, 4},
                                      {{2, 6, 3, 5}, 3},    // channels that are no packs
                                      {{2, 96, 3, 3}, 32},  // groups that are no packs
                                      {{1, 128, 16, 17}, 32},
                                      {{2, 512, 2, 2}, 1},
                                      {{2, 520, 2, 2}, 1},  // a group that does not fit a block
                                      {{70, 8, 7, 7}, 2},
                                      {{1, 4, 1, 1}, 2},
                                      {{0, 32, 3, 3}, 8},
                                      {{2, 32, 0, 3}, 8}}) {
    const std::int64_t images = shape[0], channels = shape[1];
    const Operand x = activation(draw.normal(shape, 3)), dy = activation(draw.normal(shape)),
                  residual = activation(draw.normal(shape)), y = activation(unwritten(shape)),
                  addend = activation(draw.normal({images, channels})),
                  scale_shift = activation(draw.normal({images, 2 * channels})),
                  weight = fixed(draw.normal({channels})), bias = fixed(draw.normal({channels}));
    const int count = groups;
    const int apart = images * channels > 100 ? 3 : 1;
    for (int flags = 0; flags < 64; flags += apart) {
      const bool adds = flags & 1, modulates = flags & 2, silu = flags & 4, has_residual = flags & 8,
                 accumulate = flags & 16;
      const float p = flags & 32 ? 0.25f : 0;
      const auto only = [](bool is, const Tensor& tensor) { return is ? tensor : Tensor{}; };
      const Operand parameter = fixed(accumulate ? draw.normal({channels}) : unwritten({channels}));
      compare(fmt::format("adaptive_group_norm of {} in {}, flags {}", to_string(shape), groups, flags),
              {x, dy, residual, addend, scale_shift, weight, bias},
              {y, y, activation(copied(addend.value)), activation(copied(scale_shift.value)), parameter,
               parameter},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                const Tensor mean = on.empty({in[0].size(0), count}), inv_std = on.empty(mean.shape()),
                             added = only(adds, in[3]), modulation = only(modulates, in[4]);
                const RandomKey key{.seed = 7};
                on.run(ops::AdaptiveGroupNorm{in[0], added, count, in[5], in[6], modulation, 1e-5f, silu,
                                              out[0], mean, inv_std, p, key});
                on.run(ops::AdaptiveGroupNormBackward{in[1],
                                                      in[0],
                                                      added,
                                                      count,
                                                      in[5],
                                                      in[6],
                                                      modulation,
                                                      1e-5f,
                                                      silu,
                                                      mean,
                                                      inv_std,
                                                      only(has_residual, in[2]),
                                                      out[1],
                                                      only(adds, out[2]),
                                                      only(modulates, out[3]),
                                                      out[4],
                                                      out[5],
                                                      accumulate,
                                                      p,
                                                      key});
              },
              {plain_float, last_float, last_bf16});
    }
  }
}

/// Numbers of images, and so of blocks, leave an image's bits as they are: shards may share a launch.
BOOST_AUTO_TEST_CASE(an_image_has_the_bits_of_adaptive_group_norm_that_it_has_alone) {
  Draw draw;
  const Tensor all = to_gpu(activation(draw.normal({9, 64, 8, 8})), last_bf16),
               weight = to_gpu(fixed(draw.normal({64}))), bias = to_gpu(fixed(draw.normal({64})));
  const auto normed = [&](const Tensor& x) {
    const Tensor y = gpu().empty(x.shape(), x.dtype(), 64), mean = gpu().empty({x.size(0), 32}),
                 inv_std = gpu().empty(mean.shape());
    gpu().run(ops::AdaptiveGroupNorm{x, {}, 32, weight, bias, {}, 1e-5f, true, y, mean, inv_std});
    return to_cpu(y);
  };
  const Tensor together = normed(all);
  for (const std::int64_t image : {0, 4, 8}) {
    const Tensor alone = normed(all.rows(image, image + 1)), there = together.rows(image, image + 1);
    BOOST_TEST(std::memcmp(alone.raw(), there.raw(), alone.bytes()) == 0);
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
