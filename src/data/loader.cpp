#include "lockstep/data/loader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/processor.h"
#include "base/thread.h"
#include "data/augment_batch.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

SampleStream::Options stream_options(const Dataset& dataset, const LoaderOptions& options, int ranks) {
  return {.samples = dataset.size(),
          .global_batch = options.global_batch,
          .shards = options.shards == 0 ? ranks : options.shards,
          .seed = options.seed,
          .shuffle = options.shuffle};
}

LoaderOptions loader_options(Context& context, const BatchOptions& options) {
  const RunShape& run = context.run();
  if (run.global_batch == 0)
    throw UsageError(
        "the loader does not know the global batch; say it first: session.set_run({{"
        ".global_batch = N, .shards = V, .seed = S}})");
  return {.global_batch = run.global_batch,
          .shards = run.shards,
          .seed = run.seed,
          .augment = options.augment,
          .shuffle = options.shuffle,
          .backend = &context.backend()};
}

}  // namespace

/// The caller holds one slot while the thread fills the other.
class Loader::Prefetcher {
 public:
  Prefetcher(const Dataset& dataset, const LoaderOptions& options, int rank, int ranks)
      : dataset_(dataset),
        augment_(options.augment),
        stream_(stream_options(dataset, options, ranks),
                options.shuffle ? checked_order(dataset, options.seed) : nullptr) {
    if (augment_.changes_batches())
      scratch_.resize(static_cast<std::size_t>(field_named(dataset, "x").shape.numel()));
    const std::vector<Field> fields = batch_fields(dataset, augment_);
    const comm::ShardMap map(static_cast<int>(stream_.options().shards), ranks);
    const comm::ShardRange block = map.block(rank);
    const std::int64_t samples = stream_.samples_per_shard();
    for (Slot& slot : slots_) {
      slot.queue =
          options.backend ? options.backend->make_staging_queue() : kernels::make_host_staging_queue();
      for (int index = block.first; index < block.end(); ++index) {
        std::vector<Tensor> host, device;
        for (const Field& field : fields) {
          const kernels::StagedTensor& staged =
              slot.staged.emplace_back(slot.queue->allocate(batch_shape(samples, field.shape), field.dtype));
          host.push_back(staged.host);
          device.push_back(staged.device);
        }
        slot.filled.push_back(batch_of(index, fields, host));
        slot.shards.push_back(batch_of(index, fields, device));
      }
      slot.batch.shards_total = map.shards();
      slot.batch.shards = slot.shards;
    }
    samples_.resize(static_cast<std::size_t>(samples));
    thread_ = start_background_thread("the loader", [this] { work(); });
  }

  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const StepBatch& at(std::int64_t step) {
    std::unique_lock lock(mutex_);
    if (given_ && slots_[current_].batch.step == step) return slots_[current_].batch;
    changed_.wait(lock, [&] { return !busy_; });
    if (!filled_ || next().batch.step != step) {
      request(step);
      changed_.wait(lock, [&] { return !busy_; });
    }
    filled_ = false;
    if (next().error) std::rethrow_exception(std::exchange(next().error, nullptr));
    slots_[current_].queue->release();
    current_ = 1 - current_;
    slots_[current_].queue->receive();
    request(step + 1);
    given_ = true;
    return slots_[current_].batch;
  }

  const SampleStream& stream() const { return stream_; }

 private:
  struct Slot {
    std::vector<Batch> filled;  // on the CPU, by the thread
    std::vector<Batch> shards;  // on the device
    std::vector<kernels::StagedTensor> staged;
    std::unique_ptr<kernels::StagingQueue> queue;
    StepBatch batch;
    std::exception_ptr error;
  };

  Slot& next() { return slots_[1 - current_]; }

  void request(std::int64_t step) {
    next().batch.step = step;
    next().error = nullptr;
    filled_ = false;
    busy_ = true;
    changed_.notify_all();
  }

