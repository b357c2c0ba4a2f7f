#include "train/infer/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/file_lock.h"
#include "checkpoint/layout.h"
#include "checkpoint/run_files.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/kernels/backend.h"
#include "train/infer/chunks.h"

namespace lockstep::train {
namespace {

/// log softmax(logits)[target] of each row.
void log_probabilities_of(const Tensor& logits, const Tensor& targets, const Tensor& into) {
  const std::int64_t classes = logits.size(logits.shape().rank() - 1);
  const float* row = logits.data<float>();
  for (std::int64_t i = 0; i < into.numel(); ++i, row += classes) {
    const std::int64_t target = targets.data<std::int64_t>()[i];
    if (target < 0 || target >= classes)
      throw DataError("a target is {}, but the model knows {} tokens", target, classes);
    const auto most = static_cast<double>(*std::max_element(row, row + classes));
    double sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(row[c]) - most);
    into.data<float>()[i] = static_cast<float>(static_cast<double>(row[target]) - most - std::log(sum));
  }
}

/// In place, one number for all elements or for each channel of a sample.
void in_own_units(const data::Normalization& units, const Tensor& output) {
  const std::int64_t elements = output.numel() / output.size(0), channels = std::ssize(units.mean);
  if (channels == 0 || elements % channels != 0)
    throw DataError("outputs have {} elements, but the target's normalisation has {}", elements, channels);
  float* const values = output.data<float>();
  for (std::int64_t e = 0; e < output.numel(); ++e) {
    const auto channel = static_cast<std::size_t>(e % elements / (elements / channels));
    values[e] =
        static_cast<float>(static_cast<double>(values[e]) * units.deviation[channel] + units.mean[channel]);
  }
}

constexpr const char* part_suffix = ".part";
constexpr const char* record_suffix = ".part.json";
constexpr const char* lock_suffix = ".part.lock";

/// The outputs of chunks of samples, on the CPU.
class Predictor {
 public:
  Predictor(models::Model& model, kernels::Backend& backend, const data::Dataset& dataset,
            const PredictOptions& options)
      : model_(model),
        dataset_(dataset),
        options_(options),
        tape_(backend),
        rows_(std::clamp<std::int64_t>(1024 / std::max<std::int64_t>(1, model.context()), 1, 64)),
        batches_(dataset, rows_, 0, 1) {}

  int chunks() const { return batches_.chunks(); }

  Tensor output_of(int chunk) {
    progress::tick();
    const Batch& batch = batches_.read(chunk);
    tape_.begin({.training = false,
                 .record = false,
                 .compute = options_.compute,
                 .same_parameters = std::exchange(begun_, true)});
    Tensor output;
    try {
      kernels::Backend& backend = tape_.backend();
      const Batch there = batch.map([&](const Tensor& field) { return kernels::on_device(field, backend); });
      const Var found = to_channel_block(model_(tape_, there), 1);
      output = kernels::on_cpu(backend.in_type(found.value(), DType::float32), &backend);
    } catch (const UsageError& error) {  // the data do not fit the model
      throw DataError("{}: {}", dataset_.name(), error.what());
    }
    const Shape& shape = output.shape();
    if (shape.rank() == 0 || shape[0] != batch.samples())
      throw UsageError("the model's output for {} samples is {}: it must have one row a sample",
                       batch.samples(), to_string(shape));
    if (options_.log_probabilities) {
      const Tensor of_targets = Tensor::empty(batch["y"].shape());
      log_probabilities_of(output, batch["y"], of_targets);
      return of_targets;
    }
    if (options_.units) {
      const Tensor own = Tensor::empty(shape);
      std::copy_n(output.data<float>(), output.numel(), own.data<float>());
      in_own_units(*options_.units, own);
      return own;
    }
    return output;
  }
  std::int64_t first_sample(std::int64_t chunk) const { return std::min(chunk * rows_, dataset_.size()); }

 private:
  models::Model& model_;
  const data::Dataset& dataset_;
  const PredictOptions& options_;
  Tape tape_;
  std::int64_t rows_;  // of a chunk
  data::EvalBatches batches_;
  bool begun_ = false;
};

/// OUT.part, which becomes OUT, and OUT.part.json, a record of the arguments and of the finished chunks. A
/// record without OUT.part is ignored.
class Unfinished {
 public:
  Unfinished(const PredictOptions& options, const Shape& output)
      : options_(options),
        output_(output),
        path_(options.out + part_suffix),
        record_path_(options.out + record_suffix) {}

