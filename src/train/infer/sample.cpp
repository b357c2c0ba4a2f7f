#include "train/infer/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>

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
#include "tensor/element_types.h"
#include "train/infer/chunks.h"

namespace lockstep::train {

Generative& generative(Task& task, const std::string& name) {
  if (auto* const found = dynamic_cast<Generative*>(&task)) return *found;
  throw UsageError("task.name = {}: its models cannot make samples", name);
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
    throw UsageError("{} {}: is not all, none or a class of the model, 0 to {}", option, quote(text),
                     classes - 1);
  }
  one_ = asked;
}

void SampleClasses::check_guidance(const SampleOptions& options) const {
  if (options.guidance != 1 && !any())
    throw UsageError("guidance {:g}: needs a class; give one, or leave guidance out", options.guidance);
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

bool Sampler::run(const Take& take, const EvaluationWatch& watch) const {
  return train::run(
      parts_.world,
      OrderedChunks{.rows = count_,
                    .chunk = chunk,
                    .steps = std::max<std::int64_t>(1, parts_.task.sampling_steps(options_)),
                    .make =
                        [&](std::int64_t first, std::int64_t rows, const std::function<void()>& step) {
                          const Tensor made = make(first, rows, [&] {
                            progress::tick();
                            step();
                          });
                          return through_ ? through_(made) : made;
                        },
                    .take = take,
                    .watch = watch});
}

namespace {

/// [C, H, W] of samples [N, C, H, W].
Shape image_of(const Tensor& samples) {
  const Shape& shape = samples.shape();
  return {shape[1], shape[2], shape[3]};
}

/// The first sample that is not finite, of samples `first` and on.
std::optional<std::int64_t> first_not_finite(std::int64_t first, const Tensor& samples) {
  const std::span<const float> values(samples.data<float>(), static_cast<std::size_t>(samples.numel()));
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return std::nullopt;
  return first + (bad - values.begin()) / (samples.numel() / samples.size(0));
}

[[noreturn]] void throw_not_finite(std::int64_t sample) {
  throw TrainingError("sample {} is not finite; nothing was written", sample);
}

/// Finite values within the type's limits; 16-bit floats are stored as float32.
std::vector<std::byte> bytes_as(DType dtype, std::span<const double> values) {
  return with_element_type(dtype, [&]<class T>() {
    using Stored = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
    std::vector<std::byte> bytes(values.size() * sizeof(Stored));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<Stored>(values[i]);
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
    return bytes;
  });
}

/// A data file, on rank 0. Destruction before publish() leaves no file. HDF5 writes the structure to memory;
/// the elements are written into its holes.
class DataOutput {
 public:
  DataOutput(const SampleFileOptions& options, const Sampler& sampler)
      : options_(options), sampler_(sampler) {}

  void add(std::int64_t first, const Tensor& samples) {
    if (first == 0) begin(image_of(samples));
    const std::span<const float> values(samples.data<float>(), static_cast<std::size_t>(samples.numel()));
    const std::int64_t elements = samples.numel() / samples.size(0);
    if (const auto bad = first_not_finite(first, samples)) throw_not_finite(*bad);
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
  void publish() {
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
      // A model of images of any size may make other sizes than it was trained on.
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

}  // namespace

std::optional<SampledPicture> picture_of(const Sampler& sampler, const EvaluationWatch& watch) {
  SampledPicture picture;
  Shape image;
  std::vector<float> values;
  const auto take = [&](std::int64_t first, const Tensor& samples) {
    if (first == 0) report::check_grid(sampler.count(), image = image_of(samples));
    if (!picture.not_finite) picture.not_finite = first_not_finite(first, samples);
    values.insert(values.end(), samples.data<float>(), samples.data<float>() + samples.numel());
  };
  if (!sampler.run(take, watch)) return std::nullopt;
  comm::run_on_all(sampler.world(), [&] {
    if (sampler.world().rank() == 0 && !picture.not_finite)
      picture.png = report::png_of(report::grid_of(values, sampler.count(), image));
  });
  return picture;
}

ExitCode write_samples(Session& session, const Sampler& sampler, const SampleFileOptions& options,
                       StopRequests& requests) {
  constexpr double show_every_ms = 10e3;
  comm::HostGroup& world = session.world();
  const bool is_picture = options.out.ends_with(".png"), writes = world.rank() == 0;
  const OutputCheck checks{.replace = options.replace, .inputs = options.inputs};
  comm::run_on_all(world, [&] {
    if (!is_picture && !options.out.ends_with(".h5"))
      throw UsageError("--out {}: ends neither with .png nor with .h5", quote(options.out));
    // Reports errors before the work, not after it.
    if (const Shape image = sampler.known_shape(); is_picture && image.rank() == 3)
      report::check_grid(sampler.count(), image);
    if (writes) check_output(options.out, checks);
  });
  Stopwatch since_report;
  ddp::Requests asked;
  const EvaluationWatch watch{.requests =
                                  [&] {
                                    const ddp::Requests pending = requests.pending();
                                    return ddp::Requests{.stop_preempted = pending.stop_preempted,
                                                         .stop_user = pending.stop_user}
                                        .to_bits();
                                  },
                              .act =
                                  [&](std::uint64_t of_any, double fraction) {
                                    if (writes && since_report.elapsed_ms() >= show_every_ms) {
                                      since_report.restart();
                                      session.log().info("sampling: {:.0f} % of {}", 100 * fraction,
                                                         pluralized(sampler.count(), "sample"));
                                    }
                                    asked = ddp::Requests::from_bits(of_any);
                                    return !asked.any();
                                  }};
  std::optional<SampledPicture> picture;
  std::optional<DataOutput> data;
  bool all = false;
  if (is_picture) {
    picture = picture_of(sampler, watch);
    all = picture.has_value();
  } else {
    data.emplace(options, sampler);
    all = sampler.run([&](std::int64_t first, const Tensor& samples) { data->add(first, samples); }, watch);
  }
  if (!all) {
    requests.clear(asked);
    session.log().info("{}; {} was not written", asked.stop_preempted ? "preempted" : "stopped as asked",
                       options.out);
    return asked.stop_preempted ? ExitCode::preempted : ExitCode::user_stopped;
  }
  comm::run_on_all(world, [&] {
    if (!writes) return;
    if (data) return data->publish();
    if (picture->not_finite) throw_not_finite(*picture->not_finite);
    check_output(options.out, checks);
    write_text_atomically(options.out, picture->png);
  });
  return ExitCode::done;
}

}  // namespace lockstep::train
