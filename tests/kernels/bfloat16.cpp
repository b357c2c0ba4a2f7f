// Every operation on bf16 activations against itself on float32 ones of the same values.
//
// A result is rounded once: it is within half a unit in the last of 8 bits, 2^-8 of its value, of the
// float32 result, but for the order in which a processor with bf16 units of its own adds up (sums_differ).
#include <algorithm>

#include "kernels/reference.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/pooling.h"
#include "lockstep/ops/random.h"
#include "lockstep/tensor/dtype.h"
#include "ops/batch_norm.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(bfloat16)

using kernels::Backend;
using kernels::make_cpu_backend;
using ops::Activation;

constexpr double half_unit = 1.0 / 256;
constexpr double sums_differ = 1e-5;  // of the largest element, as check_close()

/// Values that bf16 holds, so that both types compute on the same numbers.
Tensor exact(Tensor tensor) {
  for (float& x : floats(tensor)) x = from_bfloat16_bits(bfloat16_bits(x));
  return tensor;
}

/// The operands of one call, whose activations are of one type.
class Call {
 public:
  Call(Backend& backend, DType activations) : backend_(backend), activations_(activations) {}

  /// An activation to read, in a channel block.
  Tensor in(const Tensor& values, int block = 1) {
    Tensor x = values;
    if (block != 1) {
      x = backend_.empty(values.shape(), DType::float32, block);
      backend_.run(ops::ToLayout{values, x});
    }
    if (activations_ == DType::float32) return x;
    const Tensor half = backend_.empty(x.shape(), activations_, block);
    backend_.copy(x, half);
    return half;
  }
  /// An activation to write.
  Tensor out(Shape shape, int block = 1) { return keep(backend_.empty(shape, activations_, block)); }
  /// A result that is float32 (or another type) whatever the activations are.
  Tensor result(Shape shape, DType dtype = DType::float32) { return keep(backend_.empty(shape, dtype)); }

  /// Its results in plain float64.
  std::vector<std::vector<double>> results() {
    std::vector<std::vector<double>> all;
    for (const Tensor& kept : results_) {
      Tensor x = kept;
      if (x.channel_block() != 1) {
        x = backend_.empty(kept.shape(), kept.dtype());
        backend_.run(ops::ToLayout{kept, x});
      }
      std::vector<double> values;
      for (std::int64_t i = 0; i < x.numel(); ++i) values.push_back(element(x, i));
      all.push_back(values);
    }
    return all;
  }
  bool is_activation(std::size_t result) const { return results_[result].dtype() == activations_; }

 private:
  Tensor keep(const Tensor& tensor) {
    results_.push_back(tensor);
    backend_.fill(tensor, 3);  // overwritten, whatever was there
    return tensor;
  }
  static double element(const Tensor& x, std::int64_t i) {
    switch (x.dtype()) {
      case DType::float32:
        return static_cast<double>(x.data<float>()[i]);
      case DType::bfloat16:
        return static_cast<double>(from_bfloat16_bits(x.data<BFloat16>()[i].bits));
      case DType::float64:
        return x.data<double>()[i];
      case DType::int32:
        return x.data<std::int32_t>()[i];
      default:
        return static_cast<double>(x.data<std::int64_t>()[i]);
    }
  }

  Backend& backend_;
  DType activations_;
  std::vector<Tensor> results_;
};

/// Calls the operation with activations of both types, and compares the results.
template <class Operation>
void compare(Backend& backend, const char* name, const Operation& operation) {
  Call floats_call(backend, DType::float32), halves_call(backend, DType::bfloat16);
  operation(floats_call);
  operation(halves_call);
  const auto wanted = floats_call.results(), found = halves_call.results();
  BOOST_REQUIRE_EQUAL(wanted.size(), found.size());
  for (std::size_t r = 0; r < wanted.size(); ++r) {
    const double rounding = halves_call.is_activation(r) ? half_unit : 0;
    double most = 1;
    for (const double value : wanted[r]) most = std::max(most, std::abs(value));
    for (std::size_t i = 0; i < wanted[r].size(); ++i) {
      const double error = std::abs(found[r][i] - wanted[r][i]);
      if (error <= rounding * std::abs(wanted[r][i]) + sums_differ * most) continue;
      BOOST_ERROR(name << ", result " << r << ", element " << i << " is " << found[r][i] << ", not "
                       << wanted[r][i]);
      break;
    }
  }
}

