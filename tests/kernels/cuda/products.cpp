// Dense layers, convolutions and attention.
#include "kernels/cuda/twins.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/convolution.h"
#include "ops/matmul.h"
#include "support/gpu_labels.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(products, Twins)

using kernels::Backend;
using ops::Columns;

struct DenseSizes {
  int rows, in, out;

  [[nodiscard]] std::string text() const {
    return std::to_string(rows) + " x " + std::to_string(in) + " x " + std::to_string(out);
  }
};

/// With and without cuBLASLt's epilogues, which want packs of 8, and copies with padded rows.
constexpr DenseSizes dense_sizes[] = {{0, 3, 4},       {1, 1, 1},      {5, 7, 3},      {64, 96, 40},
                                      {33, 257, 129},  {512, 64, 10},  {128, 64, 256}, {3, 0, 5},
                                      {256, 256, 257}, {264, 260, 256}},
                     sizes_of_a_gpt[] = {{512, 64, 256}, {128, 768, 2304}, {128, 768, 3072}};

void compare_dense(Twins& twins, std::span<const DenseSizes> sizes) {
  Draw draw;
  for (const DenseSizes& s : sizes) {
    const Operand x = activation(draw.normal({s.rows, s.in})), dy = activation(draw.normal({s.rows, s.out})),
                  weight = fixed(draw.normal({s.out, s.in}, 0.1f)), bias = fixed(draw.normal({s.out}));
    const std::string what = s.text();
    twins.compare("linear " + what, {x, weight, bias}, {activation(unwritten({s.rows, s.out}))},
                  [](Backend& on, const Tensors& in, const Tensors& out) {
                    on.run(ops::linear(in[0], in[1], in[2], out[0]));
                  });
    twins.compare("linear without bias " + what, {x, weight}, {activation(unwritten({s.rows, s.out}))},
                  [](Backend& on, const Tensors& in, const Tensors& out) {
                    on.run(ops::linear(in[0], in[1], {}, out[0]));
                  });
    twins.compare("linear_backward_input " + what, {dy, weight}, {activation(unwritten({s.rows, s.in}))},
                  [](Backend& on, const Tensors& in, const Tensors& out) {
                    on.run(ops::linear_backward_input(in[0], in[1], out[0]));
                  });
    for (const bool accumulate : {false, true}) {
      const Shape shape{s.out, s.in};
      twins.compare("linear_backward_weight " + what, {x, dy},
                    {fixed(accumulate ? draw.normal(shape) : unwritten(shape))},
                    [=](Backend& on, const Tensors& in, const Tensors& out) {
                      on.run(ops::linear_backward_weight(in[0], in[1], out[0], accumulate));
                    });
    }
  }
}

BOOST_AUTO_TEST_CASE(dense_layers_are_those_of_the_cpu) { compare_dense(*this, dense_sizes); }
BOOST_AUTO_TEST_CASE(dense_layers_of_a_gpt_are_those_of_the_cpu, *large()) {
  compare_dense(*this, sizes_of_a_gpt);
}

void compare_activated(Twins& twins, std::span<const DenseSizes> sizes) {
  using ops::Activation;
  Draw draw;
  for (const DenseSizes& s : sizes) {
    const Operand x = activation(draw.normal({s.rows, s.in})), dy = activation(draw.normal({s.rows, s.out})),
                  weight = fixed(draw.normal({s.out, s.in}, 0.1f)), bias = fixed(draw.normal({s.out})),
                  before = activation(draw.normal({s.rows, s.in}));
    const Operand y = activation(unwritten({s.rows, s.out}));
    const std::string what = s.text();
    for (const Activation given :
         {Activation::relu, Activation::silu, Activation::gelu_erf, Activation::gelu_tanh}) {
      const Activation kind = given;
      twins.compare("linear_activation " + what, {x, weight, bias}, {y, y},
                    [=](Backend& on, const Tensors& in, const Tensors& out) {
                      on.run(ops::linear(in[0], in[1], in[2], out[1], kind, out[0]));
                    });
      twins.compare("linear_activation that keeps nothing " + what, {x, weight, bias}, {y, y},
                    [=](Backend& on, const Tensors& in, const Tensors& out) {
                      on.run(ops::linear(in[0], in[1], in[2], out[0], kind));
                      on.run(ops::linear(in[0], in[1], {}, out[1], kind));
                    });
      twins.compare("linear_backward_input_activation " + what, {dy, weight, before},
                    {activation(unwritten({s.rows, s.in}))},
                    [=](Backend& on, const Tensors& in, const Tensors& out) {
                      on.run(ops::linear_backward_input(in[0], in[1], out[0], kind, in[2]));
                    });
    }
    for (const bool accumulate : {false, true}) {
      const Shape shape{s.out, s.in};
      twins.compare("linear_backward_weight_bias " + what, {x, dy},
                    {fixed(accumulate ? draw.normal(shape) : unwritten(shape)),
                     fixed(accumulate ? draw.normal({s.out}) : unwritten({s.out}))},
                    [=](Backend& on, const Tensors& in, const Tensors& out) {
                      on.run(ops::linear_backward_weight(in[0], in[1], out[0], accumulate, out[1]));
                    });
    }
  }
}

