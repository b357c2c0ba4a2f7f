#include "lockstep/data/loader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/processor.h"
#include "base/thread.h"
#include "data/augment_batch.h"
#include "data/ragged.h"
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

std::unique_ptr<Order> order_of(const Dataset& dataset, const LoaderOptions& options) {
  if (!options.shuffle) return nullptr;
  if (options.weights.empty()) return checked_order(dataset, options.seed);
  if (std::ssize(options.weights) != dataset.size())
    throw UsageError("{}: {} weights were given for {} samples", dataset.name(), options.weights.size(),
                     dataset.size());
  return std::make_unique<WeightedDraws>(options.weights, options.seed);
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
          .backend = &context.backend(),
          .threads = options.threads,
          .ahead = options.ahead,
          .max_rows = options.max_rows};
}

}  // namespace

/// A ring of slots: the caller holds one, and threads fill the others with the steps that follow, in order.
///
/// A step is read in pieces of its samples. A free thread takes the next piece of the earliest step that has
/// one. The thread that completes a shard augments it, and the thread that completes the last shard sends the
/// step to the device. There the caller gets all steps at the same addresses, so that one graph of a step
/// serves all of them.
///
/// Of ragged data the caller's thread finds the samples and their rows when it requests a step, as it alone
/// may let buffers grow.
class Loader::Prefetcher {
 public:
  Prefetcher(const Dataset& dataset, const LoaderOptions& options, int rank, int ranks)
      : dataset_(dataset),
        augment_(options.augment),
        stream_(stream_options(dataset, options, ranks), order_of(dataset, options)),
        fields_(batch_fields(dataset, augment_)),
        is_ragged_(is_ragged(dataset)),
        max_rows_(options.max_rows),
        slots_(slots_of(options)) {
    const std::int64_t scratch_floats =
        augment_.changes_batches() ? field_named(dataset, "x").shape.numel() : 0;
    const comm::ShardMap map(static_cast<int>(stream_.options().shards), ranks);
    const comm::ShardRange block = map.block(rank);
    cut(block.count, options.threads);
    if (options.backend && options.backend->device() != Device::cpu()) device_ = options.backend;
    for (Slot& slot : slots_) {
      allocate(slot, block, options.backend);
      slot.batch.shards_total = map.shards();
      slot.next_task = tasks();
    }
    for (int i = 0; i < options.threads; ++i)
      threads_.all.push_back(start_background_thread("the loader", [this, scratch_floats] {
        work(std::vector<float>(static_cast<std::size_t>(scratch_floats)));
      }));
  }

  const StepBatch& at(std::int64_t step) {
    std::unique_lock lock(mutex_);
    Slot& current = slots_[current_];
    if (holds_step_ && current.batch.step == step) return current.batch;
    Slot& next = ahead(1);
    if (!next.requested || next.batch.step != step) restart_from(step, lock);
    completed_.wait(lock, [&] { return is_complete(next); });
    next.requested = false;
    if (next.error) std::rethrow_exception(std::exchange(next.error, nullptr));
    if (!device_) current.queue->release();
    current_ = (current_ + 1) % slots_.size();
    next.queue->receive();
    if (device_) {
      for (std::size_t i = 0; i < next.used.size(); ++i) {
        const Tensor& from = next.used[i].device;
        if (on_device_[i].size(0) < from.size(0))
          on_device_[i] = device_->empty(next.staged[i].device.shape(), from.dtype());
        device_->copy(from, on_device_[i].rows(0, from.size(0)));
      }
      next.queue->release();
    }
    if (is_ragged_) make_shards(next);
    request(current, step + std::ssize(slots_) - 1);
    holds_step_ = true;
    return next.batch;
  }

  const SampleStream& stream() const { return stream_; }

 private:
  static constexpr std::size_t alignment_bytes = 64;  // of a tensor

  /// Samples [begin, end) of one of the rank's shards.
  struct Piece {
    std::size_t shard = 0;
    std::int64_t begin = 0, end = 0;
  };

  /// Where a field of a shard is: which of the staged tensors, and its first row there.
  struct StagedRows {
    std::size_t tensor = 0;
    std::int64_t first = 0;
  };