struct Fixture {
  Draw draw{71};
  std::unique_ptr<Backend> backend = make_cpu_backend(2);
  Tensor normal(Shape shape) { return exact(draw.normal(shape)); }
  std::int64_t extent(std::int64_t most) { return 1 + draw.below(most); }
};

BOOST_FIXTURE_TEST_CASE(elementwise_operations_round_once, Fixture) {
  for (int round = 0; round < 6; ++round) {
    const std::int64_t rows = extent(300), width = extent(270);
    const Tensor a = normal({rows, width}), b = normal({rows, width}), row = draw.normal({width});
    compare(*backend, "add", [&](Call& c) { backend->run(ops::add(c.in(a), c.in(b), c.out(a.shape()))); });
    compare(*backend, "scale", [&](Call& c) { backend->run(ops::scale(c.in(a), 0.3f, c.out(a.shape()))); });
    compare(*backend, "add_rows",
            [&](Call& c) { backend->run(ops::add_rows(c.in(a), row, c.out(a.shape()))); });
    compare(*backend, "sum_rows", [&](Call& c) {
      backend->run(ops::SumRows{c.in(a), c.result({width}), false});
    });
    compare(*backend, "sum_rows, added", [&](Call& c) {
      backend->run(ops::SumRows{c.in(a), c.result({width}), true});
    });
    const RandomKey key{.seed = 3, .purpose = 5, .step = 7, .shard = 1};
    compare(*backend, "dropout", [&](Call& c) {
      backend->run(ops::Dropout{c.in(a), 0.3f, key, c.out(a.shape())});
    });
    for (const ops::Activation kind : {ops::Activation::relu, ops::Activation::silu,
                                       ops::Activation::gelu_erf, ops::Activation::gelu_tanh}) {
      compare(*backend, "activation", [&](Call& c) {
        backend->run(ops::Activate{kind, c.in(a), c.out(a.shape())});
      });
      compare(*backend, "activation_backward", [&](Call& c) {
        backend->run(ops::ActivateBackward{kind, c.in(a), c.in(b), c.out(a.shape())});
      });
    }
  }
}

BOOST_FIXTURE_TEST_CASE(an_operation_may_write_over_what_it_reads, Fixture) {
  const Tensor a = normal({40, 1000}), b = normal({40, 1000});
  Call c(*backend, DType::bfloat16);
  const Tensor apart = c.out(a.shape()), over = c.in(a);
  backend->run(ops::add(over, c.in(b), apart));
  backend->run(ops::add(over, c.in(b), over));
  BOOST_TEST(same_bits(apart, over));
  const Tensor three_times = c.out(a.shape());
  backend->run(ops::scale(apart, 3, three_times));
  backend->run(ops::scale(over, 3, over));
  BOOST_TEST(same_bits(three_times, over));
  const Tensor slope = c.out(a.shape());
  backend->run(ops::ActivateBackward{ops::Activation::gelu_tanh, apart, over, slope});
  backend->run(ops::ActivateBackward{ops::Activation::gelu_tanh, apart, over, over});
  BOOST_TEST(same_bits(slope, over));
}

