// The loader: batches by step, the same at every world size, and errors of its thread.
#include "lockstep/data/loader.h"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <thread>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/text.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(loader)

using data::Loader;
using data::LoaderOptions;

/// All shards of a step from the ranks of a world, in order of shards.
template <class T>
std::vector<T> step_of_world(std::vector<Loader>& loaders, std::int64_t step) {
  std::vector<T> values;
  int next_shard = 0;
  for (Loader& loader : loaders) {
    const data::StepBatch& batch = loader.at(step);
    BOOST_TEST(batch.step == step);
    BOOST_TEST(batch.shards_total == loader.shards());
    for (const Batch& shard : batch.shards) {
      BOOST_TEST(shard.index == next_shard++);
      const auto x = values_of<T>(shard["x"]);
      values.insert(values.end(), x.begin(), x.end());
      for (const std::int64_t y : values_of<std::int64_t>(shard["y"])) values.push_back(static_cast<T>(y));
    }
  }
  BOOST_TEST(next_shard == loaders[0].shards());
  return values;
}

std::vector<Loader> world(const data::Dataset& dataset, const LoaderOptions& options, int ranks) {
  std::vector<Loader> loaders;
  for (int rank = 0; rank < ranks; ++rank) loaders.emplace_back(dataset, options, rank, ranks);
  return loaders;
}

/// Throws on one sample, and remembers which threads read.
class Faulty final : public data::Dataset {
 public:
  std::int64_t size() const override { return base_.size(); }
  const std::vector<data::Field>& fields() const override { return base_.fields(); }
  std::string name() const override { return "faulty"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    on_callers_thread = on_callers_thread || std::this_thread::get_id() == caller_;
    for (const std::int64_t sample : samples) {
      if (sample == bad_sample) throw DataError("sample {} cannot be read", sample);
    }
    base_.read(samples, into);
  }

  std::atomic<std::int64_t> bad_sample = -1;
  mutable std::atomic<bool> on_callers_thread = false;

 private:
  Counting base_{40};
  std::thread::id caller_ = std::this_thread::get_id();
};

BOOST_AUTO_TEST_CASE(every_world_size_sees_the_same_images_with_the_same_augmentation) {
  const TemporaryFolder folder;
  const data::Images images(make_images(folder, "a.h5", 37, 0, {100, 120}, {30, 40}));
  const LoaderOptions options{
      .global_batch = 24, .shards = 12, .seed = 4, .augment = {.crop_padding = 1, .flip = true}};
  std::vector<Loader> one = world(images, options, 1);
  for (const int ranks : {2, 3, 4, 5, 12, 14}) {
    std::vector<Loader> many = world(images, options, ranks);
    for (std::int64_t step = 0; step < 5; ++step) {
      BOOST_TEST(step_of_world<float>(one, step) == step_of_world<float>(many, step));
    }
  }
}

BOOST_AUTO_TEST_CASE(every_world_size_sees_the_same_text) {
  const TemporaryFolder folder;
  const data::Text text(make_text(folder, "t.h5", 500), 8, {.memory_limit_bytes = 0});
  const data::Split split = data::split(text, 0.1, 1);
  const LoaderOptions options{.global_batch = 12, .shards = 6, .seed = 4};
  std::vector<Loader> one = world(split.train, options, 1), four = world(split.train, options, 4);
  for (std::int64_t step = 0; step < 8; ++step) {
    BOOST_TEST(step_of_world<std::int64_t>(one, step) == step_of_world<std::int64_t>(four, step));
  }
}

/// Each thread count reads other pieces: one of a shard, or many.
BOOST_AUTO_TEST_CASE(any_number_of_threads_and_steps_ahead_gives_the_same_bits) {
  const TemporaryFolder folder;
  hdf5::File file = hdf5::File::create(folder.file("a.h5"));
  constexpr std::int64_t images = 50, elements = 3 * 64 * 48;
  std::vector<std::uint8_t> bytes(images * elements);
  for (std::size_t e = 0; e < bytes.size(); ++e) bytes[e] = static_cast<std::uint8_t>(e * e >> 7);
  file.create_dataset("x", DType::uint8, {images, 3, 64, 48}).write(std::span<const std::uint8_t>(bytes));
  file.create_dataset("y", DType::int64, {images}).write(std::span<const std::int64_t>(range(0, images)));
  file.close();
  const data::Images in_memory(folder.file("a.h5")), on_disk(folder.file("a.h5"), {.memory_limit_bytes = 0});
  LoaderOptions options{
      .global_batch = 24, .shards = 2, .seed = 4, .augment = {.crop_padding = 3, .flip = true}};
  options.ahead = 1;
  std::vector<Loader> one = world(in_memory, options, 1);
  std::vector<std::vector<float>> steps;
  for (std::int64_t step = 0; step < 6; ++step) steps.push_back(step_of_world<float>(one, step));
  for (const data::Images* const dataset : {&in_memory, &on_disk}) {
    for (const int threads : {1, 2, 5}) {
      for (const int ahead : {1, 3}) {
        options.threads = threads;
        options.ahead = ahead;
        std::vector<Loader> loaders = world(*dataset, options, 2);
        for (const std::int64_t step : {0, 1, 2, 3, 4, 5, 2, 3, 0, 5, 4, 5}) {
          const bool same = step_of_world<float>(loaders, step) == steps[static_cast<std::size_t>(step)];
          BOOST_TEST(same, "step " << step << ", " << threads << " threads, " << ahead << " ahead");
        }
      }
    }
  }
}

