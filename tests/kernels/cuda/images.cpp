// Pooling, upsampling and batch norm, in every layout.
#include <limits>
#include "kernels/cuda/twins.h"
#include "lockstep/ops/pooling.h"
#include "ops/batch_norm.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(images, Twins)

using kernels::Backend;
using ops::PoolGeometry;

constexpr std::initializer_list<Form> all_forms = {plain_float, plain_bf16, last_float, last_bf16};

BOOST_AUTO_TEST_CASE(pooling_is_that_of_the_cpu) {
  Draw draw;
  for (const PoolGeometry& pool : {PoolGeometry{2, 2, 0}, PoolGeometry{3, 2, 1}, PoolGeometry{3, 1, 1},
                                   PoolGeometry{2, 3, 0}, PoolGeometry{1, 1, 0}}) {
    for (const Shape& shape : {Shape{2, 5, 9, 7}, Shape{0, 3, 4, 4}, Shape{1, 1, 3, 3}, Shape{3, 16, 8, 8}}) {
      const std::int64_t height =
          (shape[2] + 2 * pool.padding.height - pool.kernel.height) / pool.stride.height + 1;
      const std::int64_t width =
          (shape[3] + 2 * pool.padding.width - pool.kernel.width) / pool.stride.width + 1;
      const Shape small{shape[0], shape[1], height, width};
      const Operand x = activation(draw.normal(shape)), dy = activation(draw.normal(small));
      const std::string what = " of " + to_string(shape) + " by " + std::to_string(pool.kernel.width) + "/" +
                               std::to_string(pool.stride.width) + "+" + std::to_string(pool.padding.width);
      // Many values are equal, so that ties are met; the backward shows where the winners are.
      for (std::int64_t i = 0; i < x.value.numel(); ++i)
        x.value.data<float>()[i] = std::round(x.value.data<float>()[i]);
      compare(
          "max_pool" + what, {x, dy},
          {activation(unwritten(small)), activation(unwritten(small, DType::int32)),
           activation(unwritten(shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::MaxPool{in[0], pool, out[0], out[1]});
            on.run(ops::MaxPoolBackward{in[1], out[1], pool, out[2]});
          },
          all_forms);
      compare(
          "average_pool" + what, {x, dy}, {activation(unwritten(small)), activation(unwritten(shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::AveragePool{in[0], pool, out[0]});
            on.run(ops::AveragePoolBackward{in[1], pool, out[1]});
          },
          all_forms);
    }
  }
}

BOOST_AUTO_TEST_CASE(pooling_of_volumes_is_that_of_the_cpu) {
  Draw draw;
  for (const PoolGeometry& pool : {PoolGeometry{2, 2, 0}, PoolGeometry{3, 1, 1}, PoolGeometry{3, 2, 1},
                                   PoolGeometry{{1, 2, 3}, {1, 2, 1}, {0, 0, 1}}}) {
    for (const Shape& shape : {Shape{2, 5, 5, 6, 7}, Shape{0, 3, 4, 4, 4}, Shape{1, 1, 3, 3, 3}}) {
      const auto along = [&](int axis, int kernel, int stride, int padding) {
        return (shape[axis] + 2 * padding - kernel) / stride + 1;
      };
      const auto& [kernel, stride, padding] = pool;
      const Shape small{shape[0], shape[1], along(2, kernel.depth, stride.depth, padding.depth),
                        along(3, kernel.height, stride.height, padding.height),
                        along(4, kernel.width, stride.width, padding.width)};
      const Operand x = activation(draw.normal(shape)), dy = activation(draw.normal(small));
      for (std::int64_t i = 0; i < x.value.numel(); ++i)
        x.value.data<float>()[i] = std::round(x.value.data<float>()[i]);
      compare(
          "max_pool of " + to_string(shape) + " to " + to_string(small), {x, dy},
          {activation(unwritten(small)), activation(unwritten(small, DType::int32)),
           activation(unwritten(shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::MaxPool{in[0], pool, out[0], out[1]});
            on.run(ops::MaxPoolBackward{in[1], out[1], pool, out[2]});
          },
          all_forms);
      compare(
          "average_pool of " + to_string(shape) + " to " + to_string(small), {x, dy},
          {activation(unwritten(small)), activation(unwritten(shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::AveragePool{in[0], pool, out[0]});
            on.run(ops::AveragePoolBackward{in[1], pool, out[1]});
          },
          all_forms);
    }
  }
}

BOOST_AUTO_TEST_CASE(adaptive_pooling_is_that_of_the_cpu) {
  Draw draw;
  for (const auto& [large, small] : {std::pair{Shape{2, 5, 5, 6, 7}, Shape{2, 5, 2, 3, 1}},
                                     {Shape{3, 4, 7, 5}, Shape{3, 4, 3, 2}},
                                     {Shape{1, 3, 2, 3, 4}, Shape{1, 3, 4, 3, 7}},
                                     {Shape{0, 2, 4, 4}, Shape{0, 2, 3, 3}}}) {
    compare(
        "average_pool of " + to_string(large) + " to " + to_string(small),
        {activation(draw.normal(large)), activation(draw.normal(small))},
        {activation(unwritten(small)), activation(unwritten(large))},
        [=](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::AveragePool{in[0], {}, out[0], true});
          on.run(ops::AveragePoolBackward{in[1], {}, out[1], true});
        },
        all_forms);
  }
}

BOOST_AUTO_TEST_CASE(bilinear_resizing_is_that_of_the_cpu) {
  Draw draw;
  for (const Shape& shape : {Shape{2, 5, 9, 7}, Shape{0, 3, 4, 4}, Shape{1, 1, 1, 1}, Shape{3, 16, 8, 8}}) {
    for (const auto& [height, width] : {std::pair{8, 15}, {1, 3}, {9, 7}, {23, 2}}) {
      const Shape other{shape[0], shape[1], height, width};
      compare(
          "resize_bilinear of " + to_string(shape) + " to " + to_string(other),
          {activation(draw.normal(shape)), activation(draw.normal(other))},
          {activation(unwritten(other)), activation(unwritten(shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::ResizeBilinear{in[0], out[0]});
            on.run(ops::ResizeBilinearBackward{in[1], out[1]});
          },
          all_forms);
    }
  }
}

BOOST_AUTO_TEST_CASE(global_pooling_and_upsampling_are_those_of_the_cpu) {
  Draw draw;
  for (const Shape& shape : {Shape{2, 5, 9, 7}, Shape{0, 3, 4, 4}, Shape{1, 1, 1, 1}, Shape{3, 40, 7, 7},
                             Shape{2, 5, 3, 4, 5}, Shape{1, 1, 1, 2, 1}}) {
    const Operand x = activation(draw.normal(shape));
    const Shape pooled{shape[0], shape[1]};
    compare(
        "global_average_pool of " + to_string(shape), {x}, {activation(unwritten(pooled))},
        [](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::GlobalAveragePool{in[0], out[0]});
        },
        all_forms);
    compare(
        "global_average_pool_backward of " + to_string(shape), {activation(draw.normal(pooled))},
        {activation(unwritten(shape))},
        [](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::GlobalAveragePoolBackward{in[0], out[0]});
        },
        all_forms);
    for (const int scale : {1, 2, 3}) {
      Shape large = shape;
      for (int d = 2; d < shape.rank(); ++d) large = large.with(d, shape[d] * scale);
      compare(
          "upsample_nearest of " + to_string(shape), {x, activation(draw.normal(large))},
          {activation(unwritten(large)), activation(unwritten(shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::UpsampleNearest{in[0], scale, out[0]});
            on.run(ops::UpsampleNearestBackward{in[1], scale, out[1]});
          },
          all_forms);
    }
  }
}

BOOST_AUTO_TEST_CASE(batch_norm_is_that_of_the_cpu) {
  Draw draw;
  for (const Shape& shape : {Shape{2, 5, 9, 7}, Shape{0, 3, 4, 4}, Shape{1, 1, 1, 1}, Shape{33, 40, 7, 7},
                             Shape{70, 9}, Shape{4, 64, 16, 16}, Shape{3, 5, 2, 3, 4}}) {
    const std::int64_t channels = shape[1];
    const Operand x = activation(draw.normal(shape)), dy = activation(draw.normal(shape)),
                  mean = fixed(draw.normal({channels}, 0.1f)), inv_std = fixed(draw.positive({channels})),
                  weight = fixed(draw.normal({channels})), bias = fixed(draw.normal({channels}));
    const Operand pairs = fixed(unwritten({2, channels}, DType::float64));
    const std::string what = " of " + to_string(shape);
    compare(
        "channel_moments" + what, {x, mean}, {fixed(unwritten({2 * channels + 1}, DType::float64))},
        [](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::ChannelMoments{in[0], in[1], out[0]});
        },
        all_forms);
    compare(
        "batch_norm" + what, {x, mean, inv_std, weight, bias}, {activation(unwritten(shape))},
        [](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::BatchNorm{.x = in[0], .norm = {in[1], in[2], in[3], in[4]}, .y = out[0]});
        },
        all_forms);
    compare(
        "batch_norm without weights" + what, {x, mean, inv_std}, {activation(unwritten(shape))},
        [](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::BatchNorm{.x = in[0], .norm = {in[1], in[2]}, .y = out[0]});
        },
        all_forms);
    for (const double count : {0.0, 1.0, 77.0}) {
      compare(
          "batch_norm_backward" + what, {x, dy, mean, inv_std, weight}, {pairs, activation(unwritten(shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::BatchNormBackwardSums{in[1], in[0], {in[2], in[3]}, false, out[0]});
            const Tensor counted = on.empty({}, DType::float64);
            on.fill(counted, count);
            // Of constants nothing is read of the sums, which may then be anything.
            const Tensor anything = on.empty(out[0].shape(), DType::float64);
            on.fill(anything, std::numeric_limits<double>::quiet_NaN());
            const bool constant = count == 0;
            on.run(ops::BatchNormBackwardInput{in[1],
                                               in[0],
                                               {in[2], in[3], in[4]},
                                               false,
                                               constant ? anything : out[0],
                                               constant ? Tensor() : counted,
                                               out[1]});
          },
          all_forms);
    }
  }
}

BOOST_AUTO_TEST_CASE(batch_norm_with_relu_is_that_of_the_cpu) {
  Draw draw;
  for (const Shape& shape : {Shape{2, 5, 9, 7}, Shape{0, 3, 4, 4}, Shape{1, 1, 1, 1}, Shape{33, 40, 7, 7},
                             Shape{70, 9}, Shape{4, 64, 16, 16}}) {
    const std::int64_t channels = shape[1];
    const Operand x = activation(draw.normal(shape)), dy = activation(draw.normal(shape)),
                  shortcut = activation(draw.normal(shape)), beside = activation(draw.normal(shape)),
                  mean = fixed(draw.normal({channels}, 0.1f)), inv_std = fixed(draw.positive({channels})),
                  weight = fixed(draw.normal({channels})), bias = fixed(draw.normal({channels}));
    const Operand pairs = fixed(unwritten({2, channels}, DType::float64)), y = activation(unwritten(shape));
    const std::string what = " of " + to_string(shape);
    const std::vector<Operand> parameters{x, mean, inv_std, weight, bias, shortcut};
    compare(
        "batch_norm_relu" + what, parameters, {y, y},
        [](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::BatchNorm{in[0], {in[1], in[2], in[3], in[4]}, in[5], true, out[0]});
          on.run(ops::BatchNorm{in[0], {in[1], in[2], in[3], in[4]}, {}, true, out[1]});
        },
        all_forms);
    for (const double count : {0.0, 77.0}) {
      compare(
          "batch_norm_relu_backward" + what, {x, mean, inv_std, weight, bias, dy}, {pairs, y},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::BatchNormBackwardSums{in[5], in[0], {in[1], in[2], in[3], in[4]}, true, out[0]});
            const Tensor counted = on.empty({}, DType::float64);
            on.fill(counted, count);
            on.run(ops::BatchNormBackwardInput{in[5],
                                               in[0],
                                               {in[1], in[2], in[3], in[4]},
                                               true,
                                               out[0],
                                               count == 0 ? Tensor() : counted,
                                               out[1]});
          },
          all_forms);
    }
    for (const bool has_beside : {false, true}) {
      // The sign of `shortcut` stands for that of the ReLU's value.
      compare(
          "batch_norm_gated_backward_sums" + what, {x, mean, inv_std, dy, beside, shortcut}, {y, pairs},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::BatchNormGatedBackwardSums{in[3], has_beside ? in[4] : Tensor(), in[5], in[0], in[1],
                                                   in[2], out[0], out[1]});
          },
          all_forms);
    }
  }
}