  /// The offset of the elements, after open().
  std::uint64_t offset() const { return offset_; }

  /// The number of finished chunks, of `chunks`. UsageError if the file was begun with other arguments.
  std::int64_t open(std::int64_t chunks) {
    if (exists(path_)) {
      const std::int64_t done = done_by_record();
      lay_out();
      if (done < 0 || done > chunks || OpenFile(path_, OpenFile::Mode::read).size() != file_bytes_)
        throw_not_ours();
      return done;
    }
    OpenFile file(temporary_path(path_), OpenFile::Mode::create_or_truncate);
    Draft draft(file.path());  // a failed start leaves no file
    // A file that may not grow to its size must be an error here, not inside HDF5.
    file.truncate(static_cast<std::uint64_t>(output_.numel()) * sizeof(float));
    lay_out();
    file.truncate(file_bytes_);
    structure_.copy_to(file, 0, offset_);
    structure_.copy_to(file, offset_ + bytes_, structure_.size());
    file.sync();
    record(0);
    draft.publish(path_, false);
    return 0;
  }
  /// Call it when these chunks are on storage.
  void record(std::int64_t done) const {
    write_text_atomically(record_path_, json_text({{"arguments", options_.arguments}, {"done", done}}));
  }
  /// Renames OUT.part, which is on storage, to OUT. After an error a later call can repeat it.
  void publish() const {
    check_output(options_.out, {.replace = options_.replace, .inputs = options_.inputs});
    rename_file(path_, options_.out);
    sync_directory(directory_of(options_.out));
    remove_file(record_path_);
  }

 private:
  /// The same structure for the same output.
  void lay_out() {
    hdf5::File file = hdf5::File::create(
        structure_.path(), {.existing = hdf5::CreateOptions::Existing::replace, .checksummed = true});
    structure_.unlink();
    const hdf5::Extent extent = file.create_dataset("output", DType::float32, output_.extents()).extent();
    file.close();
    offset_ = extent.offset;
    bytes_ = extent.bytes;
    file_bytes_ = std::max(structure_.size(), offset_ + bytes_);
  }

  std::int64_t done_by_record() const {
    std::map<std::string, std::string> before;
    std::int64_t done = 0;
    try {
      const nlohmann::json record = nlohmann::json::parse(read_text(record_path_));
      record.at("arguments").get_to(before);
      record.at("done").get_to(done);
    } catch (const std::exception&) {
      throw_not_ours();
    }
    for (const auto& [name, value] : options_.arguments) {
      const auto then = before.find(name);  // an earlier version may have recorded fewer
      if (then == before.end() || then->second == value) continue;
      throw UsageError("{}: was begun with another {} ({}, now {}); give the same arguments, or remove it",
                       path_, name, quote(then->second), quote(value));
    }
    return done;
  }

  [[noreturn]] void throw_not_ours() const {
    throw UsageError("{}: is not an unfinished file of lockstep predict; remove it", path_);
  }

  const PredictOptions& options_;
  const Shape output_;
  std::string path_, record_path_;
  checkpoint::MemoryFile structure_;
  std::uint64_t offset_ = 0, bytes_ = 0, file_bytes_ = 0;
};

/// Requests of a rank between two rounds of chunks, as bits.
constexpr std::uint64_t preempt = 1, user_stop = 2, record = 4, longer_rounds = 8;

}  // namespace

