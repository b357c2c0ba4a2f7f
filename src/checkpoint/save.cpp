#include "checkpoint/save.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/processor.h"
#include "base/progress.h"
#include "base/thread.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/layout.h"
#include "checkpoint/run_files.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::checkpoint {

FileWriter::FileWriter(std::string path, const StateDict& state_dict, comm::HostGroup& world,
                       SaveOptions options)
    : path_(std::move(path)),
      temporary_(temporary_path(path_, options.mark)),
      draft_delay_s_(name_delay_s(world)),
      world_(world),
      options_(std::move(options)),
      backend_(state_dict.backend) {
  comm::run_on_all(world_, [&] {
    index_ = index_of(state_dict);
    index_.path = path_;
  });
  if (const auto differing = comm::first_difference(world_, digested_text(index_, true)))
    throw UsageError("{}: not saved: the ranks hold different states: {}", path_, differing->text());
  first_not_finite_ = index_.tensors.size();
  index_.world_size = world_.size();
  index_.created = utc_now();
  lay_out();
  share_work(state_dict);
}

/// Rank 0 lays the file out and broadcasts the offset of each tensor.
void FileWriter::lay_out() {
  comm::run_on_all(world_, [&] {
    if (world_.rank() != 0) return;
    if (options_.check_may_write) options_.check_may_write();
    OpenFile file(temporary_, OpenFile::Mode::create_or_truncate);
    draft_.emplace(temporary_);
    // A file that may not grow to its size must be an error here, not inside HDF5.
    file.truncate(max_file_bytes(index_));
    layout_ = std::make_unique<Layout>(index_);
  });
  std::vector<std::uint64_t> offsets;
  for (const TensorEntry& tensor : index_.tensors) offsets.push_back(tensor.offset);
  world_.broadcast(offsets.data(), offsets.size() * sizeof(std::uint64_t), 0);
  for (std::size_t t = 0; t < offsets.size(); ++t) index_.tensors[t].offset = offsets[t];
}

void FileWriter::share_work(const StateDict& state_dict) {
  for (const Section& section : state_dict.sections) {
    std::ranges::copy(section.tensors, std::back_inserter(held_));
  }
  for (const TensorExtent& extent : extents_of_rank(file_extents_of(index_), world_.rank(), world_.size())) {
    const BlockRun run = blocks_begun_in(extent);
    const std::uint64_t digested_to =
        run.count == 0 ? 0 : end_of_block(run.first + run.count - 1, index_.tensors[extent.tensor].bytes);
    const NamedTensor& tensor = held_[extent.tensor];
    const bool here = !tensor.part && tensor.value.device() == Device::cpu();
    const auto* elements = here ? static_cast<const std::byte*>(tensor.value.raw()) : nullptr;
    extents_.push_back({extent, elements ? elements + extent.from : nullptr,
                        std::max(extent.from + extent.bytes, digested_to) - extent.from});
  }
  cut_into_segments();
}

std::uint64_t FileWriter::copy_bytes() const {
  std::uint64_t bytes = 0;
  for (const OwnExtent& own : extents_) bytes += own.readable_bytes;
  return bytes;
}

bool FileWriter::needs_copy() const {
  return std::ranges::any_of(held_, [](const NamedTensor& tensor) {
    return tensor.part.has_value() || tensor.value.device() != Device::cpu();
  });
}

/// Calls use(number, tensor) for each tensor, in order. Partitioned tensors are gathered first, 64 MiB at a
/// time: the number of collectives depends on their bytes, not on their number.
template <class Use>
void FileWriter::with_whole_tensors(const Use& use) const {
  constexpr std::size_t max_at_once_bytes = std::size_t{64} << 20;
  std::vector<Partition::OwnedElements> parts;
  for (std::size_t first = 0, end = 0; first < held_.size(); first = end) {
    parts.clear();
    const Partition* partition = nullptr;
    std::size_t bytes = 0;
    for (; end < held_.size() && bytes < max_at_once_bytes; ++end) {
      const NamedTensor& tensor = held_[end];
      if (!tensor.part) continue;
      if (partition && *partition != *tensor.part->partition) break;
      partition = tensor.part->partition;
      parts.push_back({.param = tensor.part->param, .elements = tensor.value, .shape = tensor.part->shape});
      bytes += tensor.bytes();
    }
    const std::vector<Tensor> wholes = partition ? partition->gather(parts, backend_) : std::vector<Tensor>();
    auto whole = wholes.begin();
    for (std::size_t t = first; t < end; ++t) use(t, held_[t].part ? *whole++ : held_[t].value);
  }
}