/// Samples of 32 KiB, of which some cannot be read; the first of a step waits until the last was tried.
class Wide final : public data::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  std::string name() const override { return "wide"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    for (const std::int64_t sample : samples) {
      if (sample == 17) last_failed.wait(false);
      if (sample == 30) last_failed = true, last_failed.notify_all();
      if (sample == 17 || sample == 30) throw DataError("sample {} cannot be read", sample);
    }
    for (const Tensor& tensor : into) std::fill_n(tensor.data<float>(), tensor.numel(), 1.0f);
  }
  mutable std::atomic<bool> last_failed = false;

 private:
  std::vector<data::Field> fields_{{.name = "x", .shape = {8192}}};
};

BOOST_AUTO_TEST_CASE(of_several_errors_the_first_in_the_order_of_samples_is_the_error_of_its_step_only) {
  const Wide dataset;
  Loader loader(dataset, {.global_batch = 16, .shards = 2, .shuffle = false, .threads = 3, .ahead = 2}, 0, 1);
  for (int attempt = 0; attempt < 3; ++attempt) {
    BOOST_TEST(loader.at(0).shards[1]["x"].data<float>()[0] == 1);
    BOOST_CHECK_EXCEPTION(loader.at(1), DataError, mentions("sample 17 cannot be read"));
    BOOST_TEST(loader.at(2).step == 2);
    BOOST_TEST(loader.at(3).step == 3);
  }
}

BOOST_AUTO_TEST_CASE(a_loader_reads_as_many_steps_ahead_as_it_may_and_no_more) {
  /// Counts the samples that were read.
  struct Counted final : Counting {
    using Counting::Counting;
    void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
      Counting::read(samples, into);
      for (const std::int64_t sample : samples)
        for (std::int64_t last = furthest; last < sample && !furthest.compare_exchange_weak(last, sample);) {
        }
      furthest.notify_all();
    }
    mutable std::atomic<std::int64_t> furthest = -1;
  };
  const Counted dataset(1000);
  Loader loader(dataset, {.global_batch = 10, .shards = 1, .shuffle = false, .threads = 2, .ahead = 3}, 0, 1);
  for (std::int64_t step = 0; step < 20; ++step) {
    loader.at(step);
    const std::int64_t last = 10 * (step + 4) - 1;  // of the third step after this one
    for (std::int64_t read = dataset.furthest; read < last; read = dataset.furthest)
      dataset.furthest.wait(read);
    BOOST_TEST(dataset.furthest == last);
  }
}

BOOST_AUTO_TEST_CASE(a_step_holds_the_same_whatever_was_asked_before) {
  const Counting dataset(31);
  const LoaderOptions options{.global_batch = 8, .shards = 2, .seed = 6};
  std::vector<Loader> in_order = world(dataset, options, 1), jumping = world(dataset, options, 1);
  std::vector<std::vector<float>> steps;
  for (std::int64_t step = 0; step < 12; ++step) steps.push_back(step_of_world<float>(in_order, step));
  for (const std::int64_t step : {7, 8, 3, 3, 4, 11, 0, 1, 2, 1}) {
    BOOST_TEST(step_of_world<float>(jumping, step) == steps[static_cast<std::size_t>(step)]);
  }
}

BOOST_AUTO_TEST_CASE(a_batch_stays_as_it_is_until_the_next_is_asked) {
  const Counting dataset(1000);
  Loader loader(dataset, {.global_batch = 100, .shards = 1, .seed = 1, .shuffle = false}, 0, 1);
  for (std::int64_t step = 0; step < 10; ++step) {
    const data::StepBatch& batch = loader.at(step);
    // The thread has filled the next step's tensors when a second loader, started later, has come as far.
    Loader(dataset, {.global_batch = 100, .shards = 1, .seed = 1}, 0, 1).at(step);
    BOOST_TEST(values_of<std::int64_t>(batch.shards[0]["y"]) == range(100 * step, 100 * step + 100));
  }
}

