// The steady state: steps after the first few allocate nothing, on any thread.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <new>

#include "data/files.h"
#include "lockstep/data/images.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/split.h"
#include "lockstep/data/text.h"

namespace ls = lockstep;

namespace {

std::atomic<long> allocations = 0;

void* counted(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

/// Allocations of 100 steps, the first four left out.
long allocations_of_steps(const ls::data::Dataset& dataset, const ls::data::LoaderOptions& options) {
  ls::data::Loader loader(dataset, options, 0, 1);
  for (std::int64_t step = 0; step < 4; ++step) loader.at(step);
  const long before = allocations;
  for (std::int64_t step = 4; step < 104; ++step) loader.at(step);
  return allocations - before;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

BOOST_AUTO_TEST_CASE(the_counter_counts) {
  const long before = allocations;
  const std::vector<int> some(10, 1);
  BOOST_TEST(some[3] + allocations - before > 1);
}

BOOST_AUTO_TEST_CASE(loading_images_allocates_nothing) {
  const ls::test::TemporaryFolder folder;
  const ls::data::Images images(make_images(folder, "a.h5", 37));
  const ls::data::Split split = ls::data::split(images, 0.2, 1);
  BOOST_TEST(
      allocations_of_steps(
          split.train, {.global_batch = 24, .shards = 3, .augment = {.crop_padding = 1, .flip = true}}) == 0);
}

BOOST_AUTO_TEST_CASE(loading_text_allocates_nothing) {
  const ls::test::TemporaryFolder folder;
  const ls::data::Text text(make_text(folder, "t.h5", 500), 8);
  BOOST_TEST(allocations_of_steps(text, {.global_batch = 24, .shards = 3}) == 0);
}
