// Batches: fields by name.
#include "lockstep/tensor/batch.h"

#include <boost/test/unit_test.hpp>

#include "lockstep/base/error.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(batch)

BOOST_AUTO_TEST_CASE(fields_are_found_by_name_and_an_unknown_one_is_told_those_there_are) {
  const Tensor density = Tensor::zeros({4, 3}), flow = Tensor::zeros({4});
  const Batch batch(2, {{"density", density}, {"flow", flow}});
  BOOST_TEST(batch.index == 2);
  BOOST_TEST(batch.samples() == 4);
  BOOST_TEST(batch["flow"].shares_memory_with(flow));
  BOOST_TEST(batch.has("density"));
  BOOST_TEST(!batch.has("x"));
  BOOST_CHECK_EXCEPTION(batch["x"], DataError, mentions("no field 'x'; it has density, flow"));
}

BOOST_AUTO_TEST_CASE(rows_are_views_of_every_field) {
  const Tensor x = Tensor::zeros({4, 2}), y = Tensor::zeros({4}, DType::int64);
  const Batch part = Batch(0, {{"x", x}, {"y", y}}).rows(1, 3);
  BOOST_TEST(part.samples() == 2);
  part["y"].data<std::int64_t>()[0] = 9;
  BOOST_TEST(y.data<std::int64_t>()[1] == 9);
  BOOST_TEST((part["x"].shape() == Shape{2, 2}));
  BOOST_TEST(part.rows(2, 2).samples() == 0);
  BOOST_CHECK_THROW(part.rows(1, 3), UsageError);
}

BOOST_AUTO_TEST_CASE(a_tensor_is_a_batch_of_the_field_x) {
  const Batch batch = Tensor::zeros({3, 2});
  BOOST_TEST(batch.samples() == 3);
  BOOST_TEST(batch.has("x"));
}

BOOST_AUTO_TEST_CASE(a_batch_without_fields_has_no_samples_and_one_of_too_many_is_refused) {
  BOOST_TEST(Batch().samples() == 0);
  BOOST_CHECK_THROW(Batch()["x"], DataError);
  Batch batch;
  for (std::size_t i = 0; i < Batch::max_fields; ++i) batch.add("x", Tensor::zeros({1}));
  BOOST_CHECK_THROW(batch.add("y", Tensor::zeros({1})), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