BOOST_FIXTURE_TEST_CASE(dense_layers_round_once, Fixture) {
  for (int round = 0; round < 8; ++round) {
    const std::int64_t rows = extent(200), in = extent(150), out = extent(150);
    const Tensor x = normal({rows, in}), weight = normal({out, in}), bias = draw.normal({out}),
                 dy = normal({rows, out}), shift = draw.normal({out, in});
    compare(*backend, "linear", [&](Call& c) {
      backend->run(ops::linear(c.in(x), c.in(weight), bias, c.out({rows, out})));
    });
    compare(*backend, "linear without bias", [&](Call& c) {
      backend->run(ops::linear(c.in(x), c.in(weight), {}, c.out({rows, out})));
    });
    compare(*backend, "linear_backward_input", [&](Call& c) {
      backend->run(ops::linear_backward_input(c.in(dy), c.in(weight), c.out({rows, in})));
    });
    for (const bool accumulate : {false, true}) {
      compare(*backend, "linear_backward_weight", [&](Call& c) {
        const Tensor dweight = c.result({out, in});
        backend->copy(shift, dweight);
        backend->run(ops::linear_backward_weight(c.in(x), c.in(dy), dweight, accumulate));
      });
    }
  }
}

BOOST_FIXTURE_TEST_CASE(gradients_of_weight_and_bias_are_not_rounded, Fixture) {
  for (const bool accumulate : {false, true}) {
    const std::int64_t rows = extent(120), in = extent(90), out = extent(90);
    const Tensor x = normal({rows, in}), dy = normal({rows, out});
    compare(*backend, "linear_backward_weight_bias", [&](Call& c) {
      backend->run(
          ops::linear_backward_weight(c.in(x), c.in(dy), c.result({out, in}), accumulate, c.result({out})));
    });
  }
}

BOOST_FIXTURE_TEST_CASE(a_float32_weight_is_rounded_on_the_way, Fixture) {
  const Tensor x = normal({9, 33}), weight = draw.normal({17, 33}), image = normal({2, 5, 6, 7}),
               kernel = draw.normal({4, 5, 3, 3});
  Call c(*backend, DType::bfloat16);
  const Tensor given = c.out({9, 17}), rounded = c.out({9, 17});
  backend->run(ops::linear(c.in(x), weight, {}, given));
  backend->run(ops::linear(c.in(x), c.in(weight), {}, rounded));
  BOOST_TEST(same_bits(given, rounded));
  const Tensor given_images = c.out({2, 4, 4, 5}), rounded_images = c.out({2, 4, 4, 5});
  backend->run(ops::Convolution{c.in(image), kernel, {}, {}, given_images});
  backend->run(ops::Convolution{c.in(image), c.in(kernel), {}, {}, rounded_images});
  BOOST_TEST(same_bits(given_images, rounded_images));
}

BOOST_FIXTURE_TEST_CASE(batched_products_round_once, Fixture) {
  const Tensor a = normal({2, 3, 9, 14}), b = normal({3, 14, 6}), one = normal({14, 6}),
               dy = normal({2, 3, 9, 6});
  const auto product = [&](const Tensor& left, const Tensor& right, ops::Transposed transposed, Shape shape) {
    compare(*backend, "matmul", [&](Call& c) {
      backend->run(ops::MatMul{c.in(left), c.in(right), transposed, c.out(shape)});
      backend->run(ops::MatMul{c.in(left), c.in(right), transposed, c.result(shape)});
      backend->run(ops::MatMul{c.in(left), c.in(right), transposed, c.result(shape), true});
    });
  };
  for (const Tensor& of : {b, one}) {
    product(a, of, ops::Transposed::none, dy.shape());
    product(dy, of, ops::Transposed::b, a.shape());
    product(a, dy, ops::Transposed::a, of.shape());
  }
}