BOOST_AUTO_TEST_CASE(a_step_asked_for_twice_is_the_same_batch_and_is_read_once) {
  const Counting base(40);
  Loader loader(base, {.global_batch = 8, .shards = 2, .seed = 1}, 0, 1);
  Loader other(base, {.global_batch = 8, .shards = 2, .seed = 1}, 0, 1);
  const float* const at_first = loader.at(3).shards[0]["x"].data<float>();
  BOOST_TEST(loader.at(3).shards[0]["x"].data<float>() == at_first);
  BOOST_TEST(loader.at(3).step == 3);
  const auto next = [](Loader& asked) { return values_of<float>(asked.at(4).shards[1]["x"]); };
  BOOST_TEST(next(loader) == next(other), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(shards_default_to_the_ranks_and_a_rank_may_own_none) {
  const Counting dataset(31);
  Loader second(dataset, {.global_batch = 9}, 1, 3);
  BOOST_TEST(second.shards() == 3);
  BOOST_TEST(second.at(0).shards.size() == 1u);
  BOOST_TEST(second.at(0).shards[0].index == 1);
  Loader idle(dataset, {.global_batch = 8, .shards = 2}, 2, 3);
  BOOST_TEST(idle.at(5).shards.empty());
  BOOST_TEST(idle.at(6).shards_total == 2);
}

BOOST_AUTO_TEST_CASE(shards_follow_one_another_in_memory_if_each_begins_where_a_tensor_may) {
  const Counting dataset(64);
  for (const std::int64_t samples : {1, 8}) {  // labels of 8 and of 64 bytes
    Loader loader(dataset, {.global_batch = 4 * samples, .shards = 4}, 0, 1);
    const std::vector<Batch> shards(loader.at(0).shards.begin(), loader.at(0).shards.end());
    for (std::size_t i = 0; i < 4; ++i) {
      const auto address = reinterpret_cast<std::uintptr_t>(shards[i]["y"].raw());
      BOOST_TEST(address % 64 == 0u);
      if (samples == 8)
        BOOST_TEST(address == reinterpret_cast<std::uintptr_t>(shards[0]["y"].raw()) + 64 * i);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_the_thread_throws_arrives_at_the_step_it_belongs_to_and_passes) {
  Faulty dataset;
  Loader loader(dataset, {.global_batch = 4, .shards = 2, .shuffle = false}, 0, 1);
  dataset.bad_sample = 9;  // step 2
  loader.at(0);
  loader.at(1);
  for (int attempt = 0; attempt < 2; ++attempt) {
    BOOST_CHECK_EXCEPTION(loader.at(2), DataError, mentions("sample 9 cannot be read"));
  }
  BOOST_TEST(loader.at(3).shards[0]["y"].data<std::int64_t>()[0] == 12);
  dataset.bad_sample = -1;
  BOOST_TEST(loader.at(2).shards[0]["y"].data<std::int64_t>()[1] == 9);
  dataset.bad_sample = 12;  // step 3, perhaps being prepared: nobody asks for it
  BOOST_TEST(loader.at(5).step == 5);
  BOOST_CHECK_EXCEPTION(loader.at(-1), UsageError, mentions("step -1"));
  BOOST_TEST(!dataset.on_callers_thread);
}

BOOST_AUTO_TEST_CASE(a_loader_that_nobody_asks_or_asks_once_ends_at_once) {
  const Counting dataset(31);
  for (int i = 0; i < 50; ++i) {
    Loader loader(dataset, {.global_batch = 4, .shards = 2}, 0, 1);
    if (i % 2 == 1) loader.at(i);
    Loader moved = std::move(loader);
  }
}

BOOST_AUTO_TEST_CASE(options_that_make_no_sense_are_refused) {
  const Counting dataset(31);
  BOOST_CHECK_EXCEPTION(Loader(dataset, {.global_batch = 10, .shards = 3}, 0, 1), UsageError,
                        mentions("shards = 3 does not divide global_batch = 10"));
  BOOST_CHECK_EXCEPTION(Loader(dataset, {.global_batch = 4, .augment = {.flip = true}}, 0, 1), UsageError,
                        mentions("only images"));
  BOOST_CHECK_EXCEPTION(Loader(dataset, {.global_batch = 4, .threads = 0}, 0, 1), UsageError,
                        mentions("0 threads, 2 steps ahead"));
  BOOST_CHECK_EXCEPTION(Loader(dataset, {.global_batch = 4, .ahead = 0}, 0, 1), UsageError,
                        mentions("1 threads, 0 steps ahead"));
}

BOOST_AUTO_TEST_CASE(loaders_and_readers_of_one_file_on_disk_do_not_disturb_one_another) {
  const TemporaryFolder folder;
  const data::Images images(make_images(folder, "a.h5", 64), {.memory_limit_bytes = 0});
  const data::Images loaded(folder.file("a.h5"));
  std::vector<Loader> loaders = world(images, {.global_batch = 16, .shards = 4, .seed = 2}, 2);
  std::vector<Loader> reference = world(loaded, {.global_batch = 16, .shards = 4, .seed = 2}, 2);
  const auto wanted = values_of<float>(Samples(loaded, range(0, 64)).x);
  for (std::int64_t step = 0; step < 30; ++step) {
    const auto batch = step_of_world<float>(loaders, step);
    const bool undisturbed = values_of<float>(Samples(images, range(0, 64)).x) == wanted;
    BOOST_TEST(undisturbed);
    BOOST_TEST(batch == step_of_world<float>(reference, step));
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
