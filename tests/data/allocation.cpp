// The steady state: steps after the first few allocate nothing, on any thread.
#include <boost/test/unit_test.hpp>

#include "data/files.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/text.h"
#include "support/allocations.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(allocation)

/// Allocations of 100 steps, the first four left out.
long allocations_of_steps(const data::Dataset& dataset, const data::LoaderOptions& options) {
  data::Loader loader(dataset, options, 0, 1);
  for (std::int64_t step = 0; step < 4; ++step) loader.at(step);
  const AllocationCount count;
  for (std::int64_t step = 4; step < 104; ++step) loader.at(step);
  return count.made().own;
}

BOOST_AUTO_TEST_CASE(loading_images_allocates_nothing) {
  const TemporaryFolder folder;
  const data::Images images(make_images(folder, "a.h5", 37));
  const data::Split split = data::split(images, 0.2, 1);
  BOOST_TEST(
      allocations_of_steps(
          split.train, {.global_batch = 24, .shards = 3, .augment = {.crop_padding = 1, .flip = true}}) == 0);
}

/// Wide samples, so that several threads read a shard.
BOOST_AUTO_TEST_CASE(threads_in_memory_and_a_thread_that_reads_from_the_file_allocate_nothing) {
  const TemporaryFolder folder;
  hdf5::File file = hdf5::File::create(folder.file("a.h5"));
  const std::vector<float> values(64 * 8192);
  file.create_dataset("x", DType::float32, {64, 8192}).write(std::span<const float>(values));
  file.close();
  const data::Arrays in_memory(folder.file("a.h5")), on_disk(folder.file("a.h5"), {.memory_limit_bytes = 0});
  data::LoaderOptions options{.global_batch = 24, .shards = 1, .shuffle = false};
  BOOST_TEST(allocations_of_steps(on_disk, options) == 0);
  options.threads = 3;
  BOOST_TEST(allocations_of_steps(in_memory, options) == 0);
}

BOOST_AUTO_TEST_CASE(loading_text_allocates_nothing) {
  const TemporaryFolder folder;
  const data::Text text(make_text(folder, "t.h5", 500), 8);
  BOOST_TEST(allocations_of_steps(text, {.global_batch = 24, .shards = 3}) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