BOOST_FIXTURE_TEST_CASE(convolutions_round_once, Fixture) {
  for (int round = 0; round < 8; ++round) {
    const int groups = round % 4 == 3 ? 2 : 1, stride = 1 + static_cast<int>(draw.below(2)), padding = 1;
    const std::int64_t n = extent(3), in = groups * extent(20), out = groups * extent(20), h = 2 + extent(9),
                       w = 2 + extent(9), k = round % 2 == 0 ? 3 : 1;
    const std::int64_t oh = (h + 2 - k) / stride + 1, ow = (w + 2 - k) / stride + 1;
    const ops::ConvolutionGeometry geometry{stride, padding, groups};
    const Tensor x = normal({n, in, h, w}), weight = normal({out, in / groups, k, k}),
                 bias = draw.normal({out}), dy = normal({n, out, oh, ow});
    for (const bool blocked : {false, true}) {
      const int x_block = blocked ? backend->preferred_channel_block(in, DType::bfloat16) : 1,
                y_block = blocked ? backend->preferred_channel_block(out, DType::bfloat16) : 1;
      compare(*backend, "convolution", [&](Call& c) {
        backend->run(
            ops::Convolution{c.in(x, x_block), c.in(weight), bias, geometry, c.out(dy.shape(), y_block)});
      });
      compare(*backend, "convolution_backward_input", [&](Call& c) {
        backend->run(ops::ConvolutionBackwardInput{c.in(dy, y_block), c.in(weight), geometry,
                                                   c.out(x.shape(), x_block)});
      });
      for (const bool accumulate : {false, true}) {
        compare(*backend, "convolution_backward_weight", [&](Call& c) {
          backend->run(ops::ConvolutionBackwardWeight{c.in(x, x_block), c.in(dy, y_block), geometry,
                                                      c.result(weight.shape()), accumulate});
        });
      }
      compare(*backend, "add_channels", [&](Call& c) {
        backend->run(ops::AddChannels{bias, c.out(dy.shape(), y_block)});
      });
      compare(*backend, "channel_sums", [&](Call& c) {
        backend->run(ops::ChannelSums{c.in(dy, y_block), c.result({out}), false});
      });
    }
  }
}

/// Processors with bf16 units take channels in blocks of 16, 32 and 64: several blocks, whole and not.
BOOST_FIXTURE_TEST_CASE(convolutions_of_many_channels_round_once, Fixture) {
  for (const auto& [in, out, stride] : {std::array<std::int64_t, 3>{32, 48, 1}, {24, 64, 2}, {64, 40, 1}}) {
    const std::int64_t n = 2, size = 5, made = stride == 1 ? size : 3;
    const ops::ConvolutionGeometry geometry{static_cast<int>(stride), 1, 1};
    const Tensor x = normal({n, in, size, size}), weight = normal({out, in, 3, 3}),
                 dy = normal({n, out, made, made});
    const int x_block = backend->preferred_channel_block(in, DType::bfloat16),
              y_block = backend->preferred_channel_block(out, DType::bfloat16);
    compare(*backend, "convolution", [&](Call& c) {
      backend->run(
          ops::Convolution{c.in(x, x_block), c.in(weight), {}, geometry, c.out(dy.shape(), y_block)});
    });
    compare(*backend, "convolution_backward_input", [&](Call& c) {
      backend->run(ops::ConvolutionBackwardInput{c.in(dy, y_block), c.in(weight), geometry,
                                                 c.out(x.shape(), x_block)});
    });
    compare(*backend, "convolution_backward_weight", [&](Call& c) {
      backend->run(ops::ConvolutionBackwardWeight{c.in(x, x_block), c.in(dy, y_block), geometry,
                                                  c.result(weight.shape()), false});
    });
  }
}

