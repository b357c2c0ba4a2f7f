// How long checkpoints take: beside bare writes and reads of the same bytes, and during training.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/files.h"
#include "base/output.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"
#include "train/benchmark_run.h"

namespace lockstep::train {
namespace {

constexpr std::size_t io_bytes = std::size_t{1} << 20;  // of a bare call, as of ours

/// A new directory, there until the end.
class Scratch {
 public:
  Scratch(comm::HostGroup& world, const std::string& parent) : world_(world) {
    std::string path = parent + "/lockstep-bench-XXXXXX";
    comm::run_on_all(world_, [&] {
      if (world_.rank() == 0 && !::mkdtemp(path.data()))
        throw_system_error(errno, parent, "make a directory in it");
    });
    if (world_.rank() == 0) draft_.emplace(path, Draft::Kind::directory);
    path_ = world_.all_gather_texts(path)[0];
  }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  comm::HostGroup& world_;
  std::string path_;
  std::optional<Draft> draft_;  // of rank 0
};

/// Descriptor and plain calls: what our own reading and writing is compared with.
class BareFile {
 public:
  BareFile(std::string path, int flags)
      : path_(std::move(path)), descriptor_(::open(path_.c_str(), flags, 0666)) {
    if (descriptor_ < 0) throw_system_error(errno, path_, "open");
  }
  ~BareFile() { ::close(descriptor_); }
  BareFile(const BareFile&) = delete;
  BareFile& operator=(const BareFile&) = delete;

  void write(const std::byte* data, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t at = begin; at < end;) {
      const ssize_t done =
          ::pwrite(descriptor_, data + (at - begin), std::min(io_bytes, end - at), static_cast<off_t>(at));
      if (done <= 0) throw_system_error(done < 0 ? errno : EIO, path_, "write");
      at += static_cast<std::uint64_t>(done);
    }
    if (::fsync(descriptor_) != 0) throw_system_error(errno, path_, "sync");
  }
  void read(std::byte* buffer, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t at = begin; at < end;) {
      const ssize_t done = ::pread(descriptor_, buffer, std::min(io_bytes, end - at), static_cast<off_t>(at));
      if (done <= 0) throw_system_error(done < 0 ? errno : EIO, path_, "read");
      at += static_cast<std::uint64_t>(done);
    }
  }
  /// The next read comes from storage.
  void forget() { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

 private:
  std::string path_;
  int descriptor_;
};

void fill(const Tensor& tensor, std::uint32_t number) {
  const Random random({1, purpose_of("benchmark"), 0, number});
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.uniform(static_cast<std::uint64_t>(i)) - 0.5f;
}

/// Matrices of 4 MiB with a bias of 4 KiB each, about as a model has them.
checkpoint::Contents made_up_model(std::uint64_t bytes) {
  checkpoint::Contents contents;
  checkpoint::Section& model = contents.sections.emplace_back(checkpoint::Section{"model", {}, {}});
  const Tensor pattern = Tensor::empty({1024, 1024});
  fill(pattern, 0);
  for (std::uint64_t made = 0; made < bytes;) {
    const std::size_t layer = model.tensors.size() / 2;
    const Tensor weight = Tensor::empty({1024, 1024}), bias = Tensor::empty({1024});
    std::memcpy(weight.raw(), pattern.raw(), weight.bytes());
    fill(bias, static_cast<std::uint32_t>(layer) + 1);
    weight.data<float>()[0] = static_cast<float>(layer);  // no two blocks alike
    model.tensors.push_back({fmt::format("layer{}.weight", layer), weight});
    model.tensors.push_back({fmt::format("layer{}.bias", layer), bias});
    made += weight.bytes() + bias.bytes();
  }
  return contents;
}

checkpoint::Contents many_small_tensors() {
  checkpoint::Contents contents;
  checkpoint::Section& model = contents.sections.emplace_back(checkpoint::Section{"model", {}, {}});
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const Tensor tensor = Tensor::empty({256});
    fill(tensor, i);
    model.tensors.push_back({fmt::format("tensor{}", i), tensor});
  }
  return contents;
}

/// Times by name, in ms.
class Times {
 public:
  /// From a start of all ranks together to this rank's end.
  template <class Action>
  void time(comm::HostGroup& world, const std::string& name, const Action& action) {
    world.barrier();
    const Stopwatch watch;
    comm::run_on_all(world, action);
    add(name, watch.elapsed_ms());
  }
  void add(const std::string& name, double ms) { ms_[name].push_back(ms); }
  /// Of the slowest rank in each round. Collective.
  double median_of(comm::HostGroup& world, const std::string& name) {
    return median(greatest_of_ranks(world, ms_.at(name)));
  }

 private:
  std::map<std::string, std::vector<double>> ms_;
};

class CheckpointRace {
 public:
  CheckpointRace(Session& session, const CheckpointBenchmarkOptions& options)
      : world_(session.world()),
        options_(options),
        scratch_(world_, options.directory),
        contents_(made_up_model(options.bytes)),
        workload_(workload_named(options.workload), session.transport(), session.backend()) {
    for (const checkpoint::NamedTensor& tensor : contents_.sections[0].tensors)
      bytes_ += tensor.value.bytes();
    const auto rank = static_cast<std::uint64_t>(world_.rank()),
               ranks = static_cast<std::uint64_t>(world_.size());
    begin_ = bytes_ / ranks * rank;
    end_ = rank + 1 == ranks ? bytes_ : bytes_ / ranks * (rank + 1);
    mine_.resize(end_ - begin_, std::byte{1});
    copy_.resize(mine_.size(), std::byte{2});
  }

