// DiffusionLoss: what the training of a diffusion minimises (guided-diffusion's GaussianDiffusion, with v
// prediction and min-SNR weights).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
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

/// Images of a batch, and the noise to add to them: on the device of the tape.
struct NoisedImages {
  Tensor x0;     ///< float32 [N, C, ...], in [-1, 1]
  Tensor noise;  ///< of the same shape, of variance 1
  Tensor t;      ///< int64 [N]: steps of the schedule
};

/// The loss of each sample, by operations that every device has. Computes in float32.
class DiffusionLoss {
 public:
  /// min_snr: the gamma of Hang et al., 2023, whose weights apply to the squared error; 0: none.
  DiffusionLoss(NoiseSchedule schedule, const Parametrization& of, Objective objective, double min_snr = 0);

  /// x_t, the network's input.
  Tensor noised(Tape& tape, const NoisedImages& images) const;
  /// float32 [N]: the numbers of the steps, as networks read them.
  Tensor timesteps(Tape& tape, const Tensor& t) const;

  /// What the network estimates, of the images' shape: the noise, the image, or v.
  Var target(Tape& tape, const NoisedImages& images) const;
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
  /// What depends on the step alone.
  enum class Factor : std::uint8_t {
    image,              // in the noised image: the root of alphas_cumprod
    noise,              // the root of the rest
    noised_in_x0,       // 1 / image
    noise_in_x0,        // noise / image
    x0_in_mean,         // of the posterior
    noised_in_mean,     // the same
    log_variance,       // of the posterior, also the lowest that is learned
    high_log_variance,  // of the prediction, the highest that is learned
    weight,             // of a squared error
    is_first,           // 1 at step 0
    timestep            // as networks read it
  };
  double value(Factor factor, std::int64_t t) const;
  Tensor at(Tape& tape, const Tensor& t, Factor factor) const;
  Var at(Tape& tape, const NoisedImages& images, Factor factor) const;
  Var bound(const Var& estimate, const Var& output, const NoisedImages& images) const;

  NoiseSchedule schedule_;
  Parametrization of_;
  Objective objective_;
  double min_snr_;
  LogVariances log_variances_;
  // By the backend that reads them, float32 [steps, 1]; graphs keep their addresses.
  mutable std::map<std::pair<kernels::Backend*, Factor>, Tensor> tables_;
};

}  // namespace lockstep::tasks
