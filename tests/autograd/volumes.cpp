// Functions of volumes against float64 on drawn cases, in any layout and at any number of threads; errors.
#include <array>
#include <boost/test/unit_test.hpp>

#include "autograd/drawn_cases.h"
#include "lockstep/autograd/functions.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(volumes)

using Three = std::array<std::int64_t, 3>;
using Values = std::vector<double>;

/// Calls body(position) for all positions below the extents.
template <class Body>
void for_positions(const Three& extents, const Body& body) {
  Three at{};
  for (at[0] = 0; at[0] < extents[0]; ++at[0])
    for (at[1] = 0; at[1] < extents[1]; ++at[1])
      for (at[2] = 0; at[2] < extents[2]; ++at[2]) body(at);
}

Three positions_of_shape(const Shape& s) { return {s[2], s[3], s[4]}; }
std::size_t place(const Three& extents, const Three& at) {
  return static_cast<std::size_t>((at[0] * extents[1] + at[1]) * extents[2] + at[2]);
}
/// The place of an element of [N, C, D, H, W].
std::size_t place(const Shape& s, std::int64_t n, std::int64_t c, const Three& at) {
  const Three extents = positions_of_shape(s);
  return static_cast<std::size_t>((n * s[1] + c) * extents[0] * extents[1] * extents[2]) + place(extents, at);
}

Three three(Draws& draws, std::int64_t low, std::int64_t high) {
  return {draws.between(low, high), draws.between(low, high), draws.between(low, high)};
}
ops::Directions directions(const Three& of) {
  return {static_cast<int>(of[0]), static_cast<int>(of[1]), static_cast<int>(of[2])};
}
Shape shape_of(std::int64_t n, std::int64_t c, const Three& extents) {
  return {n, c, extents[0], extents[1], extents[2]};
}
std::string text(const Three& of) { return to_string(Shape{of[0], of[1], of[2]}); }

/// x in one of the layouts that activations have.
Var in_layout(const Var& x, int block) { return to_channel_block(x, block); }
int drawn_block(Draws& draws, std::int64_t channels) {
  return draws.one_of({1, 1, 8, 16, static_cast<int>(channels)});
}

struct Convolved {
  Values y, dx, dw, db;
};

/// Each product of a weight w[o, i, k] with x[n, c, from] that is added to y[n, o, to].
Convolved reference(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& dy, const Three& stride,
                    const Three& padding, const Three& dilation, std::int64_t groups) {
  const Shape &s = x.shape(), &ws = w.shape(), &ys = dy.shape();
  Convolved of{Values(static_cast<std::size_t>(dy.numel())), Values(static_cast<std::size_t>(x.numel())),
               Values(static_cast<std::size_t>(w.numel())), Values(static_cast<std::size_t>(b.numel()))};
  const std::int64_t outputs = ws[0] / groups;
  for (std::int64_t n = 0; n < s[0]; ++n) {
    for (std::int64_t o = 0; o < ws[0]; ++o) {
      for_positions(positions_of_shape(ys), [&](const Three& to) {
        const std::size_t y_at = place(ys, n, o, to);
        of.y[y_at] += b.data<float>()[o];
        of.db[static_cast<std::size_t>(o)] += dy.data<float>()[y_at];
        for (std::int64_t i = 0; i < ws[1]; ++i) {
          for_positions(positions_of_shape(ws), [&](const Three& k) {
            Three from{};
            for (std::size_t d = 0; d < 3; ++d) {
              from[d] = to[d] * stride[d] - padding[d] + k[d] * dilation[d];
              if (from[d] < 0 || from[d] >= positions_of_shape(s)[d]) return;
            }
            const std::size_t x_at = place(s, n, o / outputs * ws[1] + i, from), w_at = place(ws, o, i, k);
            const double value = x.data<float>()[x_at], weight = w.data<float>()[w_at],
                         upstream = dy.data<float>()[y_at];
            of.y[y_at] += value * weight;
            of.dx[x_at] += upstream * weight;
            of.dw[w_at] += upstream * value;
          });
        }
      });
    }
  }
  return of;
}

