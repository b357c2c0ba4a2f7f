#include "lockstep/base/shape.h"

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdint>

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

BOOST_AUTO_TEST_CASE(append_adds_a_last_dimension_and_with_changes_one) {
  Shape shape{2, 3};
  shape.append(5);
  BOOST_TEST((shape == Shape{2, 3, 5}));
  BOOST_TEST((shape.with(1, 7) == Shape{2, 7, 5}));
  BOOST_TEST((shape.with(-1, 0) == Shape{2, 3, 0}));
  BOOST_CHECK_THROW(shape.append(-1), UsageError);
  BOOST_CHECK_THROW(shape.with(0, -1), UsageError);
  BOOST_CHECK_THROW(shape.with(3, 1), UsageError);
  Shape longest{1, 1, 1, 1, 1, 1};
  BOOST_CHECK_THROW(longest.append(1), UsageError);
  BOOST_TEST(longest.rank() == Shape::max_rank);
}

BOOST_AUTO_TEST_CASE(products_of_extents_that_no_number_holds_are_refused) {
  constexpr std::int64_t most = std::int64_t{1} << 59;
  BOOST_TEST((Shape{most}.numel()) == most);
  for (const auto& [a, b, c] :
       {std::array{most, std::int64_t{2}, std::int64_t{1}},
        std::array{std::int64_t{64}, std::int64_t{72057594037927937}, std::int64_t{1}},
        std::array{most, most, most}, std::array{std::int64_t{0}, most, most}})
    BOOST_CHECK_THROW((Shape{a, b, c}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
