// Folds along axes, cumulative sums, copies between views, and elements by number.
#include "ops/reduction.h"

#include "kernels/cuda/twins.h"
#include "lockstep/ops/gather.h"
#include "ops/strided_copy.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(reductions, Twins)

using kernels::Backend;
using ops::StridedCopy, ops::StridedView;

const std::vector<std::pair<Shape, Shape>>& folds() {
  static const std::vector<std::pair<Shape, Shape>> all{{{3, 5, 7}, {}},
                                                        {{3, 5, 7}, {7}},
                                                        {{3, 5, 7}, {3, 1, 1}},
                                                        {{3, 5, 7}, {5, 1}},
                                                        {{3, 5, 7}, {3, 5, 7}},
                                                        {{100003}, {1}},
                                                        {{2, 20001}, {2, 1}},
                                                        {{20001, 3}, {3}},
                                                        {{300, 130}, {130}},
                                                        {{40, 700}, {700}},
                                                        {{700, 40}, {700, 1}},
                                                        {{4, 2, 3, 5, 2, 6}, {2, 1, 5, 1, 6}},
                                                        {{4, 2, 3, 5, 2, 6}, {4, 1, 3, 1, 2, 1}},
                                                        {{0, 4}, {0, 1}}};
  return all;
}

template <class Fold>
void compare_fold(Twins& twins, Draw& draw, const Shape& from, const Shape& to) {
  const Operand x = activation(draw.normal(from)), y = activation(draw.normal(to));
  std::vector<Operand> in{x};
  if constexpr (ops::folds_terms<Fold>)
    in.push_back(ops::folds_pairs<Fold> ? activation(draw.normal(from)) : fixed(draw.normal(to)));
  for (const bool accumulate : {false, true}) {
    const auto run = [=](Backend& on, const Tensors& given, const Tensors& out) {
      on.run(
          ops::ReduceAxes<Fold>{given[0], out[0], accumulate, 0.5, given.size() > 1 ? given[1] : Tensor{}});
    };
    twins.compare(Fold::name + to_string(from) + to_string(to), in, {y}, run);
    twins.compare("to float32", in, {fixed(y.value)}, run);
  }
}