BOOST_FIXTURE_TEST_CASE(layouts_and_pooling_round_once, Fixture) {
  for (const int block : {1, 8}) {
    const Tensor x = normal({2, 11, 9, 7}), small = normal({2, 11, 5, 4}), pooled = normal({2, 11});
    const ops::PoolGeometry pool{3, 2, 1};
    compare(*backend, "to_layout", [&](Call& c) {
      backend->run(ops::ToLayout{c.in(x, block), c.out(x.shape(), 9 - block)});
    });
    const Tensor winners = backend->empty(small.shape(), DType::int32, block);
    compare(*backend, "max_pool", [&](Call& c) {
      backend->run(ops::MaxPool{c.in(x, block), pool, c.out(small.shape(), block), winners});
    });
    compare(*backend, "max_pool_backward", [&](Call& c) {
      backend->run(ops::MaxPoolBackward{c.in(small, block), winners, pool, c.out(x.shape(), block)});
    });
    compare(*backend, "average_pool", [&](Call& c) {
      backend->run(ops::AveragePool{c.in(x, block), pool, c.out(small.shape(), block)});
    });
    compare(*backend, "average_pool_backward", [&](Call& c) {
      backend->run(ops::AveragePoolBackward{c.in(small, block), pool, c.out(x.shape(), block)});
    });
    compare(*backend, "global_average_pool", [&](Call& c) {
      backend->run(ops::GlobalAveragePool{c.in(x, block), c.out({2, 11})});
    });
    compare(*backend, "global_average_pool_backward", [&](Call& c) {
      backend->run(ops::GlobalAveragePoolBackward{c.in(pooled), c.out(x.shape(), block)});
    });
    const Shape large{2, 11, 10, 8};
    compare(*backend, "resize_bilinear", [&](Call& c) {
      backend->run(ops::ResizeBilinear{c.in(x, block), c.out(small.shape(), block)});
    });
    compare(*backend, "resize_bilinear_backward", [&](Call& c) {
      backend->run(ops::ResizeBilinearBackward{c.in(small, block), c.out(x.shape(), block)});
    });
    compare(*backend, "upsample_nearest", [&](Call& c) {
      backend->run(ops::UpsampleNearest{c.in(small, block), 2, c.out(large, block)});
    });
    const Tensor upstream = normal(large);
    compare(*backend, "upsample_nearest_backward", [&](Call& c) {
      backend->run(ops::UpsampleNearestBackward{c.in(upstream, block), 2, c.out(small.shape(), block)});
    });
  }
  const Tensor bytes = Tensor::zeros({2, 3, 5, 4}, DType::uint8), factor = draw.normal({3}),
               shift = draw.normal({3});
  for (std::int64_t i = 0; i < bytes.numel(); ++i)
    bytes.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(draw.below(256));
  compare(*backend, "normalize_images", [&](Call& c) {
    backend->run(ops::NormalizeImages{bytes, factor, shift, c.out(bytes.shape())});
  });
}