BOOST_AUTO_TEST_CASE(moments_far_from_their_centre_keep_their_digits) {
  Draw draw;
  const Tensor x = draw.normal({64, 3, 20, 20});
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] += 1000;
  for (const Form& form : {plain_float, last_float}) {
    const Tensor here = to_gpu(activation(x), form), centre = gpu().empty({3}),
                 total = gpu().empty({7}, DType::float64), mean = gpu().empty({3}),
                 inv_std = gpu().empty({3});
    gpu().fill(centre, 0);
    gpu().run(ops::ChannelMoments{here, centre, total});
    bool lack = true;
    gpu().run(ops::MomentsLackDigits{total, 1e-5f, &lack});
    BOOST_TEST(!lack);
    gpu().run(ops::BatchStatistics{total, centre, centre, 1e-5f, mean, inv_std});
    const Tensor result = to_cpu(inv_std);
    for (std::int64_t c = 0; c < 3; ++c) {
      double sum = 0, squares = 0;
      for (std::int64_t i = 0; i < 64; ++i) {
        for (std::int64_t p = 0; p < 400; ++p) sum += x.data<float>()[(i * 3 + c) * 400 + p];
      }
      for (std::int64_t i = 0; i < 64; ++i) {
        for (std::int64_t p = 0; p < 400; ++p)
          squares += std::pow(x.data<float>()[(i * 3 + c) * 400 + p] - sum / 25600, 2);
      }
      BOOST_TEST(result.data<float>()[c] == 1 / std::sqrt(squares / 25600 + 1e-5),
                 boost::test_tools::tolerance(1e-5));
    }
  }
}

