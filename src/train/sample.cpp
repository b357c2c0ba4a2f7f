#include "train/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/layout.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/kernels/backend.h"
#include "report/png.h"
#include "train/ordered_chunks.h"

namespace lockstep::train {

Generative& generative(Task& task, const std::string& name) {
  if (auto* const found = dynamic_cast<Generative*>(&task)) return *found;
  throw UsageError("task.name = {}: its models make no samples", name);
}

SampleOptions sample_options(const SampleConfig& config, DType compute) {
  return {.sampler = config.sampler,
          .steps = config.steps,
          .eta = config.eta,
          .guidance = config.guidance,
          .seed = config.seed,
          .compute = compute};
}

SampleClasses::SampleClasses(const std::string& text, const Model& model, std::string_view option) {
  const std::int64_t classes = model.input_classes();
  if (text == "none" || (text == "auto" && classes == 0)) return;
  if (classes == 0) throw UsageError("{} {}: the model takes no classes", option, quote(text));
  if (text == "all" || text == "auto") {
    all_ = classes;
    return;
  }
  std::int64_t asked = 0;
  try {
    option::read(text, Range::from(0, static_cast<double>(classes - 1)), asked);
  } catch (const UsageError&) {
    throw UsageError("{} {}: is neither all nor none nor a class of the model, 0 to {}", option, quote(text),
                     classes - 1);
  }
  one_ = asked;
}

Tensor Sampler::make(std::int64_t first, std::int64_t rows, const std::function<void()>& progress) const {
  std::vector<std::int64_t> classes;
  for (std::int64_t i = first; i < first + rows; ++i) classes.push_back(classes_.of(i));
  Tensor samples = kernels::on_cpu(
      parts_.task.sample(parts_.model, parts_.backend, options_, first, classes, progress), &parts_.backend);
  const Shape& shape = samples.shape();
  if (samples.dtype() != DType::float32 || shape.rank() != 4 || shape[0] != rows)
    throw UsageError("the task made {} {} of {}: samples are float32 [{}, channels, height, width]",
                     to_string(samples.dtype()), to_string(shape), pluralized(rows, "sample"), rows);
  return samples;
}

bool Sampler::run(const Take& take, const Continue& go_on, const Show& show) const {
  OrderedChunks work{.rows = count_, .chunk = chunk, .make = {}, .take = take, .go_on = go_on};
  const std::int64_t steps = std::max<std::int64_t>(1, parts_.task.sampling_steps(options_));
  const double all = static_cast<double>(steps * work.rounds(parts_.world));
  std::int64_t before = 0;  // steps of the chunks of this rank that are made
  work.make = [&](std::int64_t first, std::int64_t rows) {
    std::int64_t done = 0;
    Tensor made = make(first, rows, [&] {
      progress::tick();
      done = std::min(done + 1, steps);
      if (show) show(static_cast<double>(before + done) / all);
    });
    before += steps;
    return through_ ? through_(made) : made;
  };
  return train::run(parts_.world, work);
}

std::string picture_of(std::span<const float> samples, const Shape& sample) {
  const std::int64_t count = std::ssize(samples) / std::max<std::int64_t>(1, sample.numel());
  return report::png_of(report::grid_of(samples, count, sample));
}

namespace {

/// [C, H, W] of samples [N, C, H, W].
Shape image_of(const Tensor& samples) {
  const Shape& shape = samples.shape();
  return {shape[1], shape[2], shape[3]};
}

/// What becomes a file on rank 0. An object that is destroyed before publish() leaves nothing.
class Output {
 public:
  virtual ~Output() = default;
  virtual void add(std::int64_t first, const Tensor& samples) = 0;
  virtual void publish() = 0;
};

class PictureOutput final : public Output {
 public:
  PictureOutput(const SampleFileOptions& options, std::int64_t count) : options_(options), count_(count) {}

  void add(std::int64_t first, const Tensor& samples) override {
    if (first == 0) report::check_grid(count_, image_ = image_of(samples));
    values_.insert(values_.end(), samples.data<float>(), samples.data<float>() + samples.numel());
  }
  void publish() override {
    const std::string bytes = picture_of(values_, image_);
    check_output(options_.out, {.replace = options_.replace, .inputs = options_.inputs});
    write_text_atomically(options_.out, bytes);
  }

 private:
  const SampleFileOptions& options_;
  std::int64_t count_;
  Shape image_;
  std::vector<float> values_;
};

template <class T>
void append_as(std::span<const double> values, std::vector<std::byte>& bytes) {
  const std::size_t at = bytes.size();
  bytes.resize(at + values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + at + i * sizeof(T), &value, sizeof value);
  }
}

/// Finite values within the type's limits.
std::vector<std::byte> bytes_as(DType dtype, std::span<const double> values) {
  std::vector<std::byte> bytes;
  switch (dtype) {
    case DType::uint8:
      append_as<std::uint8_t>(values, bytes);
      break;
    case DType::int8:
      append_as<std::int8_t>(values, bytes);
      break;
    case DType::uint16:
      append_as<std::uint16_t>(values, bytes);
      break;
    case DType::int16:
      append_as<std::int16_t>(values, bytes);
      break;
    case DType::uint32:
      append_as<std::uint32_t>(values, bytes);
      break;
    case DType::int32:
      append_as<std::int32_t>(values, bytes);
      break;
    case DType::uint64:
      append_as<std::uint64_t>(values, bytes);
      break;
    case DType::int64:
      append_as<std::int64_t>(values, bytes);
      break;
    case DType::float64:
      append_as<double>(values, bytes);
      break;
    default:
      append_as<float>(values, bytes);
  }
  return bytes;
}

/// The structure comes from HDF5, into memory; the elements are written to where it has left holes.
class DataOutput final : public Output {
 public:
  DataOutput(const SampleFileOptions& options, const Sampler& sampler)
      : options_(options), sampler_(sampler) {}