ExitCode predict(Session& session, models::Model& model, const data::Dataset& dataset,
                 const PredictOptions& options, StopRequests& requests) {
  constexpr double record_every_s = 10, round_ms = 50, lock_wait_s = 15;
  constexpr std::int64_t max_chunks_a_round = std::int64_t{1} << 16;  // of a rank
  comm::HostGroup& world = session.world();
  const bool leads = world.rank() == 0;
  comm::run_on_all(world, [&] {
    if (!leads) return;
    check_output(options.out, {.replace = options.replace, .inputs = options.inputs});
    for (const char* const suffix : {part_suffix, record_suffix, lock_suffix})
      check_output(options.out + suffix, {.replace = true, .inputs = options.inputs});
  });
  std::optional<checkpoint::FileLock> lock;  // excludes a second writer
  comm::run_on_all(world, [&] {
    if (!leads) return;
    lock.emplace(
        options.out + lock_suffix, lock_wait_s,
        [&](const std::string& line) { session.log().warning("{}", line); }, options.out);
  });
  std::optional<Predictor> predictor;
  Tensor first;
  comm::run_on_all(world, [&] {
    predictor.emplace(model, session.backend(), dataset, options);
    first = predictor->output_of(0);
  });
  std::vector<std::int64_t> extents(first.shape().begin(), first.shape().end());
  const auto sample_bytes = static_cast<std::uint64_t>(first.bytes() / static_cast<std::size_t>(extents[0]));
  extents[0] = dataset.size();
  std::optional<Unfinished> unfinished;
  std::array<std::int64_t, 2> begun{};  // finished chunks, and the offset of the elements
  comm::run_on_all(world, [&] {
    if (!leads) return;
    unfinished.emplace(options, Shape(std::span<const std::int64_t>(extents)));
    const std::int64_t done = unfinished->open(predictor->chunks());
    begun = {done, static_cast<std::int64_t>(unfinished->offset())};
  });
  world.broadcast(begun.data(), sizeof begun, 0);
  std::optional<OpenFile> part;
  comm::run_on_all(world, [&] {
    part.emplace(options.out + part_suffix, OpenFile::Mode::write, checkpoint::name_delay_s(world));
  });
  const std::int64_t chunks = predictor->chunks();
  std::int64_t done = begun[0];
  const auto samples = [&] { return predictor->first_sample(done); };
  if (done > 0)
    session.log().info("{}: continues after {} of {} samples", part->path(), samples(), dataset.size());

  std::int64_t chunks_a_round = 1;  // of a rank: as many as keep rank 0 busy for about round_ms
  Stopwatch since_record, since_round;
  std::uint64_t request_bits = 0;
  const auto make = [&](std::int64_t, const std::function<void()>&) {
    since_round.restart();
    const std::int64_t from = std::min(done + world.rank() * chunks_a_round, chunks);
    for (std::int64_t chunk = from; chunk < std::min(from + chunks_a_round, chunks); ++chunk) {
      const Tensor output = predictor->output_of(static_cast<int>(chunk));
      const auto sample = static_cast<std::uint64_t>(predictor->first_sample(chunk));
      part->write_at(static_cast<std::uint64_t>(begun[1]) + sample * sample_bytes, output.raw(),
                     output.bytes());
    }
  };
  const auto requests_of_rank = [&] {
    const ddp::Requests pending = requests.pending();
    const bool due = leads && since_record.elapsed_ms() > record_every_s * 1e3;
    const bool quick = leads && since_round.elapsed_ms() < round_ms;
    return preempt * pending.stop_preempted | user_stop * pending.stop_user | record * due |
           longer_rounds * quick;
  };
  // The chunks of the record are on storage.
  const auto act = [&](std::uint64_t of_any, double) {
    request_bits = of_any & (preempt | user_stop);
    done = std::min(done + world.size() * chunks_a_round, chunks);
    chunks_a_round = of_any & longer_rounds ? std::min(2 * chunks_a_round, max_chunks_a_round)
                                            : std::max<std::int64_t>(chunks_a_round / 2, 1);
    if ((of_any & record) == 0 && request_bits == 0 && done < chunks) return true;
    comm::run_on_all(world, [&] { part->sync(); });
    comm::run_on_all(world, [&] {
      if (leads) unfinished->record(done);
    });
    since_record.restart();
    const bool continues = done < chunks && request_bits == 0;
    if (continues) session.log().info("{} of {} samples", samples(), dataset.size());
    return continues;
  };
  if (done < chunks) run(world, Rounds{.make = make, .watch = {requests_of_rank, act}});
  if (done < chunks) {
    requests.clear(
        {.stop_preempted = (request_bits & preempt) != 0, .stop_user = (request_bits & user_stop) != 0});
    session.log().info("{} after {} of {} samples; the same command continues {}",
                       request_bits & preempt ? "preempted" : "stopped as asked", samples(), dataset.size(),
                       part->path());
    return request_bits & preempt ? ExitCode::preempted : ExitCode::user_stopped;
  }
  comm::run_on_all(world, [&] {
    if (leads) unfinished->publish();
  });
  return ExitCode::done;
}

}  // namespace lockstep::train
