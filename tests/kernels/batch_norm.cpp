// Batch norm's parts against double precision, and their bits across layouts' threads and batches.
#include <cstring>

#include "kernels/images.h"
#include "ops/batch_norm.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(batch_norm)

/// x as [N, C, H, W] in a channel block, or as [N, C].
struct Problem {
  Images x, dy;
  bool matrix;
  int block;
  std::vector<double> mean, inv_std, weight, bias;

  Shape shape() const { return matrix ? Shape{x.n, x.c} : x.shape(); }
  Tensor stored_as(kernels::Backend& backend, const Images& images) const {
    const Tensor tensor = stored(backend, images, block);
    return matrix ? tensor.reshape(shape()) : tensor;
  }
  Tensor unwritten_like(kernels::Backend& backend) const { return unwritten(backend, shape(), block); }
  Images loaded_from(const Tensor& tensor) const {
    return loaded(matrix ? tensor.reshape(x.shape()) : tensor);
  }
};

Problem random_problem(Draws& draws) {
  const bool matrix = draws.between(0, 3) == 0;
  const std::int64_t n = draws.between(0, 5),
                     c = draws.one_of<std::int64_t>({1, 3, 5, 8, 10, 16, 32, 40, 70}),
                     h = matrix ? 1 : draws.between(0, 13), w = matrix ? 1 : draws.between(1, 33);
  Problem problem{
      draws.images(n, c, h, w), draws.images(n, c, h, w), matrix, matrix ? 1 : draws.block(c), {}, {},
      draws.normals(c),         draws.normals(c)};
  problem.mean = draws.normals(c);
  for (std::int64_t i = 0; i < c; ++i) {
    problem.inv_std.push_back(static_cast<double>(static_cast<float>(0.5 + std::abs(draws.normal()))));
  }
  for_each_place(problem.x, [&](auto i, auto ch, auto y, auto x) {
    double& value = problem.x.at(i, ch, y, x);
    value = static_cast<double>(static_cast<float>(value + 3 * problem.mean[static_cast<std::size_t>(ch)]));
  });
  return problem;
}

template <class Body>
void for_random_problems(int rounds, const Body& body) {
  Draws draws;
  SEEDED {
    for (int round = 0; round < rounds; ++round) {
      const Problem problem = random_problem(draws);
      const auto backend = kernels::make_cpu_backend(draws.one_of({1, 1, 3}));
      BOOST_TEST_CONTEXT("x " << to_string(problem.shape()) << " in blocks of " << problem.block) {
        body(*backend, problem, draws);
      }
    }
  }
}

Tensor unwritten_sums(kernels::Backend& backend, std::int64_t channels) {
  const Tensor sums = backend.empty({2, channels}, DType::float64, 1);
  std::fill_n(sums.data<double>(), sums.numel(), std::numeric_limits<double>::quiet_NaN());
  return sums;
}

Tensor unwritten_total(kernels::Backend& backend, std::int64_t channels) {
  return unwritten_sums(backend, channels + 1).reshape({2 * channels + 2}).rows(0, 2 * channels + 1);
}

Tensor per_channel(kernels::Backend& backend, const std::vector<double>& values) {
  return stored(backend, values, {static_cast<std::int64_t>(values.size())});
}

/// [2, C]: sums of dy and of dy (x - mean) inv_std.
std::vector<double> expected_sums(const Problem& p) {
  const auto channels = static_cast<std::size_t>(p.x.c);
  std::vector<double> sums(2 * channels);
  for_each_place(p.x, [&](auto i, auto ch, auto y, auto x) {
    const auto c = static_cast<std::size_t>(ch);
    sums[c] += p.dy.at(i, ch, y, x);
    sums[channels + c] += p.dy.at(i, ch, y, x) * (p.x.at(i, ch, y, x) - p.mean[c]) * p.inv_std[c];
  });
  return sums;
}

