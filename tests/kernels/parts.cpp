// Operations in parts on the CPU: one part after the other.
#include "kernels/reference.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/random.h"
#include "lockstep/ops/update.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(parts)

using kernels::Backend, kernels::make_cpu_backend;

BOOST_AUTO_TEST_CASE(each_part_is_the_operation_on_its_rows) {
  Draw draw(121);
  const auto backend = make_cpu_backend();
  for (const int parts : {1, 2, 3, 8}) {
    constexpr int rows = 5, width = 7;
    const Tensor x = draw.normal({parts * rows, width}), sums = draw.normal({parts, width}),
                 wanted = copy_of(sums);
    backend->run_parts(ops::SumRows{x, parts == 1 ? sums.reshape({width}) : sums, true}, parts);
    for (int part = 0; part < parts; ++part)
      backend->run(ops::SumRows{x.rows(part * rows, (part + 1) * rows),
                                wanted.rows(part, part + 1).reshape({width}), true});
    BOOST_TEST(same_bits(sums, wanted), parts << " parts");
  }
}

BOOST_AUTO_TEST_CASE(each_part_has_the_random_numbers_of_its_shard) {
  Draw draw(122);
  const auto backend = make_cpu_backend();
  constexpr int parts = 3, rows = 11;
  const Tensor x = draw.normal({parts * rows}), y = copy_of(x), wanted = copy_of(x);
  backend->run_parts(ops::Dropout{x, 0.5f, {.seed = 1, .shard = 4}, y}, parts);
  for (std::uint32_t part = 0; part < parts; ++part) {
    const auto own = [&](const Tensor& of) { return of.rows(part * rows, (part + 1) * rows); };
    backend->run(ops::Dropout{own(x), 0.5f, {.seed = 1, .shard = 4 + part}, own(wanted)});
  }
  BOOST_TEST(same_bits(y, wanted));
}

BOOST_AUTO_TEST_CASE(a_tensor_without_so_many_equal_parts_is_refused_by_its_shape) {
  const auto backend = make_cpu_backend();
  const auto refused = [&](const Tensor& x, const Tensor& row, int parts_, const std::string& shape) {
    BOOST_CHECK_EXCEPTION(
        backend->run_parts(ops::SumRows{x, row}, parts_), UsageError, [&](const UsageError& error) {
          return std::string(error.what()) == "sum_rows: an operand of shape " + shape + " does not have " +
                                                  std::to_string(parts_) + " parts";
        });
  };
  refused(Tensor::zeros({7, 4}), Tensor::zeros({2, 4}), 2, "[7, 4]");
  refused(Tensor::zeros({6, 4}), Tensor::zeros({2, 4}), 3, "[2, 4]");
}

BOOST_AUTO_TEST_CASE(planes_without_a_fitting_table_are_refused) {
  const auto backend = make_cpu_backend();
  const Tensor planes = Tensor::zeros({8}), sums = Tensor::zeros({4}),
               table = Tensor::zeros({1, 4}, DType::int64);
  BOOST_CHECK_THROW(backend->run(ops::AddAlongTree{planes, sums, table, 0}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::AddAlongTree{planes, sums, table.reshape({4}), 2}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::AddAlongTree{planes, Tensor::zeros({4}, DType::float64), table, 2}),
                    UsageError);
  BOOST_CHECK_THROW(backend->run(ops::AddAlongTree{Tensor::zeros({8}, DType::int64),
                                                   Tensor::zeros({4}, DType::int64), table, 2}),
                    UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
