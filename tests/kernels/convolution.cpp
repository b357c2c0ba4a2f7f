// Convolutions against naive loops in double precision.
#include <cstring>

#include "kernels/cpu/convolution.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/winograd.h"
#include "kernels/images.h"
#include "kernels/math_library.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(convolution)

struct Problem {
  Images x, weight, y;  // weight: [O, C / groups, kh, kw]
  ops::ConvolutionGeometry geometry;
  int x_block = 1, y_block = 1;
};

std::string text(const ops::HeightWidth& of) {
  return std::to_string(of.height) + " x " + std::to_string(of.width);
}

std::ostream& operator<<(std::ostream& out, const Problem& p) {
  return out << "x " << to_string(p.x.shape()) << " in blocks of " << p.x_block << ", weight "
             << to_string(p.weight.shape()) << ", stride " << text(p.geometry.stride) << ", padding "
             << text(p.geometry.padding) << ", dilation " << text(p.geometry.dilation) << ", groups "
             << p.geometry.groups << ", y in blocks of " << p.y_block;
}

Problem make_problem(Draws& draws, std::int64_t n, std::int64_t channels, std::int64_t height,
                     std::int64_t width, std::int64_t out_channels, std::int64_t kernel_height,
                     std::int64_t kernel_width, ops::ConvolutionGeometry geometry) {
  const auto& [stride, padding, groups, dilation] = geometry;
  return {draws.images(n, channels, height, width),
          draws.images(out_channels, channels / groups, kernel_height, kernel_width),
          draws.images(
              n, out_channels,
              (height + 2 * padding.height - dilation.height * (kernel_height - 1) - 1) / stride.height + 1,
              (width + 2 * padding.width - dilation.width * (kernel_width - 1) - 1) / stride.width + 1),
          geometry};
}

Problem random_problem(Draws& draws) {
  const auto one_or_two = [&](std::int64_t least, std::int64_t most) {
    const ops::HeightWidth both = static_cast<int>(draws.between(least, most));
    return draws.between(0, 3) ? both
                               : ops::HeightWidth(both.height, static_cast<int>(draws.between(least, most)));
  };
  const ops::ConvolutionGeometry geometry{one_or_two(1, 3), one_or_two(0, 2),
                                          draws.one_of({1, 1, 1, 2, 3, 8}),
                                          draws.between(0, 2) ? ops::HeightWidth(1) : one_or_two(1, 3)};
  const std::int64_t group_in = draws.one_of<std::int64_t>({1, 1, 2, 3, 4, 5, 8, 10}),
                     group_out = draws.one_of<std::int64_t>({1, 1, 2, 4, 5, 8, 10, 17});
  const std::int64_t kernel_height = draws.one_of<std::int64_t>({1, 3, 3, 5, 2}),
                     kernel_width = draws.between(0, 3) ? kernel_height : draws.between(1, 4);
  const auto extent = [&](std::int64_t kernel, int padding, int dilation) {
    return draws.between(std::max<std::int64_t>(1, dilation * (kernel - 1) + 1 - 2 * padding), 13);
  };
  const std::int64_t height = extent(kernel_height, geometry.padding.height, geometry.dilation.height),
                     width = extent(kernel_width, geometry.padding.width, geometry.dilation.width);
  Problem problem = make_problem(draws, draws.between(0, 3), group_in * geometry.groups, height, width,
                                 group_out * geometry.groups, kernel_height, kernel_width, geometry);
  problem.x_block = draws.block(problem.x.c);
  problem.y_block = draws.block(problem.y.c);
  return problem;
}

/// body(x place, weight place, y place) for every product of the convolution, as (i, ch, y, x) index calls.
template <class Body>
void for_each_product(const Problem& p, const Body& body) {
  const std::int64_t group_in = p.weight.c, group_out = p.weight.n / p.geometry.groups;
  for_each_place(p.y, [&](auto i, auto o, auto oh, auto ow) {
    for (std::int64_t c = 0; c < group_in; ++c) {
      for (std::int64_t kh = 0; kh < p.weight.h; ++kh) {
        for (std::int64_t kw = 0; kw < p.weight.w; ++kw) {
          const auto& [stride, padding, groups, dilation] = p.geometry;
          const std::int64_t h = oh * stride.height - padding.height + kh * dilation.height;
          const std::int64_t w = ow * stride.width - padding.width + kw * dilation.width;
          if (h < 0 || w < 0 || h >= p.x.h || w >= p.x.w) continue;
          body(i, o, oh, ow, c, kh, kw, o / group_out * group_in + c, h, w);
        }
      }
    }
  });
}