  void add(std::int64_t first, const Tensor& samples) override {
    if (first == 0) begin(image_of(samples));
    const std::span<const float> values(samples.data<float>(), static_cast<std::size_t>(samples.numel()));
    const std::int64_t elements = samples.numel() / samples.size(0);
    const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    if (bad != values.end())
      throw TrainingError(
          "sample {} is not finite: training with these weights has diverged; nothing was written",
          first + (bad - values.begin()) / elements);
    const std::vector<double> stored = options_.range ? options_.range->stored_values(values)
                                                      : std::vector<double>(values.begin(), values.end());
    const std::vector<std::byte> bytes = bytes_as(dtype_, stored);
    const auto row_bytes = static_cast<std::uint64_t>(elements) * bytes_of(dtype_);
    file_->write_at(x_.offset + static_cast<std::uint64_t>(first) * row_bytes, bytes.data(), bytes.size());
    if (!sampler_.classes().any()) return;
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < samples.size(0); ++i) classes.push_back(sampler_.classes().of(first + i));
    file_->write_at(y_.offset + static_cast<std::uint64_t>(first) * sizeof(std::int64_t), classes.data(),
                    classes.size() * sizeof(std::int64_t));
  }
  void publish() override {
    check_output(options_.out, {.replace = options_.replace, .inputs = options_.inputs});
    file_->sync();
    draft_->publish(options_.out, options_.replace);
  }

 private:
  void begin(const Shape& image) {
    Shape form = image;
    if (options_.range) {
      const DType stored = options_.range->field.dtype;
      const bool is_half = stored == DType::float16 || stored == DType::bfloat16;
      dtype_ = is_half ? DType::float32 : stored;
      // A model of images of any size may make others than it was trained on.
      if (options_.range->field.shape.numel() == image.numel()) form = options_.range->field.shape;
    }
    std::vector<std::int64_t> extents{sampler_.count()};
    extents.insert(extents.end(), form.begin(), form.end());
    checkpoint::MemoryFile structure;
    hdf5::File file = hdf5::File::create(
        structure.path(), {.existing = hdf5::CreateOptions::Existing::replace, .checksummed = true});
    structure.unlink();
    x_ = file.create_dataset("x", dtype_, extents).extent();
    if (sampler_.classes().any()) y_ = file.create_dataset("y", DType::int64, {sampler_.count()}).extent();
    file.close();
    file_.emplace(temporary_path(options_.out), OpenFile::Mode::create_or_truncate);
    draft_.emplace(file_->path());
    std::vector<hdf5::Extent> holes{x_};
    if (y_.bytes > 0) holes.push_back(y_);
    std::ranges::sort(holes, {}, &hdf5::Extent::offset);
    std::uint64_t at = 0;
    for (const hdf5::Extent& hole : holes) {
      structure.copy_to(*file_, at, hole.offset);
      at = hole.offset + hole.bytes;
    }
    const std::uint64_t end = std::max(structure.size(), at);
    file_->truncate(end);
    structure.copy_to(*file_, at, structure.size());
  }

  const SampleFileOptions& options_;
  const Sampler& sampler_;
  DType dtype_ = DType::float32;
  hdf5::Extent x_, y_;
  std::optional<OpenFile> file_;
  std::optional<Draft> draft_;
};

constexpr std::uint64_t preempted = 1, stopped_by_user = 2;

}  // namespace

ExitCode write_samples(Session& session, const Sampler& sampler, const SampleFileOptions& options,
                       StopRequests& requests) {
  constexpr double show_every_ms = 10e3;
  comm::HostGroup& world = session.world();
  std::unique_ptr<Output> output;
  comm::run_on_all(world, [&] {
    const bool picture = options.out.ends_with(".png");
    if (!picture && !options.out.ends_with(".h5"))
      throw UsageError("--out {}: ends neither with .png nor with .h5", quote(options.out));
    // Better an error now than after the work.
    if (const Shape image = sampler.known_shape(); picture && image.rank() == 3)
      report::check_grid(sampler.count(), image);
    if (world.rank() != 0) return;
    check_output(options.out, {.replace = options.replace, .inputs = options.inputs});
    if (picture)
      output = std::make_unique<PictureOutput>(options, sampler.count());
    else
      output = std::make_unique<DataOutput>(options, sampler);
  });
  Stopwatch since_shown;
  std::uint64_t asked = 0;
  const bool all = sampler.run(
      [&](std::int64_t first, const Tensor& samples) { output->add(first, samples); },
      [&] {
        const ddp::Requests pending = requests.pending();
        asked = comm::bits_of_any(
            world, (pending.stop_preempted ? preempted : 0) | (pending.stop_user ? stopped_by_user : 0));
        return asked == 0;
      },
      [&](double fraction) {
        if (world.rank() != 0 || since_shown.elapsed_ms() < show_every_ms) return;
        since_shown.restart();
        session.log().info("sampling: {:.0f} % of {}", 100 * fraction, pluralized(sampler.count(), "sample"));
      });
  if (!all) {
    requests.clear({.stop_preempted = (asked & preempted) != 0, .stop_user = (asked & stopped_by_user) != 0});
    session.log().info("{}; {} was not written", asked & preempted ? "preempted" : "stopped as asked",
                       options.out);
    return asked & preempted ? ExitCode::preempted : ExitCode::user_stopped;
  }
  comm::run_on_all(world, [&] {
    if (output) output->publish();
  });
  return ExitCode::done;
}

}  // namespace lockstep::train
