// ReverseProcess: from noise to images, with a network that was trained to remove noise.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/tasks/noise_schedule.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::tasks {

/// What the network estimates of an image with noise: the noise, the image, or
/// v = sqrt(alphas_cumprod) noise - sqrt(1 - alphas_cumprod) x0 (Salimans, Ho, 2022).
enum class Predict { eps, x0, v };
constexpr auto words(Predict) { return std::array{"eps", "x0", "v"}; }  ///< of a configuration
/// The variance of a denoising step: that of q(x_(t-1) | x_t, x0); beta; or interpolated between their
/// logarithms by a second half of the output's channels, -1 to 1.
enum class Variance { fixed_small, fixed_large, learned_range };
/// The words of a configuration.
constexpr auto words(Variance) { return std::array{"fixed_small", "fixed_large", "learned_range"}; }
/// The rule of a step: Ho, Jain, Abbeel, 2020; Song, Meng, Ermon, 2021; DPM-Solver++(2M) of Lu et al., 2022.
enum class Sampler { ddpm, ddim, dpmpp_2m };
constexpr auto words(Sampler) { return std::array{"ddpm", "ddim", "dpmpp_2m"}; }  ///< of a configuration

/// What the output of a network means. Without a learned variance it has the shape of the images; with one,
/// twice as many channels, of which the first half is the estimate.
struct Parametrization {
  Predict predict = Predict::eps;             ///< what is estimated
  Variance variance = Variance::fixed_large;  ///< of a denoising step
};

/// The options of a ReverseProcess.
struct SamplerOptions {
  Sampler sampler = Sampler::ddpm;  ///< which rule
  double eta = 0;                   ///< of ddim: how much of ddpm's noise
  bool clip = true;                 ///< estimates of the image are clamped to [-1, 1]
};

/// The logarithm of the variance of each denoising step; the bounds of its range if the variance is learned.
struct LogVariances {
  std::vector<double> low, high;  ///< by step; equal where the variance is not learned
};
/// The LogVariances of a schedule.
LogVariances log_variances(const NoiseSchedule& schedule, Variance variance);

/// The steps of a schedule in reverse. Computes in float32 on the CPU; images [N, C, ...].
class ReverseProcess {
 public:
  /// For the steps of a schedule. of: the meaning of the network's output.
  ReverseProcess(NoiseSchedule schedule, const Parametrization& of, const SamplerOptions& options = {})
      : schedule_(std::move(schedule)), of_(of), options_(options) {}

  /// The callbacks of a run.
  struct Parts {
    /// The network's output for images and a time, which is one of NoiseSchedule::timesteps: float32, plain,
    /// on the CPU.
    std::function<Tensor(const Tensor& x, std::int64_t timestep)> network;
    /// Fills the noise of a step, of the images' shape. Called for the steps whose rule takes noise.
    std::function<void(std::int64_t step, const Tensor& noise)> draw;
    std::function<void()> progress = {};  ///< called after every step; may be empty
  };
  /// Takes all steps. start: float32 on the CPU, noise of variance 1; it is not changed. Throws UsageError if
  /// the shape of the network's output does not fit the Parametrization.
  Tensor run(const Tensor& start, const Parts& parts) const;

  /// The estimate of the images from the output at step t, clamped if options.clip. All spans have the size
  /// of x; `output` excludes the half that is the variance.
  void estimate_x0(std::int64_t t, std::span<const float> x, std::span<const float> output,
                   std::span<float> x0) const;
  const NoiseSchedule& schedule() const { return schedule_; }  ///< the steps that are taken

 private:
  struct Rule;
  Rule rule_of(std::int64_t t, double width_before) const;

  NoiseSchedule schedule_;
  Parametrization of_;
  SamplerOptions options_;
};

}  // namespace lockstep::tasks
