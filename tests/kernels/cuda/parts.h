// Operations with functions for all parts at once (Backend::run_parts), in sizes that fit no pack and no
// block.
#pragma once

#include "kernels/cuda/twins.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/random.h"
#include "ops/batch_norm.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/reduction.h"

namespace lockstep::test {

/// Makes operations of `parts` parts on a GPU, and calls body(operation) for each.
class PartsOnGpu {
 public:
  using Body = std::function<void(const ops::AnyOperation&)>;
  PartsOnGpu(Twins& twins, int parts, Body body) : twins_(twins), parts_(parts), body_(std::move(body)) {}

  void sums() {
    for_forms([&](const Form& form) {
      for (const auto& [rows, width] : {std::pair<int, int>{1, 1}, {3, 5}, {7, 64}, {700, 40}, {130, 33}}) {
        for (const bool accumulate : {false, true}) {
          run(ops::SumRows{on(form, rows, {width}), result({width}), accumulate});
          run(ops::ChannelSums{on(form, rows, {width}), result({width}), accumulate});
        }
      }
      each_image([&](int images, const Shape& image) {
        run(ops::ChannelSums{on(form, images, image), result({image[0]}), true});
      });
    });
  }

  void norms() {
    for_forms([&](const Form& form) {
      if (form.channels_last) return;
      for (const auto& [rows, width] :
           {std::pair<int, int>{1, 1}, {3, 7}, {77, 64}, {300, 96}, {9, 768}, {5, 3000}}) {
        for (const bool accumulate : {false, true}) {
          const Tensor x = on(form, rows, {width}), dy = on(form, rows, {width}),
                       more = accumulate ? on(form, rows, {width}) : Tensor{};
          run(ops::LayerNormBackward{dy, x, shared({width}), of_rows(rows, {}), of_rows(rows, {}), more,
                                     on(form, rows, {width}), result({width}), result({width}), accumulate});
          run(ops::RmsNormBackward{dy, x, shared({width}), of_rows(rows, {}), more, on(form, rows, {width}),
                                   result({width}), accumulate});
        }
      }
      each_image([&](int images, const Shape& image) {
        run(ops::GroupNormBackward{on(form, images, image), on(form, images, image), 1, shared({image[0]}),
                                   of_rows(images, {1}), of_rows(images, {1}), on(form, images, image),
                                   result({image[0]}), result({image[0]}), true});
      });
    });
  }

  /// Their rows and images do not depend on each other: an operation on all of them is one in parts.
  void forward_norms() {
    for_forms([&](const Form& form) {
      const Tensor image = on(form, 3, {64, 3, 5});
      run(ops::AdaptiveGroupNorm{image,
                                 {},
                                 32,
                                 shared({64}),
                                 shared({64}),
                                 {},
                                 1e-5f,
                                 true,
                                 on(form, 3, {64, 3, 5}),
                                 of_rows(3, {32}),
                                 of_rows(3, {32})});
      if (form.channels_last) return;
      for (const auto& [rows, width] :
           {std::pair<int, int>{1, 1}, {3, 7}, {77, 64}, {9, 768}, {5, 3000}, {3, 4099}}) {
        const Tensor x = on(form, rows, {width}), y = on(form, rows, {width});
        run(ops::LayerNorm{
            x, {}, shared({width}), shared({width}), 1e-5f, {}, y, of_rows(rows, {}), of_rows(rows, {})});
        run(ops::RmsNorm{x, shared({width}), 1e-5f, y, of_rows(rows, {})});
      }
      each_image([&](int images, const Shape& shape) {
        run(ops::GroupNorm{on(form, images, shape), 1, shared({shape[0]}), shared({shape[0]}), 1e-5f,
                           on(form, images, shape), of_rows(images, {1}), of_rows(images, {1})});
      });
    });
  }

  void adaptive_norms(const std::vector<Form>& forms) {
    for (const Form& form : forms) {
      for (const bool all : {false, true}) {
        const auto image = [&] { return on(form, 3, {64, 3, 5}); };
        const auto only = [&](const Tensor& tensor) { return all ? tensor : Tensor{}; };
        const Form flat{form.dtype, false};
        run(ops::AdaptiveGroupNormBackward{
            image(), image(), only(on(flat, 3, {64})), 32, shared({64}), shared({64}),
            only(on(flat, 3, {128})), 1e-5f, all, of_rows(3, {32}), of_rows(3, {32}), only(image()), image(),
            only(on(flat, 3, {64})), only(on(flat, 3, {128})), result({64}), result({64}), all});
      }
    }
  }

