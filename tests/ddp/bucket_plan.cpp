// BucketPlan: PyTorch's assignment rule, memory layout, hash.
#include "lockstep/ddp/bucket_plan.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(bucket_plan)

using namespace ddp;

using Buckets = std::vector<std::vector<int>>;

Buckets assign(std::vector<std::size_t> elements, std::vector<DType> dtypes,
               std::vector<std::size_t> limits) {
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] *= bytes_of(dtypes[i]);
  return assign_buckets(elements, dtypes, [&](std::size_t bucket, std::size_t) {
    return limits[std::min(bucket, limits.size() - 1)];
  });
}

const DType f = DType::float32, d = DType::float64;

std::vector<BucketPlan::Gradient> gradients() {
  return {{"a.weight", {3, 5}, f},
          {"a.bias", {5}, f},
          {"empty", {0, 4}, f},
          {"b.weight", {5, 7}, f},
          {"b.bias", {7}, f}};
}

std::vector<int> reversed(std::size_t count) {
  std::vector<int> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

BucketPlan plan(const std::vector<BucketPlan::Gradient>& leaves, const BucketLimits& limits) {
  return BucketPlan(leaves, reversed(leaves.size()), limits);
}

BOOST_AUTO_TEST_CASE(one_limit_one_element_type) {
  BOOST_TEST((assign({100, 200, 100, 50}, {f, f, f, f}, {400}) == Buckets{{0}, {1}, {2}, {3}}));
}

BOOST_AUTO_TEST_CASE(one_limit_two_element_types_interleave) {
  BOOST_TEST(
      (assign({50, 25, 50, 25, 50, 25}, {f, d, f, d, f, d}, {400}) == Buckets{{0, 2}, {1, 3}, {4}, {5}}));
}

BOOST_AUTO_TEST_CASE(the_last_limit_repeats) {
  BOOST_TEST((assign({10, 10, 10, 10}, {f, f, f, f}, {40, 80}) == Buckets{{0}, {1, 2}, {3}}));
}

BOOST_AUTO_TEST_CASE(limits_advance_for_each_element_type_alone) {
  BOOST_TEST((assign({50, 25, 50, 25, 50, 25}, {f, d, f, d, f, d}, {200, 400}) ==
              Buckets{{0}, {1}, {2, 4}, {3, 5}}));
}

BOOST_AUTO_TEST_CASE(no_tensor_makes_no_bucket) { BOOST_TEST(assign({}, {}, {100}).empty()); }

BOOST_AUTO_TEST_CASE(every_element_type_has_buckets) {
  const DType last = DType::uint16;
  BOOST_TEST((assign({8, 1, 8}, {last, f, last}, {100}) == Buckets{{0, 2}, {1}}));
}

BOOST_AUTO_TEST_CASE(every_gradient_has_a_place_of_its_own_at_64_bytes) {
  for (const std::size_t limit : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 20}) {
    const BucketPlan made = plan(gradients(), {.first_bytes = limit, .other_bytes = limit});
    std::size_t end = 0;
    for (const int index : made.order()) {
      const BucketPlan::Gradient& gradient = made.gradients()[static_cast<std::size_t>(index)];
      BOOST_TEST(made.location(index).offset_bytes % 64 == 0u);
      BOOST_TEST(made.location(index).offset_bytes >= end);
      end = made.location(index).offset_bytes + static_cast<std::size_t>(gradient.shape.numel()) * 4;
    }
    BOOST_TEST(made.bytes() >= end);
  }
}

BOOST_AUTO_TEST_CASE(buckets_cover_the_accumulator_without_gaps) {
  const BucketPlan made = plan(gradients(), {.first_bytes = 1, .other_bytes = 100});
  std::size_t end = 0;
  for (const BucketPlan::Bucket& bucket : made.buckets()) {
    BOOST_TEST(bucket.offset_bytes == end);
    for (const int index : bucket.gradients)
      BOOST_TEST(made.location(index).bucket == &bucket - made.buckets().data());
    end += bucket.bytes;
  }
  BOOST_TEST(end == made.bytes());
}

BOOST_AUTO_TEST_CASE(the_accumulator_has_one_size_in_any_order_and_grouping) {
  const auto leaves = gradients();
  const std::size_t bytes = plan(leaves, {.first_bytes = 1, .other_bytes = 1}).bytes();
  BOOST_TEST(BucketPlan(leaves, std::vector{2, 0, 4, 1, 3}, {}).bytes() == bytes);
}

BOOST_AUTO_TEST_CASE(an_order_that_is_no_permutation_is_refused) {
  BOOST_CHECK_THROW(BucketPlan(gradients(), std::vector{0, 1, 2, 3}, {}), UsageError);
  BOOST_CHECK_THROW(BucketPlan(gradients(), std::vector{0, 1, 2, 3, 3}, {}), UsageError);
  BOOST_CHECK_THROW(BucketPlan(gradients(), std::vector{0, 1, 2, 3, 5}, {}), UsageError);
}

BOOST_AUTO_TEST_CASE(the_hash_covers_names_types_shapes_order_and_grouping) {
  const BucketLimits limits{.first_bytes = 100, .other_bytes = 100};
  const std::uint64_t hash = plan(gradients(), limits).hash();
  BOOST_TEST(hash == plan(gradients(), limits).hash());
  auto other = gradients();
  other[1].name = "a.offset";
  BOOST_TEST(hash != plan(other, limits).hash());
  other = gradients();
  other[3].shape = Shape{7, 5};
  BOOST_TEST(hash != plan(other, limits).hash());
  other = gradients();
  other[4].dtype = d;
  BOOST_TEST(hash != plan(other, limits).hash());
  BOOST_TEST(hash != plan(gradients(), {.first_bytes = 1, .other_bytes = 1}).hash());
  BOOST_TEST(hash != BucketPlan(gradients(), std::vector{0, 1, 2, 3, 4}, limits).hash());
}

BOOST_AUTO_TEST_CASE(buckets_taper_towards_the_end_but_not_below_the_smaller_limit) {
  const std::vector<BucketPlan::Gradient> leaves(64, {"w", {16}, f});  // 64 bytes each
  std::vector<std::size_t> bytes;
  const BucketPlan tapered = plan(leaves, {.first_bytes = 128, .other_bytes = 1024});
  for (const auto& bucket : tapered.buckets()) bytes.push_back(bucket.bytes);
  const std::vector<std::size_t> wanted{128, 1024, 768, 576, 448, 320, 256, 192, 128, 128, 128};
  BOOST_TEST(bytes == wanted, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
