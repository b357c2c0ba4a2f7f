// Sampling: a model's samples in chunks over all ranks, as a picture or as a data file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/models/model.h"
#include "lockstep/tasks/generative.h"
#include "lockstep/tasks/task.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/session.h"
#include "lockstep/train/stop.h"
#include "train/learned_data.h"
#include "train/sections.h"

namespace lockstep::train {

/// The task as a generative one. UsageError with its name if it cannot make samples.
Generative& generative(Task& task, const std::string& name);

/// The classes of the requested samples.
class SampleClasses {
 public:
  /// "3", "all", "none" or "auto" (all if the model has classes, otherwise none). UsageError, after `option`
  /// ("--class"), if the model does not have the class.
  SampleClasses(const std::string& text, const Model& model, std::string_view option);

  /// The class of sample i; -1: none.
  std::int64_t of(std::int64_t i) const { return one_ ? *one_ : all_ > 0 ? i % all_ : -1; }
  bool any() const { return one_ || all_ > 0; }
  /// UsageError that begins with "guidance" if these options guide towards a class, and there is none.
  void check_guidance(const SampleOptions& options) const;

 private:
  std::int64_t all_ = 0;
  std::optional<std::int64_t> one_;
};

/// The parts of sampling, which outlive the sampler.
struct SampledParts {
  comm::HostGroup& world;
  kernels::Backend& backend;
  Model& model;
  Generative& task;
};

/// Makes samples 0, 1, ... `count` - 1, the same bits at any number of ranks: each rank makes whole chunks,
/// which do not depend on the number of ranks.
class Sampler {
 public:
  /// Samples of a chunk.
  static constexpr std::int64_t chunk = 16;

  /// A conversion of a chunk of samples [N, C, H, W] to [N, ...], on the rank that makes it.
  using Through = std::function<Tensor(const Tensor& samples)>;
  Sampler(SampledParts parts, SampleOptions options, SampleClasses classes, std::int64_t count,
          Through through = {})
      : parts_(parts),
        options_(std::move(options)),
        classes_(classes),
        count_(count),
        through_(std::move(through)) {}

  /// Receives samples `first`, `first` + 1 ..., or their conversions: float32 [N, C, H, W] on the CPU.
  using Take = std::function<void(std::int64_t first, const Tensor& samples)>;
  /// `take` gets all samples in their order, on rank 0. `watch` acts after every evaluation of the network;
  /// false if it ended the work. Collective; the same error on every rank: errors of the task, `take` and
  /// `watch`, and UsageError for samples of another shape than [N, C, H, W].
  bool run(const Take& take, const EvaluationWatch& watch = {}) const;

  std::int64_t count() const { return count_; }
  /// [C, H, W] if the model defines it, otherwise empty.
  Shape known_shape() const {
    const Shape shape = parts_.model.sample_shape();
    return shape.rank() == 3 ? shape : Shape{};
  }
  const SampleClasses& classes() const { return classes_; }
  comm::HostGroup& world() const { return parts_.world; }

 private:
  Tensor make(std::int64_t first, std::int64_t rows, const std::function<void()>& progress) const;

  SampledParts parts_;
  SampleOptions options_;
  SampleClasses classes_;
  std::int64_t count_;
  Through through_;
};

/// The output of lockstep sample.
struct SampleFileOptions {
  std::string out;                    ///< ends with .png or .h5
  bool replace = false;               ///< an existing file
  std::vector<std::string> inputs{};  ///< files that are read, never replaced
  /// For a data file: the type and range of /x; none: float32, as returned by the task.
  std::optional<StoredRange> range{};
};

/// Writes the samples: FILE.png, a grid; or FILE.h5, a data file with /x in the type and form of the data
/// that the model was trained on, and /y, int64, the classes asked for, if any. The bytes depend on the model
/// and the options only. The file appears when it is complete; `requests` stop the work and leave no file
/// (ExitCode::preempted or user_stopped). Collective; the same error on every rank: UsageError if the file
/// may not be written or samples are no pictures, TrainingError if a sample is not finite.
ExitCode write_samples(Session& session, const Sampler& sampler, const SampleFileOptions& options,
                       StopRequests& requests);

/// The picture of samples; on rank 0.
struct SampledPicture {
  std::string png{};                            ///< a file's bytes; empty if a sample is not finite
  std::optional<std::int64_t> not_finite = {};  ///< the first sample that is not
};
/// All samples of a sampler as a grid. None, on every rank, if the watch ended it. Collective; errors are
/// those of Sampler::run, and UsageError if samples are not pictures.
std::optional<SampledPicture> picture_of(const Sampler& sampler, const EvaluationWatch& watch);

}  // namespace lockstep::train