  /// Task 0 of a step finds its samples; task i reads piece i - 1.
  struct Slot {
    std::vector<Batch> filled;                        // on the CPU, by the threads
    std::vector<Batch> shards;                        // what the caller gets
    std::vector<kernels::StagedTensor> staged, used;  // and their rows that the step uses
    std::unique_ptr<kernels::StagingQueue> queue;
    std::vector<std::int64_t> samples;               // of all shards of the rank
    std::vector<std::atomic<std::size_t>> unread;    // by shard: pieces
    std::atomic<std::size_t> incomplete_shards = 0;  // which are not yet read and augmented
    StepBatch batch;

    // Guarded by mutex_:
    bool requested = false;  // it holds its step, or will
    bool knows_samples = false;
    std::size_t next_task = 0;  // to be taken
    int running = 0;            // tasks
    std::exception_ptr error;   // of the first task that failed
    std::size_t failed_task = 0;
  };

  /// Ends and joins the threads, also if the constructor throws.
  struct Threads {
    Prefetcher& of;
    std::vector<std::thread> all{};

    ~Threads() {
      {
        const std::lock_guard lock(of.mutex_);
        of.stopping_ = true;
      }
      of.work_.notify_all();
      for (std::thread& thread : all) thread.join();
    }
  };

  static std::size_t slots_of(const LoaderOptions& options) {
    if (options.threads < 1 || options.ahead < 1)
      throw UsageError("a loader with {} threads, {} steps ahead: both must be at least 1", options.threads,
                       options.ahead);
    return static_cast<std::size_t>(options.ahead) + 1;
  }

  /// Several threads get several pieces each, as some take longer than others, but none of a few KiB.
  void cut(int shards, int threads) {
    constexpr std::int64_t pieces_of_thread = 4, min_bytes = 1 << 16;
    const std::int64_t samples = stream_.samples_per_shard();
    std::int64_t bytes = 0;  // of a shard
    for (const Field& field : dataset_.fields())
      bytes += samples * field.shape.numel() * static_cast<std::int64_t>(bytes_of(field.dtype));
    std::int64_t pieces = 1;  // of a shard
    if (threads > 1 && shards > 0 && !is_ragged_)
      pieces = std::clamp<std::int64_t>(std::min(samples, bytes / min_bytes), 1,
                                        (pieces_of_thread * threads - 1) / shards + 1);
    pieces_of_shard_ = static_cast<std::size_t>(pieces);
    for (int shard = 0; shard < shards; ++shard)
      for (std::int64_t piece = 0; piece < pieces; ++piece)
        pieces_.push_back({.shard = static_cast<std::size_t>(shard),
                           .begin = samples * piece / pieces,
                           .end = samples * (piece + 1) / pieces});
  }

  void allocate(Slot& slot, const comm::ShardRange& block, kernels::Backend* backend) {
    const std::int64_t samples = stream_.samples_per_shard();
    slot.queue = backend ? backend->make_staging_queue() : kernels::make_host_staging_queue();
    staged_rows_.clear();  // the same in all slots
    for (const Field& field : fields_) {
      const std::int64_t rows = field.ragged ? 1 : samples;  // which grow
      const Shape shape = batch_shape(rows, field.shape);
      // One after another, so that one pass may compute several shards, if each begins where a tensor may.
      const bool adjacent =
          !field.ragged &&
          static_cast<std::size_t>(shape.numel()) * bytes_of(field.dtype) % alignment_bytes == 0;
      const std::int64_t together = adjacent ? block.count : 1;
      for (int shard = 0; shard < block.count; ++shard) {
        const std::int64_t before = adjacent ? shard : 0;  // shards in the tensor
        if (before == 0) {
          const kernels::StagedTensor& staged =
              slot.staged.emplace_back(slot.queue->allocate(shape.with(0, together * rows), field.dtype));
          if (device_ && slot.staged.size() > on_device_.size())
            on_device_.push_back(device_->empty(staged.device.shape(), field.dtype));
        }
        staged_rows_.push_back({.tensor = slot.staged.size() - 1, .first = before * samples});
      }
    }
    for (int shard = 0; shard < block.count; ++shard) {
      slot.filled.emplace_back(block.first + shard,
                               std::initializer_list<std::pair<std::string_view, Tensor>>{});
      slot.shards.push_back(slot.filled.back());
    }
    slot.used = slot.staged;
    make_filled(slot);
    make_shards(slot);
    slot.batch.shards = slot.shards;
    slot.samples.resize(slot.shards.size() * static_cast<std::size_t>(samples));
    slot.unread = std::vector<std::atomic<std::size_t>>(slot.shards.size());
  }

