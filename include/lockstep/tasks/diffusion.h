// Diffusion: learns to remove noise, and generates samples from noise.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/base/random.h"
#include "lockstep/tasks/diffusion_loss.h"
#include "lockstep/tasks/generative.h"
#include "lockstep/tasks/task.h"
#include "lockstep/tasks/time_sampler.h"

namespace lockstep::tasks {

/// Learns the images of field x, in [-1, 1], and their classes y if the model takes classes. The model reads
/// x with noise; t: float32 [N], the numbers of the noise steps; y; and has_class: uint8 [N], 0 where the
/// class is withheld. Every draw is keyed by seed, step, shard and sample; evaluations draw the same numbers
/// every time. Metrics: loss, and loss_q0 to loss_q3, the losses of the quarters of the steps.
/// A task of your own with another loss over the same noise derives from this one and overrides losses().
class Diffusion : public Task, public Generative {
 public:
  struct Options {
    static constexpr const char* section = "diffusion";  ///< of a configuration, for these keys
    std::string schedule = "linear";                     ///< or cosine
    std::int64_t steps = 1000;                           ///< of noise
    Predict predict = Predict::eps;                      ///< what the model estimates
    Variance variance = Variance::fixed_large;           ///< of a denoising step
    Objective loss = Objective::mse;                     ///< what is minimised
    double min_snr = 0;                                  ///< gamma of min-SNR weights; 0: none
    std::string time = "uniform";                        ///< or loss_second_moment
    double class_dropout = 0;                            ///< fraction of samples whose class is withheld

    static std::vector<Option<Options>> options();
  };
  /// Throws UsageError if the options do not fit each other.
  explicit Diffusion(const Options& options);

  std::vector<Metric> metrics() const override;
  void check(const Model& model, const data::Dataset& data) override;
  Loss loss(Tape& tape, Model& model, const Batch& batch) override;
  void evaluate(Evaluation& to, const Batch& batch, const Var& output) override;
  bool takes_unit_range() const override { return true; }
  std::size_t numbers_per_sample() const override { return times_ ? 2 : 0; }
  void take_numbers(std::vector<double>& to) override;
  void after_step(std::span<const double> numbers) override;
  std::vector<std::pair<std::string, Tensor>> state() override;

  void check_sampling(const Model& model, const SampleOptions& options) const override;
  std::int64_t sampling_steps(const SampleOptions& options) const override;
  Tensor sample(Model& model, kernels::Backend& backend, const SampleOptions& options, std::int64_t first,
                std::span<const std::int64_t> classes, const std::function<void()>& progress) override;

  const DiffusionLoss& objective() const { return loss_; }  ///< what is minimised

 protected:
  /// The losses of the samples, float32 [N], from the network's output. With L1, for example:
  /// mean(abs(to_float32(output) - objective().target(output.tape(), images)), {1, 2, 3}).
  virtual Var losses(const Var& output, const NoisedImages& images) const {
    return loss_.of(output, images).loss;
  }

 private:
  /// A pass of a step with loss_second_moment; passes of a step have different shards. A graph of the step
  /// writes to these tensors, so that they are kept.
  struct PassLosses {
    std::uint32_t shard = 0, shards = 1;
    bool of_step = false;
    Tensor t, losses;  ///< of its samples
  };

  void begin_step(std::uint64_t step, kernels::Backend& backend);
  PassLosses& pass_of(const Pass& pass, std::int64_t samples);
  void send_times();

  Options options_;
  Parametrization of_;
  DiffusionLoss loss_;
  Tensor t_, losses_;  // of the samples of the last pass of an evaluation

  // with loss_second_moment
  std::optional<LossSecondMoment> times_;
  kernels::Backend* backend_ = nullptr;  // of the tensors below
  Tensor sums_, weights_;                // of the times, on the device
  std::vector<double> sent_;             // the probabilities that these have
  std::vector<PassLosses> passes_;
  std::uint64_t step_ = 0;
  bool is_taken_ = true;  // the numbers of the step
};

}  // namespace lockstep::tasks