Images expected_output(const Problem& p, const std::vector<double>& bias) {
  Images y(p.y.n, p.y.c, p.y.h, p.y.w);
  if (!bias.empty()) {
    for_each_place(
        y, [&](auto i, auto o, auto h, auto w) { y.at(i, o, h, w) = bias[static_cast<std::size_t>(o)]; });
  }
  for_each_product(p, [&](auto i, auto o, auto oh, auto ow, auto c, auto kh, auto kw, auto ch, auto h,
                          auto w) { y.at(i, o, oh, ow) += p.x.at(i, ch, h, w) * p.weight.at(o, c, kh, kw); });
  return y;
}

Images expected_input_gradient(const Problem& p) {
  Images dx(p.x.n, p.x.c, p.x.h, p.x.w);
  for_each_product(p,
                   [&](auto i, auto o, auto oh, auto ow, auto c, auto kh, auto kw, auto ch, auto h, auto w) {
                     dx.at(i, ch, h, w) += p.y.at(i, o, oh, ow) * p.weight.at(o, c, kh, kw);
                   });
  return dx;
}

Images expected_weight_gradient(const Problem& p) {
  Images dweight(p.weight.n, p.weight.c, p.weight.h, p.weight.w);
  for_each_product(p,
                   [&](auto i, auto o, auto oh, auto ow, auto c, auto kh, auto kw, auto ch, auto h, auto w) {
                     dweight.at(o, c, kh, kw) += p.y.at(i, o, oh, ow) * p.x.at(i, ch, h, w);
                   });
  return dweight;
}