BOOST_FIXTURE_TEST_CASE(norms_round_once, Fixture) {
  for (const auto& [block_case, size] : {std::pair{1, 5}, {8, 5}, {1, 90}, {8, 90}}) {
    const int block = block_case;               // Clang 14 captures no structured binding
    const Shape images{5, 10, size, size - 1};  // the larger ones are computed in parts
    const Tensor x = normal(images), dy = normal(images), mean = draw.normal({10}),
                 weight = draw.normal({10}), bias = draw.normal({10}), inv_std = draw.normal({10});
    const Tensor sums = backend->empty({2, 10}, DType::float64), count = backend->empty({}, DType::float64);
    backend->fill(sums, 0.5);
    backend->fill(count, 60);
    compare(*backend, "channel_moments", [&](Call& c) {
      backend->run(ops::ChannelMoments{c.in(x, block), mean, c.result({21}, DType::float64)});
    });
    compare(*backend, "batch_norm", [&](Call& c) {
      backend->run(ops::BatchNorm{
          .x = c.in(x, block), .norm = {mean, inv_std, weight, bias}, .y = c.out(x.shape(), block)});
    });
    compare(*backend, "batch_norm_backward_sums", [&](Call& c) {
      backend->run(ops::BatchNormBackwardSums{
          c.in(dy, block), c.in(x, block), {mean, inv_std}, false, c.result({2, 10}, DType::float64)});
    });
    const Tensor shortcut = normal(x.shape());
    for (const bool with_shortcut : {false, true}) {
      compare(*backend, "batch_norm_relu", [&](Call& c) {
        backend->run(ops::BatchNorm{c.in(x, block),
                                    {mean, inv_std, weight, bias},
                                    with_shortcut ? c.in(shortcut, block) : Tensor(),
                                    true,
                                    c.out(x.shape(), block)});
      });
    }
    compare(*backend, "batch_norm_relu_backward_sums", [&](Call& c) {
      backend->run(ops::BatchNormBackwardSums{c.in(dy, block),
                                              c.in(x, block),
                                              {mean, inv_std, weight, bias},
                                              true,
                                              c.result({2, 10}, DType::float64)});
    });
    compare(*backend, "batch_norm_relu_backward_input", [&](Call& c) {
      backend->run(ops::BatchNormBackwardInput{c.in(dy, block),
                                               c.in(x, block),
                                               {mean, inv_std, weight, bias},
                                               true,
                                               sums,
                                               count,
                                               c.out(x.shape(), block)});
    });
    compare(*backend, "batch_norm_backward_input", [&](Call& c) {
      backend->run(ops::BatchNormBackwardInput{c.in(dy, block),
                                               c.in(x, block),
                                               {mean, inv_std, weight},
                                               false,
                                               sums,
                                               count,
                                               c.out(x.shape(), block)});
    });
  }
  for (const std::int64_t width : {1, 7, 64, 259}) {
    const std::int64_t rows = width == 259 ? 701 : extent(90);
    const Tensor x = normal({rows, width}), dy = normal({rows, width}), weight = draw.normal({width}),
                 bias = draw.normal({width});
    const Tensor mean = backend->empty({rows}), inv_std = backend->empty({rows});
    compare(*backend, "layer_norm", [&](Call& c) {
      backend->run(ops::LayerNorm{
          c.in(x), {}, weight, bias, 1e-5f, {}, c.out(x.shape()), c.result({rows}), c.result({rows})});
      backend->run(ops::LayerNorm{x, {}, weight, bias, 1e-5f, {}, backend->empty(x.shape()), mean, inv_std});
    });
    const Tensor beside = normal({rows, width});
    for (const bool with_beside : {false, true}) {
      compare(*backend, "layer_norm_backward", [&](Call& c) {
        backend->run(ops::LayerNormBackward{c.in(dy), c.in(x), weight, mean, inv_std,
                                            with_beside ? c.in(beside) : Tensor(), c.out(x.shape()),
                                            c.result({width}), c.result({width}), true});
      });
    }
  }
  const Tensor x = normal({2, 6, 5, 3}), dy = normal({2, 6, 5, 3}), weight = draw.normal({6}),
               bias = draw.normal({6}), mean = backend->empty({2, 3}), inv_std = backend->empty({2, 3});
  backend->run(ops::GroupNorm{x, 3, weight, bias, 1e-5f, backend->empty(x.shape()), mean, inv_std});
  compare(*backend, "group_norm", [&](Call& c) {
    backend->run(ops::GroupNorm{c.in(x), 3, weight, bias, 1e-5f, c.out(x.shape()), c.result({2, 3}),
                                c.result({2, 3})});
  });
  compare(*backend, "group_norm_backward", [&](Call& c) {
    backend->run(ops::GroupNormBackward{c.in(dy), c.in(x), 3, weight, mean, inv_std, c.out(x.shape()),
                                        c.result({6}), c.result({6}), false});
  });
}

