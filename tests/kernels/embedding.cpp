// Embedding rows and their gradients.
#include "kernels/reference.h"
#include "lockstep/ops/gather.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(embedding)

using kernels::make_cpu_backend;

BOOST_AUTO_TEST_CASE(rows_are_copied_and_gradients_summed_in_order) {
  Draw draw(81);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const auto& [uses, rows, width] : {std::array{0, 3, 4}, {1, 1, 1}, {500, 7, 33}, {64, 256, 300}}) {
      const Tensor index = draw.indices({uses}, rows), table = draw.normal({rows, width}),
                   dy = draw.normal({uses, width});
      const Tensor y = Tensor::empty({uses, width}), gradient = Tensor::empty({rows, width});
      backend->run(ops::Embedding{index, table, y});
      std::vector<float> expected(static_cast<std::size_t>(rows * width));
      for (int i = 0; i < uses; ++i) {
        const std::int64_t row = index.data<std::int64_t>()[i];
        for (int c = 0; c < width; ++c) {
          BOOST_REQUIRE(y.data<float>()[i * width + c] == table.data<float>()[row * width + c]);
          expected[static_cast<std::size_t>(row * width + c)] += dy.data<float>()[i * width + c];
        }
      }
      backend->fill(gradient, NAN);
      backend->run(ops::EmbeddingBackward{dy, index, gradient, false});
      for (std::size_t i = 0; i < expected.size(); ++i)
        BOOST_REQUIRE(gradient.data<float>()[i] == expected[i]);
      backend->run(ops::EmbeddingBackward{dy, index, gradient, true});
      check_close(
          gradient,
          [&] {
            std::vector<double> twice(expected.begin(), expected.end());
            for (double& value : twice) value *= 2;
            return twice;
          }(),
          "accumulated");
    }
  }
}

BOOST_AUTO_TEST_CASE(an_index_outside_the_table_is_named) {
  const auto backend = make_cpu_backend();
  const Tensor index = Tensor::zeros({3}, DType::int64), table = Tensor::zeros({5, 2}),
               y = Tensor::zeros({3, 2});
  for (const std::int64_t bad : {std::int64_t{5}, std::int64_t{-1}}) {
    index.data<std::int64_t>()[2] = bad;
    const auto names_it = mentions(std::to_string(bad));
    BOOST_CHECK_EXCEPTION(backend->run(ops::Embedding{index, table, y}), DataError, names_it);
    BOOST_CHECK_EXCEPTION(backend->run(ops::EmbeddingBackward{y, index, table, false}), DataError, names_it);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