  const StagedRows& staged_rows_of(std::size_t field, std::size_t shard) const {
    return staged_rows_[field * (staged_rows_.size() / fields_.size()) + shard];
  }

  /// The fields of a shard, in the tensors that tensor_of(i) gives for slot.used[i].
  template <class TensorOf>
  void set_fields(Batch& batch, std::size_t shard, const TensorOf& tensor_of) const {
    const std::int64_t samples = stream_.samples_per_shard();
    Batch fields(batch.index, {});
    if (is_ragged_) fields.set_ragged(samples);
    for (std::size_t field = 0; field < fields_.size(); ++field) {
      const StagedRows& staged = staged_rows_of(field, shard);
      const Tensor tensor = tensor_of(staged.tensor);
      fields.add(fields_[field].name,
                 fields_[field].ragged ? tensor : tensor.rows(staged.first, staged.first + samples));
    }
    batch = fields;
  }
  void make_filled(Slot& slot) const {
    for (std::size_t shard = 0; shard < slot.filled.size(); ++shard)
      set_fields(slot.filled[shard], shard, [&](std::size_t i) { return slot.used[i].host; });
  }
  void make_shards(Slot& slot) const {
    for (std::size_t shard = 0; shard < slot.shards.size(); ++shard)
      set_fields(slot.shards[shard], shard, [&](std::size_t i) {
        return device_ ? on_device_[i].rows(0, slot.used[i].device.size(0)) : slot.used[i].device;
      });
  }

  /// Finds the samples of a step of ragged data, and makes room for their rows.
  void prepare(Slot& slot) {
    find_samples(slot);
    for (std::size_t shard = 0; shard < slot.filled.size(); ++shard) {
      const std::span<const std::int64_t> samples = samples_of(slot, shard);
      const std::vector<std::int64_t> rows = rows_of_fields(dataset_, samples);
      for (std::size_t field = 0; field < fields_.size(); ++field) {
        if (!fields_[field].ragged) continue;
        if (max_rows_ > 0 && rows[field] > max_rows_)
          throw_too_many(slot.batch.step, slot.filled[shard].index, field, samples, rows[field]);
        const std::size_t i = staged_rows_of(field, shard).tensor;
        kernels::StagedTensor& buffer = slot.staged[i];
        if (const Shape shape = buffer.host.shape(); shape[0] < rows[field]) {
          const std::int64_t some_more = rows[field] + rows[field] / 8;
          slot.queue->grow(buffer, shape.with(0, max_rows_ > 0 ? std::min(max_rows_, some_more) : some_more));
        }
        slot.used[i] = {.host = buffer.host.rows(0, rows[field]),
                        .device = buffer.device.rows(0, rows[field])};
      }
    }
    make_filled(slot);
  }

  [[noreturn]] void throw_too_many(std::int64_t step, int shard, std::size_t field,
                                   std::span<const std::int64_t> samples, std::int64_t rows) const {
    const std::string& name = fields_[field].name;
    const auto rows_of = [&](std::int64_t sample) { return dataset_.rows(field, {&sample, 1}); };
    const std::int64_t largest = *std::ranges::max_element(samples, {}, rows_of);
    throw DataError(
        "data.max_rows = {}: the {} samples of shard {} of step {} have {} rows of {}, of which {} has {}; "
        "raise data.max_rows, give a shard fewer samples (train.global_batch, train.shards), or leave out "
        "large samples",
        max_rows_, samples.size(), shard, step + 1, rows, name, dataset_.location(largest), rows_of(largest));
  }

  std::size_t tasks() const { return 1 + pieces_.size(); }
  /// The slot of the i-th step after the current one.
  Slot& ahead(std::size_t i) { return slots_[(current_ + i) % slots_.size()]; }
  bool is_complete(const Slot& slot) const { return slot.next_task == tasks() && slot.running == 0; }