void FileWriter::copy_share(std::byte* memory) {
  std::vector<std::vector<OwnExtent*>> extents_of(held_.size());
  for (OwnExtent& own : extents_) extents_of[own.extent.tensor].push_back(&own);
  with_whole_tensors([&](std::size_t tensor, const Tensor& value) {
    for (OwnExtent* const own : extents_of[tensor]) {
      const std::size_t bytes = own->readable_bytes;
      auto* const from = static_cast<std::byte*>(value.raw()) + own->extent.from;
      if (value.device() == Device::cpu()) {
        copy_past_caches(memory, from, bytes);
      } else {
        const Shape shape{static_cast<std::int64_t>(bytes)};
        kernels::transfer(Tensor::view(from, shape, DType::uint8, value.device()),
                          Tensor::view(memory, shape, DType::uint8), backend_);
      }
      own->data = memory;
      memory += own->readable_bytes;
    }
  });
  held_.clear();
}

void FileWriter::cut_into_segments() {
  std::size_t blocks = 0;
  for (const OwnExtent& own : extents_) blocks += blocks_begun_in(own.extent).count;
  digests_.resize(blocks);
  std::uint64_t* digest = digests_.data();
  for (std::size_t e = 0; e < extents_.size(); ++e) {
    const TensorExtent& extent = extents_[e].extent;
    const std::uint64_t end = extent.from + extent.bytes;
    for (std::uint64_t at = extent.from, next = 0; at < end; at = next) {
      next = std::min((at / block_bytes + 1) * block_bytes, end);
      segments_.push_back({e, at, next - at, at % block_bytes == 0 ? digest++ : nullptr});
    }
  }
}

/// Digests a block just before it is written, while it is in the cache.
void FileWriter::write(OpenFile& file, const Segment& segment) {
  const OwnExtent& own = extents_[segment.extent];
  const std::uint64_t into_extent = segment.from - own.extent.from;
  const std::byte* const data = own.data + into_extent;
  if (segment.digest) {
    const TensorEntry& tensor = index_.tensors[own.extent.tensor];
    const std::uint64_t bytes = end_of_block(segment.from / block_bytes, tensor.bytes) - segment.from;
    *segment.digest = digest_of(data, bytes);
    if (!options_.allow_non_finite && !all_finite({data, bytes}, tensor.dtype))
      note_not_finite(own.extent.tensor);
  }
  file.write_at(own.extent.offset + into_extent, data, segment.bytes);
}

void FileWriter::note_not_finite(std::size_t tensor) {
  std::size_t first = first_not_finite_;
  while (tensor < first && !first_not_finite_.compare_exchange_weak(first, tensor)) {
  }
}

/// Throws for the first such tensor of all ranks, so that the error does not depend on the shares.
/// Collective.
void FileWriter::check_finite() const {
  const std::size_t first = std::ranges::min(comm::all_gather_values(world_, first_not_finite_.load()));
  if (first == index_.tensors.size()) return;
  throw TrainingError(
      "{}: not saved: {} has numbers that are not finite; lower optimizer.lr or set optimizer.clip, and "
      "resume from an earlier checkpoint",
      path_, index_.tensors[first].path());
}

void FileWriter::write_share() {
  if (begun_ >= segments_.size()) return;
  OpenFile file(temporary_, OpenFile::Mode::write, draft_delay_s_);
  for (std::size_t mine = begun_++; mine < segments_.size(); mine = begun_++) {
    try {
      write(file, segments_[mine]);
    } catch (...) {
      give_up();
      throw;
    }
    // The thread that writes the last segment syncs the file for all threads. Syncs in between keep each call
    // short, so that this rank does not seem to hang.
    constexpr std::size_t segments_a_sync = 1024;  // of a MiB at most
    if (const std::size_t done = ++done_; done == segments_.size() || done % segments_a_sync == 0)
      file.sync();
  }
}

void FileWriter::complete() {
  held_.clear();
  check_finite();
  const std::vector<std::uint64_t> digests = combine_digests(file_extents_of(index_), digests_, world_);
  for (std::size_t t = 0; t < digests.size(); ++t) index_.tensors[t].digest = digests[t];
  index_.digest = root_digest(index_);
  comm::run_on_all(world_, [&] {
    if (layout_) layout_->finish(index_);
  });
}

void FileWriter::publish() {
  if (!layout_) return;
  OpenFile file(temporary_, OpenFile::Mode::write);
  layout_->copy_to(file);
  file.sync();
  if (options_.check_may_write) options_.check_may_write();
  draft_->publish(path_);
}

