// Numbers that are not finite: where they are in files, views and mixtures, and which of them a step may
// blame.
#include "data/finite.h"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <map>

#include "data/files.h"
#include "lockstep/data/arrays.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(finite, *ranks(1, 3))

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

struct Folder {
  TemporaryFolder folder;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();

  /// x and spare, each float32 [rows, 2] of zeros but for the given rows.
  std::string file(const std::string& name, std::int64_t rows, const std::map<std::int64_t, float>& x,
                   const std::map<std::int64_t, float>& spare = {}) const {
    const std::string path = folder.file(name + std::to_string(world().rank()) + ".h5");
    hdf5::File out = hdf5::File::create(path);
    for (const auto& [array, bad] : {std::pair("x", x), std::pair("spare", spare)}) {
      std::vector<float> values(static_cast<std::size_t>(2 * rows));
      for (const auto& [row, value] : bad) values[static_cast<std::size_t>(2 * row + 1)] = value;
      out.create_dataset(array, DType::float32, {rows, 2}).write(std::span<const float>(values));
    }
    out.close();
    return path;
  }
  /// In the order of the file, `global_batch` samples a step.
  std::string blamed(const data::Dataset& dataset, std::int64_t step) const {
    data::Loader loader(dataset, {.global_batch = 4, .shards = 2, .shuffle = false, .backend = backend.get()},
                        0, 1);
    return data::not_finite_in_step(loader, dataset, step, *backend);
  }
};

constexpr std::int64_t everything = 1 << 20;

BOOST_FIXTURE_TEST_CASE(the_first_one_is_named_by_file_row_and_field_on_every_rank, Folder) {
  const data::Arrays one(file("a", 40, {})), other(file("b", 40, {{7, inf}, {30, nan}}));
  BOOST_TEST(data::first_not_finite(one, everything, world()) == "");
  const std::string of_rank_0 = folder.file("b0.h5") + ": row 7 of field x holds inf";
  if (world().rank() == 0)
    BOOST_TEST(data::first_not_finite(other, everything, world()) == of_rank_0);
  else
    BOOST_TEST(data::first_not_finite(other, everything, world()).ends_with(": row 7 of field x holds inf"));
  const data::Mixture both({{.dataset = &one}, {.dataset = &other}}, false);
  const data::Subset end(both, 50, 30);
  BOOST_TEST(data::first_not_finite(end, everything, world()).ends_with(": row 30 of field x holds nan"));
}

BOOST_FIXTURE_TEST_CASE(a_large_data_set_is_read_in_part, Folder) {
  const data::Arrays late(file("late", 300000, {{299999, nan}}));
  BOOST_TEST(data::first_not_finite(late, 1000, world()) == "");
  BOOST_TEST(data::first_not_finite(late, 1 << 30, world()).ends_with(": row 299999 of field x holds nan"));
}

BOOST_FIXTURE_TEST_CASE(a_step_blames_the_step_before_it_and_then_itself, Folder) {
  const data::Arrays data(file("a", 40, {{9, inf}, {14, nan}}));  // of steps 2 and 3
  BOOST_TEST(blamed(data, 0) == "");
  BOOST_TEST(blamed(data, 1) == "");
  BOOST_TEST(blamed(data, 2).ends_with(": row 9 of field x holds inf, in a sample of step 3"));
  BOOST_TEST(blamed(data, 3).ends_with(": row 9 of field x holds inf, in a sample of step 3"));
  BOOST_TEST(blamed(data, 6) == "");
}

BOOST_FIXTURE_TEST_CASE(a_field_that_had_such_numbers_before_is_not_blamed, Folder) {
  std::map<std::int64_t, float> everywhere;
  for (std::int64_t row = 0; row < 40; row += 3) everywhere[row] = nan;
  const data::Arrays data(file("a", 40, {{17, inf}}, everywhere));
  BOOST_TEST(blamed(data, 2) == "");
  BOOST_TEST(blamed(data, 4).ends_with(": row 17 of field x holds inf, in a sample of step 5"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