BOOST_AUTO_TEST_CASE(drawn_convolutions_agree_with_float64) {
  for_drawn_cases([](Draws& draws) {
    const std::int64_t groups = draws.one_of<std::int64_t>({1, 1, 1, 2, 4}),
                       in = groups * draws.one_of<std::int64_t>({1, 2, 3, 8}),
                       out = groups * draws.one_of<std::int64_t>({1, 2, 5, 8}), batch = draws.between(0, 3);
    const Three kernel = three(draws, 1, 3), stride = three(draws, 1, 2), padding = three(draws, 0, 1),
                dilation = draws.between(0, 3) ? Three{1, 1, 1} : three(draws, 1, 2);
    Three extents{}, results{};
    for (std::size_t d = 0; d < 3; ++d) {
      const std::int64_t covered = dilation[d] * (kernel[d] - 1) + 1;
      extents[d] = draws.between(std::max<std::int64_t>(1, covered - 2 * padding[d]), 7);
      results[d] = (extents[d] + 2 * padding[d] - covered) / stride[d] + 1;
    }
    const Tensor x = draws.tensor(shape_of(batch, in, extents)),
                 w = draws.tensor(shape_of(out, in / groups, kernel)), b = draws.tensor({out}),
                 dy = draws.tensor(shape_of(batch, out, results));
    const ops::ConvolutionGeometry geometry{directions(stride), directions(padding), static_cast<int>(groups),
                                            directions(dilation)};
    const int block = groups == 1 ? drawn_block(draws, in) : 1;
    BOOST_TEST_CONTEXT("x " << to_string(x.shape()) << " in blocks of " << block << ", weight "
                            << to_string(w.shape()) << ", stride " << text(stride) << ", padding "
                            << text(padding) << ", dilation " << text(dilation)) {
      const auto run = [&](Tape&, const std::vector<Var>& of) {
        return conv3d(in_layout(of[0], block), of[1], of[2], geometry);
      };
      // The bits of weight gradients depend on the threads, as those of images do.
      const Outcome found = outcome_of(run, {x, w, b}, dy, static_cast<int>(draws.between(1, 3)));
      const Convolved wanted = reference(x, w, b, dy, stride, padding, dilation, groups);
      check_near(values_of(found.y), wanted.y, "y");
      check_near(values_of(found.gradients[0]), wanted.dx, "dx");
      check_near(values_of(found.gradients[1]), wanted.dw, "dweight");
      check_near(values_of(found.gradients[2]), wanted.db, "dbias");
    }
  });
}

/// The transposed convolution of x by w is the gradient of the convolution of y by its input.
BOOST_AUTO_TEST_CASE(drawn_transposed_convolutions_agree_with_float64) {
  for_drawn_cases([](Draws& draws) {
    const std::int64_t in = draws.one_of<std::int64_t>({1, 3, 8}),
                       out = draws.one_of<std::int64_t>({1, 4, 9}), batch = draws.between(0, 2);
    const Three kernel = three(draws, 1, 3), stride = three(draws, 1, 2), extents = three(draws, 1, 5);
    Three padding{}, more{}, results{};
    for (std::size_t d = 0; d < 3; ++d) {
      padding[d] = draws.between(0, std::min<std::int64_t>(1, kernel[d] - 1));
      more[d] = draws.between(0, stride[d] - 1);
      results[d] = (extents[d] - 1) * stride[d] - 2 * padding[d] + kernel[d] + more[d];
      if (results[d] < 1) results[d] += 2 * std::exchange(padding[d], 0);
    }
    const Tensor x = draws.tensor(shape_of(batch, in, extents)), w = draws.tensor(shape_of(in, out, kernel)),
                 b = draws.tensor({out}), dy = draws.tensor(shape_of(batch, out, results));
    BOOST_TEST_CONTEXT("x " << to_string(x.shape()) << ", weight " << to_string(w.shape()) << ", stride "
                            << text(stride) << ", padding " << text(padding) << ", more " << text(more)) {
      const auto run = [&](Tape&, const std::vector<Var>& of) {
        return conv_transpose3d(of[0], of[1], of[2], {directions(stride), directions(padding)},
                                directions(more));
      };
      const Outcome found = outcome_of(run, {x, w, b}, dy, static_cast<int>(draws.between(1, 3)));
      Convolved wanted =
          reference(dy, w, Tensor::zeros({in}), x, stride, padding, {1, 1, 1}, 1);  // y: gradient of x
      Values of_bias(static_cast<std::size_t>(out));
      for (std::size_t i = 0; i < wanted.dx.size(); ++i) {
        const auto channel = static_cast<std::size_t>(static_cast<std::int64_t>(i) /
                                                      (results[0] * results[1] * results[2]) % out);
        wanted.dx[i] += b.data<float>()[channel];
        of_bias[channel] += dy.data<float>()[i];
      }
      check_near(values_of(found.y), wanted.dx, "y");
      check_near(values_of(found.gradients[0]), wanted.y, "dx");
      check_near(values_of(found.gradients[1]), wanted.dw, "dweight");
      check_near(values_of(found.gradients[2]), of_bias, "dbias");
    }
  });
}

