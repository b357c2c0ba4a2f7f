// Bucket assignment against PyTorch's own, row by row.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/ddp/bucket_plan.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_buckets, *golden())

using namespace ddp;

BOOST_AUTO_TEST_CASE(buckets_are_those_of_pytorch) {
  int rows = 0;
  for (const auto& path : golden_files("buckets", ".json")) {
    for (const auto& row : nlohmann::json::parse(std::ifstream(path))) {
      std::vector<DType> dtypes;
      std::vector<std::size_t> bytes;
      for (std::size_t i = 0; i < row["sizes"].size(); ++i) {
        dtypes.push_back(dtype_named(row["dtypes"][i].get<std::string>()));
        bytes.push_back(row["sizes"][i].get<std::size_t>() * bytes_of(dtypes.back()));
      }
      const auto limits = row["limits"].get<std::vector<std::size_t>>();
      const auto wanted = row["buckets"].get<std::vector<std::vector<int>>>();
      const auto limit_of = [&](std::size_t bucket, std::size_t) {
        return limits[std::min(bucket, limits.size() - 1)];
      };
      BOOST_TEST((assign_buckets(bytes, dtypes, limit_of) == wanted), path.string() << " row " << rows);
      ++rows;
    }
  }
  BOOST_TEST(rows > 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