  CheckpointTimes run() {
    for (std::int64_t step = 0; step < settling_steps; ++step) workload_.step();
    for (int round = 0; round < options_.rounds; ++round) {
      write_and_read(round);
      save_beside_training(round);
    }
    save_many();
    return results();
  }

 private:
  void write_and_read(int round) {
    const std::string raw = scratch_.file("raw");
    comm::run_on_all(world_, [&] {
      if (world_.rank() == 0) BareFile(raw, O_WRONLY | O_CREAT | O_TRUNC);
    });
    const std::string path = scratch_.file(fmt::format("saved{}.h5", round));
    const auto write_raw = [&] {
      times_.time(world_, "raw write", [&] { BareFile(raw, O_WRONLY).write(mine_.data(), begin_, end_); });
    };
    // In turns: what comes second may find the storage busy with what came first.
    if (round % 2 == 0) write_raw();
    world_.barrier();
    const Stopwatch watch;
    checkpoint::save_file(path, contents_, world_);
    times_.add("save", watch.elapsed_ms());
    if (round % 2 != 0) write_raw();

    for (const char* const from : {"", "cached "}) {
      const auto forget = [&](const std::string& file) {
        if (*from == '\0' && world_.rank() == 0) BareFile(file, O_RDONLY).forget();
      };
      comm::run_on_all(world_, [&] { forget(raw), forget(path); });
      times_.time(world_, from + std::string("raw read"),
                  [&] { BareFile(raw, O_RDONLY).read(copy_.data(), begin_, end_); });
      world_.barrier();
      const Stopwatch verifying;
      const bool whole = checkpoint::verify(path, world_).whole();
      times_.add(from + std::string("verify"), verifying.elapsed_ms());
      if (!whole) throw FailureError("{}: not what was saved", path);
    }
    comm::run_on_all(world_, [&] {
      if (world_.rank() == 0) remove_file(path), remove_file(raw);
    });
    times_.time(world_, "copy", [&] { std::memcpy(copy_.data(), mine_.data(), mine_.size()); });
  }

  void save_beside_training(int round) {
    for (int step = 0; step < steps_alone; ++step) times_.add("step", workload_.step().step_ms);
    if (!beside_) {
      beside_ = std::make_unique<checkpoint::Store>(scratch_.file("beside"), world_,
                                                    checkpoint::StoreOptions{.keep = 1, .async = true});
      beside_->save_contents(1, contents_);  // takes the memory for the copy
      beside_->finish();
    }
    world_.barrier();
    const Stopwatch watch;
    beside_->save_contents(round + 2, contents_);
    times_.add("stall", watch.elapsed_ms());
    while (beside_->saving()) {
      const Stopwatch step;
      workload_.step();
      beside_->advance();
      times_.add("step while saving", step.elapsed_ms());
    }
    times_.add("beside", watch.elapsed_ms());
  }

  void save_many() {
    const checkpoint::Contents many = many_small_tensors();
    checkpoint::Store store(scratch_.file("many"), world_, {.keep = 1});
    for (int round = 0; round < options_.rounds; ++round) {
      world_.barrier();
      const Stopwatch watch;
      store.save_contents(round + 1, many);
      times_.add("many", watch.elapsed_ms());
    }
  }

  CheckpointTimes results() {
    CheckpointTimes found{.bytes = bytes_, .ranks = world_.size()};
    const auto ms = [&](const char* name) { return times_.median_of(world_, name); };
    const auto rate = [&](const char* name) { return static_cast<double>(bytes_) / 1e3 / ms(name); };
    found.sync_ms = ms("save");
    found.write_mb_s = rate("save");
    found.raw_mb_s = rate("raw write");
    found.read_mb_s = rate("verify");
    found.raw_read_mb_s = rate("raw read");
    found.cached_read_mb_s = rate("cached verify");
    found.raw_cached_read_mb_s = rate("cached raw read");
    found.async_stall_ms = ms("stall");
    found.copy_ms = ms("copy");
    found.async_ms = ms("beside");
    found.step_ms = ms("step");
    found.step_while_saving_ms = ms("step while saving");
    found.many_ms = ms("many");
    return found;
  }

  static constexpr int steps_alone = 10;
  comm::HostGroup& world_;
  const CheckpointBenchmarkOptions& options_;
  Scratch scratch_;
  checkpoint::Contents contents_;
  WorkloadRun workload_;
  std::uint64_t bytes_ = 0, begin_ = 0, end_ = 0;
  std::vector<std::byte> mine_, copy_;  // this rank's part, and space for it
  std::unique_ptr<checkpoint::Store> beside_;
  Times times_;
};

}  // namespace

CheckpointTimes time_checkpoint(Session& session, const CheckpointBenchmarkOptions& options) {
  if (options.rounds < 1)
    throw UsageError("--rounds {}: must be at least 1; see lockstep bench checkpoint --help", options.rounds);
  return CheckpointRace(session, options).run();
}

}  // namespace lockstep::train
