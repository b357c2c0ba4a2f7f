#include "lockstep/base/shape.h"

#include <boost/test/unit_test.hpp>

#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(shape)

BOOST_AUTO_TEST_CASE(a_scalar_has_one_element_and_an_empty_extent_none) {
  BOOST_TEST(Shape{}.numel() == 1);
  BOOST_TEST((Shape{3, 0, 2}.numel()) == 0);
}

BOOST_AUTO_TEST_CASE(negative_dimensions_count_from_the_end) {
  const Shape shape{2, 3, 5};
  BOOST_TEST(shape[-1] == 5);
  BOOST_TEST(shape[0] == 2);
  BOOST_CHECK_THROW(shape[3], UsageError);
}

BOOST_AUTO_TEST_CASE(bad_shapes_are_refused) {
  BOOST_CHECK_THROW((Shape{1, -2}), UsageError);
  BOOST_CHECK_THROW((Shape{1, 2, 3, 4, 5, 6, 7}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
