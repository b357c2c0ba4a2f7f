// What train.precision comes to where processors compute fast in bf16, and where not.
#include "train/device.h"

#include <boost/test/unit_test.hpp>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(precision)

using train::choose_precision;
using train::RankPrecision;

const std::vector<RankPrecision> fast{{.why_slow = "", .host = "a"}, {.why_slow = "", .host = "b"}};
const std::vector<RankPrecision> mixed{{.why_slow = "", .host = "a"}, {.why_slow = "too old", .host = "b"}};

BOOST_AUTO_TEST_CASE(fp32_is_fp32_everywhere) {
  for (const char* const fallback : {"refuse", "fp32", "convert"}) {
    const train::PrecisionChoice choice = choose_precision("fp32", fallback, mixed);
    BOOST_TEST((choice.compute == DType::float32));
    BOOST_TEST(choice.remark.empty());
  }
}

BOOST_AUTO_TEST_CASE(bf16_is_bf16_where_it_is_fast) {
  for (const char* const fallback : {"refuse", "fp32", "convert"}) {
    const train::PrecisionChoice choice = choose_precision("bf16", fallback, fast);
    BOOST_TEST((choice.compute == DType::bfloat16));
    BOOST_TEST(choice.remark.empty());
  }
}

BOOST_AUTO_TEST_CASE(one_slow_rank_decides_for_all_and_is_named) {
  BOOST_CHECK_EXCEPTION(choose_precision("bf16", "refuse", mixed), UsageError, [](const UsageError& error) {
    return std::string(error.what())
        .starts_with("precision bf16 would be slower than fp32: rank 1 on b: too old; ");
  });
  const train::PrecisionChoice floats = choose_precision("bf16", "fp32", mixed);
  BOOST_TEST((floats.compute == DType::float32));
  BOOST_TEST(floats.remark == "precision bf16: computes in float32: rank 1 on b: too old");
  const train::PrecisionChoice converted = choose_precision("bf16", "convert", mixed);
  BOOST_TEST((converted.compute == DType::bfloat16));
  BOOST_TEST(converted.remark == "precision bf16 by conversion, slower than fp32: rank 1 on b: too old");
}

BOOST_AUTO_TEST_CASE(unknown_words_are_refused) {
  BOOST_CHECK_THROW(choose_precision("fp16", "refuse", fast), UsageError);
  BOOST_CHECK_THROW(choose_precision("bf16", "maybe", mixed), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
