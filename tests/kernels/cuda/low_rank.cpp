// Low-rank factors.
#include <limits>
#include <optional>
#include <tuple>

#include "kernels/cuda/twins.h"

namespace lockstep::test {
namespace {

BOOST_FIXTURE_TEST_SUITE(low_rank, Twins)

using kernels::Backend;
using kernels::Orthonormal;

constexpr RandomKey key{.seed = 8, .purpose = purpose_of("rows"), .step = 2};

BOOST_AUTO_TEST_CASE(normal_numbers_are_those_of_the_cpu) {
  for (const auto& [rows, length] : {std::pair<int, int>{1, 1}, {0, 4}, {3, 0}, {4, 4097}, {7, 33}})
    compare("draw_normal", {}, {fixed(unwritten({rows, length}))},
            [](Backend& on, const Tensors&, const Tensors& out) { on.draw_normal(key, out[0]); },
            {plain_float});
}

/// Row 1 is a multiple of row 0, and row 2 is zero.
Tensor rows_of_which_some_depend(Draw& draw, std::int64_t rows, std::int64_t length) {
  const Tensor matrix = draw.normal({rows, length});
  float* const values = matrix.data<float>();
  for (std::int64_t i = 0; i < length; ++i) {
    if (rows > 1) values[length + i] = 2 * values[i];
    if (rows > 2) values[2 * length + i] = 0;
  }
  return matrix;
}

BOOST_AUTO_TEST_CASE(vectors_become_orthonormal_as_on_the_cpu) {
  Draw draw;
  for (const auto& [count, length] : {std::pair<int, int>{1, 1}, {1, 37}, {4, 5}, {3, 1025}, {8, 5000}}) {
    for (const bool of_rows : {true, false}) {
      const Shape shape = of_rows ? Shape{count, length} : Shape{length, count};
      const Orthonormal how{.vectors = of_rows ? Orthonormal::Vectors::rows : Orthonormal::Vectors::columns};
      compare(
          "orthonormalise", {fixed(draw.normal(shape))}, {fixed(unwritten(shape))},
          [&](Backend& on, const Tensors& in, const Tensors& out) { on.orthonormalise(in[0], how, out[0]); },
          {plain_float});
      compare(
          "orthonormalise in place", {}, {fixed(draw.normal(shape))},
          [&](Backend& on, const Tensors&, const Tensors& out) { on.orthonormalise(out[0], how, out[0]); },
          {plain_float});
    }
    for (const bool draws : {false, true}) {
      const Tensor dependent = rows_of_which_some_depend(draw, count, length + 5);
      compare("orthonormalise what depends", {}, {fixed(dependent)},
              [&](Backend& on, const Tensors&, const Tensors& out) {
                on.orthonormalise(out[0], {.draw = draws ? std::optional(key) : std::nullopt}, out[0]);
              },
              {plain_float});
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_or_not_wanted_stays_as_it_is) {
  Draw draw;
  const Tensor infinite = draw.normal({3, 50});
  infinite.data<float>()[70] = std::numeric_limits<float>::infinity();
  compare("orthonormalise", {fixed(infinite)}, {fixed(draw.normal({3, 50}))},
          [](Backend& on, const Tensors& in, const Tensors& out) { on.orthonormalise(in[0], {}, out[0]); },
          {plain_float});
  for (const float condition : {0.f, 1.f})
    compare("orthonormalise if", {fixed(draw.normal({3, 50})), fixed(scalar(condition))},
            {fixed(draw.normal({3, 50}))},
            [](Backend& on, const Tensors& in, const Tensors& out) {
              Orthonormal how;
              how.condition = in[1];
              on.orthonormalise(in[0], how, out[0]);
            },
            {plain_float});
}

BOOST_AUTO_TEST_CASE(factors_stand_for_what_they_do_on_the_cpu) {
  Draw draw;
  const auto expand = [](Backend& on, const Tensors& in, const Tensors& out) {
    on.expand({.p = in[0],
               .q = in[1],
               .failed = in[2],
               .share = 0.25f,
               .matrix = out[0],
               .rest = out.size() > 2 ? out[2] : Tensor{},
               .valid = out[1]});
  };
  for (const auto& [n, m, rank] :
       {std::tuple<int, int, int>{1, 1, 1}, {13, 30, 3}, {2100, 7, 2}, {5, 4099, 4}}) {
    const Operand p = fixed(draw.normal({n, rank})), q = fixed(draw.normal({rank, m})),
                  matrix = fixed(draw.normal({n, m})), rest = fixed(draw.normal({n, m})),
                  valid = fixed(unwritten({1}));
    for (const float failed : {0.f, 2.f}) {
      compare("expand", {p, q, fixed(scalar(failed))}, {matrix, valid, rest}, expand, {plain_float});
      compare("expand without rest", {p, q, fixed(scalar(failed))}, {matrix, valid}, expand, {plain_float});
    }
    const Tensor infinite = copied(q.value);
    infinite.data<float>()[infinite.numel() - 1] = std::numeric_limits<float>::infinity();
    compare("expand infinite", {p, fixed(infinite), fixed(scalar(0))}, {matrix, valid, rest}, expand,
            {plain_float});
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