BOOST_AUTO_TEST_CASE(drawn_pooling_and_resizing_agree_with_float64_at_any_number_of_threads) {
  for_drawn_cases([](Draws& draws) {
    const std::int64_t batch = draws.between(0, 2), channels = draws.one_of<std::int64_t>({1, 3, 8, 17});
    const Three kernel = three(draws, 1, 3), stride = three(draws, 1, 3), other = three(draws, 1, 8);
    Three padding{}, extents{}, results{}, twice{};
    for (std::size_t d = 0; d < 3; ++d) {
      padding[d] = draws.between(0, kernel[d] / 2);
      extents[d] = draws.between(std::max<std::int64_t>(1, kernel[d] - 2 * padding[d]), 7);
      results[d] = (extents[d] + 2 * padding[d] - kernel[d]) / stride[d] + 1;
      twice[d] = 2 * extents[d];
    }
    const int block = drawn_block(draws, channels);
    const Tensor x = draws.tensor(shape_of(batch, channels, extents), draws.between(0, 1) == 0);
    const ops::PoolGeometry pool{directions(kernel), directions(stride), directions(padding)};
    /// pairs(to, add): calls add(from, weight) for the positions of x that a position of y is the sum of.
    const auto check = [&](const char* what, const Three& to_extents, const Function& function,
                           const auto& pairs) {
      const Tensor dy = draws.tensor(shape_of(batch, channels, to_extents));
      Values y(static_cast<std::size_t>(dy.numel())), dx(static_cast<std::size_t>(x.numel()));
      for (std::int64_t n = 0; n < batch; ++n) {
        for (std::int64_t c = 0; c < channels; ++c) {
          for_positions(to_extents, [&](const Three& to) {
            const std::size_t at = place(dy.shape(), n, c, to);
            const auto value = [&](const Three& from) {
              return x.data<float>()[place(x.shape(), n, c, from)];
            };
            pairs(to, value, [&](const Three& from, double weight) {
              y[at] += weight * value(from);
              dx[place(x.shape(), n, c, from)] += weight * dy.data<float>()[at];
            });
          });
        }
      }
      BOOST_TEST_CONTEXT(what << " of " << to_string(x.shape()) << " in blocks of " << block << " to "
                              << text(to_extents) << ", kernel " << text(kernel) << ", stride "
                              << text(stride) << ", padding " << text(padding)) {
        const Outcome found = same_at_any_threads(function, {x}, dy);
        check_near(values_of(found.y), y, "y");
        check_near(values_of(found.gradients[0]), dx, "dx");
      }
    };
    const auto window = [&](const Three& to, const auto& body) {
      for_positions(kernel, [&](const Three& k) {
        Three from{};
        for (std::size_t d = 0; d < 3; ++d) {
          from[d] = to[d] * stride[d] - padding[d] + k[d];
          if (from[d] < 0 || from[d] >= extents[d]) return;
        }
        body(from);
      });
    };
    const auto of = [block](const auto& function) {
      return
          [block, function](Tape&, const std::vector<Var>& in) { return function(in_layout(in[0], block)); };
    };
    check("max_pool3d", results, of([&](const Var& v) { return max_pool3d(v, pool); }),
          [&](const Three& to, const auto& value, const auto& add) {
            Three best{-1, 0, 0};
            window(to, [&](const Three& from) {
              if (best[0] < 0 || value(from) > value(best)) best = from;
            });
            add(best, 1);
          });
    check("avg_pool3d", results, of([&](const Var& v) { return avg_pool3d(v, pool); }),
          [&](const Three& to, const auto&, const auto& add) {
            window(to, [&](const Three& from) {
              add(from, 1.0 / static_cast<double>(kernel[0] * kernel[1] * kernel[2]));
            });
          });
    check("adaptive_avg_pool", other, of([&](const Var& v) {
            return adaptive_avg_pool(v, {other[0], other[1], other[2]});
          }),
          [&](const Three& to, const auto&, const auto& add) {
            Three begin{}, count{};
            for (std::size_t d = 0; d < 3; ++d) {
              begin[d] = to[d] * extents[d] / other[d];
              count[d] = ((to[d] + 1) * extents[d] + other[d] - 1) / other[d] - begin[d];
            }
            for_positions(count, [&](const Three& k) {
              add({begin[0] + k[0], begin[1] + k[1], begin[2] + k[2]},
                  1.0 / static_cast<double>(count[0] * count[1] * count[2]));
            });
          });
    check("upsample_nearest3d", twice, of([](const Var& v) { return upsample_nearest3d(v, 2); }),
          [&](const Three& to, const auto&, const auto& add) {
            add({to[0] / 2, to[1] / 2, to[2] / 2}, 1);
          });
    check("resize_trilinear", other,
          of([&](const Var& v) { return resize_trilinear(v, other[0], other[1], other[2]); }),
          [&](const Three& to, const auto&, const auto& add) {
            for_positions({2, 2, 2}, [&](const Three& side) {
              Three from{};
              double weight = 1;
              for (std::size_t d = 0; d < 3; ++d) {
                const double centre =
                    std::max(0.0, (static_cast<double>(to[d]) + 0.5) * static_cast<double>(extents[d]) /
                                          static_cast<double>(other[d]) -
                                      0.5);
                const auto first = static_cast<std::int64_t>(centre);
                const double share = centre - static_cast<double>(first);
                from[d] = std::min(first + side[d], extents[d] - 1);
                weight *= side[d] ? share : 1 - share;
              }
              add(from, weight);
            });
          });
  });
}