  void work() {
    flush_denormals();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return busy_ || stopping_; });
      if (stopping_) return;
      Slot& slot = next();
      lock.unlock();
      try {
        fill(slot);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      busy_ = false;
      filled_ = true;
      changed_.notify_all();
    }
  }

  void fill(Slot& slot) {
    slot.queue->begin_fill();
    const Moment moment{
        .seed = stream_.options().seed, .step = slot.batch.step, .epoch = stream_.epoch(slot.batch.step)};
    for (const Batch& shard : slot.filled) {
      stream_.shard_samples(slot.batch.step, shard.index, samples_);
      dataset_.read_to_train(samples_, shard.tensors().first(dataset_.fields().size()), moment);
      augment_batch(augment_, moment, samples_, shard, scratch_);
    }
    slot.queue->send(slot.staged);
  }

  const Dataset& dataset_;
  const Augment augment_;
  const SampleStream stream_;
  std::array<Slot, 2> slots_;
  std::vector<std::int64_t> samples_;  // the thread's own
  std::vector<float> scratch_;         // the thread's own

  std::mutex mutex_;  // guards what follows, and while busy_ is unset the next slot
  std::condition_variable changed_;
  std::size_t current_ = 0;  // the caller's slot
  bool busy_ = false;        // the thread is to fill the next slot
  bool filled_ = false;      // the next slot holds its step, or the error of it
  bool given_ = false;       // the current slot holds what the last call gave
  bool stopping_ = false;
  std::thread thread_;
};

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, const comm::HostGroup& world)
    : Loader(dataset, options, world.rank(), world.size()) {}

Loader::Loader(const Dataset& dataset, Context& context, const BatchOptions& options)
    : Loader(dataset, loader_options(context, options), context.world()) {}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, int rank, int ranks)
    : prefetcher_(std::make_unique<Prefetcher>(dataset, options, rank, ranks)) {}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

const StepBatch& Loader::at(std::int64_t step) { return prefetcher_->at(step); }

const SampleStream& Loader::stream() const { return prefetcher_->stream(); }

namespace {

comm::ShardMap chunk_map(const Dataset& dataset, std::int64_t batch, int ranks) {
  if (batch < 1) throw UsageError("an evaluation batch of {} was asked: it must be at least 1", batch);
  if (dataset.size() < 1) throw UsageError("{}: there is nothing to evaluate", dataset.name());
  const std::int64_t chunks = (dataset.size() - 1) / batch + 1;
  if (chunks > std::numeric_limits<int>::max()) {
    throw UsageError("{}: {} samples in batches of {} are too many batches", dataset.name(), dataset.size(),
                     batch);
  }
  return {static_cast<int>(chunks), ranks};
}

}  // namespace

EvalBatches::EvalBatches(const Dataset& dataset, std::int64_t batch, const comm::HostGroup& world)
    : EvalBatches(dataset, batch, world.rank(), world.size()) {}

EvalBatches::EvalBatches(const Dataset& dataset, std::int64_t batch, int rank, int ranks)
    : dataset_(dataset), batch_(batch), rank_(rank), map_(chunk_map(dataset, batch, ranks)) {
  const std::int64_t rows = std::min(batch, dataset.size());
  samples_.resize(static_cast<std::size_t>(rows));
  for (const Field& field : dataset.fields())
    tensors_.push_back(Tensor::zeros(batch_shape(rows, field.shape), field.dtype));
}

const Batch& EvalBatches::read(int chunk) {
  if (chunk < 0 || chunk >= chunks())
    throw UsageError("{}: chunk {} of {} asked", dataset_.name(), chunk, chunks());
  const std::int64_t first = chunk * batch_, rows = std::min(batch_, dataset_.size() - first);
  const std::span<std::int64_t> samples(samples_.data(), static_cast<std::size_t>(rows));
  std::iota(samples.begin(), samples.end(), first);
  current_ = batch_of(chunk, dataset_.fields(), tensors_).rows(0, rows);
  dataset_.read(samples, current_.tensors());
  return current_;
}

std::vector<double> EvalBatches::sum(comm::HostGroup& world, std::span<const double> values,
                                     int width) const {
  const auto numbers = static_cast<std::size_t>(width);
  if (width < 0 || values.size() != numbers * static_cast<std::size_t>(mine().count)) {
    throw UsageError("{} values were given for {} chunks of {}", values.size(), mine().count, width);
  }
  // Ranks hold the same number of chunks or one less; the first rank holds the most.
  const std::size_t most = numbers * static_cast<std::size_t>(map_.block(0).count);
  std::vector<double> own(most), all(most * static_cast<std::size_t>(world.size())), sums(numbers);
  std::copy(values.begin(), values.end(), own.begin());
  world.all_gather(own.data(), most * sizeof(double), all.data());
  for (int rank = 0; rank < world.size(); ++rank) {
    const double* block = all.data() + static_cast<std::size_t>(rank) * most;
    for (int chunk = 0; chunk < map_.block(rank).count; ++chunk, block += numbers) {
      for (std::size_t i = 0; i < numbers; ++i) sums[i] += block[i];
    }
  }
  return sums;
}

}  // namespace lockstep::data
