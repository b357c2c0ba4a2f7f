// Generative: a task whose model generates samples that look like its training data.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/models/model.h"

namespace lockstep {

/// The options of sampling.
struct SampleOptions {
  std::string sampler = "ddpm";  ///< or ddim, dpmpp_2m
  /// The steps that the sampler takes, in guided-diffusion's notation: "250", "ddim25", "10,15,20"; empty:
  /// all.
  std::string steps{};
  double eta = 0;  ///< of ddim: 0 is deterministic, 1 draws as much noise as ddpm
  /// Scale of classifier-free guidance: output = none + guidance (class - none); 1: no guidance.
  double guidance = 1;
  std::uint64_t seed = 1;          ///< noise is keyed by (seed, index of the sample, step)
  DType compute = DType::float32;  ///< Pass::compute

  static std::vector<Option<SampleOptions>> options();  ///< all but `compute`
};

/// A further interface of a Task whose model generates samples.
class Generative {
 public:
  virtual ~Generative() = default;

  /// Throws UsageError naming the option (by its name above) if the model cannot be sampled with these
  /// options: steps that do not fit the schedule, an unknown sampler, guidance without class_dropout's
  /// classes.
  virtual void check_sampling(const Model& model, const SampleOptions& options) const = 0;
  /// The number of network evaluations for a chunk, for progress.
  virtual std::int64_t sampling_steps(const SampleOptions& options) const = 0;
  /// Samples `first`, `first` + 1, ...: one for each entry of `classes`, -1 for no class. Float32 [N,
  /// channels, height, width] on the CPU, in [-1, 1]. A sample depends on its index, not on `first` or N.
  /// `progress` is called after every step.
  virtual Tensor sample(Model& model, kernels::Backend& backend, const SampleOptions& options,
                        std::int64_t first, std::span<const std::int64_t> classes,
                        const std::function<void()>& progress) = 0;
};

}  // namespace lockstep