  void random() {
    constexpr RandomKey key{.seed = 3, .purpose = 5, .step = 7, .shard = 2};
    for_forms([&](const Form& form) {
      for (const float p : {0.0f, 0.3f}) {
        for (const int count : {1, 5, 64, 1003})
          run(ops::Dropout{on(form, count, {}), p, key, on(form, count, {})});
        each_image([&](int images, const Shape& image) {
          run(ops::Dropout{on(form, images, image), p, key, on(form, images, image)});
        });
      }
    });
    for (const int count : {1, 77, 1003}) {
      run(ops::Draw{.key = key, .y = of_rows(count, {})});
      run(ops::Draw{ops::Distribution::integer, key, 9, {}, of_rows(count, {}, DType::int64)});
      run(ops::Draw{ops::Distribution::coin, key, 0.4, {}, of_rows(count, {}, DType::uint8)});
      run(ops::Draw{ops::Distribution::weighted, key, 0, rising(6), of_rows(count, {}, DType::int64)});
    }
  }

  void losses() {
    for_forms([&](const Form& form) {
      if (form.channels_last) return;
      for (const auto& [rows, classes] : {std::pair<int, int>{5, 10}, {1, 3}, {16, 8}, {3, 8201}, {33, 7}}) {
        for (const float smoothing : {0.0f, 0.1f}) {
          const ops::CrossEntropyOptions options{smoothing, 1};
          const Tensor logits = on(form, rows, {classes}), targets = indices(rows, std::max(1, classes - 3)),
                       total = of_parts({2}, DType::float64), lse = of_rows(rows, {});
          run(ops::CrossEntropy{logits, targets, options, lse, total});
          run(ops::CrossEntropyInPlace{logits, targets, options, total, std::max(1, classes - 3)});
          run(ops::CrossEntropyBackward{logits, targets, options, lse, of_parts({}),
                                        on(form, rows, {classes})});
        }
      }
      for (const int count : {1, 5, 4096, 9001}) {
        const Tensor factors = of_parts({}), x = on(form, count, {}), total = of_parts({2}, DType::float64);
        twins_.gpu().fill(factors.rows(0, 1), 1);
        run(ops::ScaleUnlessOne{x, factors});
        run(ops::squared_error(x, on(form, count, {}), total));
        run(ops::Reduce<ops::Itself>{{}, {x}, total});
      }
    });
    for (const bool two : {false, true}) {
      const Tensor a = of_parts({2}, DType::float64);
      run(ops::CombineTotals{a, 0.5, two ? a : Tensor{}, of_parts({2}, DType::float64)});
    }
  }

  void tables() {
    for_forms([&](const Form& form) {
      if (form.channels_last) return;
      // Of all tables, rows are numbered by 7 bits or less, which the sort takes at once.
      for (const auto& [uses, rows, width] : {std::tuple<int, int, int>{1, 1, 1}, {7, 3, 5}, {301, 15, 33}}) {
        for (const bool accumulate : {false, true})
          run(ops::EmbeddingBackward{on(form, uses, {width}), indices(uses, rows), result({rows, width}),
                                     accumulate});
      }
    });
  }

  /// Of a layer whose parts begin at 16 bytes, with rows of whole packs and not, and matrices of samples.
  /// Elsewhere cuBLASLt may take another algorithm than for the part alone.
  void products() {
    for_forms([&](const Form& form) {
      if (form.channels_last) return;
      for (const auto& [rows, in, out] :
           {std::tuple<int, int, int>{4, 8, 12}, {16, 32, 24}, {257, 256, 264}, {256, 257, 264}}) {
        const Tensor x = on(form, rows, {in}), dy = on(form, rows, {out}), weight = shared({out, in});
        run(ops::linear(x, weight, {}, on(form, rows, {out})));
        run(ops::linear_backward_input(dy, weight, on(form, rows, {in})));
        for (const bool accumulate : {false, true})
          run(ops::linear_backward_weight(x, dy, result({out, in}), accumulate));
      }
      run(ops::MatMul{on(form, 1, {4, 8}), on(form, 1, {8, 12}), ops::Transposed::none,
                      on(form, 1, {4, 12})});
    });
  }

  void folds() {
    for_forms([&](const Form& form) {
      if (form.channels_last) return;
      each_fold<ops::Total>(form);
      each_fold<ops::SumOfProducts>(form);
      each_fold<ops::SumOfSquares>(form);
    });
  }