BOOST_FIXTURE_TEST_CASE(attention_rounds_once, Fixture) {
  for (const bool causal : {false, true}) {
    const std::int64_t batch = 2, time = 37, channels = 24;
    const int heads = 3;
    const Tensor qkv = normal({batch, time, 3 * channels}), dy = normal({batch, time, channels});
    const auto part = [&](const Tensor& matrix, int index) {
      return ops::Columns{matrix, index * channels, channels};
    };
    const Tensor saved = backend->empty(backend->attention_saved_shape(batch, heads, time, time)),
                 y = backend->empty(dy.shape());
    compare(*backend, "attention", [&](Call& c) {
      const Tensor x = c.in(qkv);
      backend->run(ops::Attention{part(x, 0), part(x, 1), part(x, 2), heads, causal, c.out(dy.shape()),
                                  c.result(saved.shape())});
    });
    backend->run(ops::Attention{part(qkv, 0), part(qkv, 1), part(qkv, 2), heads, causal, y, saved});
    exact(y);
    compare(*backend, "attention_backward, thirds of one matrix", [&](Call& c) {
      const Tensor x = c.in(qkv), dx = c.out(qkv.shape());
      backend->run(ops::AttentionBackward{c.in(dy), part(x, 0), part(x, 1), part(x, 2), heads, causal,
                                          c.in(y), saved, part(dx, 0), part(dx, 1), part(dx, 2)});
    });
    // Columns beside what is asked for keep their values.
    compare(*backend, "attention_backward, columns of wider matrices", [&](Call& c) {
      const Tensor x = c.in(qkv), dq = c.out(qkv.shape()), dkv = c.out(qkv.shape());
      backend->run(ops::AttentionBackward{c.in(dy), part(x, 0), part(x, 1), part(x, 2), heads, causal,
                                          c.in(y), saved, part(dq, 1), part(dkv, 0), part(dkv, 2)});
    });
  }
}

BOOST_FIXTURE_TEST_CASE(attention_between_sequences_rounds_once, Fixture) {
  for (const std::int64_t keys : {7, 530}) {  // fewer than a strip of queries, and many
    const Tensor q = normal({2, 6, 60, 5}), k = normal({2, 2, keys, 5}), v = normal({2, 2, keys, 5}),
                 dy = normal(q.shape());
    const auto all = ops::all_columns;
    const Tensor saved = backend->empty(backend->attention_saved_shape(2, 6, 60, keys)),
                 y = backend->empty(dy.shape());
    compare(*backend, "attention of grouped queries", [&](Call& c) {
      backend->run(ops::Attention{all(c.in(q)), all(c.in(k)), all(c.in(v)), 6, false, c.out(q.shape()),
                                  c.result(saved.shape())});
    });
    backend->run(ops::Attention{all(q), all(k), all(v), 6, false, y, saved});
    exact(y);
    compare(*backend, "attention_backward of grouped queries", [&](Call& c) {
      backend->run(ops::AttentionBackward{c.in(dy), all(c.in(q)), all(c.in(k)), all(c.in(v)), 6, false,
                                          c.in(y), saved, all(c.out(q.shape())), all(c.out(k.shape())),
                                          all(c.out(v.shape()))});
    });
  }
}

BOOST_FIXTURE_TEST_CASE(embedding_and_losses_round_once, Fixture) {
  const Tensor table = draw.normal({50, 19}), indices = draw.indices({4, 9}, 50), dy = normal({4, 9, 19});
  compare(*backend, "embedding", [&](Call& c) {
    backend->run(ops::Embedding{indices, table, c.out(dy.shape())});
  });
  compare(*backend, "embedding_backward", [&](Call& c) {
    backend->run(ops::EmbeddingBackward{c.in(dy), indices, c.result(table.shape()), false});
  });
  const Tensor logits = normal({1700, 45}), targets = draw.indices({1700}, 45), factor = Tensor::empty({});
  *factor.data<float>() = 0.25f;
  const Tensor logs = backend->empty({1700}), total = backend->empty({2}, DType::float64);
  for (const float smoothing : {0.0f, 0.1f}) {
    const ops::CrossEntropyOptions options{.label_smoothing = smoothing};
    backend->run(ops::CrossEntropy{logits, targets, options, logs, total});
    compare(*backend, "cross_entropy", [&](Call& c) {
      backend->run(
          ops::CrossEntropy{c.in(logits), targets, options, c.result({1700}), c.result({2}, DType::float64)});
    });
    compare(*backend, "cross_entropy_backward", [&](Call& c) {
      backend->run(
          ops::CrossEntropyBackward{c.in(logits), targets, options, logs, factor, c.out(logits.shape())});
    });
  }
  compare(*backend, "count_correct", [&](Call& c) {
    backend->run(ops::CountCorrect{c.in(logits), targets, c.result({}, DType::int64)});
  });
  const Tensor wanted = normal({1700, 45});
  compare(*backend, "squared_error", [&](Call& c) {
    backend->run(ops::squared_error(c.in(logits), c.in(wanted), c.result({2}, DType::float64)));
  });
  compare(*backend, "squared_error_backward", [&](Call& c) {
    backend->run(ops::squared_error_backward(c.in(logits), c.in(wanted), factor, c.out(logits.shape())));
  });
}