BOOST_AUTO_TEST_CASE(statistics_of_a_total_are_those_of_the_cpu) {
  Draw draw;
  for (const std::int64_t channels : {1, 5, 300}) {
    for (const double count : {0.0, 1.0, 50.0}) {
      const Tensor total = Tensor::zeros({2 * channels + 1}, DType::float64);
      for (std::int64_t c = 0; c < channels; ++c) {
        total.data<double>()[c] = static_cast<double>(draw.below(100)) / 10;
        total.data<double>()[channels + c] = 200 + static_cast<double>(draw.below(1000));
      }
      total.data<double>()[2 * channels] = count;
      const Operand centre = fixed(draw.normal({channels})), variance = fixed(draw.positive({channels}));
      const Operand out = fixed(unwritten({channels}));
      compare("batch_statistics", {fixed(total), centre, variance}, {out, out},
              [](Backend& on, const Tensors& in, const Tensors& to) {
                on.run(ops::BatchStatistics{in[0], in[1], in[2], 1e-5f, to[0], to[1]});
              },
              {plain_float});
      compare("batch_statistics of no total", {centre, variance}, {out, out},
              [](Backend& on, const Tensors& in, const Tensors& to) {
                on.run(ops::BatchStatistics{{}, in[0], in[1], 1e-5f, to[0], to[1]});
              },
              {plain_float});
      compare("move_centre", {centre, variance}, {fixed(total)},
              [](Backend& on, const Tensors& in, const Tensors& to) {
                on.run(ops::MoveCentre{to[0], in[0], in[1]});
              },
              {plain_float});
      compare("update_running", {fixed(total)}, {centre, variance, fixed(Tensor::zeros({}, DType::int64))},
              [](Backend& on, const Tensors& in, const Tensors& to) {
                on.run(ops::UpdateRunning{in[0], 0.1f, to[0], to[1], to[2]});
              },
              {plain_float});
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
