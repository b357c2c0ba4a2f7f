// The stream: which sample each position is, whatever the shards.
#include "lockstep/data/sampler.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>

#include "data/files.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(stream)

using data::SampleStream;

std::vector<std::int64_t> step_of(const SampleStream& stream, std::int64_t step) {
  std::vector<std::int64_t> all;
  for (std::int64_t shard = 0; shard < stream.options().shards; ++shard) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(stream.samples_per_shard()));
    stream.shard_samples(step, shard, samples);
    all.insert(all.end(), samples.begin(), samples.end());
  }
  return all;
}

BOOST_AUTO_TEST_CASE(a_step_holds_the_same_samples_in_the_same_order_for_any_number_of_shards) {
  for (std::int64_t step = 0; step < 20; ++step) {
    const auto whole =
        step_of(SampleStream({.samples = 37, .global_batch = 12, .shards = 1, .seed = 5}), step);
    for (const std::int64_t shards : {2, 3, 4, 6, 12}) {
      BOOST_TEST(step_of(SampleStream({.samples = 37, .global_batch = 12, .shards = shards, .seed = 5}),
                         step) == whole);
    }
  }
}

BOOST_AUTO_TEST_CASE(position_p_is_place_p_mod_n_of_epoch_p_div_n) {
  // A batch larger than the set: several epochs in one step.
  const SampleStream stream({.samples = 7, .global_batch = 16, .shards = 2, .seed = 3});
  for (std::int64_t step = 0; step < 10; ++step) {
    const auto samples = step_of(stream, step);
    for (std::int64_t i = 0; i < 16; ++i) {
      const std::int64_t position = step * 16 + i;
      const data::Permutation permutation(7, 3, static_cast<std::uint64_t>(position / 7));
      BOOST_TEST(samples[static_cast<std::size_t>(i)] == permutation(position % 7));
    }
    BOOST_TEST(stream.epoch(step) == step * 16 / 7);
  }
}

BOOST_AUTO_TEST_CASE(every_epoch_visits_every_sample_once) {
  const SampleStream stream({.samples = 50, .global_batch = 10, .shards = 5, .seed = 1});
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> seen;
    for (std::int64_t step = 5 * epoch; step < 5 * epoch + 5; ++step) {
      for (const std::int64_t sample : step_of(stream, step)) seen.push_back(sample);
    }
    epochs.push_back(seen);
    std::sort(seen.begin(), seen.end());
    BOOST_TEST(seen == range(0, 50));
  }
  BOOST_TEST(epochs[0] != epochs[1]);
  BOOST_TEST(epochs[1] != epochs[2]);
}

BOOST_AUTO_TEST_CASE(without_shuffling_the_order_is_the_datas_own) {
  const SampleStream stream({.samples = 5, .global_batch = 4, .shards = 2, .seed = 1, .shuffle = false});
  BOOST_TEST(step_of(stream, 0) == (std::vector<std::int64_t>{0, 1, 2, 3}));
  BOOST_TEST(step_of(stream, 1) == (std::vector<std::int64_t>{4, 0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(shards_that_do_not_divide_the_batch_are_refused_with_both_numbers) {
  const SampleStream::Options options{.samples = 5, .global_batch = 64, .shards = 3};
  BOOST_CHECK_EXCEPTION(SampleStream{options}, UsageError,
                        mentions("shards = 3 does not divide global_batch = 64"));
  BOOST_CHECK_THROW(SampleStream({.samples = 0, .global_batch = 1}), UsageError);
  BOOST_CHECK_THROW(SampleStream({.samples = 1, .global_batch = 0}), UsageError);
  BOOST_CHECK_THROW(SampleStream({.samples = 1, .global_batch = 1, .shards = 0}), UsageError);
}

BOOST_AUTO_TEST_CASE(steps_and_shards_outside_the_stream_are_refused) {
  const SampleStream stream({.samples = 5, .global_batch = 4, .shards = 2});
  std::vector<std::int64_t> samples(2), three(3);
  BOOST_CHECK_EXCEPTION(stream.shard_samples(-1, 0, samples), UsageError, mentions("step -1"));
  BOOST_CHECK_THROW(stream.shard_samples(std::numeric_limits<std::int64_t>::max() / 2, 0, samples),
                    UsageError);
  BOOST_CHECK_EXCEPTION(stream.shard_samples(0, 2, samples), UsageError, mentions("shard 2 is out of range"));
  BOOST_CHECK_THROW(stream.shard_samples(0, 0, three), UsageError);
  stream.shard_samples(std::int64_t{1} << 60, 1, samples);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