BOOST_FIXTURE_TEST_CASE(a_row_depends_neither_on_the_other_rows_nor_on_threads, Fixture) {
  const auto one_thread = make_cpu_backend(1);
  const std::int64_t in = 96, out = 160;
  const Tensor x = normal({130, in}), weight = normal({out, in}), bias = draw.normal({out});
  Call c(*backend, DType::bfloat16);
  const Tensor half = c.in(x), w = c.in(weight), whole = c.out({130, out});
  one_thread->run(ops::linear(half, w, bias, whole));
  for (const std::int64_t rows : {1, 7, 48, 64, 129}) {
    const Tensor y = c.out({rows, out});
    backend->run(ops::linear(half.rows(1, 1 + rows), w, bias, y));
    BOOST_TEST(same_bits(y, whole.rows(1, 1 + rows)), rows << " rows");
  }
  const Tensor images = normal({9, 16, 8, 8}), kernel = normal({24, 16, 3, 3});
  const int x_block = backend->preferred_channel_block(16, DType::bfloat16),
            y_block = backend->preferred_channel_block(24, DType::bfloat16);
  const Tensor k = c.in(kernel), all = c.out({9, 24, 8, 8}, y_block);
  one_thread->run(ops::Convolution{c.in(images, x_block), k, {}, {1, 1, 1}, all});
  for (const std::int64_t count : {1, 2, 5}) {
    const Tensor y = c.out({count, 24, 8, 8}, y_block);
    backend->run(ops::Convolution{c.in(images.rows(0, count), x_block), k, {}, {1, 1, 1}, y});
    BOOST_TEST(std::memcmp(y.raw(), all.raw(), y.bytes()) == 0, count << " images");
  }
}

BOOST_FIXTURE_TEST_CASE(sums_of_dense_layers_and_norms_do_not_depend_on_threads, Fixture) {
  const auto one_thread = make_cpu_backend(1);
  Call c(*backend, DType::bfloat16);
  const Tensor x = c.in(normal({300, 96})), dy = c.in(normal({300, 160}));
  const Tensor dweight = c.result({160, 96}), alone = c.result({160, 96});
  backend->run(ops::linear_backward_weight(x, dy, dweight, false));
  one_thread->run(ops::linear_backward_weight(x, dy, alone, false));
  BOOST_TEST(same_bits(dweight, alone));

  // Some slices for each thread.
  const Tensor images = c.in(normal({24, 8, 40, 40})), centre = draw.normal({8});
  const Tensor moments = c.result({17}, DType::float64), moments_alone = c.result({17}, DType::float64);
  backend->run(ops::ChannelMoments{images, centre, moments});
  one_thread->run(ops::ChannelMoments{images, centre, moments_alone});
  BOOST_TEST(same_bits(moments, moments_alone));
}

BOOST_FIXTURE_TEST_CASE(nothing_in_nothing_out, Fixture) {
  Call c(*backend, DType::bfloat16);
  const Tensor none = c.out({0, 8}), dweight = c.result({4, 8});
  backend->run(ops::add(none, none, none));
  backend->run(ops::linear(none, c.in(normal({4, 8})), {}, c.out({0, 4})));
  backend->run(ops::linear_backward_weight(none, c.out({0, 4}), dweight, false));
  for (const float x : floats(dweight)) BOOST_TEST(x == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
