// Elements of an axis by number.
#include "lockstep/ops/gather.h"

#include "kernels/reference.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(gather)

using kernels::make_cpu_backend;

/// x, y, and how many indices there are: one for each element of y, or for each place of its axis.
struct Case {
  Shape x, y, indices;
  int axis;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{{{7, 33}, {500, 33}, {500}, 0},
                                     {{5, 7, 3}, {5, 90, 3}, {90}, 1},
                                     {{5, 7, 3}, {5, 90, 3}, {5, 90, 3}, 1},
                                     {{200, 11}, {200, 4}, {200, 4}, 1},
                                     {{3, 3000}, {9, 3000}, {9, 3000}, 0},
                                     {{9}, {40}, {40}, 0},
                                     {{4, 5}, {4, 0}, {0}, 1},
                                     {{0, 5}, {0, 3}, {0, 3}, 1}};
  return all;
}

BOOST_AUTO_TEST_CASE(elements_are_copied_and_gradients_summed_in_order) {
  Draw draw(196);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const Case& given : cases()) {
      const std::int64_t extent = given.x[given.axis];
      const Tensor x = draw.normal(given.x), dy = draw.normal(given.y), y = Tensor::empty(given.y),
                   dx = Tensor::empty(given.x), indices = draw.indices(given.indices, extent);
      backend->run(ops::Gather{x, indices, given.axis, y});
      backend->run(ops::GatherBackward{dy, indices, given.axis, dx});
      std::int64_t inner = 1;
      for (int d = given.axis + 1; d < given.x.rank(); ++d) inner *= given.x[d];
      std::vector<float> sums(static_cast<std::size_t>(x.numel()));
      for (std::int64_t i = 0; i < y.numel(); ++i) {
        const std::int64_t taken = given.y[given.axis], row = i / inner;
        const std::int64_t index = indices.data<std::int64_t>()[given.indices == given.y ? i : row % taken];
        const std::int64_t from = (row / taken * extent + index) * inner + i % inner;
        BOOST_REQUIRE(y.data<float>()[i] == x.data<float>()[from]);
        sums[static_cast<std::size_t>(from)] += dy.data<float>()[i];
      }
      for (std::size_t i = 0; i < sums.size(); ++i) BOOST_REQUIRE(dx.data<float>()[i] == sums[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_index_outside_is_named_with_its_place) {
  const auto backend = make_cpu_backend();
  const Tensor indices = Tensor::zeros({3}, DType::int64), x = Tensor::zeros({2, 5}),
               y = Tensor::zeros({2, 3});
  for (const std::int64_t bad : {5, -1}) {
    indices.data<std::int64_t>()[2] = bad;
    const auto names_it = mentions(std::to_string(bad) + " (number 2)");
    BOOST_CHECK_EXCEPTION(backend->run(ops::Gather{x, indices, 1, y}), DataError, names_it);
    BOOST_CHECK_EXCEPTION(backend->run(ops::GatherBackward{y, indices, 1, x}), DataError, names_it);
  }
}

BOOST_AUTO_TEST_CASE(threads_tell_the_first_of_many_indices_outside) {
  const auto backend = make_cpu_backend(4);
  const std::int64_t count = 100000;
  const Tensor indices = Tensor::zeros({count}, DType::int64), x = Tensor::zeros({5, 1}),
               y = Tensor::zeros({count, 1});
  for (const std::int64_t at : {90000, 60000, 60001, 10000, 0}) {
    indices.data<std::int64_t>()[at] = -7;
    const std::string first = at == 60001 ? "-7 (number 60000)" : fmt::format("-7 (number {})", at);
    BOOST_CHECK_EXCEPTION((backend->run(ops::Gather{x, indices, 0, y})), DataError, mentions(first));
  }
}

BOOST_AUTO_TEST_CASE(shapes_that_do_not_fit_are_refused) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({2, 5});
  const auto refused = [&](const Shape& indices, int axis, const Shape& y) {
    BOOST_CHECK_THROW(
        backend->run(ops::Gather{x, Tensor::zeros(indices, DType::int64), axis, Tensor::zeros(y)}),
        UsageError);
  };
  refused({3}, 1, {2, 4});
  refused({3}, 0, {2, 3});
  refused({3}, 2, {2, 3});
  refused({2}, 1, {2, 3});
  refused({1, 3}, 1, {2, 3});
  refused({3}, 1, {3});
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