  void batch_norms() {
    for_forms([&](const Form& form) {
      each_image([&](int images, const Shape& image) {
        const Shape channels{image[0]}, pairs{2, image[0]};
        const auto make = [&] { return on(form, images, image); };
        const Tensor x = make(), dy = make(), sums = of_parts(pairs, DType::float64);
        run(ops::ChannelMoments{x, shared(channels), of_parts({2 * image[0] + 1}, DType::float64)});
        for (const bool relu : {false, true}) {
          const ops::ChannelNorm norm{of_parts(channels), of_parts(channels), shared(channels),
                                      relu ? shared(channels) : Tensor{}};
          run(ops::BatchNorm{x, norm, relu ? make() : Tensor{}, relu, make()});
          run(ops::BatchNormBackwardSums{dy, x, norm, relu, sums});
          run(ops::BatchNormBackwardInput{dy, x, norm, relu, sums,
                                          relu ? of_parts({}, DType::float64) : Tensor{}, make()});
          run(ops::BatchNormGatedBackwardSums{dy, relu ? make() : Tensor{}, make(), x, norm.mean,
                                              norm.inv_std, make(), sums});
        }
        run(ops::BatchStatistics{of_parts({2 * image[0] + 1}, DType::float64), shared(channels),
                                 shared(channels), 1e-5f, of_parts(channels), of_parts(channels)});
      });
    });
  }

  /// Positive numbers of a tensor's part, [parts, ...].
  Tensor of_parts(const Shape& shape, DType dtype = DType::float32) { return tensor(parts_, shape, dtype); }
  /// The same with so many rows of each part.
  Tensor of_rows(int rows, const Shape& shape, DType dtype = DType::float32) {
    return tensor(parts_ * rows, shape, dtype);
  }
  Tensor indices(int rows, int bound) { return twins_.to_gpu(fixed(draw_.indices({parts_ * rows}, bound))); }

 private:
  static Shape with_rows(std::int64_t rows, const Shape& shape) {
    std::vector<std::int64_t> extents{rows};
    extents.insert(extents.end(), shape.begin(), shape.end());
    return Shape(std::span<const std::int64_t>(extents));
  }
  Tensor tensor(int rows, const Shape& shape, DType dtype) {
    const Tensor values = draw_.positive(with_rows(rows, shape));
    const Tensor typed = Tensor::zeros(values.shape(), dtype);
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      if (dtype == DType::float32) typed.data<float>()[i] = values.data<float>()[i];
      if (dtype == DType::float64) typed.data<double>()[i] = static_cast<double>(values.data<float>()[i]);
    }
    return twins_.to_gpu(fixed(typed));
  }
  Tensor rising(int count) {
    const Tensor sums = Tensor::zeros({count}, DType::float64);
    for (int i = 0; i < count; ++i) sums.data<double>()[i] = i + 1;
    return twins_.to_gpu(fixed(sums));
  }
  Tensor on(const Form& form, int rows, const Shape& shape) {
    return twins_.to_gpu(activation(draw_.normal(with_rows(parts_ * rows, shape))), form);
  }
  Tensor shared(const Shape& shape) { return twins_.to_gpu(fixed(draw_.positive(shape))); }
  /// A result that a part has alone, which may hold values that the operation adds to.
  Tensor result(const Shape& shape) { return of_parts(shape); }

  template <class Each>
  void for_forms(const Each& each) {
    for (const Form& form : {plain_float, plain_bf16, last_float, last_bf16}) each(form);
  }
  /// Images of a part: channels that fit into packs and not, many images and few.
  template <class Each>
  void each_image(const Each& each) {
    each(1, Shape{1, 1, 1});
    each(3, Shape{5, 3, 5});
    each(2, Shape{16, 2, 2});
    each(67, Shape{2, 3, 1});
  }
  template <class Fold>
  void each_fold(const Form& form) {
    for (const auto& [rows, width] : {std::pair<int, int>{1, 1}, {7, 5}, {300, 33}, {9000, 3}}) {
      for (const Shape& shape : {Shape{1, width}, Shape{rows, 1}, Shape{1, 1}}) {
        const Tensor x = on(form, rows, {width}), y = of_parts(shape);
        Tensor other;
        if constexpr (ops::folds_pairs<Fold>)
          other = on(form, rows, {width});
        else if constexpr (ops::folds_terms<Fold>)
          other = of_parts(shape);
        run(ops::ReduceAxes<Fold>{x, y, true, 0.5, other});
      }
    }
  }
  void run(const ops::AnyOperation& operation) {
    BOOST_TEST_CONTEXT(operation.name() << ", " << parts_ << " parts") { body_(operation); }
  }

  Twins& twins_;
  int parts_;
  Body body_;
  Draw draw_;
};

}  // namespace lockstep::test
