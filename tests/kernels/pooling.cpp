// Pooling and upsampling against naive loops.
#include "lockstep/ops/pooling.h"
#include "kernels/images.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(pooling)

struct Problem {
  Images x, dy;
  ops::PoolGeometry geometry;
  int block;
};

Problem random_problem(Draws& draws) {
  const std::int64_t kernel = draws.between(1, 4);
  const ops::PoolGeometry geometry{static_cast<int>(kernel), static_cast<int>(draws.between(1, 4)),
                                   static_cast<int>(draws.between(0, kernel / 2))};
  const std::int64_t n = draws.between(0, 3), c = draws.one_of<std::int64_t>({1, 3, 5, 8, 10, 17}),
                     least = std::max<std::int64_t>(1, kernel - 2 * geometry.padding.width),
                     h = draws.between(least, 12), w = draws.between(least, 12);
  const auto pooled = [&](std::int64_t size) {
    return (size + 2 * geometry.padding.width - kernel) / geometry.stride.width + 1;
  };
  Problem problem{draws.images(n, c, h, w), draws.images(n, c, pooled(h), pooled(w)), geometry,
                  draws.block(c)};
  return problem;
}

template <class Body>
void for_random_problems(int rounds, const Body& body) {
  Draws draws;
  SEEDED {
    for (int round = 0; round < rounds; ++round) {
      Problem problem = random_problem(draws);
      const auto backend = kernels::make_cpu_backend(draws.one_of({1, 1, 3}));
      BOOST_TEST_CONTEXT("x " << to_string(problem.x.shape()) << " in blocks of " << problem.block
                              << ", kernel " << problem.geometry.kernel.width << ", stride "
                              << problem.geometry.stride.width << ", padding "
                              << problem.geometry.padding.width) {
        body(*backend, problem, draws);
      }
    }
  }
}

/// body(h, w) for the places inside the image of one window, in order.
template <class Body>
void for_window(const Problem& p, std::int64_t oh, std::int64_t ow, const Body& body) {
  const int kernel = p.geometry.kernel.width, stride = p.geometry.stride.width,
            padding = p.geometry.padding.width;
  for (std::int64_t kh = 0; kh < kernel; ++kh) {
    for (std::int64_t kw = 0; kw < kernel; ++kw) {
      const std::int64_t h = oh * stride - padding + kh, w = ow * stride - padding + kw;
      if (h >= 0 && w >= 0 && h < p.x.h && w < p.x.w) body(h, w);
    }
  }
}

BOOST_AUTO_TEST_CASE(max_pool_finds_the_first_largest_and_sends_gradients_back_to_it) {
  for_random_problems(150, [](kernels::Backend& backend, Problem& p, Draws&) {
    for (double& value : p.x.values) value = std::round(value * 2);  // ties
    Images expected = p.dy, winners = p.dy, gradient(p.x.n, p.x.c, p.x.h, p.x.w);
    for_each_place(p.dy, [&](auto i, auto c, auto oh, auto ow) {
      double best = -std::numeric_limits<double>::infinity();
      std::int64_t best_h = 0, best_w = 0;
      for_window(p, oh, ow, [&](auto h, auto w) {
        if (p.x.at(i, c, h, w) > best) best = p.x.at(i, c, best_h = h, best_w = w);
      });
      expected.at(i, c, oh, ow) = best;
      winners.at(i, c, oh, ow) = static_cast<double>(best_h * p.x.w + best_w);
      gradient.at(i, c, best_h, best_w) += p.dy.at(i, c, oh, ow);
    });
    const Tensor y = unwritten(backend, p.dy.shape(), p.block), dx = unwritten(backend, p.x.shape(), p.block);
    const Tensor places = backend.empty(p.dy.shape(), DType::int32, p.block);
    std::fill_n(places.data<std::int32_t>(), places.stored_numel(), -1);
    backend.run(ops::MaxPool{stored(backend, p.x, p.block), p.geometry, y, places});
    BOOST_TEST(loaded(y).values == expected.values);
    BOOST_TEST(loaded<std::int32_t>(places).values == winners.values);
    backend.run(ops::MaxPoolBackward{stored(backend, p.dy, p.block), places, p.geometry, dx});
    check_close(loaded(dx), gradient);
  });
}

BOOST_AUTO_TEST_CASE(max_pool_lets_not_a_number_through) {
  const auto backend = kernels::make_cpu_backend();
  for (const std::size_t bad : {0u, 1u, 2u, 3u}) {
    std::vector<double> values{1, 2, 3, 4};
    values[bad] = std::numeric_limits<double>::quiet_NaN();
    const Tensor y = backend->empty({1, 1, 1, 1}, DType::float32, 1);
    backend->run(ops::MaxPool{
        stored(*backend, values, {1, 1, 2, 2}), {2, 2, 0}, y, backend->empty({1, 1, 1, 1}, DType::int32, 1)});
    BOOST_TEST(std::isnan(y.data<float>()[0]));
  }
}

