// lockstep bench checkpoint: saves, compared with plain writes and reads of the same bytes, and during
// training.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/bench.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::cli {
namespace {

using train::WorkloadRun;

struct CheckpointOptions {
  std::uint64_t bytes = 0;
  std::string directory;  ///< on the storage to measure
  int rounds = 0;
  std::string workload;  ///< trains during a save
};

/// A new directory that the destructor removes.
class Scratch {
 public:
  Scratch(comm::HostGroup& world, const std::string& parent) : world_(world) {
    std::string path = parent + "/lockstep-bench-XXXXXX";
    comm::run_on_all(world_, [&] {
      if (world_.rank() == 0 && !::mkdtemp(path.data()))
        throw_system_error(errno, parent, "create a directory in it");
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

/// Calls use(begin, end) for each piece of the range. Plain reads and writes use pieces of this size, like
/// those of a checkpoint.
template <class Use>
void in_pieces(std::uint64_t begin, std::uint64_t end, const Use& use) {
  constexpr std::uint64_t piece_bytes = 1 << 20;
  for (std::uint64_t at = begin; at < end; at += piece_bytes) use(at, std::min(at + piece_bytes, end));
}

void fill(const Tensor& tensor, std::uint32_t number) {
  const Random random({1, purpose_of("benchmark"), 0, number});
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.uniform(static_cast<std::uint64_t>(i)) - 0.5f;
}

/// Matrices of 4 MiB, each with a bias of 4 KiB, as in a model.
checkpoint::StateDict synthetic_model(std::uint64_t bytes) {
  checkpoint::StateDict contents;
  checkpoint::Section& model = contents.sections.emplace_back(checkpoint::Section{"model", {}, {}});
  const Tensor pattern = Tensor::empty({1024, 1024});
  fill(pattern, 0);
  for (std::uint64_t size = 0; size < bytes;) {
    const std::size_t layer = model.tensors.size() / 2;
    const Tensor weight = Tensor::empty({1024, 1024}), bias = Tensor::empty({1024});
    std::memcpy(weight.raw(), pattern.raw(), weight.bytes());
    fill(bias, static_cast<std::uint32_t>(layer) + 1);
    weight.data<float>()[0] = static_cast<float>(layer);  // all blocks differ
    model.tensors.push_back({fmt::format("layer{}.weight", layer), weight});
    model.tensors.push_back({fmt::format("layer{}.bias", layer), bias});
    size += weight.bytes() + bias.bytes();
  }
  return contents;
}

checkpoint::StateDict many_small_tensors() {
  checkpoint::StateDict contents;
  checkpoint::Section& model = contents.sections.emplace_back(checkpoint::Section{"model", {}, {}});
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const Tensor tensor = Tensor::empty({256});
    fill(tensor, i);
    model.tensors.push_back({fmt::format("tensor{}", i), tensor});
  }
  return contents;
}

class CheckpointBenchmark {
 public:
  CheckpointBenchmark(Session& session, const CheckpointOptions& options)
      : world_(session.world()),
        options_(options),
        scratch_(world_, options.directory),
        contents_(synthetic_model(options.bytes)),
        workload_(train::workload_named(options.workload), session.transport(), session.backend()) {
    for (const checkpoint::NamedTensor& tensor : contents_.sections[0].tensors)
      bytes_ += tensor.value.bytes();
    const auto rank = static_cast<std::uint64_t>(world_.rank()),
               ranks = static_cast<std::uint64_t>(world_.size());
    begin_ = bytes_ / ranks * rank;
    end_ = rank + 1 == ranks ? bytes_ : bytes_ / ranks * (rank + 1);
    mine_.resize(end_ - begin_, std::byte{1});
    copy_.resize(mine_.size(), std::byte{2});
  }

  void run() {
    for (std::int64_t step = 0; step < train::warm_up_steps; ++step) workload_.step();
    for (int round = 0; round < options_.rounds; ++round) {
      write_and_read(round);
      save_during_training(round);
    }
    save_many();
  }

  /// The document of --json: medians; rates are sums over ranks, MB = 10^6 bytes. Collective, after run().
  nlohmann::json result() {
    times_.take_max(world_);
    return {{"bytes", bytes_},
            {"ranks", world_.size()},
            {"write_mb_s", rate_mb_s("save")},
            {"raw_mb_s", rate_mb_s("raw write")},
            {"ratio", rate_mb_s("save") / rate_mb_s("raw write")},
            {"sync_ms", times_.median("save")},
            {"async_stall_ms", times_.median("stall")}};
  }

  /// Prints all results as text. After result().
  void print() const {
    const auto ms = [&](const char* name) { return times_.median(name); };
    const auto mb_s = [&](const char* name) { return rate_mb_s(name); };
    const auto compare = [&](const char* what, const char* ours, const char* plain_what, const char* plain) {
      fmt::print("{:<42}{:>8.0f} MB/s   {:<20}{:>8.0f} MB/s   ratio {:.2f}\n", what, mb_s(ours), plain_what,
                 mb_s(plain), mb_s(ours) / mb_s(plain));
    };
    fmt::print("{:.0f} MB on {}\n", static_cast<double>(bytes_) / 1e6, pluralized(world_.size(), "rank"));
    compare("synchronous save", "save", "pwrite and fsync", "raw write");
    compare("verify, from storage", "verify", "pread", "raw read");
    compare("verify, from memory", "cached verify", "pread", "cached raw read");
    fmt::print(
        "asynchronous save: returns after {:.1f} ms ({:.1f} % of the {:.0f} ms of a synchronous save; "
        "a copy takes {:.1f} ms), complete after {:.0f} ms\n",
        ms("stall"), 100 * ms("stall") / ms("save"), ms("save"), ms("copy"), ms("async"));
    fmt::print("training during a save: {:.1f} ms per step, {:.1f} without a save (ratio {:.3f})\n",
               ms("step while saving"), ms("step"), ms("step while saving") / ms("step"));
    fmt::print("5,000 tensors of 1 KiB: {:.0f} ms\n", ms("many"));
  }

  /// The results that result() omits, as a section of a page.
  nlohmann::json more() const {
    const auto rates = [&](const char* name, const char* kind, const char* of) {
      return report::Bar{name, kind, rate_mb_s(of)};
    };
    const auto times = [&](const char* name, const char* kind, const char* of) {
      return report::Bar{name, kind, times_.median(of)};
    };
    return report::section("Reading, saving and training",
                           {report::bars("Read rates", "MB/s",
                                         {rates("verify, from storage", "", "verify"),
                                          rates("pread, from storage", "step", "raw read"),
                                          rates("verify, from memory", "", "cached verify"),
                                          rates("pread, from memory", "step", "cached raw read")}),
                            report::bars("Save times", "ms",
                                         {times("asynchronous save until it returns", "late", "stall"),
                                          times("copy in memory", "step", "copy"),
                                          times("asynchronous save until it is complete", "comm", "async"),
                                          times("5,000 tensors of 1 KiB", "", "many")}),
                            report::bars("Training step times", "ms",
                                         {times("while saving", "", "step while saving"),
                                          times("without a save", "step", "step")})});
  }

 private:
  double rate_mb_s(const char* name) const { return static_cast<double>(bytes_) / 1e3 / times_.median(name); }

  /// Times an action of this rank that is not collective. Collective.
  template <class Action>
  void time_own(const std::string& name, const Action& action) {
    times_.time(world_, name, [&] { comm::run_on_all(world_, action); });
  }

  void write_and_read(int round) {
    const std::string raw = scratch_.file("raw"), path = scratch_.file(fmt::format("saved{}.h5", round));
    comm::run_on_all(world_, [&] {
      if (world_.rank() == 0) OpenFile(raw, OpenFile::Mode::create_or_truncate);
    });
    const auto write_raw = [&] {
      time_own("raw write", [&] {
        OpenFile file(raw, OpenFile::Mode::write);
        in_pieces(begin_, end_, [&](std::uint64_t at, std::uint64_t end) {
          file.write_at(at, mine_.data() + (at - begin_), end - at);
        });
        file.sync();
      });
    };
    // In alternating order, because the storage may still be busy with the first when the second starts.
    if (round % 2 == 0) write_raw();
    times_.time(world_, "save", [&] { checkpoint::save_file(path, contents_, world_); });
    if (round % 2 != 0) write_raw();

    for (const std::string from : {"", "cached "}) {
      const auto drop_from_cache = [&](const std::string& file) {  // the next read comes from storage
        if (from.empty() && world_.rank() == 0)
          ::posix_fadvise(OpenFile(file, OpenFile::Mode::read).descriptor(), 0, 0, POSIX_FADV_DONTNEED);
      };
      comm::run_on_all(world_, [&] { drop_from_cache(raw), drop_from_cache(path); });
      time_own(from + "raw read", [&] {
        const OpenFile file(raw, OpenFile::Mode::read);
        in_pieces(begin_, end_, [&](std::uint64_t at, std::uint64_t end) {
          file.read_at(at, copy_.data() + (at - begin_), end - at);
        });
      });
      bool whole = false;
      times_.time(world_, from + "verify", [&] { whole = checkpoint::verify(path, world_).whole(); });
      if (!whole) throw FailureError("{}: the file differs from what was saved", path);
    }
    comm::run_on_all(world_, [&] {
      if (world_.rank() == 0) remove_file(path), remove_file(raw);
    });
    time_own("copy", [&] { std::memcpy(copy_.data(), mine_.data(), mine_.size()); });
  }

  void save_during_training(int round) {
    for (int step = 0; step < steps_alone; ++step) times_.add("step", workload_.step().step_ms);
    if (!store_) {
      store_ = std::make_unique<checkpoint::Store>(scratch_.file("async"), world_,
                                                   checkpoint::StoreOptions{.keep = 1, .async = true});
      store_->save_state_dict(1, contents_);  // allocates the memory for the copy
      store_->finish();
    }
    world_.barrier();
    const Stopwatch watch;
    store_->save_state_dict(round + 2, contents_);
    times_.add("stall", watch.elapsed_ms());
    while (store_->saving()) {
      const Stopwatch step;
      workload_.step();
      store_->advance();
      times_.add("step while saving", step.elapsed_ms());
    }
    times_.add("async", watch.elapsed_ms());
  }

  void save_many() {
    const checkpoint::StateDict many = many_small_tensors();
    checkpoint::Store store(scratch_.file("many"), world_, {.keep = 1});
    for (int round = 0; round < options_.rounds; ++round)
      times_.time(world_, "many", [&] { store.save_state_dict(round + 1, many); });
  }

  static constexpr int steps_alone = 10;
  comm::HostGroup& world_;
  const CheckpointOptions& options_;
  Scratch scratch_;
  checkpoint::StateDict contents_;
  WorkloadRun workload_;
  std::uint64_t bytes_ = 0, begin_ = 0, end_ = 0;
  std::vector<std::byte> mine_, copy_;  // this rank's bytes, and memory for a copy of them
  std::unique_ptr<checkpoint::Store> store_;
  train::Figures times_;  // in ms
};

}  // namespace

ExitCode bench_checkpoint(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "bench checkpoint [--mib N] [--directory DIR] [OPTIONS]",
                    "Times saves to the storage of DIR, in alternation with plain writes and reads of\n"
                    "the same bytes by the same ranks, and saves while a standard workload trains.\n"
                    "Times are medians over rounds of the slowest rank. Removes its files at the end.");
  options.add()("mib", po::value<std::int64_t>()->default_value(1024), "size of a checkpoint in MiB");
  options.add()("directory", po::value<std::string>()->default_value("."),
                "directory on the storage to measure");
  options.add()("rounds", po::value<int>()->default_value(5), "number of measurements");
  options.add()("workload", po::value<std::string>()->default_value("gpt-cpu"),
                "standard workload that trains during a save");
  add_output(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::int64_t mib = values["mib"].as<std::int64_t>();
  if (mib < 1 || mib > (std::int64_t{1} << 24))
    throw UsageError("bench checkpoint: --mib {}: must be from 1 to 16777216", mib);
  const CheckpointOptions how{.bytes = static_cast<std::uint64_t>(mib) << 20,
                              .directory = values["directory"].as<std::string>(),
                              .rounds = values["rounds"].as<int>(),
                              .workload = values["workload"].as<std::string>()};
  if (how.rounds < 1) throw UsageError("bench checkpoint: --rounds {}: must be at least 1", how.rounds);
  const ResultOutput output(values, session);
  CheckpointBenchmark benchmark(session, how);
  benchmark.run();
  const nlohmann::json result = benchmark.result();
  show(
      output, session, result, [&] { benchmark.print(); },
      {"Checkpoints",
       fmt::format("Saves to {}, in alternation with plain writes and reads of the same bytes by the same "
                   "ranks. Times are medians over {} of the slowest rank; MB = 10^6 bytes.",
                   how.directory, pluralized(how.rounds, "round")),
       {{"size", report::bytes_text(static_cast<double>(how.bytes))}}},
      benchmark.more());
  return ExitCode::done;
}

}  // namespace lockstep::cli