BOOST_AUTO_TEST_CASE(moments_are_sums_about_the_centre) {
  for_random_problems(120, [](kernels::Backend& backend, const Problem& p, Draws&) {
    const auto channels = static_cast<std::size_t>(p.x.c);
    std::vector<double> expected(2 * channels);
    for_each_place(p.x, [&](auto i, auto ch, auto y, auto x) {
      const auto c = static_cast<std::size_t>(ch);
      const double distance = p.x.at(i, ch, y, x) - p.mean[c];
      expected[c] += distance;
      expected[channels + c] += distance * distance;
    });
    expected.push_back(static_cast<double>(p.x.n * p.x.h * p.x.w));
    const Tensor moments = unwritten_total(backend, p.x.c);
    backend.run(ops::ChannelMoments{p.stored_as(backend, p.x), per_channel(backend, p.mean), moments});
    check_close(plain_values<double>(moments), expected);
  });
}

BOOST_AUTO_TEST_CASE(moments_of_many_elements_keep_their_digits) {
  // A single float32 accumulator is wrong in the fourth digit here.
  const auto backend = kernels::make_cpu_backend();
  Draws draws;
  SEEDED {
    for (const int block : {1, 8}) {
      Images x = draws.images(2, 8, 300, 301);
      for (double& value : x.values) value = static_cast<double>(static_cast<float>(value + 1));
      std::vector<double> expected(16);
      for_each_place(x, [&](auto i, auto c, auto h, auto w) {
        expected[static_cast<std::size_t>(c)] += x.at(i, c, h, w);
        expected[static_cast<std::size_t>(8 + c)] += x.at(i, c, h, w) * x.at(i, c, h, w);
      });
      const Tensor moments = unwritten_total(*backend, 8);
      backend->run(ops::ChannelMoments{stored(*backend, x, block),
                                       per_channel(*backend, std::vector<double>(8)), moments});
      const std::vector<double> actual = plain_values<double>(moments);
      for (std::size_t i = 0; i < 16; ++i) {
        BOOST_TEST(std::abs(actual[i] - expected[i]) <= 1e-6 * std::abs(expected[i]));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(normalised_values_agree_with_the_formula) {
  for_random_problems(120, [](kernels::Backend& backend, const Problem& p, Draws& draws) {
    const bool affine = draws.between(0, 2) > 0;
    Images expected = p.x;
    for_each_place(p.x, [&](auto i, auto ch, auto y, auto x) {
      const auto c = static_cast<std::size_t>(ch);
      const double hat = (p.x.at(i, ch, y, x) - p.mean[c]) * p.inv_std[c];
      expected.at(i, ch, y, x) = affine ? hat * p.weight[c] + p.bias[c] : hat;
    });
    const Tensor y = p.unwritten_like(backend);
    backend.run(ops::BatchNorm{.x = p.stored_as(backend, p.x),
                               .norm = {per_channel(backend, p.mean), per_channel(backend, p.inv_std),
                                        affine ? per_channel(backend, p.weight) : Tensor(),
                                        affine ? per_channel(backend, p.bias) : Tensor()},
                               .y = y});
    check_close(p.loaded_from(y), expected);
  });
}

BOOST_AUTO_TEST_CASE(backward_sums_agree_with_the_formula) {
  for_random_problems(120, [](kernels::Backend& backend, const Problem& p, Draws&) {
    const Tensor sums = unwritten_sums(backend, p.x.c);
    backend.run(ops::BatchNormBackwardSums{p.stored_as(backend, p.dy),
                                           p.stored_as(backend, p.x),
                                           {per_channel(backend, p.mean), per_channel(backend, p.inv_std)},
                                           false,
                                           sums});
    check_close(plain_values<double>(sums), expected_sums(p));
  });
}

BOOST_AUTO_TEST_CASE(input_gradients_agree_with_the_formula) {
  for_random_problems(120, [](kernels::Backend& backend, const Problem& p, Draws& draws) {
    const bool training = draws.between(0, 2) > 0;
    const double count = training ? static_cast<double>(p.x.n * p.x.h * p.x.w + 7) : 0;  // 7: another rank's
    const std::vector<double> sums = expected_sums(p);
    const Tensor stored_sums = backend.empty({2, p.x.c}, DType::float64, 1);
    std::copy(sums.begin(), sums.end(), stored_sums.data<double>());
    Images expected = p.dy;
    for_each_place(p.x, [&](auto i, auto ch, auto y, auto x) {
      const auto c = static_cast<std::size_t>(ch);
      const double hat = (p.x.at(i, ch, y, x) - p.mean[c]) * p.inv_std[c];
      double& value = expected.at(i, ch, y, x);
      if (training) value -= sums[c] / count + hat * sums[static_cast<std::size_t>(p.x.c) + c] / count;
      value *= p.weight[c] * p.inv_std[c];
    });
    const Tensor counted = backend.empty({}, DType::float64, 1);
    *counted.data<double>() = count;
    const Tensor dx = p.unwritten_like(backend);
    backend.run(ops::BatchNormBackwardInput{
        p.stored_as(backend, p.dy),
        p.stored_as(backend, p.x),
        {per_channel(backend, p.mean), per_channel(backend, p.inv_std), per_channel(backend, p.weight)},
        false,
        stored_sums,
        training ? counted : Tensor(),
        dx});
    check_close(p.loaded_from(dx), expected);
  });
}

BOOST_AUTO_TEST_CASE(sums_have_the_same_bits_at_any_number_of_threads) {
  Draws draws;
  SEEDED {
    const Images x = draws.images(4, 40, 17, 13), dy = draws.images(4, 40, 17, 13);
    for (const int block : {1, 8, 16, 40}) {
      std::vector<std::vector<double>> moments, sums;
      for (const int threads : {1, 2, 5}) {
        const auto backend = kernels::make_cpu_backend(threads);
        const Tensor ones = per_channel(*backend, std::vector<double>(40, 1.0));
        const Tensor total = unwritten_total(*backend, 40), out = unwritten_sums(*backend, 40);
        backend->run(ops::ChannelMoments{stored(*backend, x, block), ones, total});
        moments.push_back(plain_values<double>(total));
        backend->run(ops::BatchNormBackwardSums{
            stored(*backend, dy, block), stored(*backend, x, block), {ones, ones}, false, out});
        sums.push_back(plain_values<double>(out));
      }
      BOOST_TEST((moments[0] == moments[1] && moments[0] == moments[2]));
      BOOST_TEST((sums[0] == sums[1] && sums[0] == sums[2]));
    }
  }
}

BOOST_AUTO_TEST_CASE(shapes_that_do_not_fit_are_refused) {
  const auto backend = kernels::make_cpu_backend();
  const auto empty = [&](Shape shape) { return backend->empty(shape, DType::float32, 1); };
  const Tensor x = empty({2, 4, 3, 3}), four = empty({4}), five = empty({5});
  const Tensor sums = unwritten_sums(*backend, 4), short_sums = unwritten_sums(*backend, 3);
  const Tensor total = unwritten_total(*backend, 4);
  BOOST_CHECK_THROW(backend->run(ops::ChannelMoments{x, five, total}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::ChannelMoments{x, four, sums}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::ChannelMoments{x, four, empty({9})}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::ChannelMoments{empty({2, 4, 3}), four, total}), UsageError);
  BOOST_CHECK_THROW(
      backend->run(ops::BatchNorm{.x = x, .norm = {four, four, four, four}, .y = empty({2, 4, 3, 2})}),
      UsageError);
  BOOST_CHECK_THROW(backend->run(ops::BatchNorm{.x = x, .norm = {four, four, five, four}, .y = x}),
                    UsageError);
  const Tensor count = backend->empty({}, DType::float64, 1);
  backend->fill(count, 18);
  const Tensor blocked = backend->empty({2, 4, 3, 3}, DType::float32, 8);
  BOOST_CHECK_THROW(backend->run(ops::BatchNormBackwardSums{x, blocked, {four, four}, false, sums}),
                    UsageError);
  BOOST_CHECK_THROW(
      backend->run(ops::BatchNormBackwardInput{x, x, {four, four, four}, false, short_sums, count, x}),
      UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