void save_file(const std::string& path, const StateDict& state_dict, comm::HostGroup& world,
               const SaveOptions& options) {
  const comm::NamedCall call(world, "calls save_file: " + file_name_of(path));
  std::vector<std::unique_ptr<FileWriter>> files;
  files.push_back(std::make_unique<FileWriter>(path, state_dict, world, options));
  SaveMemory memory;
  SaveJob job(std::move(files), {.async = false, .check_may_write = options.check_may_write, .published = {}},
              memory, world);
  while (job.state() != SaveJob::State::done) job.advance(SaveAction::wait);
}

namespace {

/// Runs action() on every rank. A run that takes over the directory removes drafts, and then writing fails in
/// any way, on any rank: the error of check() on rank 0 is the cause, and becomes the error of all.
/// Collective.
void run_while_writable(comm::HostGroup& world, const std::function<void()>& check,
                        const std::function<void()>& action) {
  const bool checks = check && world.rank() == 0;
  comm::run_on_all(world, [&] {
    try {
      action();
    } catch (const std::exception&) {
      if (checks) check();
      throw;
    }
    if (checks) check();  // another rank may have failed
  });
}

}  // namespace

WorkerThread::~WorkerThread() {
  if (thread_.joinable()) thread_.join();
}

void WorkerThread::start(std::function<void()> work) {
  if (thread_.joinable()) thread_.join();
  error_ = nullptr;
  waited_for_ = false;
  running_ = true;
  try {
    thread_ = start_background_thread("the asynchronous checkpoint writer", [this, work = std::move(work)] {
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);  // on Linux of this thread alone
      progress::ticks_count_while = &waited_for_;
      try {
        work();
      } catch (...) {
        error_ = std::current_exception();
      }
      running_ = false;
    });
  } catch (...) {
    running_ = false;
    throw;
  }
}

void WorkerThread::finish() {
  waited_for_ = true;
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void SaveMemory::reserve(std::uint64_t min_bytes) {
  if (min_bytes <= bytes) return;
  bytes = 0;
  data.reset();
  data = std::make_unique_for_overwrite<std::byte[]>(min_bytes);
  bytes = min_bytes;
}

SaveJob::SaveJob(std::vector<std::unique_ptr<FileWriter>> files, Options options, SaveMemory& memory,
                 comm::HostGroup& world)
    : files_(std::move(files)), options_(std::move(options)), world_(world) {
  if (options_.async || std::ranges::any_of(files_, [](const auto& file) { return file->needs_copy(); }))
    copy_shares(memory);
  if (!options_.async) return;
  try {
    comm::run_on_all(world_, [&] { worker_.start([this] { write_shares(); }); });
  } catch (...) {  // another rank has no thread, so the file is dropped
    give_up();
    throw;
  }
}

SaveJob::~SaveJob() { give_up(); }

void SaveJob::give_up() {
  for (const auto& file : files_) file->give_up();
}

void SaveJob::copy_shares(SaveMemory& memory) {
  std::uint64_t bytes = 0;
  for (const auto& file : files_) bytes += file->copy_bytes();
  comm::run_on_all(world_, [&] { memory.reserve(bytes); });
  std::byte* to = memory.data.get();
  for (const auto& file : files_) {
    file->copy_share(to);
    to += file->copy_bytes();
  }
}

void SaveJob::write_shares() {
  for (const auto& file : files_) file->write_share();
}

/// On rank 0. May run during training, so it calls neither MPI nor HDF5.
void SaveJob::publish() {
  for (const auto& file : files_) file->publish();
  if (options_.published) options_.published();
}

void SaveJob::advance(SaveAction action) {
  const bool publishes = world_.rank() == 0;
  run_while_writable(world_, options_.check_may_write, [&] {
    if (action == SaveAction::give_up) {
      give_up();
    } else if (state_ == State::writing && !worker_.failed()) {
      write_shares();
    } else if (state_ == State::written && publishes) {
      publish();
    }
    worker_.finish();
  });
  if (action == SaveAction::give_up) throw FailureError("{}: the save was dropped", path());
  if (state_ != State::writing) {
    state_ = State::done;
    return;
  }
  for (const auto& file : files_) file->complete();
  state_ = State::written;
  if (!options_.async || action != SaveAction::proceed) return;
  comm::run_on_all(world_, [&] {
    if (publishes) worker_.start([this] { publish(); });
  });
  state_ = State::publishing;
}

}  // namespace lockstep::checkpoint
