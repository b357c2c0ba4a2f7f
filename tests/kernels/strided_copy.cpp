// Copies between views.
#include "ops/strided_copy.h"

#include "kernels/reference.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(strided_copy)

using kernels::make_cpu_backend;
using ops::StridedCopy, ops::StridedView;

std::int64_t place(const StridedView& view, std::int64_t i) {
  std::int64_t at = view.offset;
  for (int d = view.shape.rank() - 1; d >= 0; --d) {
    at += i % view.shape[d] * view.stride[static_cast<std::size_t>(d)];
    i /= view.shape[d];
  }
  return at;
}

BOOST_AUTO_TEST_CASE(dimensions_that_every_operand_walks_evenly_are_one) {
  ops::StridedDimensions<2> dimensions;
  dimensions.add(5, {1, 0});
  dimensions.add(1, {100, 100});
  dimensions.add(4, {5, 0});
  dimensions.add(3, {20, 1});
  BOOST_TEST(dimensions.rank == 2);
  BOOST_TEST(dimensions.size[0] == 20);
  BOOST_TEST(dimensions.count() == 60);
  for (std::int64_t i = 0; i < 60; ++i)
    BOOST_TEST((dimensions.offsets(i) == std::array<std::int64_t, 2>{i, i / 20}));
  BOOST_TEST((dimensions.without(0).offsets(2) == std::array<std::int64_t, 2>{40, 2}));
  BOOST_TEST(dimensions.without(0).without(0).count() == 1);
}

/// Views of a [4, 70, 33] tensor, and of one [2, 3, 4, 5, 6, 7].
std::vector<StridedView> views() {
  const StridedView cube(Shape{4, 70, 33}), six(Shape{2, 3, 4, 5, 6, 7});
  const auto permuted = [](const StridedView& view, std::initializer_list<int> order) {
    return view.permuted(std::span<const int>(order.begin(), order.size()));
  };
  return {cube,
          cube.narrowed(1, 3, 40),
          cube.narrowed(2, 1, 30),
          cube.narrowed(0, 2, 0),
          cube.narrowed(0, 2, 1).narrowed(1, 5, 1).narrowed(2, 7, 1),
          cube.flipped(0),
          cube.flipped(2),
          cube.flipped(0).flipped(1).flipped(2),
          permuted(cube, {2, 0, 1}),
          permuted(cube, {0, 2, 1}),
          permuted(cube, {2, 1, 0}),
          permuted(cube.narrowed(1, 1, 65).flipped(0), {1, 2, 0}),
          permuted(six, {5, 3, 1, 0, 2, 4}),
          permuted(six.narrowed(5, 1, 5), {0, 2, 4, 1, 3, 5})};
}

BOOST_AUTO_TEST_CASE(every_element_of_a_view_is_copied_out_and_back) {
  Draw draw(194);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const StridedView& view : views()) {
      const std::int64_t all = view.shape.rank() == 3 ? 4 * 70 * 33 : 5040, count = view.shape.numel();
      const Tensor x = draw.normal({all}), y = Tensor::empty(view.shape), back = copy_of(x);
      backend->run(StridedCopy{view.of(x), StridedView(y)});
      for (std::int64_t i = 0; i < count; ++i)
        BOOST_REQUIRE(y.data<float>()[i] == x.data<float>()[place(view, i)]);
      backend->run(StridedCopy{StridedView(y), view.of(back)});
      BOOST_TEST(same_bits(x, back));
      backend->run(StridedCopy{StridedView(y), view.of(back), true});
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t at = place(view, i);
        BOOST_REQUIRE(back.data<float>()[at] == 2 * x.data<float>()[at]);
        back.data<float>()[at] = x.data<float>()[at];
      }
      BOOST_TEST(same_bits(x, back));

      const Tensor half = Tensor::empty({all}, DType::bfloat16),
                   half_y = Tensor::empty(view.shape, DType::bfloat16),
                   wanted = Tensor::empty(view.shape, DType::bfloat16);
      backend->copy(x, half);
      backend->copy(y, wanted);
      backend->run(StridedCopy{view.of(half), StridedView(half_y)});
      BOOST_TEST(same_bits(half_y, wanted));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_view_may_repeat_what_it_reads_but_not_what_it_writes) {
  Draw draw(195);
  const auto backend = make_cpu_backend();
  const Tensor row = draw.normal({1, 5}), column = draw.normal({7, 1}), y = Tensor::empty({3, 7, 5});
  backend->run(StridedCopy{StridedView(row).expanded(y.shape()), StridedView(y)});
  for (std::size_t i = 0; i < 105; ++i) BOOST_TEST(floats(y)[i] == floats(row)[i % 5]);
  backend->run(StridedCopy{StridedView(column).expanded(y.shape()), StridedView(y)});
  for (std::size_t i = 0; i < 105; ++i) BOOST_TEST(floats(y)[i] == floats(column)[i / 5 % 7]);
  BOOST_CHECK_THROW(backend->run(StridedCopy{StridedView(y), StridedView(row).expanded(y.shape())}),
                    UsageError);
}

BOOST_AUTO_TEST_CASE(a_view_outside_its_tensor_is_refused) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({4, 3}), y = Tensor::zeros({2, 3});
  for (const std::int64_t start : {-1, 3})
    BOOST_CHECK_THROW(backend->run(StridedCopy{StridedView(x).narrowed(0, start, 2), StridedView(y)}),
                      UsageError);
  BOOST_CHECK_THROW(backend->run(StridedCopy{StridedView(x), StridedView(y)}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