BOOST_AUTO_TEST_CASE(folds_are_those_of_the_cpu) {
  Draw draw;
  for (const auto& [from, to] : folds()) {
    compare_fold<ops::Total>(*this, draw, from, to);
    compare_fold<ops::Largest>(*this, draw, from, to);
    compare_fold<ops::Smallest>(*this, draw, from, to);
    compare_fold<ops::SumOfProducts>(*this, draw, from, to);
    compare_fold<ops::SumOfSquares>(*this, draw, from, to);
    compare_fold<ops::SumOfExponentials>(*this, draw, from, to);
    compare_fold<ops::CountOfEqual>(*this, draw, from, to);
  }
  const Operand nothing = activation(Tensor::empty({3, 0}));
  compare("sum of nothing", {nothing}, {activation(unwritten({3, 1}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(ops::ReduceAxes<ops::Total>{in[0], out[0]});
          });
}

BOOST_AUTO_TEST_CASE(cumulative_sums_are_those_of_the_cpu) {
  Draw draw;
  for (const Shape& shape : {Shape{3, 5, 7}, Shape{2, 1000, 3}, Shape{300, 40, 1}, Shape{4, 0, 2}}) {
    for (const int axis : {0, 1, 2}) {
      for (const bool backwards : {false, true})
        compare("cumsum", {activation(draw.normal(shape))}, {activation(unwritten(shape))},
                [=](Backend& on, const Tensors& in, const Tensors& out) {
                  on.run(ops::CumulativeSum{in[0], axis, backwards, out[0]});
                });
    }
  }
}

BOOST_AUTO_TEST_CASE(views_are_copied_as_on_the_cpu) {
  Draw draw;
  const Shape cube{4, 70, 40}, six{2, 3, 4, 5, 6, 8};
  const auto permuted = [](const StridedView& view, std::initializer_list<int> order) {
    return view.permuted(std::span<const int>(order.begin(), order.size()));
  };
  const StridedView of_cube(cube), of_six(six);
  const std::pair<Shape, StridedView> views[] = {
      {cube, of_cube},
      {cube, of_cube.narrowed(1, 3, 40)},
      {cube, of_cube.narrowed(2, 8, 16)},
      {cube, of_cube.narrowed(2, 1, 30)},
      {cube, of_cube.narrowed(0, 2, 0)},
      {cube, of_cube.flipped(0).flipped(2)},
      {cube, permuted(of_cube, {2, 0, 1})},
      {cube, permuted(of_cube, {0, 2, 1})},
      {cube, permuted(of_cube, {1, 0, 2})},
      {cube, permuted(of_cube.narrowed(1, 1, 65).flipped(0), {1, 2, 0})},
      {six, permuted(of_six, {5, 3, 1, 0, 2, 4})},
      {six, permuted(of_six.narrowed(5, 1, 5), {0, 2, 4, 1, 3, 5})}};
  for (const auto& [shape, view] : views) {
    for (const bool accumulate : {false, true}) {
      compare("out", {activation(draw.normal(shape))}, {activation(draw.normal(view.shape))},
              [accumulate, at = view](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(StridedCopy{at.of(in[0]), StridedView(out[0]), accumulate});
              });
      compare("in", {activation(draw.normal(view.shape))}, {activation(draw.normal(shape))},
              [accumulate, at = view](Backend& on, const Tensors& in, const Tensors& out) {
                on.run(StridedCopy{StridedView(in[0]), at.of(out[0]), accumulate});
              });
    }
  }
  compare("repeated", {activation(draw.normal({1, 5}))}, {activation(unwritten({3, 40, 5}))},
          [](Backend& on, const Tensors& in, const Tensors& out) {
            on.run(StridedCopy{StridedView(in[0]).expanded(out[0].shape()), StridedView(out[0])});
          });
}

BOOST_AUTO_TEST_CASE(elements_by_number_and_their_gradients_are_those_of_the_cpu) {
  Draw draw;
  const std::tuple<Shape, Shape, Shape, int> cases[] = {{{7, 33}, {500, 33}, {500}, 0},
                                                        {{5, 7, 3}, {5, 90, 3}, {90}, 1},
                                                        {{5, 7, 3}, {5, 90, 3}, {5, 90, 3}, 1},
                                                        {{200, 11}, {200, 4}, {200, 4}, 1},
                                                        {{9}, {40}, {40}, 0},
                                                        {{4, 5}, {4, 0}, {0}, 1},
                                                        {{0, 5}, {0, 3}, {0, 3}, 1}};
  for (const auto& [x, y, of, along] : cases) {
    const int axis = along;
    const Operand indices = fixed(draw.indices(of, x[axis]));
    compare("gather", {activation(draw.normal(x)), indices}, {activation(unwritten(y))},
            [axis](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::Gather{in[0], in[1], axis, out[0]});
            });
    compare("gather_backward", {activation(draw.normal(y)), indices}, {activation(unwritten(x))},
            [axis](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::GatherBackward{in[0], in[1], axis, out[0]});
            });
  }
}

BOOST_AUTO_TEST_CASE(folds_of_segments_are_those_of_the_cpu) {
  Draw draw;
  const std::pair<Shape, std::int64_t> cases[] = {
      {{500, 33}, 7}, {{90, 3, 5}, 200}, {{40}, 9}, {{3000, 2}, 1}, {{0, 5}, 3}, {{1, 1}, 2}, {{4, 0}, 5}};
  for (const auto& [rows, count] : cases) {
    const Operand indices = fixed(draw.indices({rows[0]}, count)), x = activation(draw.normal(rows));
    const Operand y = activation(unwritten(rows.with(0, count)));
    compare("segment_sum of " + to_string(rows), {x, indices}, {y},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::SegmentSum{{in[0], in[1], out[0], "segment_sum"}});
            });
    compare("segment_max of " + to_string(rows), {x, indices}, {y},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              on.run(ops::SegmentMax{{in[0], in[1], out[0], "segment_max"}});
            });
  }
}

BOOST_AUTO_TEST_CASE(the_first_index_outside_an_axis_is_told_at_the_next_read) {
  for (const std::int64_t count : {3, 50000}) {
    const Tensor here = Tensor::zeros({count}, DType::int64);
    here.data<std::int64_t>()[count - 1] = 5;
    here.data<std::int64_t>()[count / 2] = 6;
    const Tensor indices = gpu().empty({count}, DType::int64), x = gpu().empty({2, 5}),
                 y = gpu().empty({2, count}), back = Tensor::empty({2, count});
    gpu().copy(here, indices);
    gpu().fill(x, 1);
    gpu().run(ops::Gather{x, indices, 1, y});
    const std::string named = fmt::format("6 (number {})", count / 2);
    BOOST_CHECK_EXCEPTION(gpu().copy(y, back), DataError, [&](const DataError& error) {
      return std::string(error.what()).find(named) != std::string::npos;
    });
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