BOOST_AUTO_TEST_CASE(layers_with_their_activations_are_those_of_the_cpu) {
  compare_activated(*this, dense_sizes);
}
BOOST_AUTO_TEST_CASE(layers_of_a_gpt_with_their_activations_are_those_of_the_cpu, *large()) {
  compare_activated(*this, sizes_of_a_gpt);
}

BOOST_AUTO_TEST_CASE(a_nan_passes_a_layer_with_relu) {
  for (const Form& form : {plain_float, plain_bf16}) {
    const Tensor x = Tensor::zeros({1, 8}), weight = Tensor::zeros({8, 8});
    x.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    const Tensor y = gpu().empty({1, 8}, form.dtype);
    gpu().run(ops::linear(to_gpu(activation(x), form), to_gpu(fixed(weight)), {}, y, ops::Activation::relu));
    BOOST_TEST(std::isnan(to_cpu(y).data<float>()[0]));
  }
}

BOOST_AUTO_TEST_CASE(batched_products_are_those_of_the_cpu) {
  Draw draw;
  struct Shapes {
    Shape a, b, y;
    ops::Transposed transposed = ops::Transposed::none;
  };
  for (const Shapes& s : {Shapes{{0, 4, 5}, {0, 5, 3}, {0, 4, 3}},
                          {{6, 33, 20}, {6, 20, 17}, {6, 33, 17}},
                          {{2, 1, 8, 16}, {3, 16, 8}, {2, 3, 8, 8}},
                          {{2, 3, 5, 7}, {7, 4}, {2, 3, 5, 4}},
                          {{2, 3, 5, 7}, {4, 7}, {2, 3, 5, 4}, ops::Transposed::b},
                          {{2, 3, 5, 7}, {2, 3, 5, 4}, {7, 4}, ops::Transposed::a},
                          {{2, 3, 5, 7}, {2, 3, 5, 4}, {2, 1, 7, 4}, ops::Transposed::a},
                          {{2, 3, 5, 7}, {3, 4, 7}, {3, 5, 4}, ops::Transposed::b},
                          {{2, 5, 0}, {2, 0, 4}, {2, 5, 4}}}) {
    const std::string what = "matmul of " + to_string(s.a) + " and " + to_string(s.b);
    const ops::Transposed transposed = s.transposed;
    const Operand a = activation(draw.normal(s.a)), b = activation(draw.normal(s.b));
    compare(what, {a, b}, {activation(unwritten(s.y))},
            [=](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::MatMul{in[0], in[1], transposed, out[0]});
            });
    for (const bool accumulate : {false, true})
      compare(what + " in float32", {a, b}, {fixed(accumulate ? draw.normal(s.y) : unwritten(s.y))},
              [=](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(ops::MatMul{in[0], in[1], transposed, out[0], accumulate});
              });
  }
}

