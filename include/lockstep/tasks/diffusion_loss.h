// DiffusionLoss: what the training of a diffusion minimises (guided-diffusion's GaussianDiffusion, with v
// prediction and min-SNR weights).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/autograd/tape.h"
#include "lockstep/tasks/noise_schedule.h"
#include "lockstep/tasks/reverse_process.h"

namespace lockstep::tasks {

/// What is minimised, by sample. mse: the squared error of the estimate, and with a learned variance the
/// variational bound of the variance alone; rescaled_mse: the same, with the bound times steps / 1000; kl:
/// the bound, in bits per element.
enum class Objective { mse, rescaled_mse, kl };
constexpr auto words(Objective) { return std::array{"mse", "rescaled_mse", "kl"}; }  ///< of a configuration

/// Images of a batch, and the noise to add to them.
struct NoisedImages {
  Tensor x0;                        ///< float32 [N, C, ...], in [-1, 1]
  Tensor noise;                     ///< of the same shape, of variance 1
  std::span<const std::int64_t> t;  ///< [N] steps of the schedule
};

/// The loss of each sample, by operations that every device has. Computes in float32.
class DiffusionLoss {
 public:
  /// min_snr: the gamma of Hang et al., 2023, whose weights apply to the squared error; 0: none.
  DiffusionLoss(NoiseSchedule schedule, const Parametrization& of, Objective objective, double min_snr = 0);

  /// x_t, the network's input.
  Tensor noised(Tape& tape, const NoisedImages& images) const;

  /// Losses of the samples, float32 [N].
  struct Terms {
    Var loss;     ///< what is minimised
    Var mse, vb;  ///< its unweighted parts; absent if the objective has no such part
  };
  /// output: the network's result for noised(). UsageError if its shape does not fit the Parametrization.
  Terms of(const Var& output, const NoisedImages& images) const;
  /// The factor of a squared error at a step.
  double weight(std::int64_t t) const;

  const NoiseSchedule& schedule() const { return schedule_; }  ///< the steps that are learned

 private:
  struct Gaussian;
  Var squared_error(const Var& estimate, const NoisedImages& images) const;
  Var bound(const Var& estimate, const Var& output, const NoisedImages& images) const;

  NoiseSchedule schedule_;
  Parametrization of_;
  Objective objective_;
  double min_snr_;
  LogVariances log_variances_;
};

}  // namespace lockstep::tasks
