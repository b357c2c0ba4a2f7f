// Fills, copies, sums, multiples, and rows.
#include "lockstep/ops/elementwise.h"
#include "kernels/reference.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(elementwise)

using kernels::make_cpu_backend;

BOOST_AUTO_TEST_CASE(add_and_scale_are_exact_and_may_work_in_place) {
  Draw draw(31);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const std::int64_t count : {0, 1, 7, 33, 70001}) {
      const Tensor a = draw.normal({count}), b = draw.normal({count}), y = Tensor::empty({count});
      backend->run(ops::add(a, b, y));
      for (std::int64_t i = 0; i < count; ++i)
        BOOST_REQUIRE(y.data<float>()[i] == a.data<float>()[i] + b.data<float>()[i]);
      const Tensor in_place = copy_of(a);
      backend->run(ops::add(in_place, b, in_place));
      BOOST_TEST(same_bits(in_place, y));
      backend->run(ops::scale(a, -0.3f, y));
      for (std::int64_t i = 0; i < count; ++i)
        BOOST_REQUIRE(y.data<float>()[i] == -0.3f * a.data<float>()[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(add_rows_and_sum_rows_are_each_others_gradient) {
  Draw draw(32);
  for (const int threads : {1, 3}) {
    const auto backend = make_cpu_backend(threads);
    for (const auto& [rows, width] :
         {std::pair<int, int>{0, 3}, {1, 1}, {5, 300}, {1025, 7}, {8, 5000}, {3, 0}}) {
      const Tensor x = draw.normal({rows, width}), row = draw.normal({width}),
                   y = Tensor::empty({rows, width});
      backend->run(ops::add_rows(x, row, y));
      std::vector<double> sums(static_cast<std::size_t>(width));
      for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < width; ++i) {
          const float value = x.data<float>()[r * width + i];
          BOOST_REQUIRE(y.data<float>()[r * width + i] == value + row.data<float>()[i]);
          sums[static_cast<std::size_t>(i)] += value;
        }
      }
      const Tensor total = Tensor::empty({width});
      backend->run(ops::SumRows{x, total, false});
      check_close(total, sums, "sum_rows");
      backend->run(ops::SumRows{x, total, true});
      for (double& sum : sums) sum *= 2;
      check_close(total, sums, "sum_rows accumulated");
    }
  }
}

BOOST_AUTO_TEST_CASE(sum_rows_of_many_equal_rows_keeps_its_accuracy) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::empty({100000, 3}), total = Tensor::empty({3});
  backend->fill(x, 0.1f);
  backend->run(ops::SumRows{x, total, false});
  for (const float sum : floats(total)) BOOST_TEST(std::abs(sum - 100000 * static_cast<double>(0.1f)) < 0.05);
}

BOOST_AUTO_TEST_CASE(sum_rows_does_not_depend_on_threads) {
  Draw draw(33);
  const Tensor x = draw.normal({300, 1000}), one = Tensor::empty({1000}), three = Tensor::empty({1000});
  make_cpu_backend(1)->run(ops::SumRows{x, one, false});
  make_cpu_backend(3)->run(ops::SumRows{x, three, false});
  BOOST_TEST(same_bits(one, three));
}

BOOST_AUTO_TEST_CASE(fill_leaves_padding_lanes_zero) {
  const auto backend = make_cpu_backend();
  const Tensor y = backend->empty({2, 5, 2, 3}, DType::float32, 4);
  backend->fill(y, 7);
  std::int64_t sevens = 0;
  for (std::int64_t i = 0; i < y.stored_numel(); ++i) {
    const bool padding = i / (2 * 3 * 4) % 2 == 1 && i % 4 >= 1;
    BOOST_TEST(y.data<float>()[i] == (padding ? 0.0f : 7.0f));
    sevens += y.data<float>()[i] == 7.0f;
  }
  BOOST_TEST(sevens == y.numel());
}

BOOST_AUTO_TEST_CASE(bfloat16_rounds_to_nearest_even_and_back_is_exact) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::empty({6}), half = Tensor::empty({6}, DType::bfloat16), back = Tensor::empty({6});
  const float values[] = {1.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, -3.1415927f, INFINITY, NAN};
  const float rounded[] = {1.0f, 1.0f, 1.0f + 0x1p-6f, -3.140625f, INFINITY, NAN};
  std::copy(values, values + 6, x.data<float>());
  backend->copy(x, half);
  backend->copy(half, back);
  for (int i = 0; i < 5; ++i) BOOST_TEST(back.data<float>()[i] == rounded[i]);
  BOOST_TEST(std::isnan(back.data<float>()[5]));
  BOOST_CHECK_THROW(backend->copy(x, Tensor::empty({6}, DType::int32)), UsageError);
  BOOST_CHECK_THROW(backend->copy(x, Tensor::empty({5})), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