BOOST_AUTO_TEST_CASE(gradients_between_others_in_a_flat_buffer_are_written_in_their_place) {
  Draw draw;
  compare("linear_backward_weight", {fixed(draw.normal({40, 6})), fixed(draw.normal({40, 5}))},
          {fixed(draw.normal({64}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::linear_backward_weight(in[0], in[1], out[0].rows(3, 33).reshape({5, 6}), false));
          },
          {plain_float});
}

BOOST_AUTO_TEST_CASE(convolutions_are_those_of_the_cpu) {
  Draw draw;
  struct Sizes {
    std::int64_t n, c, h, w, o;
    ops::HeightWidth kernel;
    ops::ConvolutionGeometry geometry;
  };
  for (const Sizes& s : {Sizes{2, 3, 9, 7, 8, 3, {1, 1, 1}},
                         {0, 4, 5, 5, 4, 3, {1, 1, 1}},
                         {1, 1, 1, 1, 1, 1, {1, 0, 1}},
                         {3, 16, 12, 12, 32, 3, {2, 1, 1}},
                         {2, 32, 8, 8, 64, 1, {2, 0, 1}},
                         {2, 8, 10, 10, 8, 3, {1, 1, 4}},
                         {2, 3, 32, 32, 16, 7, {2, 3, 1}},
                         {3, 5, 7, 11, 7, 3, {1, 1, 1}},
                         {2, 6, 10, 9, 4, {3, 2}, {{2, 1}, {0, 2}, 1, {1, 2}}},
                         {4, 64, 14, 14, 64, 3, {1, 1, 1}}}) {
    const auto& [stride, padding, groups, dilation] = s.geometry;
    const std::int64_t oh = ops::convolved_extent("test", s.h, s.kernel.height, stride.height, padding.height,
                                                  dilation.height),
                       ow = ops::convolved_extent("test", s.w, s.kernel.width, stride.width, padding.width,
                                                  dilation.width);
    const Shape weight_shape{s.o, s.c / groups, s.kernel.height, s.kernel.width};
    const Operand x = activation(draw.normal({s.n, s.c, s.h, s.w})),
                  weight = fixed(draw.normal(weight_shape, 0.2f)), bias = fixed(draw.normal({s.o})),
                  dy = activation(draw.normal({s.n, s.o, oh, ow}));
    const auto run = [&](const char* what, const std::vector<Operand>& in, const std::vector<Operand>& out,
                         const Twins::Operation& operation) {
      const std::string name = std::string(what) + " of " +
                               to_string(s.n == 0 ? Shape{0, s.c} : x.value.shape()) + " by " +
                               to_string(weight_shape);
      compare(name, in, out, operation, {plain_float, plain_bf16, last_float, last_bf16});
    };
    const ops::ConvolutionGeometry geometry = s.geometry;
    run("convolution", {x, weight, bias}, {activation(unwritten(dy.value.shape()))},
        [=](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::Convolution{in[0], in[1], in[2], geometry, out[0]});
        });
    run("convolution without bias", {x, weight}, {activation(unwritten(dy.value.shape()))},
        [=](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::Convolution{in[0], in[1], {}, geometry, out[0]});
        });
    run("convolution_backward_input", {dy, weight}, {activation(unwritten(x.value.shape()))},
        [=](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::ConvolutionBackwardInput{in[0], in[1], geometry, out[0]});
        });
    for (const bool accumulate : {false, true}) {
      run("convolution_backward_weight", {x, dy},
          {fixed(accumulate ? draw.normal(weight_shape) : unwritten(weight_shape))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::ConvolutionBackwardWeight{in[0], in[1], geometry, out[0], accumulate});
          });
      if (!accumulate)
        run("add_channels", {bias}, {activation(dy.value)},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::AddChannels{in[0], out[0]});
            });
      run("channel_sums", {dy}, {fixed(accumulate ? draw.normal({s.o}) : unwritten({s.o}))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::ChannelSums{in[0], out[0], accumulate});
          });
    }
  }
}