struct OnTape {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};

  OnTape() { tape.begin({}); }
  Var input(Shape shape) { return tape.input(normal_tensor(shape, 1)); }
};

/// They do as images of which a row is all rows of a volume.
BOOST_FIXTURE_TEST_CASE(norms_of_volumes_are_those_of_images_with_as_many_positions, OnTape) {
  const Var volumes = input({3, 4, 2, 3, 5}), images = reshape(volumes, {3, 4, 6, 5}), weight = input({4}),
            bias = input({4});
  const Tensor mean = Tensor::zeros({4}), var = Tensor::zeros({4});
  const BatchNormOptions options{.running_mean = mean, .running_var = var};
  for (const int block : {1, 4, 8}) {
    const auto in = [block](const Var& x) { return to_channel_block(x, block); };
    check_near(values_of(to_channel_block(group_norm(in(volumes), 2, weight, bias, 1e-5f), 1).value()),
               values_of(group_norm(images, 2, weight, bias, 1e-5f).value()), "group_norm");
    check_near(values_of(to_channel_block(batch_norm(in(volumes), weight, bias, options), 1).value()),
               values_of(to_channel_block(batch_norm(in(images), weight, bias, options), 1).value()),
               "batch_norm");
  }
}

BOOST_FIXTURE_TEST_CASE(volumes_are_joined_along_their_channels_in_any_layout, OnTape) {
  const Var a = input({2, 8, 2, 3, 4}), b = input({2, 16, 2, 3, 4});
  const Tensor plain = concat({a, b}, 1).value();
  const Var blocked = concat({to_channel_block(a, 8), to_channel_block(b, 8)}, 1);
  BOOST_TEST(blocked.value().channel_block() == 8);
  check_near(values_of(to_channel_block(blocked, 1).value()), values_of(plain), "concat");
}

BOOST_FIXTURE_TEST_CASE(what_does_not_fit_is_told_by_name, OnTape) {
  const Var x = input({2, 3, 5, 6, 7}), w = input({4, 3, 3, 3, 3}), image = input({2, 3, 5, 6});
  BOOST_CHECK_EXCEPTION(conv3d(image, w), UsageError, mentions("conv3d", "[2, 3, 5, 6]"));
  BOOST_CHECK_EXCEPTION(conv3d(x, input({4, 3, 3, 3})), UsageError, mentions("conv3d", "[4, 3, 3, 3]"));
  BOOST_CHECK_EXCEPTION(conv3d(x, input({4, 2, 3, 3, 3})), UsageError, mentions("conv3d"));
  BOOST_CHECK_EXCEPTION(conv3d(x, input({4, 3, 6, 3, 3})), UsageError, mentions("conv3d", "6 elements"));
  BOOST_CHECK_EXCEPTION(conv3d(x, w, {}, {.padding = {1, 1}}), UsageError, mentions("conv3d", "padding -1"));
  BOOST_CHECK_EXCEPTION(conv_transpose3d(x, input({3, 4, 2, 2, 2}), {}, {.stride = 2}, 2), UsageError,
                        mentions("conv_transpose3d", "output padding"));
  BOOST_CHECK_EXCEPTION(max_pool3d(image, {}), UsageError, mentions("max_pool3d"));
  BOOST_CHECK_EXCEPTION(avg_pool3d(x, {.kernel = 6, .stride = 1}), UsageError, mentions("avg_pool3d"));
  BOOST_CHECK_EXCEPTION(adaptive_avg_pool(x, {1, 1}), UsageError, mentions("adaptive_avg_pool", "[1, 1]"));
  BOOST_CHECK_EXCEPTION(adaptive_avg_pool(x, {0, 1, 1}), UsageError, mentions("adaptive_avg_pool"));
  BOOST_CHECK_EXCEPTION(upsample_nearest3d(image, 2), UsageError, mentions("upsample_nearest3d"));
  BOOST_CHECK_EXCEPTION(resize_trilinear(x, 0, 2, 2), UsageError, mentions("resize_trilinear"));
  BOOST_CHECK_EXCEPTION(resize_trilinear(image, 2, 2, 2), UsageError, mentions("resize_trilinear"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