  /// The slot must be complete.
  void request(Slot& slot, std::int64_t step) {
    slot.batch.step = step;
    slot.requested = true;
    slot.knows_samples = false;
    slot.error = nullptr;
    for (std::atomic<std::size_t>& unread : slot.unread) unread = pieces_of_shard_;
    slot.incomplete_shards = slot.shards.size();
    slot.next_task = 0;
    if (is_ragged_) try {
        prepare(slot);
      } catch (...) {
        slot.error = std::current_exception();
        slot.next_task = tasks();
      }
    work_.notify_one();
  }

  /// Drops the steps ahead.
  void restart_from(std::int64_t step, std::unique_lock<std::mutex>& lock) {
    stream_.epoch(step);  // UsageError outside the stream
    for (std::size_t i = 1; i < slots_.size(); ++i) ahead(i).next_task = tasks();
    completed_.wait(lock, [&] {
      return std::ranges::all_of(slots_, [&](const Slot& slot) { return is_complete(slot); });
    });
    for (std::size_t i = 1; i < slots_.size(); ++i)
      request(ahead(i), step + static_cast<std::int64_t>(i) - 1);
  }

  /// The earliest step with a task that a thread can take; null: there is none.
  Slot* slot_with_task() {
    for (std::size_t i = 1; i < slots_.size(); ++i) {
      Slot& slot = ahead(i);
      if (slot.next_task == 0 || (slot.knows_samples && slot.next_task < tasks())) return &slot;
    }
    return nullptr;
  }