BOOST_AUTO_TEST_CASE(convolutions_of_volumes_are_those_of_the_cpu) {
  Draw draw;
  struct Sizes {
    Shape x, weight, y;
    ops::ConvolutionGeometry geometry;
  };
  for (const Sizes& s :
       {Sizes{{2, 3, 5, 6, 7}, {8, 3, 3, 3, 3}, {2, 8, 5, 6, 7}, {1, 1, 1}},
        {{0, 4, 5, 5, 5}, {4, 4, 3, 3, 3}, {0, 4, 5, 5, 5}, {1, 1, 1}},
        {{1, 1, 4, 4, 4}, {16, 1, 2, 2, 2}, {1, 16, 2, 2, 2}, {2, 0, 1}},
        {{3, 4, 4, 5, 4}, {6, 2, 3, 3, 3}, {3, 6, 4, 5, 4}, {1, 1, 2}},
        {{2, 8, 3, 4, 5}, {4, 8, 1, 1, 1}, {2, 4, 3, 4, 5}, {1, 0, 1}},
        {{1, 2, 3, 9, 9}, {3, 2, 1, 3, 3}, {1, 3, 3, 5, 9}, {{1, 2, 1}, {0, 1, 2}, 1, {1, 1, 2}}}}) {
    const Operand x = activation(draw.normal(s.x)), weight = fixed(draw.normal(s.weight, 0.2f)),
                  bias = fixed(draw.normal({s.y[1]})), dy = activation(draw.normal(s.y));
    const ops::ConvolutionGeometry geometry = s.geometry;
    const std::string what = " of " + to_string(s.x) + " by " + to_string(s.weight);
    static constexpr std::initializer_list<Form> forms{plain_float, plain_bf16, last_float, last_bf16};
    compare(
        "convolution" + what, {x, weight, bias}, {activation(unwritten(s.y))},
        [=](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::Convolution{in[0], in[1], in[2], geometry, out[0]});
        },
        forms);
    compare(
        "convolution_backward_input" + what, {dy, weight}, {activation(unwritten(s.x))},
        [=](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::ConvolutionBackwardInput{in[0], in[1], geometry, out[0]});
        },
        forms);
    for (const bool accumulate : {false, true})
      compare(
          "convolution_backward_weight" + what, {x, dy},
          {fixed(accumulate ? draw.normal(s.weight) : unwritten(s.weight))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::ConvolutionBackwardWeight{in[0], in[1], geometry, out[0], accumulate});
          },
          forms);
    compare(
        "channel_sums" + what, {dy}, {fixed(unwritten({s.y[1]}))},
        [=](Backend& on, const Tensors& in, const Tensors& out) {
          on.run(ops::ChannelSums{in[0], out[0], false});
        },
        forms);
  }
}

struct AttentionSizes {
  int batch, time, heads, width;
};
constexpr AttentionSizes attention_sizes[] = {{0, 5, 2, 4},    {1, 1, 1, 1},   {2, 33, 3, 5},  {1, 64, 2, 64},
                                              {2, 100, 2, 16}, {1, 70, 1, 80}, {1, 40, 1, 200}},
                         large_attention[] = {{2, 256, 3, 64}};

void compare_attention(Twins& twins, std::span<const AttentionSizes> sizes) {
  Draw draw;
  for (const AttentionSizes& s : sizes) {
    // A gap before and behind the gradients; one of 1 keeps bf16 from cuDNN, whose packs begin at 16 bytes.
    for (const auto& [causal_case, gap_case] :
         {std::pair<bool, int>{false, 0}, {true, 0}, {true, 1}, {false, 8}}) {
      const bool causal = causal_case;
      const std::int64_t gap = gap_case, channels = s.heads * s.width;
      const Shape shape{s.batch, s.time, channels};
      // The backward takes what the device's own forward saved.
      twins.compare(
          "attention " + to_string(shape) + (causal ? ", causal" : ""),
          {activation(draw.normal({s.batch, s.time, 3 * channels})), activation(draw.normal(shape))},
          {activation(unwritten(shape)), activation(draw.normal({s.batch, s.time, 3 * channels + 2 * gap}))},
          [=](Backend& on, const Tensors& in, const Tensors& out) {
            const auto part = [&](const Tensor& matrix, int number, std::int64_t first) {
              return Columns{matrix, first + number * channels, channels};
            };
            const Tensor saved = on.empty(on.attention_saved_shape(s.batch, s.heads, s.time, s.time));
            on.run(ops::Attention{part(in[0], 0, 0), part(in[0], 1, 0), part(in[0], 2, 0), s.heads, causal,
                                  out[0], saved});
            on.run(ops::AttentionBackward{in[1], part(in[0], 0, 0), part(in[0], 1, 0), part(in[0], 2, 0),
                                          s.heads, causal, out[0], saved, part(out[1], 0, gap),
                                          part(out[1], 1, gap), part(out[1], 2, gap)});
          });
    }
  }
}

BOOST_AUTO_TEST_CASE(attention_is_that_of_the_cpu) { compare_attention(*this, attention_sizes); }
BOOST_AUTO_TEST_CASE(attention_over_many_places_is_that_of_the_cpu, *large()) {
  compare_attention(*this, large_attention);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