BOOST_AUTO_TEST_CASE(average_pool_counts_padding_and_spreads_gradients) {
  for_random_problems(150, [](kernels::Backend& backend, Problem& p, Draws&) {
    const double area = p.geometry.kernel.width * p.geometry.kernel.width;
    Images expected(p.dy.n, p.dy.c, p.dy.h, p.dy.w), gradient(p.x.n, p.x.c, p.x.h, p.x.w);
    for_each_place(p.dy, [&](auto i, auto c, auto oh, auto ow) {
      for_window(p, oh, ow, [&](auto h, auto w) {
        expected.at(i, c, oh, ow) += p.x.at(i, c, h, w) / area;
        gradient.at(i, c, h, w) += p.dy.at(i, c, oh, ow) / area;
      });
    });
    const Tensor y = unwritten(backend, p.dy.shape(), p.block), dx = unwritten(backend, p.x.shape(), p.block);
    backend.run(ops::AveragePool{stored(backend, p.x, p.block), p.geometry, y});
    check_close(loaded(y), expected);
    backend.run(ops::AveragePoolBackward{stored(backend, p.dy, p.block), p.geometry, dx});
    check_close(loaded(dx), gradient);
  });
}

BOOST_AUTO_TEST_CASE(global_average_pool_is_the_mean_over_places) {
  for_random_problems(100, [](kernels::Backend& backend, Problem& p, Draws& draws) {
    const std::vector<double> dy = draws.normals(p.x.n * p.x.c);
    const double places = static_cast<double>(p.x.h * p.x.w);
    Images gradient = p.x;
    std::vector<double> expected(dy.size());
    for_each_place(p.x, [&](auto i, auto c, auto h, auto w) {
      const auto at = static_cast<std::size_t>(i * p.x.c + c);
      expected[at] += p.x.at(i, c, h, w) / places;
      gradient.at(i, c, h, w) = dy[at] / places;
    });
    const Shape pooled = draws.between(0, 1) ? Shape{p.x.n, p.x.c} : Shape{p.x.n, p.x.c, 1, 1};
    const Tensor y = unwritten(backend, pooled), dx = unwritten(backend, p.x.shape(), p.block);
    backend.run(ops::GlobalAveragePool{stored(backend, p.x, p.block), y});
    check_close(plain_values(y), expected);
    backend.run(ops::GlobalAveragePoolBackward{stored(backend, dy, pooled), dx});
    check_close(loaded(dx), gradient);
  });
}

BOOST_AUTO_TEST_CASE(upsampling_repeats_places_and_adds_their_gradients) {
  for_random_problems(100, [](kernels::Backend& backend, Problem& p, Draws& draws) {
    const auto scale = draws.between(1, 4);
    const Images dy = draws.images(p.x.n, p.x.c, p.x.h * scale, p.x.w * scale);
    Images expected = dy, gradient(p.x.n, p.x.c, p.x.h, p.x.w);
    for_each_place(dy, [&](auto i, auto c, auto h, auto w) {
      expected.at(i, c, h, w) = p.x.at(i, c, h / scale, w / scale);
      gradient.at(i, c, h / scale, w / scale) += dy.at(i, c, h, w);
    });
    const Tensor y = unwritten(backend, dy.shape(), p.block), dx = unwritten(backend, p.x.shape(), p.block);
    backend.run(ops::UpsampleNearest{stored(backend, p.x, p.block), static_cast<int>(scale), y});
    BOOST_TEST(loaded(y).values == expected.values);
    backend.run(ops::UpsampleNearestBackward{stored(backend, dy, p.block), static_cast<int>(scale), dx});
    check_close(loaded(dx), gradient);
  });
}

BOOST_AUTO_TEST_CASE(shapes_that_do_not_fit_are_refused) {
  const auto backend = kernels::make_cpu_backend();
  const auto empty = [&](Shape shape, DType dtype = DType::float32, int block = 1) {
    return backend->empty(shape, dtype, block);
  };
  const Tensor x = empty({2, 3, 4, 4}), y = empty({2, 3, 2, 2}), places = empty({2, 3, 2, 2}, DType::int32);
  BOOST_CHECK_THROW(backend->run(ops::MaxPool{x, {2, 1, 0}, y, places}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::MaxPool{x, {2, 2, 0}, y, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::MaxPool{x, {2, 0, 0}, y, places}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::MaxPool{x, {2, 2, 2}, y, places}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::MaxPool{x, {5, 1, 0}, y, places}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::MaxPool{x, {2, 2, 0}, empty({2, 3, 2, 2}, DType::float32, 8), places}),
                    UsageError);
  BOOST_CHECK_THROW(backend->run(ops::MaxPoolBackward{x, places, {2, 2, 0}, x}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::AveragePool{x, {2, 2, 0}, x}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::AveragePool{empty({3, 4, 4}), {2, 2, 0}, y}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::AveragePoolBackward{x, {2, 2, 0}, x}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::GlobalAveragePool{x, empty({2, 4})}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::GlobalAveragePool{empty({2, 3, 0, 4}), empty({2, 3})}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::GlobalAveragePoolBackward{empty({2, 4}), x}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::UpsampleNearest{y, 3, x}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::UpsampleNearest{y, 0, x}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::UpsampleNearestBackward{y, 2, x}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