  void work(std::vector<float> scratch) {
    flush_denormals();
    std::unique_lock lock(mutex_);
    while (true) {
      Slot* slot = nullptr;
      work_.wait(lock, [&] { return stopping_ || (slot = slot_with_task()) != nullptr; });
      if (stopping_) return;
      const std::size_t task = slot->next_task++;
      ++slot->running;
      if (slot_with_task()) work_.notify_one();  // one thread wakes the next, as far as there is work
      lock.unlock();
      std::exception_ptr error;
      try {
        task == 0 ? begin(*slot) : read(*slot, pieces_[task - 1], scratch);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      --slot->running;
      slot->knows_samples = true;
      if (error && (!slot->error || task < slot->failed_task)) {
        slot->error = error;
        slot->failed_task = task;
        slot->next_task = tasks();  // earlier ones have been taken
      }
      if (is_complete(*slot)) completed_.notify_all();
    }
  }

  void begin(Slot& slot) {
    slot.queue->begin_fill();
    if (!is_ragged_) find_samples(slot);
    if (pieces_.empty()) slot.queue->send(slot.used);
  }

  void find_samples(Slot& slot) {
    for (std::size_t shard = 0; shard < slot.filled.size(); ++shard)
      stream_.shard_samples(slot.batch.step, slot.filled[shard].index, samples_of(slot, shard));
  }

  std::span<std::int64_t> samples_of(Slot& slot, std::size_t shard) const {
    const auto samples = static_cast<std::size_t>(stream_.samples_per_shard());
    return std::span(slot.samples).subspan(shard * samples, samples);
  }

  void read(Slot& slot, const Piece& piece, std::span<float> scratch) {
    const Moment moment{
        .seed = stream_.options().seed, .step = slot.batch.step, .epoch = stream_.epoch(slot.batch.step)};
    const Batch& shard = slot.filled[piece.shard];
    const std::span<const std::int64_t> samples = samples_of(slot, piece.shard);
    const std::size_t fields = dataset_.fields().size();  // others are of complete() and augment_batch()
    if (is_ragged_) {
      dataset_.read_to_train(samples, shard.tensors().first(fields), moment);
      complete(dataset_, samples, shard.tensors());
    } else {
      std::array<Tensor, Batch::max_fields> rows;
      for (std::size_t i = 0; i < fields; ++i) rows[i] = shard.tensors()[i].rows(piece.begin, piece.end);
      const auto first = static_cast<std::size_t>(piece.begin),
                 count = static_cast<std::size_t>(piece.end) - first;
      dataset_.read_to_train(samples.subspan(first, count), {rows.data(), fields}, moment);
    }
    if (--slot.unread[piece.shard] > 0) return;
    augment_batch(augment_, moment, samples, shard, scratch);
    if (--slot.incomplete_shards == 0) slot.queue->send(slot.used);
  }

  const Dataset& dataset_;
  const Augment augment_;
  const SampleStream stream_;
  const std::vector<Field> fields_;  // of batches
  const bool is_ragged_;
  const std::int64_t max_rows_;
  kernels::Backend* device_ = nullptr;   // none: the caller gets the slots' own memory
  std::vector<Tensor> on_device_;        // of the current step, of all shards of the rank
  std::vector<StagedRows> staged_rows_;  // by field and shard of the rank
  std::vector<Piece> pieces_;            // of a step, in the order of its samples
  std::size_t pieces_of_shard_ = 1;

  std::mutex mutex_;  // guards what follows, and slots as far as they say
  std::condition_variable work_, completed_;
  std::vector<Slot> slots_;
  std::size_t current_ = 0;  // the caller's slot; those of the next steps follow it
  bool holds_step_ = false;  // the current slot holds what the last call returned
  bool stopping_ = false;
  Threads threads_{*this};
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

void check_chunks(const Dataset& dataset, std::int64_t batch) {
  if (batch < 1) throw UsageError("an evaluation batch of {} was asked: it must be at least 1", batch);
  if (dataset.size() < 1) throw UsageError("{}: there is nothing to evaluate", dataset.name());
}

/// Where chunks of ragged data begin, and the end; empty: the data is not ragged.
std::vector<std::int64_t> chunk_begins(const Dataset& dataset, std::int64_t batch) {
  check_chunks(dataset, batch);
  if (!is_ragged(dataset)) return {};
  std::vector<std::int64_t> begins{0};
  std::array<std::int64_t, Batch::max_fields> rows{}, more{};  // of the current chunk; of a sample
  for (std::int64_t sample = 0; sample < dataset.size(); ++sample) {
    bool fits = sample - begins.back() < batch;
    for (std::size_t i = 0; i < dataset.fields().size(); ++i) {
      more[i] = dataset.fields()[i].ragged ? dataset.rows(i, {&sample, 1}) : 0;
      fits = (rows[i] += more[i]) <= EvalBatches::max_ragged_rows && fits;
    }
    if (fits || sample == begins.back()) continue;
    begins.push_back(sample);
    rows = more;
  }
  begins.push_back(dataset.size());
  return begins;
}

comm::ShardMap chunk_map(const Dataset& dataset, std::int64_t batch, std::span<const std::int64_t> begins,
                         int ranks) {
  const std::int64_t chunks = begins.empty() ? (dataset.size() - 1) / batch + 1 : std::ssize(begins) - 1;
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
    : dataset_(dataset),
      batch_(batch),
      begins_(chunk_begins(dataset, batch)),
      rank_(rank),
      map_(chunk_map(dataset, batch, begins_, ranks)),
      fields_(with_indices(dataset)) {
  const std::int64_t samples = std::min(batch, dataset.size());
  samples_.resize(static_cast<std::size_t>(samples));
  for (const Field& field : fields_)
    tensors_.push_back(Tensor::zeros(batch_shape(field.ragged ? 1 : samples, field.shape), field.dtype));
}

const Batch& EvalBatches::read(int chunk) {
  if (chunk < 0 || chunk >= chunks())
    throw UsageError("{}: chunk {} of {} asked", dataset_.name(), chunk, chunks());
  const std::int64_t first = first_sample(chunk), count = first_sample(chunk + 1) - first;
  const std::span<std::int64_t> samples(samples_.data(), static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), first);
  if (begins_.empty()) {
    current_ = batch_of(chunk, fields_, tensors_).rows(0, count);
    dataset_.read(samples, current_.tensors());
    return current_;
  }
  current_ = Batch(chunk, {});
  current_.set_ragged(count);
  const std::vector<std::int64_t> rows = rows_of_fields(dataset_, samples);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (tensors_[i].size(0) < rows[i])
      tensors_[i] = Tensor::zeros(batch_shape(rows[i], fields_[i].shape), fields_[i].dtype);
    current_.add(fields_[i].name, tensors_[i].rows(0, rows[i]));
  }
  dataset_.read(samples, current_.tensors().first(dataset_.fields().size()));
  complete(dataset_, samples, current_.tensors());
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