void check_all_passes(kernels::Backend& backend, const Problem& p, const std::vector<double>& bias) {
  const Tensor weight = stored(backend, p.weight, 1), x = stored(backend, p.x, p.x_block),
               dy = stored(backend, p.y, p.y_block);
  const Tensor y = unwritten(backend, p.y.shape(), p.y_block);
  backend.run(
      ops::Convolution{x, weight, bias.empty() ? Tensor() : stored(backend, bias, {p.y.c}), p.geometry, y});
  check_close(loaded(y), expected_output(p, bias));

  const Tensor dx = unwritten(backend, p.x.shape(), p.x_block);
  backend.run(ops::ConvolutionBackwardInput{dy, weight, p.geometry, dx});
  check_close(loaded(dx), expected_input_gradient(p));

  const Tensor dweight = unwritten(backend, p.weight.shape());
  backend.run(ops::ConvolutionBackwardWeight{x, dy, p.geometry, dweight, false});
  Images gradient = expected_weight_gradient(p);
  check_close(loaded(dweight), gradient);
  backend.run(ops::ConvolutionBackwardWeight{x, dy, p.geometry, dweight, true});
  for (double& value : gradient.values) value *= 2;
  check_close(loaded(dweight), gradient);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

BOOST_AUTO_TEST_CASE(all_passes_agree_with_naive_loops_in_any_layout_and_geometry) {
  Draws draws;
  const auto backend = kernels::make_cpu_backend();
  SEEDED {
    for (int round = 0; round < 150; ++round) {
      const Problem problem = random_problem(draws);
      const std::vector<double> bias =
          draws.between(0, 1) ? draws.normals(problem.y.c) : std::vector<double>();
      BOOST_TEST_CONTEXT("round " << round << ": " << problem) { check_all_passes(*backend, problem, bias); }
    }
  }
}

BOOST_AUTO_TEST_CASE(preferred_channel_blocks_agree_with_naive_loops) {
  Draws draws;
  const auto backend = kernels::make_cpu_backend();
  const auto check = [&](std::int64_t c, std::int64_t o, std::int64_t size, std::int64_t kernel, int stride,
                         int groups) {
    Problem problem = make_problem(draws, 2, c, size, size, o, kernel, kernel,
                                   {stride, static_cast<int>(kernel / 2), groups});
    problem.x_block = backend->preferred_channel_block(c);
    problem.y_block = backend->preferred_channel_block(o);
    BOOST_TEST_CONTEXT(problem) { check_all_passes(*backend, problem, {}); }
  };
  SEEDED {
    check(3, 32, 9, 3, 1, 1);
    check(1, 16, 8, 3, 1, 1);
    check(32, 32, 8, 3, 1, 1);
    check(32, 64, 9, 3, 2, 1);
    check(32, 64, 8, 1, 2, 1);
    check(64, 10, 5, 1, 1, 1);
    check(10, 20, 7, 5, 1, 1);
    check(32, 32, 7, 3, 1, 32);
    check(32, 64, 7, 3, 1, 4);
    check(12, 24, 7, 3, 2, 3);
  }
}

BOOST_AUTO_TEST_CASE(winograd_agrees_with_naive_loops_in_any_layout) {
  Draws draws;
  SEEDED {
    for (int round = 0; round < 30; ++round) {
      const int threads = static_cast<int>(draws.between(1, 3));
      const auto backend = kernels::make_cpu_backend(threads);
      Problem problem =
          make_problem(draws, draws.between(0, 4), draws.one_of({32, 40, 64}), draws.one_of({4, 7, 8, 11}),
                       draws.one_of({4, 8, 10, 13}), draws.one_of({32, 40, 56}), 3, 3, {1, 1, 1});
      problem.x_block = draws.one_of({1, 8, 16, static_cast<int>(problem.x.c)});
      problem.y_block = draws.one_of({1, 8, 16, static_cast<int>(problem.y.c)});
      const std::vector<double> bias =
          draws.between(0, 1) ? draws.normals(problem.y.c) : std::vector<double>();
      BOOST_TEST_CONTEXT("round " << round << ", " << threads << " threads: " << problem) {
        check_all_passes(*backend, problem, bias);
      }
    }
    const auto backend = kernels::make_cpu_backend();
    for (const int padding : {0, 2}) {
      Problem problem = make_problem(draws, 3, 32, 8, 8, 40, 3, 3, {1, padding, 1});
      problem.x_block = problem.y_block = 8;
      BOOST_TEST_CONTEXT(problem) { check_all_passes(*backend, problem, {}); }
    }
  }
}

BOOST_AUTO_TEST_CASE(winograd_is_taken_by_the_layer_whatever_the_batch_and_the_pass) {
  const auto fits = [](std::int64_t images, std::int64_t c, std::int64_t o, std::int64_t size,
                       std::int64_t kernel, const ops::ConvolutionGeometry& unpadded) {
    ops::ConvolutionGeometry geometry = unpadded;
    geometry.padding = static_cast<int>(kernel / 2) * geometry.dilation.height;
    const std::int64_t out = (size - 1) / geometry.stride.height + 1;
    const auto in_pass = [&](kernels::ConvolutionPass pass) {
      return kernels::WinogradConvolution::fits(
          {pass, {images, c, size, size, o, out, out, kernel, kernel, geometry}, 8, 8, false});
    };
    const bool forward = in_pass(kernels::ConvolutionPass::forward);
    BOOST_TEST(in_pass(kernels::ConvolutionPass::backward_input) == forward);
    BOOST_TEST(in_pass(kernels::ConvolutionPass::backward_weight) == forward);
    return forward;
  };
  for (const std::int64_t images : {1, 32}) {
    BOOST_TEST(fits(images, 32, 32, 32, 3, {}));
    BOOST_TEST(fits(images, 64, 64, 16, 3, {}));
    BOOST_TEST(fits(images, 128, 128, 7, 3, {}));
    BOOST_TEST(!fits(images, 3, 32, 32, 3, {}), "few channels");
    BOOST_TEST(!fits(images, 36, 36, 32, 3, {}), "channels not in eights");
    BOOST_TEST(!fits(images, 32, 64, 32, 3, {.stride = 2}), "stride 2");
    BOOST_TEST(!fits(images, 32, 32, 32, 5, {}), "a kernel of 5");
    BOOST_TEST(!fits(images, 64, 64, 32, 3, {.groups = 2}), "groups");
    BOOST_TEST(!fits(images, 64, 64, 32, 3, {.dilation = 2}), "dilation");
    BOOST_TEST(!fits(images, 64, 64, 5, 3, {}), "tiles mostly outside");
  }
}

BOOST_AUTO_TEST_CASE(winograd_has_the_same_bits_with_any_number_of_threads_and_in_any_layout) {
  Draws draws;
  SEEDED {
    const Problem problem = make_problem(draws, 9, 32, 16, 14, 48, 3, 3, {1, 1, 1});
    std::vector<std::vector<double>> y, dx, dweight;
    for (const auto& [threads, block] :
         {std::pair{1, 8}, std::pair{2, 8}, std::pair{3, 16}, std::pair{1, 1}}) {
      const auto backend = kernels::make_cpu_backend(threads);
      const Tensor weight = stored(*backend, problem.weight, 1), x = stored(*backend, problem.x, block),
                   upstream = stored(*backend, problem.y, block);
      const Tensor out = unwritten(*backend, problem.y.shape(), block),
                   input_gradient = unwritten(*backend, problem.x.shape(), block),
                   weight_gradient = unwritten(*backend, problem.weight.shape());
      backend->run(ops::Convolution{x, weight, {}, problem.geometry, out});
      backend->run(ops::ConvolutionBackwardInput{upstream, weight, problem.geometry, input_gradient});
      backend->run(ops::ConvolutionBackwardWeight{x, upstream, problem.geometry, weight_gradient, false});
      y.push_back(loaded(out).values);
      dx.push_back(loaded(input_gradient).values);
      dweight.push_back(loaded(weight_gradient).values);
      BOOST_TEST_CONTEXT(threads << " threads, blocks of " << block) {
        BOOST_TEST((y.back() == y.front()), "output");
        BOOST_TEST((dx.back() == dx.front()), "input gradient");
        BOOST_TEST((dweight.back() == dweight.front()), "weight gradient");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(several_threads_agree_with_naive_loops) {
  Draws draws;
  const auto backend = kernels::make_cpu_backend(3);
  SEEDED {
    for (int round = 0; round < 20; ++round) {
      const Problem problem = random_problem(draws);
      BOOST_TEST_CONTEXT("round " << round << ": " << problem) { check_all_passes(*backend, problem, {}); }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_image_does_not_depend_on_the_batch_it_is_in) {
  Draws draws;
  SEEDED {
    for (int round = 0; round < 60; ++round) {
      const int threads = static_cast<int>(draws.between(1, 3));
      const auto backend = kernels::make_cpu_backend(threads);
      const std::int64_t kernel = draws.one_of<std::int64_t>({1, 3}),
                         size = draws.one_of<std::int64_t>({4, 7, 9, 16}),
                         channels = draws.one_of<std::int64_t>({10, 32, 64});
      const int block = draws.one_of({1, 8, static_cast<int>(channels)});
      const Problem problem = make_problem(
          draws, 7, channels, size, size, channels, kernel, kernel,
          {static_cast<int>(draws.between(1, 2)), static_cast<int>(kernel / 2), draws.one_of({1, 1, 2})});
      BOOST_TEST_CONTEXT("block " << block << ", " << threads << " threads, " << problem) {
        const Tensor weight = stored(*backend, problem.weight, 1), x = stored(*backend, problem.x, block),
                     dy = stored(*backend, problem.y, block);
        const Tensor y = unwritten(*backend, problem.y.shape(), block),
                     dx = unwritten(*backend, problem.x.shape(), block);
        backend->run(ops::Convolution{x, weight, {}, problem.geometry, y});
        backend->run(ops::ConvolutionBackwardInput{dy, weight, problem.geometry, dx});
        for (const auto& [begin, end] : {std::array{0, 1}, std::array{6, 7}, std::array{1, 4}}) {
          const Tensor y_part = backend->empty(y.rows(begin, end).shape(), DType::float32, block);
          backend->run(ops::Convolution{x.rows(begin, end), weight, {}, problem.geometry, y_part});
          BOOST_TEST(same_bits(y_part, y.rows(begin, end)), "output");
          const Tensor dx_part = backend->empty(dx.rows(begin, end).shape(), DType::float32, block);
          backend->run(ops::ConvolutionBackwardInput{dy.rows(begin, end), weight, problem.geometry, dx_part});
          BOOST_TEST(same_bits(dx_part, dx.rows(begin, end)), "input gradient");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_repeated_call_gives_the_same_bits) {
  Draws draws;
  SEEDED {
    const Problem problem = make_problem(draws, 3, 16, 9, 9, 24, 3, 3, {1, 1, 1});
    std::vector<Tensor> gradients;
    const auto backend = kernels::make_cpu_backend(2);
    for (int repeat = 0; repeat < 3; ++repeat) {
      gradients.push_back(unwritten(*backend, problem.weight.shape()));
      backend->run(ops::ConvolutionBackwardWeight{stored(*backend, problem.x, 8),
                                                  stored(*backend, problem.y, 8), problem.geometry,
                                                  gradients.back(), false});
    }
    BOOST_TEST(same_bits(gradients[0], gradients[1]));
    BOOST_TEST(same_bits(gradients[0], gradients[2]));
  }
}

BOOST_AUTO_TEST_CASE(dense_convolutions_find_a_direct_implementation) {
  // oneDNN's reference loops are a hundred times slower, its matrix products over unrolled images two to
  // three times.
  const int native = kernels::native_channel_block();
  // Where even products are not oneDNN's, it has direct convolutions for some processors only (Arm: SVE).
  const bool products_only = kernels::math_library().version != kernels::onednn_version();
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto check = [&](std::int64_t c, std::int64_t o, std::int64_t size, std::int64_t kernel, int stride,
                         bool plain) {
    const auto padding = static_cast<int>(kernel / 2);
    const std::int64_t out = (size + 2 * padding - kernel) / stride + 1;
    const int x_block = plain || c < native ? 1 : native, y_block = plain || o < native ? 1 : native;
    for (const auto pass : {kernels::ConvolutionPass::forward, kernels::ConvolutionPass::backward_input,
                            kernels::ConvolutionPass::backward_weight}) {
      // For AVX-512 oneDNN has a direct weight gradient of 4 to 15 channels in the channels-last layout only.
      if (pass == kernels::ConvolutionPass::backward_weight && native == 16 && c > 3 && c < native) continue;
      const kernels::ConvolutionPlan plan(
          {pass, {4, c, size, size, o, out, out, kernel, kernel, {stride, padding}}, x_block, y_block},
          engine, 1);
      BOOST_TEST_CONTEXT("[" << c << ", " << size << ", " << size << "] to " << o << ": "
                             << plan.implementation()) {
        BOOST_TEST(!plan.implementation().starts_with("ref"));
        if (products_only && plan.implementation().starts_with("gemm")) continue;
        BOOST_TEST(plan.implementation().find("ref") == std::string::npos);
        BOOST_TEST(plan.implementation().find("gemm") == std::string::npos);
        BOOST_TEST(plan.implementation().find("ncsp") == std::string::npos);
        BOOST_TEST((plain || plan.y_block() == y_block || o < native), "y's layout is not taken");
        BOOST_TEST((plain || plan.x_block() == x_block || c < native), "x's layout is not taken");
      }
    }
  };
  for (const bool plain : {false, true}) {
    check(3, 32, 32, 3, 1, plain);
    check(32, 32, 32, 3, 1, plain);
    check(32, 64, 32, 3, 2, plain);
    check(32, 64, 32, 1, 2, plain);
    check(64, 64, 16, 3, 1, plain);
    check(64, 128, 16, 3, 2, plain);
    check(64, 128, 16, 1, 2, plain);
    check(128, 128, 8, 3, 1, plain);
    check(10, 20, 9, 5, 1, plain);
    check(5, 3, 9, 3, 1, plain);
  }
}

BOOST_AUTO_TEST_CASE(channel_sums_add_over_batch_and_places) {
  Draws draws;
  const auto backend = kernels::make_cpu_backend();
  SEEDED {
    for (int round = 0; round < 60; ++round) {
      const Images dy =
          draws.images(draws.between(0, 3), draws.between(1, 40), draws.between(0, 9), draws.between(1, 9));
      const int block = draws.block(dy.c);
      std::vector<double> expected = draws.normals(dy.c);
      const Tensor dbias = stored(*backend, expected, {dy.c});
      for_each_place(dy, [&](auto i, auto c, auto h, auto w) {
        expected[static_cast<std::size_t>(c)] += dy.at(i, c, h, w);
      });
      BOOST_TEST_CONTEXT(to_string(dy.shape()) << " in blocks of " << block) {
        backend->run(ops::ChannelSums{stored(*backend, dy, block), dbias, true});
        check_close(plain_values(dbias), expected);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(shapes_that_do_not_fit_are_refused) {
  const auto backend = kernels::make_cpu_backend();
  const auto empty = [&](Shape shape) { return backend->empty(shape, DType::float32, 1); };
  const Tensor x = empty({2, 4, 5, 5}), weight = empty({6, 4, 3, 3}), y = empty({2, 6, 3, 3});
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, weight, {}, {1, 1, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, weight, {}, {1, 0, 2}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, weight, {}, {0, 0, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, weight, {}, {1, -1, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, weight, {}, {1, 0, 0}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, weight, empty({5}), {1, 0, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, empty({6, 4, 7, 7}), {}, {1, 0, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{empty({2, 5, 5}), weight, {}, {1, 0, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{x, empty({6, 3, 3, 3}), {}, {1, 0, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::ConvolutionBackwardInput{x, weight, {1, 0, 1}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::ConvolutionBackwardWeight{x, x, {1, 0, 1}, weight, false}), UsageError);
  const Tensor wide = backend->empty({2, 4, 5, 5}, DType::float64, 1);
  BOOST_CHECK_THROW(backend->run(ops::Convolution{wide, weight, {}, {1, 0, 1}, y}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
